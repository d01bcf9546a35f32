use std::collections::BTreeMap;

use super::{UnixSeconds, time};

/// One line of `sinfo`: one node in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SinfoLine {
    pub(crate) node: String,
    pub(crate) partition: String,
    pub(crate) state: String,
    pub(crate) since: Option<UnixSeconds>,
    pub(crate) reason: String,
}

/// A held (drained or down) node in the output of `sinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldNode {
    /// Its name in Slurm.
    pub name: String,
    /// Partitions of the node.
    pub partitions: Vec<String>,
    /// `drained`, `draining`, `down*`.
    pub state: String,
    /// When the reason was set.
    pub since: Option<UnixSeconds>,
    /// Its reason.
    pub reason: String,
}

pub(crate) fn held_nodes(lines: Vec<SinfoLine>) -> Vec<HeldNode> {
    let mut held: BTreeMap<String, HeldNode> = BTreeMap::new();
    for line in lines.into_iter().filter(|line| is_held(&line.state)) {
        let SinfoLine { node, partition, state, since, reason } = line;
        let name = node.clone();
        let entry =
            held.entry(node).or_insert(HeldNode { name, partitions: Vec::new(), state, since, reason });
        entry.partitions.push(partition);
    }
    held.into_values().collect()
}

/// Whether `%T` of sinfo is a held state: a reason on a node in any other state is left from an earlier drain.
pub(crate) fn is_held(state: &str) -> bool {
    ["drain", "down", "fail", "maint", "reboot"].iter().any(|held| state.starts_with(held))
}

/// sinfo's output format. The reason comes last since it may contain the separator.
pub(crate) const SINFO_FORMAT: &str = "%N|%P|%T|%H|%E";

pub(crate) fn sinfo_line(line: &str) -> Option<SinfoLine> {
    let mut fields = line.splitn(5, '|');
    let mut next = || fields.next().map(str::trim);
    Some(SinfoLine {
        node: next()?.to_owned(),
        // sinfo marks the default partition with `*`.
        partition: next()?.trim_end_matches('*').to_owned(),
        state: next()?.to_owned(),
        since: time(next()?),
        reason: next()?.to_owned(),
    })
}

/// sinfo's output format for the comments of all nodes. The fields have fixed width since a comment may contain any
/// separator.
pub(crate) const COMMENTS_FORMAT: &str = "NodeList:256,Comment:512";
const NAME_WIDTH: usize = 256;

/// Parses nodes and their comments.
pub(crate) fn comments(text: &[u8]) -> Vec<(String, String)> {
    let owned = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    text.split(|&byte| byte == b'\n')
        .filter_map(|line| line.split_at_checked(NAME_WIDTH))
        .map(|(name, comment)| (owned(name), owned(comment)))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_of_sinfo_are_parsed() {
        let line = sinfo_line("x1|main*|drained|2026-11-21T02:01:38|railgate: a: b|c [periodic]").unwrap();
        assert_eq!((line.node.as_str(), line.partition.as_str()), ("x1", "main"));
        assert_eq!(line.reason, "railgate: a: b|c [periodic]");
        assert_eq!(sinfo_line("x2|main*|idle|Unknown|none").unwrap().since, None);
        assert_eq!(sinfo_line("garbage"), None);
    }

    #[test]
    fn comments_of_nodes_are_parsed() {
        let text = format!("{:256}{:512}\n{:256}{:512}\nrest of a comment\n", "n1", "rack 7, |x", "n2", "");
        let pair = |node: &str, comment: &str| (node.to_owned(), comment.to_owned());
        assert_eq!(comments(text.as_bytes()), [pair("n1", "rack 7, |x"), pair("n2", "")]);
        assert_eq!(comments(b""), []);
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "(JobId=|NodeName=|Reason=|State=| |\\[|\\]|@|é|[a-z0-9:\\-T]){0,40}") {
            let _ = sinfo_line(&text);
        }
    }
}

//! Parser for `nccl.env`, which the prolog writes to the run's directory.
//!
//! ```text
//! railgate-nccl-env 1
//! default 2.30.7 - ib NCCL_IB_HCA==mlx5_0:1:0,mlx5_1:1:1
//! force 2.29.2 2.30.7 - NCCL_EXAMPLE=1
//! ```
//!
//! Each line: mode, first release, first release to which it no longer applies, network plugins separated by commas
//! (`-` in one of these three: no restriction), and the value. `default` sets a variable only if the user has not.

use std::ffi::CString;

const HEAD: &str = "railgate-nccl-env 1";
/// Longest file that is read.
pub(crate) const MOST_BYTES: usize = 64 << 10;
const MOST_ENTRIES: usize = 64;
/// Prefix of the variables that record the values set by railgate.
const RECORD: &str = "RAILGATE_SET_";

/// One value for some releases of NCCL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: CString,
    /// `RAILGATE_SET_` followed by the name.
    pub(crate) record: CString,
    pub(crate) value: CString,
    /// Whether it also replaces the user's value.
    pub(crate) force: bool,
    from: Option<[u8; 3]>,
    below: Option<[u8; 3]>,
    /// Empty: any network plugin.
    nets: Vec<String>,
}

impl Entry {
    /// Whether the entry applies to this NCCL release with the network plugin `net`.
    pub(crate) fn fits(&self, release: [u8; 3], net: Option<&[u8]>) -> bool {
        self.from.is_none_or(|from| release >= from)
            && self.below.is_none_or(|below| release < below)
            && (self.nets.is_empty()
                || net.is_some_and(|net| self.nets.iter().any(|have| have.as_bytes() == net)))
    }
}

/// Parses all entries. A file with one invalid line is rejected as a whole.
pub(crate) fn parse(text: &str) -> Option<Vec<Entry>> {
    let mut lines = text.lines();
    if text.len() > MOST_BYTES || lines.next() != Some(HEAD) {
        return None;
    }
    let entries: Vec<Entry> = lines.map(entry).collect::<Option<_>>()?;
    (entries.len() <= MOST_ENTRIES).then_some(entries)
}

fn entry(line: &str) -> Option<Entry> {
    let mut words = line.splitn(5, ' ');
    let force = match words.next()? {
        "default" => false,
        "force" => true,
        _ => return None,
    };
    let (from, below) = (bound(words.next()?)?, bound(words.next()?)?);
    let nets = match words.next()? {
        "-" => Vec::new(),
        names => names.split(',').map(str::to_owned).collect(),
    };
    let (name, value) = words.next()?.split_once('=')?;
    let named = name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    if !named || !value.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
        return None;
    }
    Some(Entry {
        name: CString::new(name).ok()?,
        record: CString::new(format!("{RECORD}{name}")).ok()?,
        value: CString::new(value).ok()?,
        force,
        from,
        below,
        nets,
    })
}

/// Parses a release; `-` is no bound. The outer `None`: not a release.
fn bound(word: &str) -> Option<Option<[u8; 3]>> {
    if word == "-" {
        return Some(None);
    }
    let mut numbers = word.split('.').map(|number| number.parse::<u8>().ok());
    let version = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(Some(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "railgate-nccl-env 1\n\
        default 2.30.7 - ib,sharp NCCL_IB_HCA==mlx5_0:1:0,mlx5_1:1:1\n\
        force 2.29.2 2.30.7 - NCCL_X=a b\n";

    #[test]
    fn entries_apply_to_their_releases_and_plugins() {
        let entries = parse(TEXT).unwrap();
        let (hca, x) = (&entries[0], &entries[1]);
        assert_eq!(hca.value.as_bytes(), b"=mlx5_0:1:0,mlx5_1:1:1");
        assert_eq!(hca.record.as_bytes(), b"RAILGATE_SET_NCCL_IB_HCA");
        assert_eq!((x.value.as_bytes(), x.force, hca.force), (&b"a b"[..], true, false));
        assert!(hca.fits([2, 30, 7], Some(b"ib")) && hca.fits([3, 0, 0], Some(b"sharp")));
        assert!(!hca.fits([2, 30, 6], Some(b"ib")) && !hca.fits([2, 31, 0], Some(b"ofi")));
        assert!(!hca.fits([2, 31, 0], None));
        assert!(x.fits([2, 29, 2], None) && x.fits([2, 30, 6], Some(b"ofi")));
        assert!(!x.fits([2, 30, 7], None) && !x.fits([2, 28, 9], None));
    }

    #[test]
    fn one_invalid_line_rejects_the_file() {
        for text in [
            "",
            "railgate-nccl-env 2\n",
            "railgate-nccl-env 1\nmaybe - - - A=1\n",
            "railgate-nccl-env 1\ndefault - - A=1\n",
            "railgate-nccl-env 1\ndefault 2.30 - - A=1\n",
            "railgate-nccl-env 1\ndefault 2.300.1 - - A=1\n",
            "railgate-nccl-env 1\ndefault 2.30.1.4 - - A=1\n",
            "railgate-nccl-env 1\ndefault - - - a=1\n",
            "railgate-nccl-env 1\ndefault - - - A\n",
            "railgate-nccl-env 1\ndefault - - - A=\u{7}\n",
            "railgate-nccl-env 1\n\n",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(parse("railgate-nccl-env 1\n"), Some(Vec::new()));
        let many = format!("railgate-nccl-env 1\n{}", "default - - - A=1\n".repeat(MOST_ENTRIES + 1));
        assert_eq!(parse(&many), None);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in ".{0,200}", tail in "(default|force|x) [-0-9.]{0,9} [-0-9.]{0,9} [-a-z,]{0,9} [ -~]{0,40}") {
            let _ = parse(&text);
            let _ = parse(&format!("{HEAD}\n{tail}\n"));
            let _ = parse(&format!("{HEAD}\n{tail}\n{text}"));
        }
    }
}

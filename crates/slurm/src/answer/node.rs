use super::{UnixSeconds, first, time};

/// State of a node in slurmctld.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// Its name in Slurm.
    pub name: String,
    /// Base state and flags, upper case: `IDLE`, `DRAIN`, `NOT_RESPONDING`.
    pub flags: Vec<String>,
    /// Partitions of the node.
    pub partitions: Vec<String>,
    /// The drain reason. Slurm may keep one from an earlier drain; [`NodeState::held`] decides whether it applies.
    pub reason: Option<NodeReason>,
    /// The node's `Comment`, empty if none.
    pub comment: String,
    /// Whether Slurm offers its GPUs to jobs (`Gres=gpu:…`); `None` if the output has no such field.
    pub gpus: Option<bool>,
    /// CPUs available to jobs.
    pub cpus: Option<u32>,
    /// When the node booted; `None` if slurmctld does not know it, as for a node that has not registered.
    pub boot: Option<UnixSeconds>,
    /// The reservation that it is in now: of several Slurm shows one. Slurm 22.05 shows none.
    pub reservation: Option<String>,
}

/// A drain reason, who set it and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReason {
    /// The text.
    pub text: String,
    /// User name, empty if unknown.
    pub user: String,
    /// When it was set.
    pub since: Option<UnixSeconds>,
}

impl NodeState {
    /// Whether a base state or flag is set.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|have| have == flag)
    }

    /// Whether no new job may start: drained, draining, down or failing.
    pub fn held(&self) -> bool {
        ["DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "FAILING"].iter().any(|flag| self.has(flag))
    }

    /// Whether the node is in a maintenance reservation or waits for a reboot that an admin requested; returns which.
    pub fn serviced(&self) -> Option<&'static str> {
        ["MAINT", "MAINTENANCE", "REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT"]
            .into_iter()
            .find(|flag| self.has(flag))
    }

    /// The state in Slurm's notation: `IDLE+DRAIN`.
    pub fn state(&self) -> String {
        self.flags.join("+")
    }
}

/// Parses `scontrol -o show node`.
pub(crate) fn node(line: &str) -> Result<NodeState, String> {
    // Free text comes only after these fields, so the first occurrence is Slurm's.
    let field = |key: &str| first(line, key).ok_or_else(|| format!("no {key} in the answer"));
    let state = field("State")?;
    Ok(NodeState {
        name: field("NodeName")?.to_owned(),
        flags: state
            .split('+')
            .map(|flag| {
                flag.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_').to_ascii_uppercase()
            })
            .collect(),
        partitions: first(line, "Partitions")
            .map(|list| list.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
        reason: line.split_once(" Reason=").map(|(_, rest)| node_reason(rest)),
        comment: comment(line).to_owned(),
        gpus: first(line, "Gres").map(has_gpus),
        cpus: first(line, "CPUEfctv").or_else(|| first(line, "CPUTot")).and_then(|count| count.parse().ok()),
        boot: first(line, "BootTime").and_then(time),
        reservation: reservation(line),
    })
}

/// Whether `gpu:h100:8(S:0-1),shard:16` or `(null)` has GPUs; a shard is part of a GPU.
fn has_gpus(gres: &str) -> bool {
    let name = |one: &str| matches!(one.split([':', '(']).next(), Some("gpu" | "shard" | "mps"));
    gres.split(',').any(name)
}

/// What can follow the comment: `Extra` is free text, too; the others are of newer releases.
const AFTER_COMMENT: [&str; 8] = [
    " Extra=",
    " InstanceId=",
    " InstanceType=",
    " ReservationName=",
    " TLSCertTokenSet=",
    " TLSCertLastRenewal=",
    " Topology=",
    " Parameters=",
];

/// What follows the reason, which is free text and may imitate a field.
fn after_reason(line: &str) -> &str {
    line.split_once(" Reason=").map_or(line, |(_, rest)| {
        let end = reason_end(rest).map_or(0, |(_, end)| end);
        &rest[end..]
    })
}

/// The comment, which follows the reason.
fn comment(line: &str) -> &str {
    let comment = after_reason(line).split_once(" Comment=").map_or("", |(_, comment)| comment);
    let end = AFTER_COMMENT.iter().filter_map(|key| comment.find(key)).min();
    comment[..end.unwrap_or(comment.len())].trim()
}

/// The reservation. The comment and `Extra`, which admins write, come before it and may imitate it.
fn reservation(line: &str) -> Option<String> {
    let (_, rest) = after_reason(line).rsplit_once(" ReservationName=")?;
    let name = rest.split(' ').next().unwrap_or_default();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Parses `text [user@time]`, which `Comment=` may follow.
fn node_reason(rest: &str) -> NodeReason {
    match reason_end(rest) {
        Some((reason, _)) => reason,
        None => NodeReason { text: rest.trim().to_owned(), user: String::new(), since: None },
    }
}

/// The reason up to its `[user@time]`, and the offset of its end.
fn reason_end(rest: &str) -> Option<(NodeReason, usize)> {
    for (at, _) in rest.match_indices(" [") {
        let (inside, _) = rest[at + 2..].split_once(']')?;
        if let Some((user, when)) = inside.rsplit_once('@')
            && let Some(since) = time(when)
        {
            let reason =
                NodeReason { text: rest[..at].to_owned(), user: user.to_owned(), since: Some(since) };
            return Some((reason, at + 2 + inside.len() + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // As printed by 22.05.8.
    const NODE: &str = "NodeName=x1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=0.45 \
        AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:4 NodeAddr=127.0.0.1 NodeHostName=vm Port=27821 \
        Version=22.05.8 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=1 AllocMem=0 FreeMem=22562 \
        Sockets=8 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A \
        Partitions=main,prio  BootTime=2026-11-21T01:36:02 CfgTRES=cpu=8,mem=1M,billing=8 AllocTRES= \
        CapWatts=n/a ExtSensorsTemp=n/s Reason=railgate: a@3: b; c [epilog job=5] [root@2026-11-21T02:01:38] \
        Comment=some c";

    #[test]
    fn the_reason_of_a_drained_node_is_parsed() {
        let node = node(NODE).unwrap();
        assert_eq!((node.name.as_str(), node.state().as_str()), ("x1", "IDLE+DRAIN"));
        assert!(node.held() && node.has("DRAIN") && node.serviced().is_none());
        assert_eq!(node.partitions, ["main", "prio"]);
        assert_eq!(node.gpus, Some(true));
        assert_eq!(node.cpus, Some(8));
        assert_eq!(node.boot, Some(1_795_224_962));
        let reason = node.reason.unwrap();
        assert_eq!(reason.text, "railgate: a@3: b; c [epilog job=5]");
        assert_eq!((reason.user.as_str(), reason.since), ("root", Some(1_795_226_498)));
    }

    #[test]
    fn the_comment_of_a_node_is_parsed() {
        let free = NODE.split(" Reason=").next().unwrap();
        for (end, want) in [
            ("", ""),
            (" Comment=", ""),
            (" Comment=rack 7; a=b", "rack 7; a=b"),
            (" Comment=rack 7 Extra={\"a\": 1}", "rack 7"),
            (" Comment=rack 7 ReservationName=maint Topology=default:leaf2", "rack 7"),
            (" Comment=rack 7  Topology=default:leaf2", "rack 7"),
            (" Topology=default:leaf2", ""),
            (" Reason=see Comment=this [root@2026-11-21T02:01:38] Comment=that", "that"),
            (" Reason=see Comment=this [root@2026-11-21T02:01:38]", ""),
        ] {
            assert_eq!(node(&format!("{free}{end}")).unwrap().comment, want, "{end}");
        }
        assert_eq!(node(NODE).unwrap().comment, "some c");
    }

    #[test]
    fn the_reservation_of_a_node_is_parsed() {
        let free = NODE.split(" Reason=").next().unwrap();
        for (end, want) in [
            ("", None),
            (" ReservationName=maint", Some("maint")),
            (" Comment=rack 7 ReservationName=maint Topology=default:leaf2", Some("maint")),
            (" Comment=see ReservationName=x Extra=y ReservationName=maint", Some("maint")),
            (" Reason=see ReservationName=x [root@2026-11-21T02:01:38]", None),
            (" ReservationName= Topology=default:leaf2", None),
        ] {
            let found = node(&format!("{free}{end}")).unwrap().reservation;
            assert_eq!(found.as_deref(), want, "{end}");
        }
    }

    #[test]
    fn gres_decides_whether_a_node_has_gpus() {
        for (gres, want) in [
            ("gpu:8", true),
            ("gpu:h100:8(S:0-1)", true),
            ("bandwidth:lustre:4G,gpu:2", true),
            ("shard:16", true),
            ("(null)", false),
            ("bandwidth:lustre:4G", false),
        ] {
            let answer = NODE.replace("Gres=gpu:4", &format!("Gres={gres}"));
            assert_eq!(node(&answer).unwrap().gpus, Some(want), "{gres}");
        }
        assert_eq!(node(&NODE.replace("Gres=gpu:4 ", "")).unwrap().gpus, None);
    }

    #[test]
    fn a_node_with_an_old_reason_is_not_held() {
        let idle = NODE.replace("IDLE+DRAIN", "IDLE*").split(" Reason=").next().unwrap().to_owned();
        let node = node(&idle).unwrap();
        assert!(!node.held() && node.reason.is_none() && node.has("IDLE"));
        let reboot = super::node(&idle.replace("IDLE*", "MIXED+REBOOT_REQUESTED")).unwrap();
        assert_eq!(reboot.serviced(), Some("REBOOT_REQUESTED"));
        assert!(super::node("slurm says hello").is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "(JobId=|NodeName=|Reason=|State=| |\\[|\\]|@|é|[a-z0-9:\\-T]){0,40}") {
            let _ = node(&text);
        }
    }
}

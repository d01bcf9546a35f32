//! Conditions of nodes, from the states that Slurm reports.

use std::collections::{BTreeMap, BTreeSet};

use railgate_alerts::{Condition, Priority};
use railgate_slurm::{NodeState, Reason, is_ours};

/// States in which a node does not answer because it is switched off, starts, or is not yet part of the cluster.
const NOT_STARTED: [&str; 7] =
    ["POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP", "FUTURE", "UNKNOWN"];

/// Makes a condition, P1, of each node that is down, does not respond, or was drained by railgate.
///
/// Nodes in a maintenance reservation, or with a reboot that an admin requested, have none: an admin works on them. An admin who
/// drained a node knows about it, too.
pub(crate) fn of_nodes(states: &[NodeState]) -> Vec<Condition> {
    states.iter().filter(|state| state.serviced().is_none()).filter_map(of_node).collect()
}

/// The reservation that each node is in.
pub(crate) fn reservations(states: &[NodeState]) -> BTreeMap<String, String> {
    let named = |state: &NodeState| Some((state.name.clone(), state.reservation.clone()?));
    states.iter().filter_map(named).collect()
}

fn of_node(state: &NodeState) -> Option<Condition> {
    let name = &state.name;
    let text = state.reason.as_ref().map_or("", |reason| reason.text.trim());
    let is_drained = state.held() && is_ours(text);
    let finding = Reason::parse(text).filter(|_| is_drained);
    let title = if is_drained {
        let rest = text.strip_prefix("railgate:").unwrap_or(text).trim();
        let what = finding.as_ref().map_or(rest, |reason| reason.subject.as_str());
        format!("{name} was drained by railgate: {what}")
    } else if NOT_STARTED.iter().any(|flag| state.has(flag)) {
        return None;
    } else if state.has("DOWN") {
        let why = if text.is_empty() { "no reason is set" } else { text };
        format!("{name} is down: {why}")
    } else if state.has("NOT_RESPONDING") {
        format!("{name} does not respond")
    } else {
        return None;
    };
    let mut details = format!("State in Slurm: {}.", state.state());
    if is_drained {
        details.push_str(&format!(" Reason: {text}"));
    }
    let check = finding.map(|reason| reason.subject.split('@').next().unwrap_or_default().to_owned());
    // Slurm keeps the reason of an earlier drain: its time counts only for a node that takes no jobs.
    let since = state.reason.as_ref().filter(|_| state.held()).and_then(|reason| reason.since);
    Some(Condition {
        key: format!("node/{name}"),
        priority: Priority::P1,
        title,
        details,
        check,
        nodes: BTreeMap::from([(name.clone(), BTreeSet::new())]),
        since: since.map(|seconds| seconds.saturating_mul(1000)),
    })
}

#[cfg(test)]
mod tests {
    use railgate_slurm::NodeReason;

    use super::*;

    fn state(flags: &str, reason: &str) -> NodeState {
        let reason =
            NodeReason { text: reason.to_owned(), user: "root".to_owned(), since: Some(1_800_000_000) };
        NodeState {
            name: "gn1".to_owned(),
            flags: flags.split('+').map(str::to_owned).collect(),
            partitions: Vec::new(),
            reason: Some(reason).filter(|reason| !reason.text.is_empty()),
            comment: String::new(),
            gpus: None,
            cpus: None,
            boot: None,
            reservation: None,
        }
    }

    #[test]
    fn nodes_that_are_down_or_drained_by_railgate_are_conditions() {
        let ours = "railgate: gpu-lost@3: 0000:9b:00.0 off bus, Xid 79; reboot [epilog job=48213]";
        for (flags, reason, title, check) in [
            ("DOWN+NOT_RESPONDING", "Not responding", Some("gn1 is down: Not responding"), None),
            ("DOWN", "", Some("gn1 is down: no reason is set"), None),
            ("IDLE+NOT_RESPONDING", "", Some("gn1 does not respond"), None),
            ("IDLE+DRAIN", ours, Some("gn1 was drained by railgate: gpu-lost@3"), Some("gpu-lost")),
            // An admin may have changed the reason.
            ("IDLE+DRAIN", "railgate: see ticket 7", Some("gn1 was drained by railgate: see ticket 7"), None),
            ("DOWN+DRAIN", ours, Some("gn1 was drained by railgate: gpu-lost@3"), Some("gpu-lost")),
            // The reason of an earlier drain.
            ("IDLE", ours, None, None),
            ("IDLE+DRAIN", "new fans", None, None),
            ("ALLOCATED", "", None, None),
            // An admin works on these.
            ("DOWN+MAINTENANCE", "Not responding", None, None),
            ("DOWN+REBOOT_REQUESTED+NOT_RESPONDING", "", None, None),
            // A node that is not started cannot answer.
            ("IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING", "", None, None),
            ("DOWN+POWERING_UP", "", None, None),
        ] {
            let found = of_nodes(&[state(flags, reason)]);
            assert_eq!(found.first().map(|found| found.title.as_str()), title, "{flags}");
            assert_eq!(found.first().and_then(|found| found.check.as_deref()), check, "{flags}");
        }
        let down = of_nodes(&[state("DOWN", "Not responding")]);
        let [condition] = down.as_slice() else { panic!("{down:?}") };
        assert_eq!((condition.key.as_str(), condition.priority), ("node/gn1", Priority::P1));
        assert_eq!((condition.since, condition.nodes.len()), (Some(1_800_000_000_000), 1));
    }
}

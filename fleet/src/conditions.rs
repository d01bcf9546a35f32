//! Conditions of nodes, and of jobs that hang together, from the states that Slurm reports.

use std::collections::{BTreeMap, BTreeSet};

use railgate_alerts::{Condition, Priority};
use railgate_model::UnixMillis;
use railgate_slurm::{HangNote, HangStage, NodeState, Reason, is_ours};

/// States in which a node does not answer because it is switched off, starts, or is not yet part of the cluster.
const NOT_STARTED: [&str; 7] =
    ["POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP", "FUTURE", "UNKNOWN"];

/// From so many jobs on, hangs have a common cause. `[guard] max_at_once` has the same default.
const TOGETHER: usize = 3;
/// Hangs that were named within this time of the last one are together, seconds.
const AT_ONCE: u64 = 600;
/// Most jobs that are listed.
const LISTED: usize = 10;

/// Makes a condition, P1, of each node that is down, does not respond, or was drained by railgate.
///
/// Nodes in a maintenance reservation, or with a reboot that an admin requested, have none: an admin works on them. An admin who
/// drained a node knows about it, too.
pub(crate) fn of_nodes(states: &[NodeState]) -> Vec<Condition> {
    states.iter().filter(|state| state.serviced().is_none()).filter_map(of_node).collect()
}

/// Makes one condition of all jobs that wait for storage, and one of jobs that began to hang within ten minutes of each other, by the comments of
/// the nodes. P0 from three jobs on; fewer jobs that hang are their owners' business. Nodes note only jobs that are to be ended if they hang.
pub(crate) fn of_hangs(states: &[NodeState], now: UnixMillis) -> Vec<Condition> {
    let notes: Vec<(&str, HangNote)> = states
        .iter()
        .flat_map(|state| HangNote::all(&state.comment).into_iter().map(|note| (state.name.as_str(), note)))
        .filter(|(_, note)| note.counts(now / 1000))
        .collect();
    let of = |stage: HangStage| notes.iter().copied().filter(move |(_, note)| note.stage == stage);
    let storage: Vec<_> = of(HangStage::Storage).collect();
    let last = of(HangStage::Hangs).map(|(_, note)| note.time).max().unwrap_or(0);
    let hangs: Vec<_> = of(HangStage::Hangs).filter(|(_, note)| last - note.time <= AT_ONCE).collect();
    let storage = together("hang/storage", ("job waits for storage", "jobs wait for storage"), &storage, 1);
    let hangs = together("hang/jobs", ("", "jobs began to hang within ten minutes"), &hangs, TOGETHER);
    storage.into_iter().chain(hangs).collect()
}

/// One condition of these jobs, if they are at least `fewest`.
fn together(
    key: &str,
    (one, many): (&str, &str),
    notes: &[(&str, HangNote)],
    fewest: usize,
) -> Option<Condition> {
    let jobs: BTreeSet<u32> = notes.iter().map(|(_, note)| note.job).collect();
    let count = jobs.len();
    if count < fewest {
        return None;
    }
    let mut listed: Vec<String> = jobs.iter().take(LISTED).map(u32::to_string).collect();
    if count > LISTED {
        listed.push(format!("{} more", count - LISTED));
    }
    Some(Condition {
        key: key.to_owned(),
        priority: if count >= TOGETHER { Priority::P0 } else { Priority::P1 },
        title: format!("{count} {}", if count == 1 { one } else { many }),
        details: format!("Jobs: {}. `railgate why JOB` has the evidence.", listed.join(", ")),
        check: None,
        nodes: notes.iter().map(|(node, _)| ((*node).to_owned(), BTreeSet::new())).collect(),
        since: notes.iter().map(|(_, note)| note.time * 1000).min(),
    })
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
    fn a_stall_of_the_storage_is_one_condition_of_all_its_jobs() {
        const NOW_S: u64 = 1_795_222_799;
        let node = |number: u32, stage: &str, time: &str| NodeState {
            name: format!("gn{number}"),
            comment: format!("railgate: hangs: {} {stage} 2026-11-21T{time}Z", 100 + number),
            ..state("ALLOCATED", "")
        };
        let found = |nodes: &[NodeState]| of_hangs(nodes, NOW_S * 1000);
        let one = found(&[node(1, "storage", "00:59:00")]);
        assert_eq!((one[0].title.as_str(), one[0].priority), ("1 job waits for storage", Priority::P1));
        let stall: Vec<NodeState> = (1..=500).map(|number| node(number, "storage", "00:58:00")).collect();
        let all = found(&stall);
        let [whole] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((whole.key.as_str(), whole.priority), ("hang/storage", Priority::P0));
        assert_eq!((whole.title.as_str(), whole.nodes.len()), ("500 jobs wait for storage", 500));
        assert!(whole.details.contains("109, 110, 490 more. `railgate why JOB`"), "{}", whole.details);
        // Two jobs that hang, or three over an hour, are no common cause; neither are those that were ended, or of hours ago.
        let two = [node(1, "hangs", "00:59:00"), node(2, "hangs", "00:58:00")];
        assert_eq!(found(&two), []);
        assert_eq!(found(&[&two[..], &[node(3, "hangs", "00:30:00")]].concat()), []);
        assert_eq!(found(&[&two[..], &[node(3, "ended", "00:59:00")]].concat()), []);
        let three = found(&[&two[..], &[node(3, "hangs", "00:50:00")]].concat());
        assert_eq!(three[0].title, "3 jobs began to hang within ten minutes");
        assert_eq!(
            found(&[node(1, "storage", "00:00:00"), node(2, "storage", "00:59:00")])[0].nodes.len(),
            2
        );
        assert_eq!(of_hangs(&stall, (NOW_S + 7200) * 1000), []);
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

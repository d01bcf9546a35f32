//! Events from the states of Slurm's nodes, compared with the states of the call before.

use std::collections::BTreeMap;

use railgate_fleet::{Drainer, Event, What};
use railgate_model::UnixMillis;
use railgate_slurm::{LemonReason, NodeState, Reason, is_ours};
use serde::{Deserialize, Serialize};

use crate::attempts::finding;
use crate::{by_root, is_node_name};

/// slurmctld computes the time of a boot from the time that a node has been up: it varies by seconds, seconds.
const BOOT_VARIES: u64 = 120;

/// Reasons that Slurm itself sets.
const OF_SLURM: &[&str] = &[
    "Not responding",
    "Node unexpectedly rebooted",
    "Prolog error",
    "Epilog error",
    "Kill task failed",
    "batch job complete failure",
    "Duplicate jobid",
    "Launch failure",
    "Low ",
    "gres/",
    "Reboot ",
];
const NO_ANSWER: &str = "Not responding";
const REBOOTED: &str = "Node unexpectedly rebooted";

/// The states of the call before.
pub(crate) type Nodes = BTreeMap<String, Seen>;

/// The stored part of a node's state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// When its events were made last: old events are deleted, and the history must keep knowing the node.
    made: UnixMillis,
    /// When it booted, Unix seconds.
    boot: Option<u64>,
    /// Why it takes no jobs; `None` if it does.
    hold: Option<Hold>,
    /// An admin asked for a reboot, or it is in a maintenance reservation.
    serviced: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hold {
    /// railgate's check and part, or the reason of others. The jobs that a reason names change while a node is drained.
    key: String,
    /// Unix seconds.
    since: u64,
    /// It was drained as a lemon. An admin may have changed the reason since.
    #[serde(default)]
    lemon: bool,
}

/// Takes over new states. Returns the events. `from`: the beginning of the history.
pub(crate) fn observe(
    known: &mut Nodes,
    states: &[NodeState],
    now: UnixMillis,
    from: UnixMillis,
) -> Vec<Event> {
    let mut events = Vec::new();
    for state in states.iter().filter(|state| is_node_name(&state.name)) {
        // slurmctld has just started and not heard of the node yet.
        if state.has("UNKNOWN") {
            continue;
        }
        let before = known.get(&state.name).cloned();
        let now = Call { state, now, from };
        let seen = now.seen(before.as_ref());
        now.changes(before.as_ref(), &seen, &mut events);
        known.insert(state.name.clone(), seen);
    }
    events
}

/// Takes over that a node was drained as a lemon just now: it can be resumed before the next call.
pub(crate) fn lemon_drained(known: &mut Nodes, node: &str, reason: &str, now: UnixMillis) -> Event {
    let since = now / 1000;
    let seen = known.entry(node.to_owned()).or_default();
    seen.hold = Some(Hold { key: reason.to_owned(), since, lemon: true });
    let what = What::Drained { node: node.to_owned(), by: Drainer::Railgate, reason: reason.to_owned() };
    by_root(format!("drain/{node}/{since}"), since * 1000, what)
}

/// Events that were made before this time are made again.
pub(crate) fn is_old(now: UnixMillis, from: UnixMillis) -> UnixMillis {
    from + now.saturating_sub(from) / 2
}

struct Call<'a> {
    state: &'a NodeState,
    now: UnixMillis,
    from: UnixMillis,
}

impl Call<'_> {
    fn reason(&self) -> &str {
        self.state.reason.as_ref().map_or("", |reason| reason.text.as_str())
    }

    /// Whether the events about the state are made again, with the same ids: half of the history's length after the last time.
    fn is_due(&self, before: Option<&Seen>) -> bool {
        before.is_none_or(|before| before.made < is_old(self.now, self.from))
    }

    fn seen(&self, before: Option<&Seen>) -> Seen {
        let hold = self.state.held().then(|| {
            let key = match Reason::parse(self.reason()) {
                Some(reason) => reason.subject,
                None => self.reason().to_owned(),
            };
            let since = self.state.reason.as_ref().and_then(|reason| reason.since);
            let since = since.unwrap_or(self.now / 1000).min(self.now / 1000);
            let same = before.and_then(|before| before.hold.clone()).filter(|hold| hold.key == key);
            let lemon = LemonReason::is(self.reason())
                || before.and_then(|before| before.hold.as_ref()).is_some_and(|hold| hold.lemon);
            same.unwrap_or(Hold { key, since, lemon })
        });
        let boot = self.state.boot.or(before.and_then(|before| before.boot));
        let made = before.filter(|_| !self.is_due(before)).map_or(self.now, |before| before.made);
        Seen { made, boot, hold, serviced: self.state.serviced().is_some() }
    }

    fn changes(&self, before: Option<&Seen>, seen: &Seen, events: &mut Vec<Event>) {
        let node = &self.state.name;
        let mut add = |id: String, seconds: u64, what: What| {
            // The history does not reach back to a drain of last year, and must know that the node is drained.
            events.push(by_root(id, seconds.saturating_mul(1000).max(self.from), what));
        };
        // A node on which nothing has happened belongs to the fleet, too: its hours of service count.
        let is_due = self.is_due(before);
        if is_due {
            let what = What::Placed { node: node.clone(), shares: Vec::new() };
            add(format!("known/{node}"), self.now / 1000, what);
        }
        let was = before.and_then(|before| before.hold.as_ref());
        let is_new = seen.hold.as_ref().filter(|hold| is_due || Some(*hold) != was);
        let unexpected = is_new.is_some() && self.reason().starts_with(REBOOTED);
        if let Some(boot) = seen.boot
            && (unexpected
                || before.and_then(|before| before.boot).is_some_and(|was| boot > was + BOOT_VARIES))
        {
            let planned = before.is_some_and(|before| before.serviced || before.hold.is_some());
            let expected = if unexpected { Some(false) } else { planned.then_some(true) };
            add(format!("reboot/{node}/{boot}"), boot, What::Rebooted { node: node.clone(), expected });
        }
        match (was, is_new) {
            (_, Some(hold)) => {
                let since = hold.since;
                if self.state.has("DOWN") && self.reason().starts_with(NO_ANSWER) {
                    return add(format!("down/{node}/{since}"), since, What::Down { node: node.clone() });
                }
                let reason = self.reason().to_owned();
                let what = What::Drained { node: node.clone(), by: self.drainer(), reason };
                add(format!("drain/{node}/{since}"), since, what);
                if let Some(reason) = Reason::parse(self.reason()) {
                    let what = What::Finding(finding(node, &reason.subject, None));
                    add(format!("finding/{node}/{since}/{}", reason.subject), since, what);
                }
            }
            (Some(was), None) if seen.hold.is_none() => {
                let what = What::Resumed { node: node.clone() };
                add(format!("resume/{node}/{}", was.since), self.now / 1000, what);
                if was.lemon {
                    let what = What::LemonResumed { node: node.clone() };
                    add(format!("lemon-resumed/{node}/{}", was.since), self.now / 1000, what);
                }
            }
            _ => {}
        }
    }

    fn drainer(&self) -> Drainer {
        if is_ours(self.reason()) {
            Drainer::Railgate
        } else if self.reason().is_empty() || OF_SLURM.iter().any(|own| self.reason().starts_with(own)) {
            Drainer::Slurm
        } else {
            Drainer::Admin
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_fleet::{Attempt, Grade, History, Outcome, Settings, Shared, SharedKind, judge};
    use railgate_slurm::NodeReason;

    use super::*;

    const T: u64 = 1_800_000_000;

    fn state(name: &str, flags: &str, reason: &str, since: u64) -> NodeState {
        NodeState {
            name: name.to_owned(),
            flags: flags.split('+').map(str::to_owned).collect(),
            partitions: Vec::new(),
            reason: (!reason.is_empty()).then(|| NodeReason {
                text: reason.to_owned(),
                user: "root".to_owned(),
                since: Some(since),
            }),
            comment: String::new(),
            gpus: Some(true),
            cpus: None,
            boot: Some(T - 1000),
            reservation: None,
        }
    }

    fn ids(known: &mut Nodes, states: &[NodeState], now: u64) -> Vec<String> {
        changes(known, states, now, 0).into_iter().map(|event| event.id).collect()
    }

    /// Without the events about new nodes.
    fn changes(known: &mut Nodes, states: &[NodeState], now: u64, from: u64) -> Vec<Event> {
        let events = observe(known, states, now * 1000, from).into_iter();
        events.filter(|event| !event.id.starts_with("known/")).collect()
    }

    #[test]
    fn a_node_on_which_nothing_happened_is_known() {
        let mut known = Nodes::new();
        let states = [state("n1", "IDLE", "", 0), state("no node", "IDLE", "", 0)];
        let first = observe(&mut known, &states, T * 1000, 0);
        assert_eq!((first.len(), first[0].id.as_str(), first[0].time), (1, "known/n1", T * 1000));
        assert!(observe(&mut known, &states, (T + 60) * 1000, 0).is_empty());
    }

    #[test]
    fn a_node_is_still_known_after_its_first_events_were_deleted() {
        let mut known = Nodes::new();
        let states = [state("n1", "IDLE+DRAIN", "new fans", T)];
        let first = observe(&mut known, &states, T * 1000, (T - 1000) * 1000);
        assert!(observe(&mut known, &states, (T + 400) * 1000, (T - 600) * 1000).is_empty());
        let again = observe(&mut known, &states, (T + 600) * 1000, (T - 400) * 1000);
        let ids = |events: &[Event]| events.iter().map(|event| event.id.clone()).collect::<Vec<String>>();
        assert_eq!(ids(&again), ids(&first));
        assert_eq!((again[0].time, again[1].time), ((T + 600) * 1000, T * 1000));
        assert!(observe(&mut known, &states, (T + 660) * 1000, (T - 340) * 1000).is_empty());
    }

    #[test]
    fn a_drain_of_railgate_is_a_finding_and_its_resume_ends_it() {
        let mut known = Nodes::new();
        assert!(ids(&mut known, &[state("n1", "IDLE", "", 0)], T).is_empty());
        let reason = |jobs: &str| format!("railgate: gpu-lost@3: off bus; reboot [epilog job={jobs}]");
        let drained = changes(&mut known, &[state("n1", "IDLE+DRAIN", &reason("5"), T + 5)], T + 60, 0);
        assert!(matches!(&drained[0].what, What::Drained { by: Drainer::Railgate, .. }));
        assert!(
            matches!(&drained[1].what, What::Finding(found) if found.check == "gpu-lost" && found.grade == Grade::Proof)
        );
        assert!(drained.iter().all(|event| event.time == (T + 5) * 1000));
        // Another job's id was added: the same drain.
        assert!(ids(&mut known, &[state("n1", "IDLE+DRAIN", &reason("5,6"), T + 30)], T + 120).is_empty());
        assert_eq!(ids(&mut known, &[state("n1", "IDLE", "", 0)], T + 180), ["resume/n1/1800000005"]);
    }

    /// Drains all nodes of a rack for this finding while a job fails on them, resumes them, and does it again after a week, four
    /// times. Returns the incidents, and the faults of all nodes.
    fn drained_together(finding: &str) -> (usize, usize) {
        const WEEK: u64 = 7 * 86_400;
        let mut known = Nodes::new();
        let rack = Shared { kind: SharedKind::Rack, name: "r1".to_owned() };
        let mut events: Vec<Event> = (0..30)
            .map(|node| {
                let shares = if node < 10 { vec![rack.clone()] } else { Vec::new() };
                by_root(format!("placed/{node}"), T * 1000, What::Placed { node: format!("n{node}"), shares })
            })
            .collect();
        let reason = format!("railgate: {finding} [periodic]");
        let states = |time: Option<u64>| -> Vec<NodeState> {
            let flags = if time.is_some() { "IDLE+DRAIN" } else { "IDLE" };
            let state = |node: u64| match time.filter(|_| node < 10) {
                Some(time) => state(&format!("n{node}"), flags, &reason, time + node),
                None => state(&format!("n{node}"), "IDLE", "", 0),
            };
            (0..30).map(state).collect()
        };
        let mut time = T;
        for job in 0..4 {
            let attempt = Attempt {
                job,
                attempt: 0,
                uid: 1000,
                partition: "gpu".to_owned(),
                nodes: (0..10).map(|node| format!("n{node}")).collect(),
                gpus: 80,
                queued: time * 1000,
                start: time * 1000,
                end: Some(((time + 90) * 1000, Outcome::Failed)),
            };
            events.push(by_root(format!("end/{job}"), (time + 90) * 1000, What::JobEnded(attempt)));
            events.extend(observe(&mut known, &states(None), time * 1000, T * 1000));
            events.extend(observe(&mut known, &states(Some(time + 30)), (time + 60) * 1000, T * 1000));
            events.extend(observe(&mut known, &states(None), (time + 7200) * 1000, T * 1000));
            time += WEEK;
        }
        let judgement = judge(&History::new(events, time * 1000), &Settings::default());
        let faults = judgement.nodes.iter().map(|record| record.faults + record.set_aside).sum();
        (judgement.incidents.len(), faults)
    }

    #[test]
    fn maintenance_by_a_cloud_provider_is_neither_a_fault_nor_an_incident() {
        let reason = "cloud-maintenance@azure: Reboot due 2026-12-01 10:00 UTC; resume after it";
        assert_eq!(drained_together(reason), (0, 0));
        for sign in ["clock: off by 3 s; start chronyd", "gpu-lost@3: off bus; reboot"] {
            let (incidents, faults) = drained_together(sign);
            assert!(faults >= 40, "{sign}: {incidents} incidents, {faults} faults");
        }
    }

    #[test]
    fn a_drain_as_a_lemon_is_no_finding_and_its_resume_begins_a_probation() {
        let mut known = Nodes::new();
        let reason =
            "railgate: lemon: 4 faults, 9.3 times the fleet's rate; see railgate fleet node n1 [fleet]";
        let drained = changes(&mut known, &[state("n1", "IDLE+DRAIN", reason, T + 5)], T + 60, 0);
        let [Event { what: What::Drained { by: Drainer::Railgate, .. }, .. }] = drained.as_slice() else {
            panic!("{drained:?}");
        };
        // An admin writes down what is done. The node stays drained.
        changes(&mut known, &[state("n1", "IDLE+DRAIN", "railgate: RMA 4711", T + 70)], T + 120, 0);
        let resumed = changes(&mut known, &[state("n1", "IDLE", "", 0)], T + 180, 0);
        let resumed_lemon = What::LemonResumed { node: "n1".to_owned() };
        assert_eq!(resumed.iter().filter(|event| event.what == resumed_lemon).count(), 1, "{resumed:?}");
        assert!(changes(&mut known, &[state("n1", "IDLE", "", 0)], T + 240, 0).is_empty());
    }

    #[test]
    fn a_lemon_that_is_resumed_before_the_next_reading_is_on_probation_too() {
        let mut known = Nodes::new();
        let idle = || [state("n1", "IDLE", "", 0)];
        changes(&mut known, &idle(), T, 0);
        let reason =
            "railgate: lemon: 4 faults, 9.3 times the fleet's rate; see railgate fleet node n1 [fleet]";
        let drained = lemon_drained(&mut known, "n1", reason, (T + 1) * 1000);
        let mut still = known.clone();
        assert!(matches!(&drained.what, What::Drained { by: Drainer::Railgate, .. }));
        let resumed: Vec<What> =
            changes(&mut known, &idle(), T + 60, 0).into_iter().map(|event| event.what).collect();
        let node = || "n1".to_owned();
        assert_eq!(resumed, [What::Resumed { node: node() }, What::LemonResumed { node: node() }]);
        // A second later in Slurm, and the same drain.
        let seen = changes(&mut still, &[state("n1", "IDLE+DRAIN", reason, T + 2)], T + 60, 0);
        assert!(seen.is_empty(), "{seen:?}");
    }

    #[test]
    fn only_nodes_that_slurm_shows_as_down_are_down() {
        let mut known = Nodes::new();
        let restarting =
            [state("n1", "UNKNOWN+NOT_RESPONDING", "", 0), state("n2", "IDLE+NOT_RESPONDING", "", 0)];
        assert!(ids(&mut known, &restarting, T).is_empty());
        let down = state("n1", "DOWN+NOT_RESPONDING", "Not responding", T + 9);
        let by_hand = state("n2", "DOWN", "new fans", T + 9);
        let events = changes(&mut known, &[down, by_hand], T + 60, 0);
        assert_eq!(events[0].what, What::Down { node: "n1".to_owned() });
        assert!(matches!(&events[1].what, What::Drained { by: Drainer::Admin, .. }));
        assert_eq!(events.len(), 2);
        // slurmctld starts again: the node is still down. A reason alone is no state.
        assert!(ids(&mut known, &[state("n1", "UNKNOWN+NOT_RESPONDING", "", 0)], T + 120).is_empty());
        let drained = changes(&mut known, &[state("n3", "IDLE+DRAIN", "Not responding", T)], T, 0);
        assert!(matches!(&drained[0].what, What::Drained { by: Drainer::Slurm, .. }));
    }

    #[test]
    fn a_reboot_is_expected_after_a_drain_and_unexpected_if_slurm_did_not_know_of_it() {
        let reboot = |before: NodeState, after: NodeState| {
            let mut known = Nodes::new();
            changes(&mut known, &[before], T, 0);
            let after = NodeState { boot: Some(T + 500), ..after };
            let events = changes(&mut known, &[after], T + 600, 0);
            events.into_iter().find_map(|event| match event.what {
                What::Rebooted { expected, .. } => Some((event.id, expected)),
                _ => None,
            })
        };
        let id = || "reboot/n1/1800000500".to_owned();
        let idle = || state("n1", "IDLE", "", 0);
        let drained = state("n1", "IDLE+DRAIN", "new fans", T);
        let asked = state("n1", "IDLE+REBOOT_REQUESTED", "", 0);
        let crashed = state("n1", "DOWN", "Node unexpectedly rebooted", T + 510);
        assert_eq!(reboot(idle(), idle()), Some((id(), None)));
        assert_eq!(reboot(drained, idle()), Some((id(), Some(true))));
        assert_eq!(reboot(asked, idle()), Some((id(), Some(true))));
        assert_eq!(reboot(idle(), crashed), Some((id(), Some(false))));
        let mut known = Nodes::new();
        observe(&mut known, &[idle()], T * 1000, 0);
        let drifted = NodeState { boot: Some(T - 990), ..idle() };
        assert!(changes(&mut known, &[drifted], T, 0).is_empty());
    }

    #[test]
    fn a_drain_before_the_history_begins_is_known() {
        let mut known = Nodes::new();
        let events = changes(&mut known, &[state("n1", "IDLE+DRAIN", "old", 5)], T, 77_000);
        assert_eq!((events.len(), events[0].time, events[0].id.as_str()), (1, 77_000, "drain/n1/5"));
    }
}

//! Histories of a few nodes.

use railgate_model::{Class, Severity, UnixMillis};

use crate::settings::{DAY, HOUR, MINUTE};
use crate::{
    Attempt, Blame, Card, Cause, Drainer, Event, Grade, History, Judgement, NodeFinding, Outcome, Reason,
    Settings, Shared, SharedKind, Source, Standing, What, judge,
};

mod confirmed;
mod money;
mod order;

/// 2026-11-26, a Thursday.
const T: UnixMillis = 1_795_651_200_000;

/// Events of a fleet of 64 nodes with two leaf switches, each node with one job of a day on each of 28 days.
struct Story {
    events: Vec<Event>,
    now: UnixMillis,
}

fn name(node: usize) -> String {
    format!("n{node:02}")
}

fn repaired(node: String) -> What {
    What::Maintained { node, repair: true, card: None, by: String::new(), why: String::new() }
}

impl Story {
    fn new() -> Story {
        let mut story = Story { events: Vec::new(), now: T + 28 * DAY };
        for node in 0..64 {
            let leaf = Shared { kind: SharedKind::Leaf, name: format!("leaf{}", node / 32) };
            let driver = Shared { kind: SharedKind::Driver, name: "580".to_owned() };
            story.add(T, What::Placed { node: name(node), shares: vec![leaf, driver] });
            let cards = (0..8).map(|card| Card { uuid: format!("GPU-{node}-{card}"), serial: String::new() });
            story.add(T, What::Cards { node: name(node), cards: cards.collect() });
        }
        // Each node has failed at most once: a fleet with a rate.
        for node in 40..50 {
            story.fault(node, T + (node as u64 - 39) * 2 * DAY, Some(0));
        }
        story
    }

    fn add(&mut self, time: UnixMillis, what: What) {
        self.add_from(Source::Root, time, what);
    }

    fn add_from(&mut self, source: Source, time: UnixMillis, what: What) {
        self.events.push(Event { id: format!("e{}", self.events.len()), time, source, what });
    }

    fn fault(&mut self, node: usize, time: UnixMillis, card: Option<usize>) {
        let card = card.map(|card| format!("GPU-{node}-{card}"));
        self.add(time, What::Finding(NodeFinding { card, ..finding(node, Cause::Gpu, Grade::Proof) }));
    }

    fn job(
        &mut self,
        job: u32,
        nodes: std::ops::Range<usize>,
        start: UnixMillis,
        end: UnixMillis,
        outcome: Outcome,
    ) {
        let attempt = attempt(job, nodes, start, Some((end, outcome)));
        self.add(end, What::JobEnded(attempt));
    }

    fn history(&self) -> History {
        History::new(self.events.iter().cloned(), self.now)
    }

    fn judge(&self) -> Judgement {
        judge(&self.history(), &Settings::default())
    }

    fn standing(&self, node: usize) -> Standing {
        self.judge().node(&name(node)).unwrap().standing
    }

    /// Why a job ended.
    fn blame(&self, job: u32) -> Blame {
        let history = self.history();
        let index = history.attempts().iter().position(|attempt| attempt.job == job).unwrap();
        judge(&history, &Settings::default()).blames[index].clone()
    }
}

fn finding(node: usize, cause: Cause, grade: Grade) -> NodeFinding {
    NodeFinding {
        node: name(node),
        check: "test".to_owned(),
        severity: Severity::Fail,
        class: Class::Node,
        cause,
        grade,
        card: None,
        leaf: None,
        accuser: None,
    }
}

fn attempt(
    job: u32,
    nodes: std::ops::Range<usize>,
    start: UnixMillis,
    end: Option<(UnixMillis, Outcome)>,
) -> Attempt {
    let gpus = u32::try_from(nodes.len() * 8).unwrap();
    let nodes = nodes.map(name).collect();
    Attempt {
        job,
        attempt: 0,
        uid: 1000 + job,
        partition: "train".to_owned(),
        nodes,
        gpus,
        queued: start,
        start,
        end,
    }
}

#[test]
fn a_failure_belongs_to_the_node_with_evidence_from_ten_minutes_before_to_five_after() {
    for (before, after, is_its) in [(9, 0, true), (0, 4, true), (11, 0, false), (0, 6, false)] {
        let mut story = Story::new();
        let end = T + 3 * DAY;
        story.job(7, 0..4, end - HOUR, end, Outcome::Failed);
        story.fault(2, end - before * MINUTE + after * MINUTE, None);
        let want = if is_its { Blame::Node { node: name(2), cause: Cause::Gpu } } else { Blame::Unknown };
        assert_eq!(story.blame(7), want, "{before} before, {after} after");
    }
}

#[test]
fn what_slurm_explains_is_no_failure_of_a_node() {
    for outcome in
        [Outcome::Completed, Outcome::Cancelled, Outcome::Timeout, Outcome::Preempted, Outcome::OutOfMemory]
    {
        let mut story = Story::new();
        let end = T + 3 * DAY;
        story.job(7, 0..4, end - HOUR, end, outcome);
        story.fault(2, end, None);
        assert_eq!(story.blame(7), Blame::NotANode, "{outcome:?}");
    }
}

#[test]
fn the_same_card_again_and_again_is_a_lemon() {
    let mut story = Story::new();
    for day in [3, 9, 15, 21] {
        story.fault(5, T + day * DAY, Some(1));
    }
    let judgement = story.judge();
    let record = judgement.node("n05").unwrap();
    assert!(record.standing == Standing::Lemon && record.proposes_drain(), "{record:?}");
    assert_eq!(record.proposal(false), "drain it after a self-test confirms a fault");
    assert!(record.proposal(true).starts_with("none: railgate-fleet drains it"), "{record:?}");
    assert!(
        record.ratio.low > 1.0
            && record.ratio.low < record.ratio.mean
            && record.ratio.mean < record.ratio.high
    );
    assert!(record.reasons[0].starts_with("4 faults in "), "{:?}", record.reasons);
    assert_eq!(record.reasons[1], "4 x GPU on card GPU-5-1");
    let lemons = judgement.nodes.iter().filter(|record| record.standing == Standing::Lemon).count();
    assert_eq!(lemons, 1);
}

#[test]
fn the_same_faults_in_ten_minutes_are_one() {
    let mut story = Story::new();
    for minute in 0..10 {
        story.fault(5, T + 3 * DAY + minute * MINUTE, Some(1));
    }
    let judgement = story.judge();
    assert_eq!(judgement.node("n05").unwrap().faults, 1);
    assert_eq!(story.standing(5), Standing::Ordinary);
}

#[test]
fn a_drained_node_has_one_fault_until_it_is_resumed() {
    let mut story = Story::new();
    for day in [3, 4, 5, 6] {
        story.fault(5, T + day * DAY, Some(1));
    }
    story.add(
        T + 3 * DAY + 2000,
        What::Drained { node: name(5), by: Drainer::Railgate, reason: String::new() },
    );
    let record = |story: &Story| story.judge().node("n05").unwrap().clone();
    assert!(record(&story).faults == 1 && record(&story).out_of_service);
    // The resume event of the fifth day was lost, and a job started.
    story.job(8, 5..6, T + 5 * DAY - HOUR, T + 5 * DAY - MINUTE, Outcome::Completed);
    assert!(record(&story).faults == 3 && !record(&story).out_of_service);
}

#[test]
fn a_job_that_takes_twenty_nodes_counts_once_and_against_itself() {
    let mut story = Story::new();
    for day in [3, 9, 15, 21] {
        let end = T + day * DAY;
        story.job(u32::try_from(day).unwrap(), 10..30, end - HOUR, end, Outcome::NodeFail);
        for node in 10..30 {
            story.add(end + (node as u64) * 1000, What::Down { node: name(node) });
        }
    }
    let judgement = story.judge();
    assert_eq!(judgement.incidents.len(), 4, "{:?}", judgement.incidents);
    assert_eq!(judgement.incidents[0].reason, Reason::Job { job: 3, attempt: 0 });
    assert_eq!(story.blame(3), Blame::Itself);
    for node in 10..30 {
        let record = judgement.node(&name(node)).unwrap();
        assert!(record.faults == 0 && record.set_aside == 4 && !record.proposes_drain(), "{record:?}");
    }
}

#[test]
fn a_job_that_takes_one_node_after_the_other_counts_against_itself() {
    let mut story = Story::new();
    for (attempt_number, node) in (10..16).enumerate() {
        let end = T + (attempt_number as u64 + 3) * DAY;
        let attempt_number = u32::try_from(attempt_number).unwrap();
        let attempt = attempt(77, node..node + 1, end - HOUR, Some((end, Outcome::NodeFail)));
        story.add(end, What::JobEnded(Attempt { attempt: attempt_number, ..attempt }));
        story.add(end + 1000, What::Down { node: name(node) });
    }
    assert_eq!(story.blame(77), Blame::Itself);
    assert_eq!(story.judge().node("n12").unwrap().faults, 0);
}

#[test]
fn proof_against_one_node_outweighs_signs_of_its_peers() {
    let mut story = Story::new();
    let end = T + 3 * DAY;
    story.job(7, 0..4, end - HOUR, end, Outcome::Failed);
    for node in 0..4 {
        let grade = if node == 2 { Grade::Proof } else { Grade::Sign };
        story.add(end + 1000, What::Finding(finding(node, Cause::Gpu, grade)));
    }
    assert_eq!(story.blame(7), Blame::Node { node: name(2), cause: Cause::Gpu });
    let judgement = story.judge();
    assert_eq!(judgement.node("n02").unwrap().faults, 1);
    assert_eq!(judgement.node("n03").unwrap().faults, 0);
}

#[test]
fn an_accused_peer_is_not_the_culprit() {
    let mut story = Story::new();
    for day in 3..20 {
        let end = T + day * DAY;
        story.job(u32::try_from(day).unwrap(), 0..2, end - HOUR, end, Outcome::Failed);
        let accused = finding(1, Cause::Network, Grade::Proof);
        story.add(end, What::Finding(NodeFinding { accuser: Some(name(0)), ..accused }));
    }
    let judgement = story.judge();
    assert_eq!(judgement.node("n01").unwrap().faults, 0);
    assert_eq!(story.blame(3), Blame::Unknown);
}

#[test]
fn what_users_own_does_not_count_against_nodes() {
    let mut story = Story::new();
    for day in 3..20 {
        story.add_from(Source::User, T + day * DAY, What::Finding(finding(1, Cause::Gpu, Grade::Proof)));
        story.add_from(Source::User, T + day * DAY, What::Down { node: name(1) });
    }
    assert_eq!(story.history().forged(), 34);
    assert_eq!(story.judge().node("n01").unwrap().faults, 0);
}

#[test]
fn hearsay_warnings_and_findings_of_other_classes_are_no_faults() {
    let mut story = Story::new();
    let fault = finding(1, Cause::Gpu, Grade::Proof);
    for (hour, finding) in [
        NodeFinding { grade: Grade::Hearsay, ..fault.clone() },
        NodeFinding { severity: Severity::Warn, ..fault.clone() },
        NodeFinding { severity: Severity::Unknown, ..fault.clone() },
        NodeFinding { class: Class::User, ..fault.clone() },
        NodeFinding { class: Class::Site, ..fault.clone() },
        // A single sign without the end of a job.
        NodeFinding { grade: Grade::Sign, ..fault.clone() },
    ]
    .into_iter()
    .enumerate()
    {
        story.add(T + DAY + hour as u64 * 3 * HOUR, What::Finding(finding));
    }
    assert_eq!(story.judge().node("n01").unwrap().faults, 0);
    story.add(T + DAY + 15 * HOUR + MINUTE, What::Finding(NodeFinding { grade: Grade::Sign, ..fault }));
    assert_eq!(story.judge().node("n01").unwrap().faults, 1);
}

fn leaf_fails(story: &mut Story, at: UnixMillis) {
    for node in 0..30 {
        let port = NodeFinding { class: Class::Fabric, ..finding(node, Cause::Network, Grade::Proof) };
        story.add(at + node as u64 * 10_000, What::Finding(port));
    }
}

#[test]
fn a_leaf_switch_is_one_incident_and_no_drains() {
    let mut story = Story::new();
    let at = T + 20 * DAY;
    leaf_fails(&mut story, at);
    story.job(7, 0..64, at - HOUR, at + MINUTE, Outcome::Failed);
    let judgement = story.judge();
    let [incident] = &judgement.incidents[..] else { panic!("{:?}", judgement.incidents) };
    assert_eq!(incident.reason, Reason::Shared(Shared { kind: SharedKind::Leaf, name: "leaf0".to_owned() }));
    assert_eq!((incident.nodes.len(), incident.of, incident.cause), (30, 32, Cause::Network));
    assert_eq!((incident.start, incident.end), (at, Some(at + 290_000)));
    assert_eq!(incident.what, "30 of 32 nodes of leaf switch leaf0 failed: network");
    assert_eq!(story.blame(7), Blame::Incident { incident: 0 });
    assert!(judgement.nodes.iter().all(|record| !record.proposes_drain()));
    // While it lasts.
    story.now = at + 10 * MINUTE;
    let open = story.judge();
    assert!(open.incidents[0].end.is_none() && open.node("n03").unwrap().in_incident);
}

#[test]
fn the_judgement_has_each_fault_and_whether_it_counts() {
    let mut story = Story::new();
    leaf_fails(&mut story, T + 20 * DAY);
    story.add(T + 27 * DAY, What::Drained { node: name(7), by: Drainer::Admin, reason: String::new() });
    let (history, judgement) = (story.history(), story.judge());
    let (counted, aside): (Vec<_>, Vec<_>) = judgement.faults.iter().partition(|fault| fault.counts);
    assert_eq!((counted.len(), aside.len()), (10, 30), "{:?}", judgement.faults);
    assert_eq!((counted[0].node.as_str(), counted[0].cause), ("n40", Cause::Gpu));
    assert!(aside.iter().all(|fault| fault.cause == Cause::Network));
    assert!(judgement.faults.is_sorted_by_key(|fault| (fault.time, &fault.node)));
    assert_eq!(history.service("n07"), Some((T, &[(T + 27 * DAY, T + 28 * DAY)][..])));
    assert_eq!(history.service("n08"), Some((T, &[][..])));
    assert!(history.service("absent").is_none() && history.begin() == T);
}

#[test]
fn two_failures_at_once_are_not_one_of_the_image() {
    let mut story = Story::new();
    for node in 0..64 {
        let image = Shared { kind: SharedKind::Image, name: "image-7".to_owned() };
        story.add(T, What::Placed { node: name(node), shares: vec![image] });
    }
    let at = T + 20 * DAY;
    leaf_fails(&mut story, at);
    for node in 30..64 {
        story.add(at + node as u64 * 5000, What::Finding(finding(node, Cause::Gpu, Grade::Proof)));
    }
    let judgement = story.judge();
    let reasons: Vec<&Reason> = judgement.incidents.iter().map(|incident| &incident.reason).collect();
    let shared = |kind, name: &str| Reason::Shared(Shared { kind, name: name.to_owned() });
    assert_eq!(reasons, [&shared(SharedKind::Leaf, "leaf0"), &shared(SharedKind::Driver, "580")]);
}

#[test]
fn a_lemon_in_an_open_incident_is_not_proposed_until_it_ends() {
    let mut story = Story::new();
    for day in [3, 9, 15] {
        story.fault(5, T + day * DAY, Some(1));
    }
    let at = T + 20 * DAY;
    leaf_fails(&mut story, at);
    story.now = at + 30 * MINUTE;
    let record = story.judge().node("n05").unwrap().clone();
    assert!(record.standing == Standing::Lemon && !record.proposes_drain(), "{record:?}");
    story.now = at + 3 * HOUR;
    assert!(story.judge().node("n05").unwrap().proposes_drain());
}

/// A record of work before the history began would otherwise make days of service without a fault.
#[test]
fn other_work_on_a_node_changes_no_figure() {
    let mut story = Story::new();
    story.fault(5, T + 3 * DAY, Some(1));
    let before = story.judge();
    let work =
        |node| What::Maintained { node, repair: false, card: None, by: String::new(), why: String::new() };
    story.add(T - 20 * DAY, work(name(5)));
    story.add(T + 10 * DAY, work(name(6)));
    assert_eq!(story.judge(), before);
}

#[test]
fn a_repaired_node_is_on_probation_and_the_same_fault_ends_it() {
    let mut story = Story::new();
    for day in [3, 9, 15] {
        story.fault(5, T + day * DAY, Some(1));
    }
    story.add(T + 22 * DAY, repaired(name(5)));
    let judgement = story.judge();
    let record = judgement.node("n05").unwrap();
    assert_eq!((record.standing, record.faults), (Standing::Probation, 0));
    assert_eq!(record.reasons, ["repaired 6.0 days ago, on probation: 144 of 168 h without a fault"]);
    let good = story.events.len();
    story.fault(5, T + 24 * DAY, Some(1));
    let judgement = story.judge();
    let record = judgement.node("n05").unwrap();
    assert_eq!((record.standing, record.faults), (Standing::Lemon, 4));
    assert!(
        record.reasons.iter().any(|reason| reason.contains("the fault came back")),
        "{:?}",
        record.reasons
    );
    story.events.truncate(good);
    story.now = T + 30 * DAY;
    assert_eq!(story.standing(5), Standing::Ordinary);
}

#[test]
fn a_lemon_that_was_drained_and_resumed_is_on_probation() {
    let mut story = Story::new();
    for day in [3, 9, 15] {
        story.fault(5, T + day * DAY, Some(1));
    }
    assert!(story.judge().node("n05").unwrap().proposes_drain());
    let drained = What::Drained { node: name(5), by: Drainer::Railgate, reason: String::new() };
    story.add(T + 20 * DAY, drained);
    assert!(!story.judge().node("n05").unwrap().proposes_drain(), "it is drained");
    story.add(T + 22 * DAY, What::Resumed { node: name(5) });
    assert!(
        story.judge().node("n05").unwrap().proposes_drain(),
        "an ordinary drain and resume do not clear its faults"
    );
    story.add(T + 22 * DAY, What::LemonResumed { node: name(5) });
    let judgement = story.judge();
    let record = judgement.node("n05").unwrap();
    assert_eq!((record.standing, record.proposes_drain()), (Standing::Probation, false));
    let said = "resumed after a drain as a lemon 6.0 days ago, on probation: 144 of 168 h without a fault";
    assert_eq!(record.reasons, [said]);
}

#[test]
fn the_history_of_a_card_follows_it_into_another_node() {
    let mut story = Story::new();
    for day in [3, 8, 13, 18] {
        story.fault(5, T + day * DAY, Some(1));
    }
    let cards = |node: usize, slot: usize, other: &str| {
        let own =
            (0..8).map(|card| if card == slot { other.to_owned() } else { format!("GPU-{node}-{card}") });
        own.map(|uuid| Card { uuid, serial: String::new() }).collect()
    };
    story.add(T + 22 * DAY, What::Cards { node: name(5), cards: cards(5, 1, "GPU-new") });
    assert_eq!(story.standing(5), Standing::Probation);
    story.add(T + 24 * DAY, What::Cards { node: name(9), cards: cards(9, 4, "GPU-5-1") });
    let judgement = story.judge();
    let record = judgement.node("n09").unwrap();
    assert_eq!((record.standing, record.faults), (Standing::Lemon, 4));
    assert!(
        record.reasons.contains(&"4 faults came with a card from n05".to_owned()),
        "{:?}",
        record.reasons
    );
    assert_eq!(judgement.node("n05").unwrap().faults, 0);
    // The list of the first node was lost: a card is where it was seen last.
    let at = T + 22 * DAY;
    story.events.retain(|event| event.time != at);
    let judgement = story.judge();
    assert_eq!(judgement.node("n09").unwrap().faults, 4);
    assert_eq!(judgement.node("n05").unwrap().faults, 0);
}

#[test]
fn a_node_without_an_hour_of_service_is_unknown() {
    let mut story = Story::new();
    story.add(story.now, What::Placed { node: "new".to_owned(), shares: Vec::new() });
    assert_eq!(story.judge().node("new").unwrap().standing, Standing::Unknown);
    let nothing = judge(&History::new([], T), &Settings::default());
    assert!(nothing.nodes.is_empty() && nothing.incidents.is_empty() && nothing.blames.is_empty());
}

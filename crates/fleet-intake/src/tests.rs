use std::collections::BTreeMap;

use railgate_fleet::{
    Event, Grade, History, Outcome, Settings, Shared, SharedKind, Source, What, costs, judge,
};
use railgate_model::{Class, Severity};
use railgate_node_report::application::RankApplication;
use railgate_node_report::testing::{decision, finding, job, part};
use railgate_node_report::{
    Application, Decision, DecisionKind, DecisionNode, EvidenceItem, LaunchStart, Launched, NodeReport,
    SlurmEnd, SlurmView,
};
use railgate_slurm::{Appended, Blamed, Entry, Event as Happened};
use railgate_store::{Scanned, ScannedAttempt};

use crate::Intake;

const SLURM: u32 = 64_030;
const TRUSTED: &[u32] = &[0, SLURM];
const OWNER: u32 = 1000;
const START: u64 = 1_800_000_000_000;
const END: u64 = START + 7_200_000;

fn slurm_end(state: &str) -> SlurmEnd {
    SlurmEnd {
        schema: 1,
        cluster: "alpha".to_owned(),
        job: 7,
        attempt: 0,
        time: END + 60_000,
        slurm: SlurmView {
            state: state.to_owned(),
            start: Some(START),
            end: Some(END),
            nodelist: "n[1-2]".to_owned(),
            ..SlurmView::default()
        },
        ..SlurmEnd::default()
    }
}

fn report(node: &str) -> NodeReport {
    let mut of = job(0..8);
    (of.id, of.uid) = (7, OWNER);
    let mut report = part(node, &of, "", Vec::new(), 0);
    (report.job, report.attempt, report.node) = (of, 0, node.to_owned());
    report.application = Some(Application {
        ranks: vec![RankApplication {
            last_step: Some(END - 60_000),
            start_up_s: 300.0,
            ..RankApplication::default()
        }],
        ..Application::default()
    });
    report
}

fn attempt(end: Option<(SlurmEnd, u32)>, nodes: Vec<(NodeReport, u32)>) -> ScannedAttempt {
    ScannedAttempt { job: 7, attempt: 0, owner: OWNER, end, decision: None, nodes }
}

fn events(intake: &Intake, attempt: ScannedAttempt) -> Vec<Event> {
    intake.attempts(&Scanned { attempts: vec![attempt], ..Scanned::default() }, TRUSTED)
}

fn ids(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.id.as_str()).collect()
}

/// A report of the owner with a finding about a node, and everything else that could harm others.
fn forged(node: &str) -> NodeReport {
    let fault = finding("gpu-lost", "0", Severity::Fail, Class::Node, "off bus");
    let mut forged = report(node);
    forged.evidence =
        vec![EvidenceItem { finding: fault, time: Some(5), device: String::new(), own: Some(true) }];
    forged.launched = Some(Launched {
        restarts: 9,
        starts: [0, 5, END + 1]
            .map(|began| LaunchStart { number: 1, began, ..LaunchStart::default() })
            .into(),
    });
    forged
}

#[test]
fn the_end_of_an_attempt_is_slurms_and_its_progress_is_the_owners() {
    let reports = vec![(report("n1"), OWNER), (report("n2"), OWNER)];
    let all = events(&Intake::default(), attempt(Some((slurm_end("COMPLETED"), SLURM)), reports));
    assert_eq!(ids(&all), ["end/7/0/2-slurm/000016", "progress/7/0"]);
    let What::JobEnded(ended) = &all[0].what else { panic!("{all:?}") };
    assert_eq!((ended.uid, ended.gpus, ended.nodes.len()), (OWNER, 16, 2));
    assert_eq!(ended.end, Some((END, Outcome::Completed)));
    assert_eq!((all[0].source, all[1].source), (Source::Root, Source::User));
    let history = History::new(all, END + 1);
    let cost = &costs(&history, &Settings::default())[0];
    assert!(cost.reported && cost.productive_hours.low > 1.8, "{cost:?}");
}

#[test]
fn a_record_of_an_end_or_a_decision_that_the_owner_wrote_does_not_count() {
    let mut of_owner = attempt(Some((slurm_end("NODE_FAIL"), OWNER)), vec![(forged("n1"), OWNER)]);
    of_owner.decision = Some((with_reason("n1"), OWNER));
    assert_eq!(ids(&events(&ledger_of(60), of_owner)), Vec::<&str>::new());
}

#[test]
fn a_forged_report_changes_only_the_cost_of_its_owner() {
    let end = || Some((slurm_end("FAILED"), SLURM));
    let honest = events(&Intake::default(), attempt(end(), vec![(report("n1"), OWNER)]));
    // About another node, by another user, in the name of another user, of a node that was not in the job.
    let mut others_name = forged("n2");
    others_name.job.uid = 2000;
    let mut far = forged("n2");
    far.node = "n99".to_owned();
    let forgeries = vec![(forged("n1"), OWNER), (forged("n2"), 2000), (others_name, OWNER), (far, OWNER)];
    let forged = events(&Intake::default(), attempt(end(), forgeries));
    assert!(forged.iter().all(|event| !matches!(event.what, What::Finding(_) | What::Cards { .. })));
    assert!(forged.iter().all(|event| event.time >= START), "a time before the history: {forged:?}");
    assert!(
        forged.iter().all(|event| event.source == Source::Root || !matches!(event.what, What::JobEnded(_)))
    );
    let judged = |events: Vec<Event>| {
        let history = History::new(events, END + 3_600_000);
        assert_eq!(history.forged(), 0);
        let judgement = judge(&history, &Settings::default());
        (judgement.nodes, judgement.incidents, judgement.blames)
    };
    assert_eq!(judged(forged), judged(honest));
}

#[test]
fn a_report_that_root_keeps_is_evidence_with_its_card() {
    let mut kept = report("n1");
    let fault = finding("gpu-ecc", "1", Severity::Fail, Class::Node, "uncorrected errors");
    let pci = kept.gpus[1].pci.known().unwrap().to_string();
    kept.evidence = vec![EvidenceItem { finding: fault, time: Some(END - 5), device: pci, own: Some(true) }];
    let uuid = kept.gpus[1].uuid.known().cloned();
    let all = events(&Intake::default(), attempt(None, vec![(kept, 0)]));
    let [cards, found] = &all[..] else { panic!("{all:?}") };
    assert!(matches!(&cards.what, What::Cards { cards, .. } if cards.len() == 8));
    let What::Finding(found) = &found.what else { panic!("{found:?}") };
    assert!(uuid.is_some() && found.card == uuid && found.grade == Grade::Proof, "{found:?}");
}

fn with_reason(node: &str) -> Decision {
    let about = DecisionNode {
        node: node.to_owned(),
        state: "IDLE+DRAIN".to_owned(),
        reason: "railgate: gpu-lost@3: off bus; reboot [epilog job=7]".to_owned(),
        evidence: true,
        source: "drain reason".to_owned(),
    };
    let by_report = DecisionNode { node: "n2".to_owned(), source: "report".to_owned(), ..about.clone() };
    Decision {
        job: 7,
        time: END,
        nodelist: "n[1-2]".to_owned(),
        nodes: vec![about, by_report],
        state: Some("FAILED".to_owned()),
        ..decision(0, DecisionKind::Requeued, 256)
    }
}

fn ledger_of(ran_s: u64) -> Intake {
    let mut intake = Intake::default();
    let lines = Appended { entries: vec![line(Happened::Death, "gpu-lost@3", ran_s)], ..Appended::default() };
    intake.ledger(&lines);
    intake
}

fn line(event: Happened, subject: &str, ran_s: u64) -> Entry {
    let blamed = Blamed { node: "n1".to_owned(), subject: subject.to_owned(), part: "GPU-1".to_owned() };
    let other = Blamed { node: "no node".to_owned(), ..blamed.clone() };
    Entry {
        schema: 1,
        time: END,
        event,
        job: 7,
        name: "7".to_owned(),
        attempt: 0,
        ran_s: Some(ran_s),
        blamed: vec![blamed, other],
        why: String::new(),
        uid: Some(OWNER),
    }
}

#[test]
fn a_requeued_attempt_has_its_end_from_the_decision_and_its_start_from_the_ledger() {
    let mut decided = attempt(None, vec![(report("n1"), OWNER)]);
    decided.decision = Some((with_reason("n1"), SLURM));
    let all = events(&ledger_of(7200), decided.clone());
    assert_eq!(
        ids(&all),
        ["end/7/0/1-decision/000008", "decision/7/0/n1/gpu-lost@3", "progress/7/0"],
        "a report is no drain reason"
    );
    let What::JobEnded(ended) = &all[0].what else { panic!("{all:?}") };
    assert_eq!((ended.start, ended.end), (START, Some((END, Outcome::Failed))));
    let judgement = judge(&History::new(all, END + 1), &Settings::default());
    assert!(matches!(&judgement.blames[0], railgate_fleet::Blame::Node { node, .. } if node == "n1"));
    // Without the ledger the start is unknown, and so is the attempt.
    assert_eq!(ids(&events(&Intake::default(), decided)), ["decision/7/0/n1/gpu-lost@3"]);
}

#[test]
fn slurms_record_counts_rather_than_the_decision() {
    let mut both = attempt(Some((slurm_end("NODE_FAIL"), SLURM)), Vec::new());
    both.decision = Some((with_reason("n1"), SLURM));
    let mut all = events(&ledger_of(60), both);
    for _ in 0..2 {
        all.reverse();
        let history = History::new(all.clone(), END + 1);
        assert_eq!(history.attempts()[0].end, Some((END, Outcome::NodeFail)));
    }
}

#[test]
fn blamed_parts_of_the_ledger_are_hearsay_and_a_node_that_was_down_is_not() {
    let lines = [line(Happened::Death, "gpu-lost@3", 60), line(Happened::NodeFail, "down", 60)];
    let entries = Appended { entries: lines.into(), ..Appended::default() };
    let all = Intake::default().ledger(&entries);
    assert_eq!(ids(&all), ["ledger/7/0/n1/gpu-lost@3", "ledger/7/0/n1/down"]);
    let What::Finding(found) = &all[0].what else { panic!("{all:?}") };
    assert_eq!((found.grade, found.card.as_deref()), (Grade::Hearsay, Some("GPU-1")));
    assert_eq!(all[1].what, What::Down { node: "n1".to_owned() });
}

#[test]
fn a_row_of_the_site_table_is_taken_in_once() {
    let leaf = |name: &str| vec![Shared { kind: SharedKind::Leaf, name: name.to_owned() }];
    let mut intake = Intake::default();
    let table = BTreeMap::from([("n1".to_owned(), leaf("a")), ("no node".to_owned(), leaf("a"))]);
    assert_eq!(ids(&intake.site(&table, 5, 0)), ["placed/n1/Leaf=a"]);
    assert!(intake.site(&table, 6, 0).is_empty());
    let moved = BTreeMap::from([("n1".to_owned(), leaf("b"))]);
    assert_eq!(ids(&intake.site(&moved, 7, 0)), ["placed/n1/Leaf=b"]);
    assert_eq!(ids(&intake.site(&moved, 100, 90)), ["placed/n1/Leaf=b"], "before it is deleted");
    let kept: Intake = serde_json::from_str(&serde_json::to_string(&intake).unwrap()).unwrap();
    assert_eq!(kept, intake);
}

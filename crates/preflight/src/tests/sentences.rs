//! Sentences, and results as JSON.

use super::simulated::{Fabric, Fault, Harm, QUIET};
use crate::{End, NoteKind, Outcome, Pair, Place, Plan, Report, Round, Settings, Tested};

fn measured(there: f64, back: f64) -> Outcome {
    Outcome::Measured { gbps: [there, back], latency_us: 3.0 }
}

/// Four nodes with one rail; the pairs are those that the plan chooses.
fn report(result: impl Fn(Pair) -> Outcome) -> Report {
    let plan = Plan::new(vec![Place::unknown(1); 4], Settings::default());
    let mut rounds = Vec::new();
    while let Some(pairs) = plan.next(&rounds) {
        let tested =
            pairs.iter().map(|pair| Tested { pair: *pair, rail: 0, outcome: result(*pair) }).collect();
        rounds.push(Round { pairs, tested, measured_again: 0 });
    }
    plan.report(&rounds)
}

fn sentences(report: &Report) -> Vec<String> {
    let names = ["gn1", "gn2", "gn3", "gn4"];
    let verdicts = report.verdicts.iter().map(|verdict| verdict.sentence(&names));
    verdicts.chain(report.notes.iter().map(|note| note.sentence(&names))).collect()
}

#[test]
fn a_slow_bandwidth_keeps_its_digits() {
    let all = [389.4, 96.0, 9.5, 0.19, 0.1, 0.0249, 0.0083, 0.0].map(crate::rate);
    let said =
        ["389 Gb/s", "96 Gb/s", "9.50 Gb/s", "0.19 Gb/s", "0.10 Gb/s", "25 Mb/s", "8.3 Mb/s", "0.0 Mb/s"];
    assert_eq!(all, said);
}

#[test]
fn a_slow_rail() {
    // Only what the first node sends is slow.
    let slow = |pair: Pair| {
        if pair.left == 0 { measured(140.0 + pair.right as f64, 389.0) } else { measured(389.0, 389.0) }
    };
    assert_eq!(
        sentences(&report(slow)),
        ["rail 0 of gn1: 141 Gb/s to gn2, 142 Gb/s to gn3 and 143 Gb/s to gn4, where the median is 389 Gb/s"]
    );
}

#[test]
fn a_rail_that_sends_wrong_values() {
    let wrong = |pair: Pair| match pair.left {
        0 => Outcome::Corrupt { wrong_words: [7, 0] },
        _ => measured(389.0, 389.0),
    };
    assert_eq!(sentences(&report(wrong)), ["rail 0 of gn1: 7 wrong words to gn2 and 7 wrong words to gn3"]);
}

#[test]
fn a_port_that_is_down() {
    let down = |pair: Pair| match pair.right {
        3 => Outcome::Failed { why: "link\u{202e} down\n".to_owned(), down_end: Some(3) },
        _ => measured(389.0, 389.0),
    };
    assert_eq!(
        sentences(&report(down)),
        ["rail 0 of gn4: port down; test with gn3 failed (link? down) and test with gn2 failed (link? down)"]
    );
}

#[test]
fn a_path() {
    let failed = |pair: Pair| match (pair.left, pair.right) {
        (1, 3) => Outcome::Failed { why: String::new(), down_end: None },
        _ => measured(389.0, 389.0),
    };
    assert_eq!(
        sentences(&report(failed)),
        [
            "path between gn2 and gn4 on rail 0: test between gn2 and gn4 failed and test between gn2 and gn4 failed"
        ]
    );
}

#[test]
fn a_node_and_all_nodes() {
    let run = Fabric::new(8, QUIET, 1).with(&[Fault::Node(2, Harm::Corrupt)]).run();
    assert_eq!(run.report.verdicts[0].sentence::<&str>(&[]), "node 2, 8 of 8 rails: 112 words arrived wrong");
    let faults: Vec<Fault> = (0..8).map(|node| Fault::Rail(End { node, rail: 5 }, Harm::Failed)).collect();
    let run = Fabric::new(8, QUIET, 1).with(&faults).run();
    let sentence = run.report.verdicts[0].sentence::<&str>(&[]);
    assert!(
        sentence.starts_with("rail 5 of all nodes: test between node 0 and node 1 failed (timeout), "),
        "{sentence}"
    );
    assert!(sentence.ends_with(" more"), "{sentence}");
}

#[test]
fn notes() {
    let mut fabric = Fabric::new(8, QUIET, 1);
    fabric.moments.push((1, Pair { left: 0, right: 1 }, 2));
    let report = fabric.run().report;
    assert_eq!(report.notes[0].kind, NoteKind::SlowOnce);
    let sentence = report.notes[0].sentence(&["gn1", "gn2"]);
    let words = [
        "rail 2, round 1: ",
        " Gb/s from gn1 to gn2, where the median is ",
        "; another test of the pair was good",
    ];
    assert!(words.iter().all(|part| sentence.contains(part)), "{sentence}");
}

#[test]
fn results_are_the_same_after_json() {
    let bad = report(|pair| match (pair.left, pair.right) {
        (0, _) => measured(140.5, 389.0),
        (_, 3) => Outcome::Failed { why: "link down".to_owned(), down_end: Some(3) },
        _ => Outcome::Corrupt { wrong_words: [7, 0] },
    });
    assert!(bad.verdicts.len() >= 2, "{bad:?}");
    let text = serde_json::to_string(&bad).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), bad, "{text}");
    let tested = Tested { pair: Pair { left: 0, right: 1 }, rail: 0, outcome: measured(389.0, 12.5) };
    let rounds = [Round { pairs: vec![tested.pair], tested: vec![tested], measured_again: 0 }];
    let text = serde_json::to_string(&rounds).unwrap();
    assert_eq!(serde_json::from_str::<[Round; 1]>(&text).unwrap(), rounds, "{text}");
}

#[test]
fn a_verdict_that_a_test_contradicts() {
    // The first node is slow with two partners and fast with the third one.
    let slow = |pair: Pair| match (pair.left, pair.right) {
        (0, 1 | 2) => measured(141.0, 389.0),
        _ => measured(389.0, 389.0),
    };
    assert_eq!(
        sentences(&report(slow)),
        [
            "rail 0 of gn1: 141 Gb/s to gn2 and 141 Gb/s to gn3, where the median is 389 Gb/s; not confirmed, good with gn4"
        ]
    );
}

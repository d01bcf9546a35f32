//! With two or three nodes, results show less.

use super::simulated::{Fabric, Fault, Harm, QUIET, assert_named, named};
use crate::{End, Pair, What};

#[test]
fn with_one_node_nothing_is_known() {
    let run = Fabric::new(1, QUIET, 0).run();
    assert_eq!(run.rounds, []);
    assert_eq!(run.report.verdicts, []);
    assert_eq!(run.report.unknown.len(), 8);
}

#[test]
fn with_two_nodes_a_rail_cannot_be_told_from_the_path() {
    for harm in [Harm::Slow, Harm::Failed, Harm::Late] {
        let run = Fabric::new(2, QUIET, 0).with(&[Fault::Rail(End { node: 1, rail: 2 }, harm)]).run();
        assert_eq!(run.rounds.len(), 2, "{harm:?}");
        let what = What::RailOrPath { left: 0, right: 1, rail: 2, suspects: vec![0, 1] };
        assert_eq!(named(&run.report), [&what], "{harm:?}");
        assert!(run.report.verdicts[0].confirmed);
        assert_eq!(run.report.unknown, []);
    }
}

#[test]
fn with_two_nodes_a_wrong_value_accuses_its_sender_or_the_path() {
    let run = Fabric::new(2, QUIET, 0).with(&[Fault::Rail(End { node: 1, rail: 2 }, Harm::Corrupt)]).run();
    let what = What::RailOrPath { left: 0, right: 1, rail: 2, suspects: vec![1] };
    assert_eq!(named(&run.report), [&what]);
}

#[test]
fn with_two_nodes_a_port_that_is_down_is_named() {
    let end = End { node: 1, rail: 2 };
    let run = Fabric::new(2, QUIET, 0).with(&[Fault::Rail(end, Harm::Down)]).run();
    assert_named(&run, &[Fault::Rail(end, Harm::Down)], "two nodes");
    assert_eq!(run.report.unknown, [End { node: 0, rail: 2 }]);
}

#[test]
fn with_two_nodes_a_slow_moment_is_a_note() {
    let mut fabric = Fabric::new(2, QUIET, 0);
    fabric.moments.push((1, Pair { left: 0, right: 1 }, 2));
    let run = fabric.run();
    assert_eq!(run.rounds.len(), 2);
    assert_eq!(run.report.verdicts, []);
    assert_eq!(run.report.notes.len(), 1);
}

#[test]
fn with_three_nodes_a_rail_is_named() {
    for (node, harm) in
        (0..3).flat_map(|node| [Harm::Slow, Harm::Corrupt, Harm::Failed, Harm::Down].map(|harm| (node, harm)))
    {
        let fault = Fault::Rail(End { node, rail: 2 }, harm);
        let run = Fabric::new(3, QUIET, 0).with(&[fault]).run();
        assert_named(&run, &[fault], "three nodes");
    }
}

#[test]
fn with_three_nodes_a_path_is_tested_once() {
    for (left, right) in [(0, 1), (0, 2), (1, 2)] {
        let fault = Fault::Path { left, right, rail: 2, harm: Harm::Failed };
        let run = Fabric::new(3, QUIET, 0).with(&[fault]).run();
        let tested = run.rounds.iter().any(|round| round.pairs.contains(&Pair { left, right }));
        assert_eq!(
            named(&run.report).iter().filter(|what| fault.is(what)).count(),
            usize::from(tested),
            "{fault:?}"
        );
        assert_eq!(run.report.verdicts.len(), usize::from(tested), "{fault:?}");
        assert!(run.report.verdicts.iter().all(|verdict| !verdict.confirmed), "{fault:?}");
    }
}

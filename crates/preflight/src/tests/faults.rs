//! One planted fault, in every kind of place.

use super::simulated::{Fabric, Fault, Harm, QUIET, assert_named, named};
use crate::{End, Pair, Sign, What};

const SIZES: [usize; 4] = [4, 8, 63, 64];

const HARMS: [Harm; 4] = [Harm::Slow, Harm::Corrupt, Harm::Failed, Harm::Down];

#[test]
fn a_rail_is_named_wherever_it_is() {
    for nodes in SIZES {
        for (node, rail) in (0..nodes).flat_map(|node| (0..8).map(move |rail| (node, rail))) {
            // In large allocations each position has one kind of fault, and each node and each rail has every kind.
            let harms =
                HARMS.into_iter().enumerate().filter(|(at, _)| nodes < 60 || (node + rail) % 4 == *at);
            for (_, harm) in harms {
                let fault = Fault::Rail(End { node, rail }, harm);
                let run =
                    Fabric::new(nodes, QUIET, u64::try_from(node * 8 + rail).unwrap()).with(&[fault]).run();
                assert_named(&run, &[fault], &format!("{nodes} nodes"));
                let sign = &run.report.verdicts[0].sign;
                let right = match harm {
                    Harm::Slow => matches!(sign, Sign::Slow { .. }),
                    Harm::Corrupt => matches!(sign, Sign::Corrupt { .. }),
                    Harm::Failed => *sign == Sign::Failed,
                    Harm::Down => *sign == Sign::Down,
                    Harm::Late => false,
                };
                assert!(right, "{harm:?}: {sign:?}");
                assert_eq!(run.report.unknown, [], "{nodes} nodes");
            }
        }
    }
}

#[test]
fn a_node_is_named_wherever_it_is() {
    for nodes in SIZES {
        for node in 0..nodes {
            for harm in HARMS {
                let fault = Fault::Node(node, harm);
                let run = Fabric::new(nodes, QUIET, u64::try_from(node).unwrap()).with(&[fault]).run();
                assert_named(&run, &[fault], &format!("{nodes} nodes"));
            }
        }
    }
}

/// The pairs of the first two rounds of a healthy fabric: only a path that is tested can be found.
fn tested_pairs(nodes: usize) -> Vec<Pair> {
    let rounds = Fabric::new(nodes, QUIET, 0).run().rounds;
    assert_eq!(rounds.len(), 2);
    rounds.into_iter().flat_map(|round| round.pairs).collect()
}

#[test]
fn a_rail_and_a_node_are_named_without_repeats() {
    for (node, harm) in (0..64).flat_map(|node| HARMS.map(|harm| (node, harm))) {
        for fault in [Fault::Rail(End { node, rail: node % 8 }, harm), Fault::Node(node, harm)] {
            let fabric = Fabric::new(64, QUIET, u64::try_from(node).unwrap()).with(&[fault]);
            assert_named(&fabric.repeats(0).run(), &[fault], "64 nodes, no repeats");
        }
    }
}

#[test]
fn a_path_is_named_wherever_it_is() {
    for nodes in [4, 8, 64] {
        for Pair { left, right } in tested_pairs(nodes) {
            for harm in [Harm::Slow, Harm::Corrupt, Harm::Failed] {
                let fault = Fault::Path { left, right, rail: left % 8, harm };
                let run = Fabric::new(nodes, QUIET, u64::try_from(left).unwrap()).with(&[fault]).run();
                assert_named(&run, &[fault], &format!("{nodes} nodes"));
            }
        }
    }
}

#[test]
fn a_path_to_a_node_that_rests_is_named_with_one_test_less() {
    let pairs = tested_pairs(63);
    for Pair { left, right } in pairs.iter().copied() {
        let fault = Fault::Path { left, right, rail: left % 8, harm: Harm::Failed };
        let run = Fabric::new(63, QUIET, 5).with(&[fault]).run();
        let what = named(&run.report);
        assert_eq!(what.len(), 1, "{fault:?}: {what:?}");
        // A suspect does not rest, except if it did already.
        let tests = |node: usize| pairs.iter().filter(|pair| pair.partner(node).is_some()).count();
        assert!(fault.is(what[0]), "{fault:?}: {what:?}");
        let rested = tests(left).min(tests(right)) < 2;
        assert!(run.report.verdicts[0].confirmed || rested, "{fault:?}");
    }
}

#[test]
fn a_late_rail_is_named_only_after_three_tests() {
    let end = End { node: 11, rail: 6 };
    let run = Fabric::new(64, QUIET, 3).with(&[Fault::Rail(end, Harm::Late)]).run();
    assert_named(&run, &[Fault::Rail(end, Harm::Late)], "late");
    assert!(matches!(run.report.verdicts[0].sign, Sign::Late { .. }));
    assert_eq!(run.report.verdicts[0].evidence.len(), 3);
}

#[test]
fn a_rail_that_is_bad_everywhere_is_one_verdict() {
    let faults: Vec<Fault> = (0..16).map(|node| Fault::Rail(End { node, rail: 5 }, Harm::Slow)).collect();
    let run = Fabric::new(16, QUIET, 3).with(&faults).run();
    assert_eq!(named(&run.report), [&What::AllNodes { rail: 5 }]);
}

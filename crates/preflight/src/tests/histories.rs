//! Reports about histories that a simulated fabric rarely has.

use super::simulated::{Fabric, Fault, Harm, QUIET, assert_named, named};
use crate::{End, NoteKind, Outcome, Pair, Place, Plan, Report, Round, Settings, Tested, What};

const GOOD: Outcome = Outcome::Measured { gbps: [389.0; 2], latency_us: 3.0 };
const SLOW: Outcome = Outcome::Measured { gbps: [140.0, 389.0], latency_us: 3.0 };
const CORRUPT: Outcome = Outcome::Corrupt { wrong_words: [0, 7] };

/// The pairs of four nodes in three rounds, so that each node has each partner once.
const ALL: [[(usize, usize); 2]; 3] = [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]];

/// Four nodes; `result` has the round from 1, the nodes of the pair and the rail.
fn report(
    rounds: &[[(usize, usize); 2]],
    rails: usize,
    result: impl Fn(usize, (usize, usize), usize) -> Outcome,
) -> Report {
    let history = rounds.iter().enumerate().map(|(at, pairs)| {
        let tests = pairs.iter().flat_map(|pair| (0..rails).map(move |rail| (*pair, rail)));
        let tested = tests.map(|((left, right), rail)| Tested {
            pair: Pair { left, right },
            rail,
            outcome: result(at + 1, (left, right), rail),
        });
        let pairs = pairs.iter().map(|(left, right)| Pair { left: *left, right: *right }).collect();
        Round { tested: tested.collect(), pairs, measured_again: 0 }
    });
    let plan = Plan::new(vec![Place::unknown(rails); 4], Settings::default());
    plan.report(&history.collect::<Vec<_>>())
}

#[test]
fn a_wrong_value_that_is_not_repeated_accuses_its_sender_or_the_path() {
    let rounds = [ALL[0], ALL[1], ALL[0]];
    let report =
        report(&rounds, 1, |round, pair, _| if (round, pair) == (1, (0, 1)) { CORRUPT } else { GOOD });
    let what = What::RailOrPath { left: 0, right: 1, rail: 0, suspects: vec![1] };
    assert_eq!(named(&report), [&what]);
    assert!(!report.verdicts[0].confirmed);
}

#[test]
fn a_slow_pair_in_the_last_round_is_a_note() {
    let report = report(&ALL, 1, |_, pair, _| if pair == (0, 3) { SLOW } else { GOOD });
    assert_eq!(report.verdicts, []);
    assert_eq!(report.notes.iter().map(|note| note.kind).collect::<Vec<_>>(), [NoteKind::SlowNotRepeated]);
}

#[test]
fn a_bad_node_explains_a_rail_that_was_tested_once() {
    // Of rail 2 of the first node, only the first round has a result.
    let report = report(&ALL, 3, |round, (left, _), rail| match (left, rail, round) {
        (0, 2, 2..) => Outcome::Unknown { why: "timeout of the round".to_owned() },
        (0, ..) => SLOW,
        _ => GOOD,
    });
    assert_eq!(named(&report), [&What::Node { node: 0, rails: vec![0, 1, 2], of: 3 }]);
}

#[test]
fn a_test_of_a_node_with_itself_is_left_out() {
    let report = report(&[[(0, 0), (1, 1)]], 1, |_, _, _| GOOD);
    assert_eq!((report.verdicts.len(), report.unknown.len()), (0, 4));
}

#[test]
fn a_port_that_is_down_explains_a_failure_before() {
    let failed = |down_end| Outcome::Failed { why: String::new(), down_end };
    let report = report(&ALL[..2], 1, |round, (left, _), _| match (round, left) {
        (1, 0) => failed(None),
        (_, 0) => failed(Some(0)),
        _ => GOOD,
    });
    assert_eq!(named(&report), [&What::Rail(End { node: 0, rail: 0 })]);
}

#[test]
fn suspects_are_paired_where_no_other_partner_is_left() {
    // After two rounds every result of the rail is bad, and no partner is known to be good.
    let faults = [0, 3].map(|node| Fault::Rail(End { node, rail: 3 }, Harm::Slow));
    let run = Fabric::new(4, QUIET, 1).with(&faults).run();
    assert_named(&run, &faults, "four nodes");
}

#[test]
fn third_partners_are_new_and_good() {
    for seed in 0..100 {
        let mut fabric = Fabric::new(64, QUIET, seed);
        let nodes = [(); 4].map(|()| fabric.random.below(64));
        fabric.faults = nodes.map(|node| Fault::Rail(End { node, rail: 3 }, Harm::Slow)).to_vec();
        let rounds = fabric.run().rounds;
        let [first, second, third] = &rounds[..] else { panic!("{} rounds", rounds.len()) };
        for pair in &third.pairs {
            assert!(
                !first.pairs.contains(pair) && !second.pairs.contains(pair),
                "seed {seed}: {pair:?} again"
            );
            let both = nodes.contains(&pair.left) && nodes.contains(&pair.right);
            assert!(!both, "seed {seed}: {pair:?} are both slow");
        }
    }
}

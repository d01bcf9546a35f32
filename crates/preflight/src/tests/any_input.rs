//! Results come from other nodes: any of them must give a valid plan and no panic.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::{MAX_ROUNDS, Outcome, Pair, Place, Plan, Round, Settings, Tested};

fn outcome() -> impl Strategy<Value = Outcome> {
    let bandwidth = prop_oneof![4 => 370.0..400.0, 1 => 0.0..400.0, 1 => any::<f64>()];
    let measured = ([bandwidth.clone(), bandwidth], any::<f64>());
    prop_oneof![
        6 => measured.prop_map(|(gbps, latency_us)| Outcome::Measured { gbps, latency_us }),
        1 => any::<[u64; 2]>().prop_map(|wrong_words| Outcome::Corrupt { wrong_words }),
        1 => proptest::option::of(0..12_usize).prop_map(|down_end| Outcome::Failed { why: "x".to_owned(), down_end }),
        1 => Just(Outcome::Unknown { why: String::new() }),
    ]
}

/// Results of any pairs, also such that were not planned or do not exist.
fn round() -> impl Strategy<Value = Round> {
    let pair = (0..12_usize, 0..12_usize).prop_map(|(left, right)| Pair { left, right });
    let tested = (pair.clone(), 0..4_usize, outcome()).prop_map(|(pair, rail, outcome)| Tested {
        pair,
        rail,
        outcome,
    });
    (proptest::collection::vec(pair, 0..6), proptest::collection::vec(tested, 0..40))
        .prop_map(|(pairs, tested)| Round { pairs, tested, measured_again: 0 })
}

proptest! {
    #[test]
    fn any_results_give_a_valid_round_and_a_report(
        leafs in proptest::collection::vec(proptest::collection::vec(proptest::option::of(0..3_u32), 0..4), 0..10),
        history in proptest::collection::vec(round(), 0..5),
        more in round(),
    ) {
        let nodes = leafs.len();
        let plan = Plan::new(leafs.into_iter().map(|leafs| Place { leafs }).collect(), Settings::default());
        if let Some(pairs) = plan.next(&history) {
            prop_assert!(history.len() < MAX_ROUNDS);
            let in_pairs: BTreeSet<usize> = pairs.iter().flat_map(|pair| [pair.left, pair.right]).collect();
            prop_assert_eq!(in_pairs.len(), pairs.len() * 2);
            prop_assert!(in_pairs.iter().all(|node| *node < nodes));
        }
        let again = plan.again(&history);
        let in_pairs: BTreeSet<usize> = again.iter().flat_map(|pair| [pair.left, pair.right]).collect();
        prop_assert_eq!(in_pairs.len(), again.len() * 2);
        prop_assert!(in_pairs.iter().all(|node| *node < nodes));
        let mut history = history;
        if let Some(last) = history.last_mut() {
            prop_assert!(again.iter().all(|pair| last.pairs.contains(pair)));
            last.measure_again(&again, more.tested);
        }
        let report = plan.report(&history);
        for verdict in &report.verdicts {
            prop_assert!(!verdict.sentence::<&str>(&[]).is_empty());
            prop_assert!(!verdict.evidence.is_empty());
        }
        for note in &report.notes {
            prop_assert!(!note.sentence::<&str>(&[]).is_empty());
        }
    }
}

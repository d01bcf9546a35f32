//! The pairs of each round.

use std::collections::BTreeSet;

use super::simulated::{ASSUMED, Fabric, Fault, HICCUPS, Harm, QUIET, Run, places};
use crate::{End, Outcome, Pair, Place, Plan, Round, Settings, Tested};

fn plan(places: Vec<Place>) -> Plan {
    Plan::new(places, Settings::default())
}

/// A round in which all is good.
fn good(pairs: Vec<Pair>) -> Round {
    let outcome = Outcome::Measured { gbps: [390.0; 2], latency_us: 3.0 };
    let each = |pair: &Pair| Tested { pair: *pair, rail: 0, outcome: outcome.clone() };
    Round { tested: pairs.iter().map(each).collect(), pairs, measured_again: 0 }
}

/// The first two rounds, in which all is good.
fn two_rounds(places: Vec<Place>) -> [Vec<Pair>; 2] {
    let plan = plan(places);
    let first = plan.next(&[]).unwrap();
    let round = good(first.clone());
    let second = plan.next(std::slice::from_ref(&round)).unwrap();
    assert_eq!(plan.next(&[round, good(second.clone())]), None, "a third round of healthy nodes");
    [first, second]
}

/// Returns the nodes of a round. Each may be in one pair only.
fn nodes(pairs: &[Pair]) -> BTreeSet<usize> {
    let nodes: BTreeSet<usize> = pairs.iter().flat_map(|pair| [pair.left, pair.right]).collect();
    assert_eq!(nodes.len(), pairs.len() * 2, "a node is in two pairs: {pairs:?}");
    nodes
}

fn pair(left: usize, right: usize) -> Pair {
    Pair { left, right }
}

#[test]
fn partners_differ_and_each_node_is_tested() {
    for count in (3..=70).chain([1023, 1024]) {
        for places in [places(count), vec![Place::unknown(8); count], vec![Place::under(7, 8); count]] {
            let [first, second] = two_rounds(places);
            assert!(first.iter().all(|pair| !second.contains(pair)), "{count} nodes: {first:?} {second:?}");
            let rest = count % 2;
            assert_eq!(nodes(&first).len(), count - rest);
            assert_eq!(nodes(&second).len(), count - rest);
            assert_eq!(nodes(&first).union(&nodes(&second)).count(), count, "{count} nodes: one rests twice");
        }
    }
}

#[test]
fn one_node_has_no_tests_and_two_have_one() {
    assert_eq!(plan(Vec::new()).next(&[]), None);
    assert_eq!(plan(places(1)).next(&[]), None);
    let two = plan(places(2));
    let first = two.next(&[]).unwrap();
    assert_eq!(first, [pair(0, 1)]);
    assert_eq!(two.next(&[good(first)]), None);
}

#[test]
fn the_first_round_is_under_one_leaf_and_the_second_across() {
    // Nodes alternate between leafs, so that neighbours in the list are never under the same one.
    let places: Vec<Place> = (0..32_u32).map(|node| Place::under(node % 4, 8)).collect();
    let [first, second] = two_rounds(places);
    assert!(first.iter().all(|pair| pair.left % 4 == pair.right % 4), "{first:?}");
    assert!(second.iter().all(|pair| pair.left % 4 != pair.right % 4), "{second:?}");
}

#[test]
fn leafs_with_an_odd_number_of_nodes_leave_one_each() {
    // Three leafs of five, and one of three.
    let places: Vec<Place> = (0..18_u32).map(|node| Place::under(node / 5, 8)).collect();
    let [first, second] = two_rounds(places);
    assert_eq!(first.iter().filter(|pair| pair.left / 5 == pair.right / 5).count(), 7, "{first:?}");
    assert!(second.iter().all(|pair| pair.left / 5 != pair.right / 5), "{second:?}");
}

#[test]
fn a_node_that_is_alone_under_its_leaf_breaks_no_other_pair() {
    let places: Vec<Place> = [0, 1, 1, 1, 1, 2, 2, 2, 2, 3].map(|leaf| Place::under(leaf, 8)).to_vec();
    let [first, _] = two_rounds(places);
    assert_eq!(first, [pair(0, 9), pair(1, 2), pair(3, 4), pair(5, 6), pair(7, 8)]);
}

#[test]
fn rails_with_leafs_of_their_own_are_compared_as_a_whole() {
    // Rail-optimised: rail i of a group of four nodes is under leaf 10 × group + i.
    let leafs = |node: u32| (0..8).map(|rail| Some(10 * (node % 4) + rail)).collect();
    let places: Vec<Place> = (0..16).map(|node| Place { leafs: leafs(node) }).collect();
    let [first, second] = two_rounds(places);
    assert!(first.iter().all(|pair| pair.left % 4 == pair.right % 4), "{first:?}");
    assert!(second.iter().all(|pair| pair.left % 4 != pair.right % 4), "{second:?}");
}

#[test]
fn no_two_suspects_of_a_rail_meet_in_the_second_round() {
    for seed in 0..200 {
        let mut fabric = Fabric::new(64, QUIET, seed);
        // Eight slow ends of one rail: sixteen suspects of 64.
        for _ in 0..8 {
            let end = End { node: fabric.random.below(64), rail: 3 };
            fabric.faults.push(Fault::Rail(end, Harm::Slow));
        }
        let run = fabric.run();
        let bad = |pair: &&Pair| {
            fabric
                .faults
                .iter()
                .any(|fault| matches!(fault, Fault::Rail(end, _) if pair.partner(end.node).is_some()))
        };
        let suspects: BTreeSet<usize> =
            run.rounds[0].pairs.iter().filter(bad).flat_map(|pair| [pair.left, pair.right]).collect();
        let meet = |pair: &&Pair| suspects.contains(&pair.left) && suspects.contains(&pair.right);
        assert_eq!(run.rounds[1].pairs.iter().find(meet), None, "seed {seed}");
    }
}

#[test]
fn the_third_round_has_only_what_is_open() {
    let end = End { node: 20, rail: 3 };
    let Run { rounds, .. } = Fabric::new(64, QUIET, 1).with(&[Fault::Rail(end, Harm::Slow)]).run();
    assert_eq!(rounds.len(), 3);
    assert_eq!(rounds[2].pairs.len(), 1, "{:?}", rounds[2].pairs);
    let third = rounds[2].pairs[0].partner(20).unwrap();
    assert!(rounds[..2].iter().all(|round| !round.pairs.contains(&pair(third.min(20), third.max(20)))));
    // Wrong values from two partners need no further test.
    let run = Fabric::new(64, QUIET, 1).with(&[Fault::Rail(end, Harm::Corrupt)]).run();
    assert_eq!(run.rounds.len(), 2);
}

#[test]
fn a_slow_pair_is_tested_again() {
    let mut fabric = Fabric::new(64, QUIET, 1);
    let first = fabric.plan().next(&[]).unwrap();
    fabric.moments.push((1, first[5], 2));
    let run = fabric.run();
    assert_eq!(run.rounds[2].pairs, [first[5]]);
}

#[test]
fn a_large_allocation_has_at_most_three_rounds() {
    for noise in [QUIET, ASSUMED, HICCUPS] {
        let mut fabric = Fabric::new(1024, noise, 9);
        for _ in 0..100 {
            let end = End { node: fabric.random.below(1024), rail: fabric.random.below(8) };
            fabric.faults.push(Fault::Rail(end, Harm::Slow));
        }
        for round in fabric.run().rounds {
            nodes(&round.pairs);
        }
    }
}

//! Two planted faults at once.

use super::simulated::{Fabric, Fault, Harm, QUIET, Random, assert_only, named};
use crate::{End, Pair, What};

const KINDS: usize = 9;

/// Returns a fault of each kind in turn. A path is one that a healthy fabric tests.
fn fault(kind: usize, nodes: usize, pairs: &[Pair], random: &mut Random) -> Fault {
    let end = End { node: random.below(nodes), rail: random.below(8) };
    let Pair { left, right } = pairs[random.below(pairs.len())];
    let path = |harm| Fault::Path { left, right, rail: end.rail, harm };
    match kind {
        0 => Fault::Rail(end, Harm::Slow),
        1 => Fault::Rail(end, Harm::Corrupt),
        2 => Fault::Rail(end, Harm::Failed),
        3 => Fault::Rail(end, Harm::Down),
        4 => path(Harm::Slow),
        5 => path(Harm::Corrupt),
        6 => path(Harm::Failed),
        7 => Fault::Node(end.node, Harm::Slow),
        _ => Fault::Node(end.node, Harm::Down),
    }
}

fn nodes_of(fault: Fault) -> Vec<usize> {
    match fault {
        Fault::Rail(end, _) => vec![end.node],
        Fault::Node(node, _) => vec![node],
        Fault::Path { left, right, .. } => vec![left, right],
    }
}

fn rail_of(fault: Fault) -> Option<usize> {
    match fault {
        Fault::Rail(end, _) => Some(end.rail),
        Fault::Path { rail, .. } => Some(rail),
        Fault::Node(..) => None,
    }
}

/// One hides the other: they share a node, and a rail of it.
fn hidden(one: Fault, other: Fault) -> bool {
    let share = nodes_of(one).iter().any(|node| nodes_of(other).contains(node));
    let rails = [rail_of(one), rail_of(other)];
    share && (rails.contains(&None) || rails[0] == rails[1])
}

/// Returns whether a round tested the path, if the fault is one: the second round depends on the first.
fn tested(fault: Fault, pairs: &[Pair]) -> bool {
    let Fault::Path { left, right, .. } = fault else { return true };
    pairs.contains(&Pair { left, right })
}

/// Both faults are named, and nothing else.
fn both_are_named(nodes: usize) {
    let pairs: Vec<Pair> =
        Fabric::new(nodes, QUIET, 0).run().rounds.into_iter().flat_map(|round| round.pairs).collect();
    let mut weaker = 0;
    let mut cases = 0;
    for seed in 0..500_usize {
        let mut random = Random(u64::try_from(seed).unwrap());
        let (one, other) = loop {
            let one = fault(seed % KINDS, nodes, &pairs, &mut random);
            let other = fault(seed / KINDS % KINDS, nodes, &pairs, &mut random);
            if !hidden(one, other) {
                break (one, other);
            }
        };
        let run = Fabric::new(nodes, QUIET, random.next()).with(&[one, other]).run();
        let tests: Vec<Pair> = run.rounds.iter().flat_map(|round| round.pairs.clone()).collect();
        let faults: Vec<Fault> = [one, other].into_iter().filter(|fault| tested(*fault, &tests)).collect();
        let case = format!("{nodes} nodes, case {seed}, {one:?}, {other:?}");
        cases += faults.len();
        // With wrong values that could not be tested again, the sender's rail cannot be excluded.
        let unclear = |what: &&What| matches!(what, What::RailOrPath { .. });
        if named(&run.report).iter().any(unclear) {
            weaker += 1;
            about_the_faults(&named(&run.report), &faults, &case);
        } else {
            assert_only(&run, &faults, &case);
        }
    }
    println!("{nodes} nodes: {cases} faults, {weaker} runs with a weaker verdict");
    assert!(cases >= 950, "{cases} of 1000 faults were tested");
    assert!(weaker <= 10, "{weaker} runs of 500 could not tell a rail from a path");
}

/// Each fault is named, or is one of the possibilities that a verdict lists, and no other verdict is there.
fn about_the_faults(named: &[&What], faults: &[Fault], case: &str) {
    let covers = |fault: Fault, what: &What| match (fault, what) {
        (
            Fault::Path { left, right, rail, .. },
            What::RailOrPath { left: small, right: large, rail: of, .. },
        ) => (left, right, rail) == (*small, *large, *of),
        (Fault::Rail(end, _), What::RailOrPath { rail, suspects, .. }) => {
            end.rail == *rail && suspects.contains(&end.node)
        }
        _ => fault.is(what),
    };
    let mut left: Vec<Fault> = faults.to_vec();
    for what in named {
        let at = left.iter().position(|fault| covers(*fault, what));
        left.remove(at.unwrap_or_else(|| panic!("{case}: {what:?} is about no fault")));
    }
    assert!(left.is_empty(), "{case}: {left:?} is not named by {named:?}");
}

#[test]
fn of_8_nodes() {
    both_are_named(8);
}

#[test]
fn of_64_nodes() {
    both_are_named(64);
}

#[test]
fn two_bad_ends_of_one_rail_that_meet_in_the_first_round() {
    for nodes in [8, 64] {
        let first = Fabric::new(nodes, QUIET, 0).run().rounds[0].pairs.clone();
        for Pair { left, right } in first {
            for harms in
                [[Harm::Slow; 2], [Harm::Corrupt; 2], [Harm::Slow, Harm::Failed], [Harm::Down, Harm::Slow]]
            {
                let [one, other] = [left, right].map(|node| End { node, rail: 3 });
                let faults = [Fault::Rail(one, harms[0]), Fault::Rail(other, harms[1])];
                let run = Fabric::new(nodes, QUIET, 4).with(&faults).run();
                assert_only(&run, &faults, &format!("{nodes} nodes"));
            }
        }
    }
}

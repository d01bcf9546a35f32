//! Which nodes are named as lemons: more faults than chance gives to one of so many nodes, or the same fault again.
//!
//! Two tests of each node, both with Poisson counts: all its faults, and those of one card or of one cause. A healthy node rarely
//! fails twice in a month, and hardly ever on the same of its cards. The smaller p value counts, twice, for there are two tests.
//! The rate is that of the nodes that are not named: lemons would hide each other. The procedure of Benjamini and Hochberg (1995)
//! keeps the share of false ones among the named.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::Cause;

/// Rounds after which the set of the named nodes is taken as it is. It grows in each, since the rate of the others falls.
const ROUNDS: usize = 10;

/// A node's faults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tested {
    /// Expected faults at the fleet's rate, lemons included.
    pub(crate) expected: f64,
    pub(crate) faults: usize,
    /// Number of its cards; 0 if they were never read.
    pub(crate) cards: usize,
    /// Faults of each card that failed.
    pub(crate) of_card: Vec<usize>,
    /// Faults without a card, by cause.
    pub(crate) of_cause: BTreeMap<Cause, usize>,
}

/// The rates of nodes that are not named.
struct Baseline {
    /// Multiple of the fleet's rate.
    times: f64,
    /// Share of faults of a card, and of each cause without one.
    cards: f64,
    causes: BTreeMap<Cause, f64>,
}

/// For each node whether it is named.
pub(crate) fn discover(nodes: &[Tested], false_share: f64) -> Vec<bool> {
    let mut named = vec![false; nodes.len()];
    let mut seen = BTreeSet::new();
    for _ in 0..ROUNDS {
        let baseline =
            Baseline::of(nodes.iter().zip(&named).filter(|(_, named)| !**named).map(|(node, _)| node));
        let values: Vec<f64> = nodes.iter().map(|node| baseline.p_value(node)).collect();
        let next = benjamini_hochberg(&values, false_share);
        // The same set again, or one of a cycle.
        if !seen.insert(next.clone()) {
            return next;
        }
        named = next;
    }
    named
}

impl Baseline {
    fn of<'a>(nodes: impl Iterator<Item = &'a Tested>) -> Baseline {
        let (mut faults, mut expected, mut cards) = (0, 0.0, 0);
        let mut causes: BTreeMap<Cause, usize> = BTreeMap::new();
        for node in nodes {
            faults += node.faults;
            expected += node.expected;
            cards += node.of_card.iter().sum::<usize>();
            for (cause, count) in &node.of_cause {
                *causes.entry(*cause).or_default() += count;
            }
        }
        // One more fault than was counted: a fleet without faults is not one that cannot fail.
        let all = faults as f64 + 1.0;
        let share = |count: usize| (count as f64 + 1.0) / all;
        Baseline {
            times: if expected > 0.0 { all / expected } else { 0.0 },
            cards: share(cards).min(1.0),
            causes: causes.into_iter().map(|(cause, count)| (cause, share(count).min(1.0))).collect(),
        }
    }

    fn p_value(&self, node: &Tested) -> f64 {
        let mean = self.times * node.expected;
        if mean <= 0.0 || node.faults == 0 {
            return 1.0;
        }
        let unknown = 1.0 / (self.causes.len() as f64 + 1.0);
        let of_cause = node.of_cause.iter().map(|(cause, count)| {
            let share = self.causes.get(cause).copied().unwrap_or(unknown);
            at_least(*count, mean * share)
        });
        let of_card = node.of_card.iter().map(|count| {
            // Cards that were never read can be any number: then all of its cards are one.
            at_least(*count, mean * self.cards / node.cards.max(1) as f64)
        });
        // Each card and each cause was a chance.
        let parts = (node.cards + self.causes.len()).max(1) as f64;
        let same = of_cause.chain(of_card).fold(1.0, f64::min) * parts;
        (2.0 * same.min(at_least(node.faults, mean))).min(1.0)
    }
}

/// P(X ≥ count) of a Poisson distribution.
fn at_least(count: usize, mean: f64) -> f64 {
    if count == 0 {
        return 1.0;
    }
    // The sum of the tail, not one minus the rest: small values keep their precision.
    let mut term = -mean;
    for i in 1..=count {
        term += mean.ln() - (i as f64).ln();
    }
    let (mut term, mut sum, mut i) = (term.exp(), 0.0, count as f64);
    while term > sum * 1e-15 || i < mean {
        sum += term;
        i += 1.0;
        term *= mean / i;
        if term == 0.0 {
            break;
        }
    }
    sum.min(1.0)
}

fn benjamini_hochberg(values: &[f64], false_share: f64) -> Vec<bool> {
    let mut sorted: Vec<f64> = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let limit = |rank: usize| false_share * (rank as f64 + 1.0) / values.len() as f64;
    let last = sorted
        .iter()
        .enumerate()
        .rev()
        .find(|(rank, value)| **value <= limit(*rank))
        .map(|(_, value)| *value);
    values.iter().map(|value| last.is_some_and(|last| *value <= last)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(expected: f64, of_card: &[usize]) -> Tested {
        let faults = of_card.iter().sum();
        Tested { expected, faults, cards: 8, of_card: of_card.to_vec(), of_cause: BTreeMap::new() }
    }

    #[test]
    fn tails_are_those_of_the_poisson_distribution() {
        assert!((at_least(1, 0.09) - (1.0 - (-0.09_f64).exp())).abs() < 1e-12);
        // 1 − e^(−2)(1 + 2 + 2)
        assert!((at_least(3, 2.0) - (1.0 - 5.0 * (-2.0_f64).exp())).abs() < 1e-12);
        assert!((at_least(3, 400.0) - 1.0).abs() < 1e-9);
        assert!(at_least(60, 0.01) > 0.0);
        assert_eq!(at_least(0, 1.0), 1.0);
    }

    #[test]
    fn the_example_of_benjamini_and_hochberg() {
        // Their 15 p values of 1995: at 0.05 the first four.
        let values = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719,
            0.6528, 0.7590, 1.0,
        ];
        assert_eq!(benjamini_hochberg(&values, 0.05).iter().filter(|named| **named).count(), 4);
        assert!(benjamini_hochberg(&[], 0.05).is_empty());
    }

    #[test]
    fn the_same_card_twice_is_more_than_two_cards_once() {
        let one_of = |index: usize| node(0.05, &[1][..usize::from(index.is_multiple_of(24))]);
        let mut nodes: Vec<Tested> = (0..1000).map(one_of).collect();
        nodes.push(node(0.05, &[2]));
        nodes.push(node(0.05, &[1, 1]));
        nodes.extend((0..10).map(|_| node(0.05, &[1, 1, 1, 1, 1])));
        let named = discover(&nodes, 0.05);
        assert_eq!(named[1000..1003], [true, false, true]);
        assert!(named[..1000].iter().all(|named| !named));
    }

    #[test]
    fn equal_nodes_are_no_lemons() {
        let nodes: Vec<Tested> = (0..100).map(|index| node(3.0, &[2, usize::from(index % 3 == 0)])).collect();
        assert!(discover(&nodes, 0.05).iter().all(|named| !named));
        assert!(discover(&[], 0.05).is_empty());
    }
}

//! The results of one rail as a graph: nodes, and a link between each two that tested the rail.

use std::collections::{BTreeMap, BTreeSet};

use crate::judge::{Judged, Judgement};
use crate::types::Outcome;

/// The result of all tests of a pair on a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Good,
    Bad,
}

/// A link as one of its ends has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbour {
    pub(crate) node: usize,
    pub(crate) state: State,
    /// Every bad test was a slow one.
    pub(crate) only_slow: bool,
    /// This end sent values that arrived wrong.
    pub(crate) sent_wrong: bool,
}

/// Results of one pair on one rail, counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) good: usize,
    /// Of the good ones, those with a high latency.
    late: usize,
    pub(crate) slow: usize,
    pub(crate) corrupt: usize,
    pub(crate) failed: usize,
    /// The end with the smaller index sent values that arrived wrong; the end with the larger one did.
    sent_wrong: (bool, bool),
}

impl Counts {
    pub(crate) fn bad(&self) -> usize {
        self.slow + self.corrupt + self.failed
    }

    /// A slow test that the next one does not repeat is not a fault. A wrong value or a failure is one even then.
    fn state(&self) -> Option<State> {
        match self {
            counts if counts.corrupt + counts.failed > 0 || counts.slow > counts.good => Some(State::Bad),
            counts if counts.good > 0 => Some(State::Good),
            _ => None,
        }
    }

    fn add(&mut self, judged: &Judged) {
        match judged.judgement {
            Judgement::Good => self.good += 1,
            Judgement::Late { .. } => (self.good, self.late) = (self.good + 1, self.late + 1),
            Judgement::Slow { .. } => self.slow += 1,
            Judgement::Corrupt => self.corrupt += 1,
            Judgement::Failed => self.failed += 1,
            Judgement::Down { .. } | Judgement::Unknown => {}
        }
        if let Outcome::Corrupt { wrong_words: [from_left, from_right], .. } = judged.tested.outcome {
            let (left, right) = (from_left > 0, from_right > 0);
            let (small, large) = if judged.tested.pair.left < judged.tested.pair.right {
                (left, right)
            } else {
                (right, left)
            };
            self.sent_wrong = (self.sent_wrong.0 || small, self.sent_wrong.1 || large);
        }
    }
}

/// Returns the number of tests that must all have a high latency before an end is named. Latencies have long tails: two high
/// ones come by chance in a large allocation.
pub(crate) fn late_tests(nodes: usize) -> usize {
    nodes.saturating_sub(1).clamp(2, 3)
}

/// All links of one rail. Links that nothing was measured on are left out.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pairs: BTreeMap<(usize, usize), Counts>,
    of_node: BTreeMap<usize, Vec<Neighbour>>,
    /// Nodes whose port was down.
    pub(crate) down: BTreeSet<usize>,
}

impl Links {
    /// Returns the links of all rails, in rail order.
    pub(crate) fn of_rails(rails: usize, judged: &[Judged]) -> Vec<Links> {
        let mut all: Vec<Links> = (0..rails).map(|_| Links::default()).collect();
        for one in judged {
            let Some(links) = all.get_mut(one.tested.rail) else { continue };
            if let Judgement::Down { node } = one.judgement {
                links.down.insert(node);
            }
            links.pairs.entry(one.tested.pair.sorted()).or_default().add(one);
        }
        all.iter_mut().for_each(Links::connect);
        all
    }

    fn connect(&mut self) {
        for ((small, large), counts) in &self.pairs {
            let Some(state) = counts.state() else { continue };
            let only_slow = counts.corrupt + counts.failed == 0;
            let mut add = |from: usize, node: usize, sent_wrong: bool| {
                let neighbour = Neighbour { node, state, only_slow, sent_wrong };
                self.of_node.entry(from).or_default().push(neighbour);
            };
            add(*small, *large, counts.sent_wrong.0);
            add(*large, *small, counts.sent_wrong.1);
        }
    }

    /// Returns the links of a node.
    pub(crate) fn of(&self, node: usize) -> &[Neighbour] {
        self.of_node.get(&node).map_or(&[], Vec::as_slice)
    }

    /// Returns whether two nodes have a result with each other.
    pub(crate) fn linked(&self, node: usize, other: usize) -> bool {
        self.of(node).iter().any(|neighbour| neighbour.node == other)
    }

    /// Returns the results of a pair, counted.
    pub(crate) fn counts(&self, left: usize, right: usize) -> Counts {
        self.pairs.get(&(left.min(right), left.max(right))).copied().unwrap_or_default()
    }

    /// Returns the number of partners that a node was good with.
    pub(crate) fn good(&self, node: usize) -> usize {
        self.of(node).iter().filter(|neighbour| neighbour.state == State::Good).count()
    }

    /// Returns the number of tests of a node, if the latency was high in each; `None` if a test shows something else.
    pub(crate) fn late(&self, node: usize) -> Option<usize> {
        let counts: Vec<Counts> = self.of(node).iter().map(|other| self.counts(node, other.node)).collect();
        let all = counts.iter().all(|counts| counts.late == counts.good && counts.bad() == 0);
        let late = counts.iter().map(|counts| counts.late).sum();
        (all && late > 0).then_some(late)
    }

    /// Returns the partners that a node was bad with, except those whose port was down.
    pub(crate) fn bad(&self, node: usize) -> impl Iterator<Item = Neighbour> {
        let bad = self.of(node).iter().filter(|neighbour| neighbour.state == State::Bad);
        bad.copied().filter(move |other| !self.down.contains(&node) && !self.down.contains(&other.node))
    }

    /// Returns the nodes about which nothing is known because the port of a partner was down.
    pub(crate) fn without_result(&self) -> BTreeSet<usize> {
        let partner =
            |(small, large): &(usize, usize)| match (self.down.contains(small), self.down.contains(large)) {
                (true, false) => Some(*large),
                (false, true) => Some(*small),
                _ => None,
            };
        self.pairs.keys().filter_map(partner).filter(|node| self.of(*node).is_empty()).collect()
    }

    /// Returns the nodes that have results, in order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = usize> {
        self.of_node.keys().copied()
    }

    /// Returns whether every pair was bad, for at least three pairs: then no end can be told from the others.
    pub(crate) fn all_bad(&self) -> bool {
        let states: Vec<State> = self.pairs.values().filter_map(Counts::state).collect();
        self.down.is_empty() && states.len() >= 3 && states.iter().all(|state| *state == State::Bad)
    }
}

//! The first two rounds: every node with two partners.

use std::collections::BTreeSet;

use crate::again;
use crate::judge::judge;
use crate::links::Links;
use crate::third;
use crate::types::{MAX_ROUNDS, Pair, Place, Round, Settings};
use crate::verdict::{self, Report};

/// Cost of two nodes that tested each other already: above any number of suspects.
const TESTED_BEFORE: usize = 1_000_000;
/// Cost of a rail that is a suspect at both ends: its result could be explained by either.
const BOTH_SUSPECT: usize = 100;
/// Cost of a suspect whose partner is not known to be good.
const NOT_KNOWN_GOOD: usize = 10;
/// Cost of a pair under the same leafs in the second round. Above it, a pair is exchanged if a better one exists.
const SAME_LEAFS: usize = 1;

/// The tests of an allocation. Its results decide the next round, so the caller keeps them all.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    places: Vec<Place>,
    settings: Settings,
    /// The largest number of rails of a node.
    rails: usize,
}

impl Plan {
    /// Creates the plan of an allocation.
    ///
    /// `places` has one element for each node; its order gives the nodes their indices.
    pub fn new(places: Vec<Place>, settings: Settings) -> Self {
        let rails = places.iter().map(|place| place.leafs.len()).max().unwrap_or(0);
        Plan { places, settings, rails }
    }

    /// Returns the pairs of the next round, sorted. A node is in at most one of them; with an odd number of nodes another one rests
    /// in each of the first two rounds.
    ///
    /// `history` has all rounds so far, an empty slice before the first. Returns `None` if another round could not add
    /// anything: nothing is suspicious, or [`MAX_ROUNDS`] were run, or the allocation has fewer than two nodes.
    pub fn next(&self, history: &[Round]) -> Option<Vec<Pair>> {
        let pairs = match history.len() {
            0 => self.first(),
            MAX_ROUNDS.. => Vec::new(),
            1 if self.places.len() > 2 => self.second(history),
            _ => third::pairs(&self.places, &self.links(history)),
        };
        (!pairs.is_empty()).then(|| sorted(pairs))
    }

    /// Returns the pairs of the last round that are measured again now, in the order of the round: those with a rail that is slow in a direction or has a
    /// high latency, by the limits of [`Plan::report`] or less than 1 % away from them: the medians move a little with each result. Wrong values, failures and ports that are down are no reason.
    ///
    /// Two more conditions limit the time. A rail on which more than half of the pairs are slow, and more than 4, is no reason: a pause does
    /// not slow most nodes down at once, and what all nodes have is for [`What::AllNodes`](crate::What::AllNodes). Nor is a rail that
    /// stayed slow in two earlier rounds: its other partners were repeats, too.
    ///
    /// The caller limits how often it asks in a round, for example to [`DEFAULT_REPEATS`](crate::DEFAULT_REPEATS).
    pub fn again(&self, history: &[Round]) -> Vec<Pair> {
        let Some(round) = history.last() else { return Vec::new() };
        again::pairs(&judge(&self.places, &again::limits(&self.settings), history), round, history.len())
    }

    /// Returns which ends, nodes and paths the results accuse.
    pub fn report(&self, history: &[Round]) -> Report {
        let judged = judge(&self.places, &self.settings, history);
        verdict::report(&self.places, &Links::of_rails(self.rails, &judged), &judged)
    }

    fn links(&self, history: &[Round]) -> Vec<Links> {
        Links::of_rails(self.rails, &judge(&self.places, &self.settings, history))
    }

    /// Node indices in the order of their leafs, so that neighbours share most of them.
    fn by_leafs(&self) -> Vec<usize> {
        let mut nodes: Vec<usize> = (0..self.places.len()).collect();
        nodes.sort_by_key(|node| (self.places.get(*node).map(|place| &place.leafs), *node));
        nodes
    }

    fn same_leafs(&self, left: usize, right: usize) -> bool {
        let leafs = |node: usize| self.places.get(node).map(|place| &place.leafs);
        leafs(left) == leafs(right)
    }

    /// Pairs neighbours under the same leafs, then the nodes that are left over.
    fn first(&self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        let mut over = Vec::new();
        let nodes = self.by_leafs();
        for group in nodes.chunk_by(|left, right| self.same_leafs(*left, *right)) {
            let (chunks, rest) = group.as_chunks::<2>();
            pairs.extend(chunks.iter().map(|[left, right]| Pair { left: *left, right: *right }));
            over.extend(rest);
        }
        pairs.extend(over.as_chunks::<2>().0.iter().map(|[left, right]| Pair { left: *left, right: *right }));
        pairs
    }

    /// Pairs each node with one half of the order away, which is another leaf unless one leaf has more than half of the
    /// nodes; then exchanges partners until no two suspects meet.
    fn second(&self, history: &[Round]) -> Vec<Pair> {
        let before = partners(self.places.len(), history);
        let rails = Suspects::new(self.places.len(), &self.links(history));
        let mut nodes = self.by_leafs();
        if nodes.len() % 2 == 1 {
            let rests = resting(&nodes, &before, &rails);
            nodes.retain(|node| Some(*node) != rests);
        }
        let (left, right) = nodes.split_at(nodes.len() / 2);
        let mut pairs: Vec<(usize, usize)> = left.iter().copied().zip(right.iter().copied()).collect();
        let cost = |(left, right): (usize, usize)| {
            let again = before.get(left).is_some_and(|partners| partners.contains(&right));
            let same = usize::from(self.same_leafs(left, right)) * SAME_LEAFS;
            usize::from(again) * TESTED_BEFORE + rails.cost(left, right) + rails.cost(right, left) + same
        };
        exchange(&mut pairs, cost);
        pairs.into_iter().map(|(left, right)| Pair { left, right }).collect()
    }
}

fn sorted(pairs: Vec<Pair>) -> Vec<Pair> {
    let mut pairs: Vec<Pair> =
        pairs.into_iter().map(Pair::sorted).map(|(left, right)| Pair { left, right }).collect();
    pairs.sort_unstable();
    pairs
}

/// Returns the partners that each node had in all rounds.
pub(crate) fn partners(nodes: usize, history: &[Round]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new(); nodes];
    for pair in history.iter().flat_map(|round| &round.pairs) {
        for (node, other) in [(pair.left, pair.right), (pair.right, pair.left)] {
            if let Some(partners) = all.get_mut(node) {
                partners.push(other);
            }
        }
    }
    all
}

/// Returns the node that rests in the second round: one that was tested, without suspicion if possible.
fn resting(nodes: &[usize], before: &[Vec<usize>], rails: &Suspects) -> Option<usize> {
    let tested = |node: &&usize| before.get(**node).is_some_and(|partners| !partners.is_empty());
    let suspicion = |node: &&usize| rails.bad.get(**node).map_or(0, BTreeSet::len);
    nodes.iter().rev().filter(tested).min_by_key(suspicion).copied()
}

/// Rails of each node with bad results, and with good ones.
#[derive(Debug)]
struct Suspects {
    bad: Vec<BTreeSet<usize>>,
    good: Vec<BTreeSet<usize>>,
}

impl Suspects {
    fn new(nodes: usize, links: &[Links]) -> Self {
        let rails_of = |has: fn(&Links, usize) -> bool| {
            let of_node =
                |node| (0..links.len()).filter(move |rail| links.get(*rail).is_some_and(|of| has(of, node)));
            (0..nodes).map(|node| of_node(node).collect()).collect()
        };
        // A port that is down is not a suspect, but a suspect that is paired with it gets no result.
        let bad = |links: &Links, node| links.down.contains(&node) || links.bad(node).next().is_some();
        Suspects { bad: rails_of(bad), good: rails_of(|links, node| links.good(node) > 0) }
    }

    /// Returns the cost of `other` as the partner of a suspect.
    fn cost(&self, node: usize, other: usize) -> usize {
        let empty = BTreeSet::new();
        let of = |rails: &[BTreeSet<usize>], node: usize, rail: &usize| {
            rails.get(node).unwrap_or(&empty).contains(rail)
        };
        let each = |rail: &usize| match rail {
            rail if of(&self.bad, other, rail) => BOTH_SUSPECT,
            rail if !of(&self.good, other, rail) => NOT_KNOWN_GOOD,
            _ => 0,
        };
        self.bad.get(node).unwrap_or(&empty).iter().map(each).sum()
    }
}

/// A better choice: the cost that it saves, the index of the other pair, both pairs after the exchange.
type Better = (usize, usize, [(usize, usize); 2]);

/// Exchanges the partners of each costly pair with the other pair that makes both cheapest. One pass over the pairs: with many
/// suspects this takes time that grows with the square of the number of nodes, never with the cube.
fn exchange(pairs: &mut [(usize, usize)], cost: impl Fn((usize, usize)) -> usize) {
    for at in 0..pairs.len() {
        let Some(&(left, right)) = pairs.get(at) else { continue };
        let own = cost((left, right));
        if own <= SAME_LEAFS {
            continue;
        }
        let mut best: Option<Better> = None;
        for (with, &(other_left, other_right)) in pairs.iter().enumerate().filter(|(with, _)| *with != at) {
            let now = own + cost((other_left, other_right));
            for new in
                [[(left, other_left), (right, other_right)], [(left, other_right), (right, other_left)]]
            {
                let saved = now.saturating_sub(new.into_iter().map(&cost).sum());
                if saved > best.map_or(0, |(saved, ..)| saved) {
                    best = Some((saved, with, new));
                }
            }
        }
        if let Some((_, with, [new, new_other])) = best {
            for (index, new) in [(at, new), (with, new_other)] {
                if let Some(pair) = pairs.get_mut(index) {
                    *pair = new;
                }
            }
        }
    }
}

//! Finds the ends and paths that explain the bad results of one rail.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::links::Links;

/// An end that is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) node: usize,
    /// No result contradicts it.
    pub(crate) confirmed: bool,
}

/// What explains the bad results of one rail.
#[derive(Debug, Default)]
pub(crate) struct Accused {
    pub(crate) named: Vec<Named>,
    /// Pairs whose bad results no named end explains.
    pub(crate) left: Vec<(usize, usize)>,
}

/// How strongly an end is accused: partners that were good with a third node, bad partners, wrong values sent.
type Weight = (usize, usize, usize);

/// Bad results that are not explained yet: the partners of each node.
type Open = BTreeMap<usize, BTreeSet<usize>>;

/// Explains the bad results of one rail; the documentation of the crate has the steps.
pub(crate) fn accuse(links: &Links) -> Accused {
    let mut open: Open = Open::new();
    for node in links.nodes() {
        let bad: BTreeSet<usize> = links.bad(node).map(|neighbour| neighbour.node).collect();
        if !bad.is_empty() {
            open.insert(node, bad);
        }
    }
    let down = links.down.iter();
    let mut named: Vec<Named> =
        down.map(|node| Named { node: *node, confirmed: links.good(*node) == 0 }).collect();
    while let Some(node) = strongest(&open, |node| weight(links, &open, node)) {
        close(&mut open, node);
        named.push(Named { node, confirmed: true });
    }
    while let Some(node) = strongest(&open, |node| weight_with_good(links, &open, node)) {
        close(&mut open, node);
        named.push(Named { node, confirmed: false });
    }
    let left = open.iter().flat_map(|(node, others)| others.iter().map(|other| (*node, *other)));
    Accused { named, left: left.filter(|(node, other)| node < other).collect() }
}

fn open_of(open: &Open, node: usize) -> usize {
    open.get(&node).map_or(0, BTreeSet::len)
}

/// Returns the weight of an end that was good with no partner.
fn weight(links: &Links, open: &Open, node: usize) -> Option<Weight> {
    if links.good(node) > 0 {
        return None;
    }
    let bad = open.get(&node)?;
    let witnesses = bad.iter().filter(|other| links.good(**other) > 0).count();
    let sent = links.bad(node).filter(|other| other.sent_wrong && bad.contains(&other.node)).count();
    Some((witnesses, bad.len(), sent))
}

/// Returns the weight of an end that was good with fewer partners than it was bad with.
fn weight_with_good(links: &Links, open: &Open, node: usize) -> Option<Weight> {
    let bad = open_of(open, node);
    (bad > links.good(node)).then_some((0, bad, 0))
}

/// Returns the end with at least two open results that is accused most, if two partners were good with a third node or if it is
/// accused more than each of its partners. Two partners that are accused equally by nothing else are left for
/// [`Accused::left`]: naming one of them would be a guess.
fn strongest(open: &Open, weight: impl Fn(usize) -> Option<Weight>) -> Option<usize> {
    let candidates = open.iter().filter(|(_, others)| others.len() >= 2);
    let weighed = candidates.filter_map(|(node, others)| Some((*node, others, weight(*node)?)));
    let clear = weighed.filter(|(_, others, own)| {
        own.0 >= 2 || others.iter().all(|other| weight(*other).is_none_or(|of_other| of_other < *own))
    });
    clear.max_by_key(|(node, _, own)| (*own, Reverse(*node))).map(|(node, ..)| node)
}

/// Takes out all results of a node: they are explained.
fn close(open: &mut Open, node: usize) {
    for other in open.remove(&node).unwrap_or_default() {
        let empty = open.get_mut(&other).is_some_and(|others| {
            others.remove(&node);
            others.is_empty()
        });
        if empty {
            open.remove(&other);
        }
    }
}

//! The third round: what is still open after two.

use std::collections::BTreeSet;

use crate::accuse::accuse;
use crate::links::{Links, Neighbour, late_tests};
use crate::types::{Pair, Place};

/// Weight of a suspect that is not told apart from its partners yet.
const OPEN: usize = 40;
/// Weight of a suspicious path that is tested again.
const REPEAT: usize = 20;
/// Weight of a suspect that is named already, to confirm that it is slow.
const CONFIRM: usize = 10;
/// A partner that is a suspect itself is worth this part of one that was good.
const SUSPECT_PARTNER: usize = 4;

/// What a node needs from the third round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// A partner that it did not test this rail with.
    NewPartner { rail: usize, weight: usize },
    /// The same partner again.
    Repeat { with: usize },
}

/// Needs of each node.
type Needs = Vec<Vec<Need>>;

/// Returns the pairs that settle what is open. With two nodes also the second round: the same pair again.
pub(crate) fn pairs(places: &[Place], links: &[Links]) -> Vec<Pair> {
    let needs = needs(places, links);
    let weight =
        |node: usize| needs.get(node).map_or(0, |needs| needs.iter().map(need_weight).sum::<usize>());
    let mut order: Vec<usize> = (0..places.len()).filter(|node| weight(*node) > 0).collect();
    order.sort_by_key(|node| (std::cmp::Reverse(weight(*node)), *node));
    let mut free: BTreeSet<usize> = (0..places.len()).collect();
    let mut pairs = Vec::new();
    for node in order {
        if !free.contains(&node) {
            continue;
        }
        let use_of = |other: usize| {
            let own = served(&needs, links, node, other);
            let of_other = served(&needs, links, other, node);
            // A partner with needs of its own that this pair does not serve is kept for those.
            let total = own.saturating_mul(2) + of_other * 2;
            let score = total.saturating_sub(weight(other).saturating_sub(of_other));
            let near = places.get(node) == places.get(other);
            (own > 0).then_some((score, near, std::cmp::Reverse(other)))
        };
        let others = free.iter().copied().filter(|other| *other != node);
        let best = others.filter_map(|other| Some((use_of(other)?, other))).max();
        if let Some((_, other)) = best {
            free.remove(&node);
            free.remove(&other);
            pairs.push(Pair { left: node, right: other });
        }
    }
    pairs
}

fn need_weight(need: &Need) -> usize {
    match need {
        Need::NewPartner { weight, .. } => *weight,
        Need::Repeat { .. } => REPEAT,
    }
}

/// Returns the weight of the needs of `node` that a test with `other` serves.
fn served(needs: &Needs, links: &[Links], node: usize, other: usize) -> usize {
    let serves = |need: &Need| match need {
        Need::Repeat { with } if *with == other => REPEAT,
        Need::Repeat { .. } => 0,
        Need::NewPartner { rail, weight } => match links.get(*rail) {
            Some(links) if links.linked(node, other) || links.down.contains(&other) => 0,
            Some(links) if links.good(other) > 0 && links.bad(other).next().is_none() => *weight,
            _ => *weight / SUSPECT_PARTNER,
        },
    };
    needs.get(node).map_or(0, |needs| needs.iter().map(serves).sum())
}

fn needs(places: &[Place], links: &[Links]) -> Needs {
    let mut needs: Needs = vec![Vec::new(); places.len()];
    for (rail, links) in links.iter().enumerate() {
        let mut add = |node: usize, need: Need| {
            if let Some(needs) = needs.get_mut(node) {
                needs.push(need);
            }
        };
        let accused = accuse(links);
        for pair in &accused.left {
            of_pair(links, places.len(), *pair, rail, &mut add);
        }
        for named in accused.named.iter().filter(|named| !links.down.contains(&named.node)) {
            of_named(links, named.node, rail, &mut add);
        }
        for node in links.without_result() {
            add(node, Need::NewPartner { rail, weight: OPEN });
        }
        late(links, places.len(), rail, &mut add);
    }
    needs
}

/// Adds the needs of a bad pair that no named end explains: the same test again if both ends are good with others.
fn of_pair(
    links: &Links,
    nodes: usize,
    (left, right): (usize, usize),
    rail: usize,
    add: &mut impl FnMut(usize, Need),
) {
    let unclear: Vec<usize> = [left, right].into_iter().filter(|node| links.good(*node) == 0).collect();
    if nodes > 2 && !unclear.is_empty() {
        unclear.into_iter().for_each(|node| add(node, Need::NewPartner { rail, weight: OPEN }));
    } else if links.counts(left, right).bad() < 2 {
        add(left, Need::Repeat { with: right });
        add(right, Need::Repeat { with: left });
    }
}

/// Adds the needs of an end that two rounds name, and of its partners.
fn of_named(links: &Links, node: usize, rail: usize, add: &mut impl FnMut(usize, Need)) {
    let bad: Vec<Neighbour> = links.bad(node).collect();
    let (clear, unclear): (Vec<Neighbour>, Vec<Neighbour>) =
        bad.iter().copied().partition(|other| links.good(other.node) > 0);
    // Wrong values and failures do not come by chance from two partners; a slow transfer can.
    if clear.len() < 2 {
        add(node, Need::NewPartner { rail, weight: OPEN });
    } else if bad.iter().all(|other| other.only_slow) {
        add(node, Need::NewPartner { rail, weight: CONFIRM });
    }
    // These partners have no other result that counts.
    for other in unclear {
        add(other.node, Need::NewPartner { rail, weight: OPEN });
    }
}

/// Adds a test for each end whose latency was high in every test so far, if one more test can settle it.
fn late(links: &Links, nodes: usize, rail: usize, add: &mut impl FnMut(usize, Need)) {
    for node in links.nodes() {
        let tests = links.late(node).unwrap_or(0);
        if tests + 1 != late_tests(nodes) {
            continue;
        }
        match links.of(node) {
            [only] if nodes == 2 => add(node, Need::Repeat { with: only.node }),
            _ => add(node, Need::NewPartner { rail, weight: CONFIRM }),
        }
    }
}

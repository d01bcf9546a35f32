//! Pairs that are measured again in the same round: a processor that did not run for a moment slows one measurement down, a fault slows
//! all of them down.

use std::collections::{BTreeMap, BTreeSet};

use crate::judge::{Judged, Judgement, valid};
use crate::types::{End, Outcome, Pair, Round, Settings, Tested};

/// So many slow pairs of a rail are measured again, even if they are most of a small round.
const FEW: usize = 4;
/// A rail that stayed slow in so many rounds, with different partners, needs no repeat in another one. After one round the slow end is not
/// yet known, and its healthy partner needs all repeats.
const ENOUGH: usize = 2;

/// The medians rise with each pair that was measured again. A result that is as far from a limit could otherwise become a slow one without a
/// repeat.
const MARGIN: f64 = 1.01;

/// Returns the limits of results that are measured again.
pub(crate) fn limits(settings: &Settings) -> Settings {
    Settings {
        min_share: settings.min_share * MARGIN,
        max_latency_times: settings.max_latency_times / MARGIN,
        expected_gbps: settings.expected_gbps,
    }
}

/// Returns the pairs of the last round that are measured again; the documentation of [`crate::Plan::again`] has the conditions.
///
/// `judged` are the results of all rounds, `number` is that of the last one, from 1.
pub(crate) fn pairs(judged: &[Judged], round: &Round, number: usize) -> Vec<Pair> {
    let mut slow_before: BTreeMap<End, BTreeSet<usize>> = BTreeMap::new();
    for one in judged.iter().filter(|one| one.round < number && is_slow(one)) {
        for node in [one.tested.pair.left, one.tested.pair.right] {
            slow_before.entry(End { node, rail: one.tested.rail }).or_default().insert(one.round);
        }
    }
    let stayed_slow = |node: usize, rail: usize| {
        slow_before.get(&End { node, rail }).is_some_and(|rounds| rounds.len() >= ENOUGH)
    };
    let mut of_rails: BTreeMap<usize, Vec<&Judged>> = BTreeMap::new();
    for one in judged.iter().filter(|one| one.round == number && one.judgement != Judgement::Unknown) {
        of_rails.entry(one.tested.rail).or_default().push(one);
    }
    let mut asked = BTreeSet::new();
    for results in of_rails.values() {
        let slow: Vec<&&Judged> = results.iter().filter(|one| is_slow(one)).collect();
        if slow.len() > FEW && slow.len() * 2 > results.len() {
            continue;
        }
        for Tested { pair, rail, .. } in slow.into_iter().map(|one| &one.tested) {
            if !stayed_slow(pair.left, *rail) && !stayed_slow(pair.right, *rail) {
                asked.insert(pair.sorted());
            }
        }
    }
    // A round may have been read from a file: also then, a node is in one pair at a time.
    let mut nodes = BTreeSet::new();
    let mut free = |pair: &Pair| {
        let both = [pair.left, pair.right];
        let is_free = both.iter().all(|node| !nodes.contains(node));
        nodes.extend(both.into_iter().filter(|_| is_free));
        is_free
    };
    round.pairs.iter().filter(|pair| asked.contains(&pair.sorted()) && free(pair)).copied().collect()
}

fn is_slow(judged: &Judged) -> bool {
    matches!(judged.judgement, Judgement::Slow { .. } | Judgement::Late { .. })
}

impl Round {
    /// Takes the results of pairs that were measured again, as [`crate::Plan::again`] returned them.
    ///
    /// Of each direction the highest bandwidth counts, of each rail the lowest latency. Wrong values, a port that was down and a transfer that failed
    /// stay, whichever measurement they are from; wrong words are added. A measurement without a result changes nothing.
    pub fn measure_again(&mut self, pairs: &[Pair], tested: Vec<Tested>) {
        self.measured_again += pairs.len();
        for again in tested {
            let is_same =
                |one: &&mut Tested| one.rail == again.rail && one.pair.sorted() == again.pair.sorted();
            match self.tested.iter_mut().find(is_same) {
                Some(one) => {
                    let turned = one.pair != again.pair;
                    let outcome = if turned { turn(again.outcome) } else { again.outcome };
                    let before = std::mem::replace(&mut one.outcome, Outcome::Unknown { why: String::new() });
                    one.outcome = both(before, outcome);
                }
                None => self.tested.push(again),
            }
        }
    }
}

/// Exchanges the directions.
fn turn(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Measured { gbps: [there, back], latency_us } => {
            Outcome::Measured { gbps: [back, there], latency_us }
        }
        Outcome::Corrupt { wrong_words: [there, back] } => Outcome::Corrupt { wrong_words: [back, there] },
        other => other,
    }
}

/// How much an outcome shows. A fact after one measurement is above an outcome that another measurement can change.
fn rank(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Corrupt { wrong_words } if *wrong_words != [0, 0] => 4,
        Outcome::Failed { down_end: Some(_), .. } => 3,
        Outcome::Failed { .. } => 2,
        Outcome::Measured { gbps, latency_us } if valid(*gbps, *latency_us) => 1,
        Outcome::Corrupt { .. } | Outcome::Measured { .. } | Outcome::Unknown { .. } => 0,
    }
}

/// The outcome of two measurements of a pair on a rail, with the same directions.
fn both(first: Outcome, again: Outcome) -> Outcome {
    if rank(&first) != rank(&again) {
        return if rank(&first) > rank(&again) { first } else { again };
    }
    match (first, again) {
        (Outcome::Corrupt { wrong_words: [there, back] }, Outcome::Corrupt { wrong_words: more }) => {
            Outcome::Corrupt { wrong_words: [there.saturating_add(more[0]), back.saturating_add(more[1])] }
        }
        (
            Outcome::Measured { gbps: [there, back], latency_us },
            Outcome::Measured { gbps: again, latency_us: again_us },
        ) if valid([there, back], latency_us) => {
            let gbps = [there.max(again[0]), back.max(again[1])];
            Outcome::Measured { gbps, latency_us: latency_us.min(again_us) }
        }
        (first, _) => first,
    }
}

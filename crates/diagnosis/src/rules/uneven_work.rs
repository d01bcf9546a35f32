use std::collections::BTreeMap;

use super::slow_clock::Alike;
use super::{cpu_contention, pausing_rank, saving, sleeping_rank, slow_clock};
use crate::facts::{Facts, Unit, mean_of, median};
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "uneven-work",
    about: "a rank works on less or more per step than the other ranks",
    class: Class::Application,
    evidence: "tokens (else samples) per step of each rank, as the program reports them (docs/application-reports.md), against the
median of the ranks, each with at least two steps. Of two ranks, the one with less work is named: medium confidence. The cost is at most
what the SMs of the ranks show: parts of a step, such as the optimizer, do not depend on the number of tokens. Of a program that reports
nothing: the others wait for a rank in NCCL (its profiler plugin; the limits are those of `sleeping-rank`), and the tensor pipes of its GPU do more
work, activity times clock, than the median of theirs: medium confidence.",
    why: "ranks with less work wait in every step for those with more.",
    look_alikes: "an intended division of labour, as in a pipeline or with parameter servers: if more than a quarter of the ranks
differ, none is reported. Without reports, layers that are divided unevenly look like more samples, and so does a
rank that also evaluates on its GPU, unless its pauses are known (`pausing-rank`). Sequences of varying length even out
over many steps. Several programs in one job, as in a sweep, do not wait for each other and are not judged.",
    fix: "give every rank the same number of tokens or samples per step; a program without samples: the same share of layers or data",
    thresholds: Settings::KEYS,
    line: Line::Slow,
    over: Over::Training,
    explains: Explains::Nothing,
    find,
};

thresholds! {
    off_percent: Number(5.0), 0.1 to 1000.0, "%", "a rank's work per step is off the median by more than this";
    more_percent: Number(10.0), 0.1 to 1000.0, "%", "or, without reports, the others wait for a rank and its GPU does this much more tensor work than theirs";
}

fn find(facts: &Facts<'_>) -> Vec<Found> {
    if !facts.ranks_depend {
        return Vec::new();
    }
    let reports = facts.reporting().any(|(unit, _)| Work::of(unit).is_some());
    if reports { by_reports(facts) } else { by_counters(facts) }
}

fn by_reports(facts: &Facts<'_>) -> Vec<Found> {
    let off = facts.rules.uneven_work.off_percent.share();
    let ranks: Vec<Work> = facts.reporting().filter_map(|(unit, _)| Work::of(unit)).collect();
    let Some(typical) = median(ranks.iter().map(|rank| rank.per_step).collect()) else { return Vec::new() };
    if let [one, other] = ranks.as_slice() {
        return if one.per_step < other.per_step { of_two(one, other, off) } else { of_two(other, one, off) };
    }
    if ranks.len() < 3 || typical <= 0.0 {
        return Vec::new();
    }
    let odd: Vec<_> = ranks.iter().filter(|rank| (rank.per_step / typical - 1.0).abs() > off).collect();
    // An intended division of labour, not a fault.
    if odd.len() * 4 > ranks.len().max(4) {
        return Vec::new();
    }
    let of_typical = median(ranks.iter().filter_map(|rank| rank.sm_percent).collect());
    odd.into_iter()
        .map(|rank| {
            let share = rank.per_step / typical - 1.0;
            let (word, costs) = if share < 0.0 {
                let idle = at_most_idle(-share, rank.sm_percent, of_typical);
                ("less", idle / railgate_node_report::plain::float(u64::try_from(ranks.len()).unwrap_or(1)))
            } else {
                ("more", at_most_idle(share / (1.0 + share), of_typical, rank.sm_percent))
            };
            let what = format!(
                "{} works on {:.0} % {word} per step than the others",
                rank.part,
                100.0 * share.abs()
            );
            Found { costs: Some(costs), ..Found::new("high", rank.part.clone(), what) }
        })
        .collect()
}

/// Ranks of a program that reports nothing: the others wait for such a rank in NCCL, and its GPU does more work in the same time.
fn by_counters(facts: &Facts<'_>) -> Vec<Found> {
    /// A rank with more than this many times the work of the others has another role.
    const OTHER_ROLE: f64 = 3.0;
    let times = 1.0 + facts.rules.uneven_work.more_percent.share()..=OTHER_ROLE;
    let late = sleeping_rank::waits(facts);
    if late.is_empty() || late.len() * 4 > facts.units.len().max(4) {
        return Vec::new();
    }
    let ranks = railgate_node_report::plain::float(u64::try_from(facts.units.len()).unwrap_or(1));
    // Of two ranks, `waits` has the mean of the one that waits and the one that does not.
    let of_mean = if facts.units.len() == 2 { 2.0 } else { 1.0 };
    let known = [cpu_contention::find, saving::find, pausing_rank::find].map(|rule| rule(facts)).concat();
    let asleep = sleeping_rank::find(facts);
    // Activity times clock. A job can have thousands of units: each is named once.
    let works = Alike::new(facts, slow_clock::work);
    let units: BTreeMap<String, &Unit<'_>> = facts.units.iter().map(|unit| (unit.name(), unit)).collect();
    let of = |(part, waits): (String, f64)| {
        let unit = units.get(&part)?;
        let (own, typical) = works.beside_others(unit.gpu?).filter(|(_, typical)| *typical > 0.0)?;
        let more = own / typical;
        // It may evaluate now and then, or its work may be of another kind.
        let idle = (of_mean * waits).min(1.0 - 1.0 / more);
        let costs = idle * (ranks - 1.0) / ranks;
        let explained = known.iter().any(|one| one.costs.is_none_or(|known| known >= 0.5 * costs))
            || asleep.iter().any(|one| one.part == part);
        if !times.contains(&more) || explained {
            return None;
        }
        let what = format!(
            "the other ranks wait for {part} at least {:.0} % of the time, and its GPU does {:.0} % more tensor work than theirs: it has more work in each step",
            100.0 * idle,
            100.0 * (more - 1.0)
        );
        Some(Found { costs: Some(costs), ..Found::new("medium", part, what) })
    };
    late.into_iter().filter_map(of).collect()
}

/// What a rank does in each step.
struct Work {
    /// Its name.
    part: String,
    /// Tokens, else samples.
    per_step: f64,
    /// Share of its GPU's SMs at work over the whole time; `None` without GPM.
    sm_percent: Option<f64>,
}

impl Work {
    fn of(unit: &Unit<'_>) -> Option<Self> {
        let rank = unit.app?;
        if rank.steps < 2 || rank.model.as_ref().is_some_and(|model| model.global) {
            return None;
        }
        let count = rank.tokens.or(rank.samples)?;
        let sm_percent = unit.gpu.and_then(|gpu| mean_of(&gpu.counters.sm_percent).known().copied());
        Some(Work {
            part: unit.name(),
            per_step: count / railgate_node_report::plain::float(rank.steps),
            sm_percent,
        })
    }
}

/// Of two ranks neither is the odd one.
fn of_two(less: &Work, more: &Work, off: f64) -> Vec<Found> {
    let share = 1.0 - less.per_step / more.per_step;
    if more.per_step <= 0.0 || share <= off {
        return Vec::new();
    }
    let part = &less.part;
    let what =
        format!("{part} works on {:.0} % less per step than the other rank and waits for it", 100.0 * share);
    // Both hold a GPU for as long as the one with more work needs.
    let idle = at_most_idle(share, less.sm_percent, more.sm_percent);
    vec![Found { costs: Some(idle / 2.0), ..Found::new("medium", part.clone(), what) }]
}

/// The share of its time in which a rank with less work waits: `share`, its lack of tokens, or what its SMs lack if that is less.
fn at_most_idle(share: f64, less: Option<f64>, more: Option<f64>) -> f64 {
    let lack =
        less.zip(more).filter(|(_, more)| *more > 0.0).map(|(less, more)| (1.0 - less / more).max(0.0));
    lack.map_or(share, |lack| lack.min(share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Outcome;
    use crate::simulator;

    #[test]
    fn one_of_three_is_odd_and_three_of_eight_are_intended() {
        let found = |ranks: usize, odd: usize| {
            let mut nodes = simulator::healthy();
            let all = nodes.iter_mut().flat_map(|node| &mut node.application.as_mut().unwrap().ranks);
            for (number, rank) in all.enumerate() {
                match number {
                    number if number < odd => rank.tokens = rank.tokens.map(|tokens| tokens / 2.0),
                    number if number >= ranks => rank.steps = 0,
                    _ => {}
                }
            }
            let found = find(&Facts::new(&nodes, nodes[0].end, Outcome::Good, None));
            found.into_iter().map(|one| one.part).collect::<Vec<_>>()
        };
        assert_eq!(found(3, 1), ["n0 GPU 0 rank 0"]);
        assert_eq!(found(8, 2), ["n0 GPU 0 rank 0", "n0 GPU 1 rank 1"]);
        assert!(found(8, 3).is_empty() && found(2, 0).is_empty());
        assert_eq!(found(2, 1), ["n0 GPU 0 rank 0"]);
    }

    /// PyTorch's DDP on two H200s: a rank with half of the batch had 64 % of the other's SM activity.
    #[test]
    fn a_step_has_parts_that_do_not_depend_on_the_tokens() {
        assert!((at_most_idle(0.5, Some(55.8), Some(86.6)) - 0.356).abs() < 0.001);
        // Kernels of NCCL keep SMs busy as well, and without GPM there is only the number of tokens.
        assert_eq!(at_most_idle(0.1, Some(50.0), Some(90.0)), 0.1);
        assert_eq!(at_most_idle(0.1, Some(90.0), Some(80.0)), 0.0);
        assert_eq!(at_most_idle(0.5, None, Some(90.0)), 0.5);
    }
}

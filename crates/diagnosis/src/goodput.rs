use std::collections::BTreeMap;

use railgate_model::{Reading, UnixMillis};
use railgate_node_report::application::RankApplication;
use railgate_node_report::plain::float;

use super::facts::Facts;
use super::{Goodput, StartWork};

/// Means over the ranks that report, with equal weights. What a rank did in earlier starts of the step adds to it.
pub(super) fn goodput(facts: &Facts<'_>) -> Reading<Goodput> {
    let told: Vec<_> = facts.reporting().map(|(_, rank)| rank).collect();
    if told.is_empty() {
        return Reading::Failed(
            "the program does not report its steps (docs/application-reports.md)".to_owned(),
        );
    }
    let last = told.iter().map(|rank| rank.last_seen).max();
    let (Some(start), Some(end)) = (facts.start(), facts.end.or(last)) else {
        return Reading::Failed("its start or end is not known".to_owned());
    };
    let allocated_s = float(end.saturating_sub(start)) / 1000.0;
    if allocated_s <= 0.0 {
        return Reading::Failed("it took no time".to_owned());
    }
    let count = float(u64::try_from(told.len()).unwrap_or(1));
    let mut sum = Goodput {
        fraction: 0.0,
        allocated_s,
        productive_s: 0.0,
        start_up_s: 0.0,
        checkpoint_s: 0.0,
        redone_s: 0.0,
        tail_s: 0.0,
        other_s: 0.0,
        gpus: facts.gpus(),
        starts: Vec::new(),
    };
    // With the number of ranks that report in it.
    let mut starts: BTreeMap<u32, (StartWork, f64)> = BTreeMap::new();
    for part in told.iter().flat_map(|rank| parts(facts, rank, start, end)) {
        let Part { rank, begin, end, before, is_last } = part;
        let steps = rank.step_s.map_or(0.0, |times| times.total);
        // Steps up to the highest one of the previous attempt or start are repeated.
        let again = match (before, rank.first_number) {
            (Some(before), Some(first)) if before >= first && rank.steps > 0 => {
                let mean = rank.step_s.map_or(0.0, |times| times.mean);
                float((before - first + 1).min(rank.steps - rank.redone.min(rank.steps))) * mean
            }
            _ => 0.0,
        };
        let redone = (rank.redone_s + again).min(steps);
        let before_it = float(rank.started.saturating_sub(begin)) / 1000.0;
        let whole = float(end.saturating_sub(begin)) / 1000.0;
        let start_up = (rank.start_up_s + before_it).min(whole);
        let seen = rank.last_step.map_or(rank.last_seen, |step| step.max(rank.started));
        let tail = if is_last { float(end.saturating_sub(seen)) / 1000.0 } else { 0.0 };
        let number = rank.start_number;
        let (work, ranks) =
            starts.entry(number).or_insert((StartWork { number, ..StartWork::default() }, 0.0));
        work.productive_s += steps - redone;
        work.redone_s += redone;
        *ranks += 1.0;
        sum.productive_s += (steps - redone) / count;
        sum.redone_s += redone / count;
        sum.checkpoint_s += rank.checkpoint_s / count;
        // Without a step all time is start-up.
        let (start_up, tail) = if rank.steps == 0 { (whole, 0.0) } else { (start_up, tail) };
        sum.start_up_s += start_up / count;
        sum.tail_s += tail / count;
    }
    let known = sum.productive_s + sum.redone_s + sum.checkpoint_s + sum.start_up_s + sum.tail_s;
    // After a clock change the parts can exceed the whole; they are then scaled to it.
    if known > allocated_s {
        let scale = allocated_s / known;
        for part in [
            &mut sum.productive_s,
            &mut sum.redone_s,
            &mut sum.checkpoint_s,
            &mut sum.start_up_s,
            &mut sum.tail_s,
        ] {
            *part *= scale;
        }
    } else {
        sum.other_s = allocated_s - known;
    }
    sum.fraction = sum.productive_s / allocated_s;
    if starts.len() > 1 {
        let mean = |(work, ranks): (StartWork, f64)| StartWork {
            productive_s: work.productive_s / ranks,
            redone_s: work.redone_s / ranks,
            ..work
        };
        sum.starts = starts.into_values().map(mean).collect();
    }
    Reading::Known(sum)
}

/// One start of a rank, with the time that it accounts for: from the last sign of life of the start before it.
struct Part<'a> {
    rank: &'a RankApplication,
    begin: UnixMillis,
    end: UnixMillis,
    /// Highest step that was reached before.
    before: Option<u64>,
    is_last: bool,
}

fn parts<'a>(
    facts: &Facts<'a>,
    last: &'a RankApplication,
    start: UnixMillis,
    end: UnixMillis,
) -> Vec<Part<'a>> {
    let mut starts: Vec<_> =
        facts.earlier.iter().copied().filter(|one| last.rank.is_some() && one.rank == last.rank).collect();
    starts.push(last);
    starts.sort_by_key(|one| one.start_number);
    let (mut begin, mut before) = (start, facts.before);
    let part = |(at, rank): (usize, &&'a RankApplication)| {
        let next = starts.get(at + 1);
        let part =
            Part { rank, begin, end: next.map_or(end, |next| next.started), before, is_last: next.is_none() };
        (begin, before) = (rank.last_seen.max(begin), before.max(rank.last_number));
        part
    };
    starts.iter().enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;
    use crate::simulator::healthy;

    /// A start of 100 s, lost after its last checkpoint, and 20 s later the one of which the rest is known.
    #[test]
    fn work_of_an_earlier_start_counts_and_is_not_counted_twice() {
        let mut nodes = healthy();
        let of =
            |nodes: &[_]| goodput(&Facts::new(nodes, None, Outcome::Good, None)).known().unwrap().clone();
        let alone = of(&nodes);
        for node in &mut nodes {
            node.start -= 120_000;
            let told = node.application.as_mut().unwrap();
            let mut first: Vec<RankApplication> = told.ranks.clone();
            for rank in &mut told.ranks {
                (rank.start_number, rank.first_number, rank.last_number) =
                    (1, Some(90), Some(90 + rank.steps));
            }
            for rank in &mut first {
                (rank.started, rank.last_seen) = (node.start, node.start + 100_000);
                (rank.last_step, rank.steps, rank.start_up_s) = (Some(rank.last_seen), 100, 10.0);
                (rank.first_number, rank.last_number) = (Some(0), Some(99));
                let times = rank.step_s.as_mut().unwrap();
                (times.total, times.count) = (90.0, 99);
            }
            told.ranks.splice(0..0, first);
        }
        let both = of(&nodes);
        let step_s = nodes[0].application.as_ref().unwrap().ranks[4].step_s.unwrap().mean;
        assert!((both.redone_s - 10.0 * step_s).abs() < 0.1, "{both:?}");
        assert!((both.productive_s + both.redone_s - alone.productive_s - 90.0).abs() < 0.1, "{both:?}");
        assert!((both.start_up_s - alone.start_up_s - 10.0 - 20.0).abs() < 0.1, "{both:?} {alone:?}");
        assert!((both.tail_s - alone.tail_s).abs() < 1e-9, "{both:?} {alone:?}");
        assert!(alone.starts.is_empty());
        let [first, second] = both.starts.as_slice() else { panic!("{both:?}") };
        assert_eq!((first.number, first.redone_s, second.number), (0, 0.0, 1));
        assert!(
            (first.productive_s - 90.0).abs() < 0.1 && (second.redone_s - both.redone_s).abs() < 0.1,
            "{both:?}"
        );
    }
}

use railgate_model::Reading;
use railgate_node_report::plain::float;

use super::Goodput;
use super::facts::Facts;

/// Means over the ranks that report, with equal weights.
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
    };
    for rank in &told {
        let steps = rank.step_s.map_or(0.0, |times| times.total);
        // Steps up to the highest one of the previous attempt are repeated.
        let again = match (facts.before, rank.first_number) {
            (Some(before), Some(first)) if before >= first && rank.steps > 0 => {
                let mean = rank.step_s.map_or(0.0, |times| times.mean);
                float((before - first + 1).min(rank.steps - rank.redone.min(rank.steps))) * mean
            }
            _ => 0.0,
        };
        let redone = (rank.redone_s + again).min(steps);
        let before_it = float(rank.started.saturating_sub(start)) / 1000.0;
        let start_up = (rank.start_up_s + before_it).min(allocated_s);
        let seen = rank.last_step.map_or(rank.last_seen, |step| step.max(rank.started));
        let tail = float(end.saturating_sub(seen)) / 1000.0;
        sum.productive_s += (steps - redone) / count;
        sum.redone_s += redone / count;
        sum.checkpoint_s += rank.checkpoint_s / count;
        // Without a step all time is start-up.
        let (start_up, tail) = if rank.steps == 0 { (allocated_s, 0.0) } else { (start_up, tail) };
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
    Reading::Known(sum)
}

use railgate_fleet::{Bounds, BySize, Goodput, by_size, goodput, lost_by_cause};
use railgate_text::{Lines, put};
use serde::Serialize;

use super::{Known, rows};
use crate::output::{self, Format, say};

#[derive(Serialize)]
struct Cost {
    schema: u32,
    attempts: usize,
    /// Attempts without GPUs, or without a report of their number. GPU hours do not include them.
    without_gpus: usize,
    partitions: Vec<Goodput>,
    lost: Vec<LostRow>,
    sizes: Vec<SizeRow>,
}

#[derive(Serialize)]
struct LostRow {
    /// Why, in words.
    why: String,
    attempts: usize,
    gpu_hours: Bounds,
}

#[derive(Serialize)]
struct SizeRow {
    from_nodes: usize,
    /// `None` for the largest jobs.
    to_nodes: Option<usize>,
    attempts: usize,
    job_hours: f64,
    failures: u32,
    /// Failed attempts whose cause is unknown.
    unknown: u32,
    /// Hours of a job of this size until a node ends it; `None` without a failure.
    hours_to_failure: Option<f64>,
    /// Ends of the interval of 90 %.
    lower: f64,
    upper: Option<f64>,
}

impl SizeRow {
    fn of(size: &BySize) -> SizeRow {
        let (lower, hours_to_failure, upper) = size.job_hours_to_failure();
        SizeRow {
            from_nodes: size.from,
            to_nodes: size.to,
            attempts: size.attempts,
            job_hours: size.job_hours,
            failures: size.node.failures,
            unknown: size.node.unknown,
            hours_to_failure,
            lower,
            upper,
        }
    }
}

pub(super) fn print(known: &Known, format: Format) -> anyhow::Result<()> {
    let Known { history, judgement, settings, .. } = known;
    let lost = lost_by_cause(history, judgement, settings).into_iter();
    let lost = lost.map(|one| LostRow {
        why: one.why.to_string(),
        attempts: one.attempts,
        gpu_hours: one.gpu_hours,
    });
    let cost = Cost {
        schema: 1,
        attempts: history.attempts().len(),
        without_gpus: history.attempts().iter().filter(|attempt| attempt.gpus == 0).count(),
        partitions: goodput(history, settings),
        lost: lost.collect(),
        sizes: by_size(history, judgement).iter().map(SizeRow::of).collect(),
    };
    if format == Format::Json {
        return output::json(&cost);
    }
    if history.attempts().is_empty() {
        return say!("no job attempts yet: railgate-fleet takes them in");
    }
    let mut text = Lines::new();
    let between = |bounds: Bounds| format!("{:.1} to {:.1}", bounds.low, bounds.high);
    put!(text, "GPU hours allocated to jobs, and productive GPU hours (lower to upper bound)");
    let mut table = rows(&["PARTITION", "MONTH", "GPU HOURS", "PRODUCTIVE"]);
    for one in &cost.partitions {
        let partition = if one.partition.is_empty() { "unknown" } else { &one.partition };
        table.push(vec![
            partition.to_owned(),
            one.month.clone(),
            format!("{:.1}", one.gpu_hours),
            between(one.productive),
        ]);
    }
    text.add(&output::table(&table));
    if cost.without_gpus > 0 {
        let Cost { attempts, without_gpus, .. } = cost;
        put!(
            text,
            "not counted above: {without_gpus} of {attempts} attempts, without GPUs or without a report of their number"
        );
    }
    text.blank();
    put!(text, "GPU hours lost by attempts that have ended (lower to upper bound)");
    let mut table = rows(&["WHY", "ATTEMPTS", "LOST GPU HOURS"]);
    for one in &cost.lost {
        table.push(vec![one.why.clone(), one.attempts.to_string(), between(one.gpu_hours)]);
    }
    text.add(&output::table(&table));
    text.blank();
    put!(text, "hours of a job until a node ends it, with the interval of 90 %");
    let mut table = rows(&["NODES", "ATTEMPTS", "JOB HOURS", "FAILURES", "HOURS TO FAILURE"]);
    for size in &cost.sizes {
        let to = size.to_nodes.map_or_else(|| "more".to_owned(), |to| to.to_string());
        let hours = match (size.hours_to_failure, size.upper) {
            (Some(hours), Some(upper)) => super::interval(hours, size.lower, upper),
            _ => format!("more than {:.1}: no failure", size.lower),
        };
        table.push(vec![
            format!("{} to {to}", size.from_nodes),
            size.attempts.to_string(),
            format!("{:.1}", size.job_hours),
            format!("{} ({} more unknown)", size.failures, size.unknown),
            hours,
        ]);
    }
    text.add(&output::table(&table));
    output::text(&text)
}

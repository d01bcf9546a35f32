//! Figures of the period: productive time, lost time, failures, time to failure.

use std::cmp::Reverse;

use maud::{Markup, html};
use railgate_fleet::{
    Advice, Attempt, Blame, BySize, Cause, CheckRecord, FaultCounts, Goodput, History, Judgement, Loss, Lost,
    Settings, Share, by_size, checkpoint_interval, confirmed_drains, costs, goodput, lost_by_cause,
};
use railgate_model::UnixMillis;
use railgate_page::{Text, table};

use crate::words::{UNKNOWN, between, more, percent, plural, short, span, time, whole};
use crate::{Facts, MOST_ROWS};

/// Failures of jobs that are listed, the last ones.
const MOST_FAILURES: usize = 50;

/// Times that training waits for one checkpoint, seconds, for which an interval is given: the history does not have the site's own.
const WRITE_S: [f64; 2] = [30.0, 300.0];

pub(crate) fn html(facts: &Facts<'_>) -> Markup {
    let goodput = goodput(facts.history, facts.settings);
    html! {
        h2 { "Figures of the period" }
        div.card { (totals(facts, &goodput)) (partitions(&goodput)) }
        h2 { "Ends of jobs, and GPU-hours lost" }
        div.card { (losses(facts)) }
        h2 { "Faults of nodes by cause" }
        div.card { (faults(facts)) }
        h2 { "Time until a node ends a job, by job size" }
        div.card { (sizes(facts)) }
    }
}

fn totals(facts: &Facts<'_>, goodput: &[Goodput]) -> Markup {
    let Facts { history, judgement, settings, .. } = facts;
    let costs = costs(history, settings);
    let Share { productive, whole: gpu_hours } = Share::goodput(goodput);
    let Share { productive: useful, whole: wall_hours } = Share::ettr(&costs);
    let reported = costs.iter().filter(|job| job.reported).count();
    let without_gpus = history.attempts().iter().filter(|attempt| attempt.gpus == 0).count();
    let or_unknown = |share: Option<String>, why: &str| share.unwrap_or_else(|| format!("{UNKNOWN}: {why}"));
    let no_gpus = "no attempt with a known number of GPUs";
    html! {
        dl {
            dt { "Nodes" } dd { (whole(judgement.nodes.len())) }
            dt { "Jobs, attempts" } dd { (plural(costs.len(), "job")) ", " (plural(history.attempts().len(), "attempt")) }
            dt { "GPU-hours of jobs" }
            dd {
                @if gpu_hours > 0.0 { (Text(&short(gpu_hours))) " GPU-hours" } @else { (UNKNOWN) ": " (no_gpus) }
                @if without_gpus > 0 {
                    span.soft { "; without " (plural(without_gpus, "attempt")) " without GPUs or without a report of their number" }
                }
            }
            dt { "Goodput" }
            dd {
                strong { (Text(&or_unknown(percent(productive, gpu_hours), no_gpus))) }
                span.soft { " of these GPU-hours were productive (lower to upper bound)" }
            }
            dt { "ETTR" }
            dd {
                strong { (Text(&or_unknown(percent(useful, wall_hours), "no job has run"))) }
                span.soft {
                    " productive time over wall-clock time, the wait in the queue included (lower to upper bound, all jobs together); programs of "
                    (whole(reported)) " of " (plural(costs.len(), "job")) " reported their progress, which narrows it"
                }
            }
        }
    }
}

fn partitions(all: &[Goodput]) -> Markup {
    let row = |one: &Goodput| {
        let partition = if one.partition.is_empty() { UNKNOWN } else { &one.partition };
        vec![
            one.month.clone(),
            partition.to_owned(),
            short(one.gpu_hours),
            between(one.productive),
            percent(one.productive, one.gpu_hours).unwrap_or_else(|| UNKNOWN.to_owned()),
        ]
    };
    let mut sorted: Vec<&Goodput> = all.iter().collect();
    sorted.sort_by(|one, other| (&other.month, &one.partition).cmp(&(&one.month, &other.partition)));
    let rows: Vec<Vec<String>> = sorted.iter().take(MOST_ROWS).map(|one| row(one)).collect();
    html! {
        (table(&["@Month", "Partition", "#GPU-hours", "#Productive GPU-hours (lower to upper bound)", "#Goodput"], &rows))
        (more(all.len(), rows.len(), "railgate fleet cost"))
    }
}

fn losses(facts: &Facts<'_>) -> Markup {
    let mut lost = lost_by_cause(facts.history, facts.judgement, facts.settings);
    lost.sort_by(|one, other| {
        other.gpu_hours.high.total_cmp(&one.gpu_hours.high).then_with(|| one.why.cmp(&other.why))
    });
    let row = |one: &Lost| {
        let why = match &one.why {
            Loss::Unknown => format!("{UNKNOWN}: no evidence against one node"),
            why => why.to_string(),
        };
        vec![why, whole(one.attempts), between(one.gpu_hours)]
    };
    let rows: Vec<Vec<String>> = lost.iter().map(row).collect();
    html! {
        @if rows.is_empty() { p { "No attempt has ended." } }
        (table(&["Why", "#Attempts", "#Lost GPU-hours (lower to upper bound)"], &rows))
        p.soft { "Only attempts that have ended. Work that was lost and repeated counts once." }
    }
}

fn faults(facts: &Facts<'_>) -> Markup {
    let mut causes: Vec<(Cause, FaultCounts)> = facts.judgement.faults_by_cause().into_iter().collect();
    causes.sort_by_key(|(cause, FaultCounts { counted, aside })| (Reverse(counted + aside), *cause));
    let row = |(cause, FaultCounts { counted, aside }): &(Cause, FaultCounts)| {
        vec![cause.to_string(), whole(*counted), whole(*aside)]
    };
    let rows: Vec<Vec<String>> = causes.iter().map(row).collect();
    html! {
        @if rows.is_empty() { p { "No faults in the period." } }
        (table(&["Cause", "#Faults that count", "#Faults set aside"], &rows))
        p.soft {
            "Set aside: faults of incidents, of jobs that failed their nodes, and of nodes beside a node with proof. They count against no node."
        }
    }
}

/// Nodes of a size, rounded: the interval between checkpoints is for a job with this many.
fn typical(size: &BySize) -> usize {
    let most = size.to.unwrap_or(usize::MAX);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a mean of node counts is positive, and a cast saturates"
    )]
    let nodes = size.nodes.round() as usize;
    nodes.clamp(size.from, most)
}

/// How often a job with this many nodes should write checkpoints, for each time of [`WRITE_S`].
fn advice(sizes: &[BySize], nodes: usize, settings: &Settings) -> String {
    let mut texts: Vec<String> = WRITE_S
        .map(|write| match checkpoint_interval(sizes, nodes, write, settings) {
            Advice::Every { seconds, low, high } => {
                format!("{} ({} to {})", span(seconds), span(low), span(high))
            }
            Advice::Refused(why) => format!("{UNKNOWN}: {why}"),
        })
        .into();
    let is_known = texts.iter().any(|text| !text.starts_with(UNKNOWN));
    texts.dedup();
    let of = if is_known { format!(" for {}", plural(nodes, "node")) } else { String::new() };
    format!("{}{of}", texts.join("; "))
}

/// How often what followed a drain confirmed its check.
pub(crate) fn checks(facts: &Facts<'_>) -> Markup {
    let records = confirmed_drains(facts.history, facts.judgement, facts.settings);
    let row = |record: &CheckRecord| {
        let share = record.share.and_then(|share| percent(share, 1.0));
        vec![
            record.check.clone(),
            record.drains.to_string(),
            record.confirmed.to_string(),
            record.unconfirmed.to_string(),
            record.undecided().to_string(),
            share.unwrap_or_else(|| format!("{UNKNOWN}: too few")),
        ]
    };
    let rows: Vec<Vec<String>> = records.iter().take(MOST_ROWS).map(row).collect();
    let head = [
        "Check",
        "#Drains",
        "#Confirmed",
        "#Not confirmed",
        "#Undecided",
        "#Confirmed share (90 % interval)",
    ];
    html! {
        h2 { "Drains by check, and what confirmed them" }
        div.card {
            @if rows.is_empty() { p { "No node was drained after a finding of a check." } }
            (table(&head, &rows))
            (more(records.len(), rows.len(), "railgate fleet checks"))
            @if !rows.is_empty() {
                p.soft {
                    "Confirmed: a job had ended with the node, a self-test failed, a repair was entered, or the same check failed again within "
                    (facts.settings.probation_hours) " h of service. A drain that is not confirmed can still have been right: a reboot can mend a node, \
                     and repairs that were not entered are not known."
                }
            }
        }
    }
}

fn sizes(facts: &Facts<'_>) -> Markup {
    let sizes = by_size(facts.history, facts.judgement);
    let row = |size: &BySize| {
        let nodes = match size.to {
            None => format!("{} and more", size.from),
            Some(to) if to == size.from => to.to_string(),
            Some(to) => format!("{} to {to}", size.from),
        };
        let hours = match size.job_hours_to_failure() {
            (low, Some(hours), Some(high)) => {
                format!("{} ({} to {})", short(hours), short(low), short(high))
            }
            (low, ..) => format!("more than {}: no failure", short(low)),
        };
        let mut cells = vec![
            nodes,
            whole(size.attempts),
            short(size.job_hours),
            size.node.failures.to_string(),
            size.node.unknown.to_string(),
            hours,
        ];
        cells.push(advice(&sizes, typical(size), facts.settings));
        cells
    };
    let rows: Vec<Vec<String>> = sizes.iter().map(row).collect();
    let writes = WRITE_S.map(span).join("; ");
    let between = format!("~Time between checkpoints, if one takes {writes}");
    let head = [
        "Nodes of the job",
        "#Attempts",
        "#Hours of jobs",
        "#Failures",
        "#Could not tell",
        "#Hours to failure (90 % interval)",
        &between,
    ];
    html! {
        @if rows.is_empty() { p { (UNKNOWN) ": no job has run." } }
        (table(&head, &rows))
        p.soft {
            "Failures: attempts that a node or an incident ended. Attempts that failed without a known cause are counted beside them. \
             The interval between checkpoints has the least expected loss, √(2·w·M), for the time w that training waits for a checkpoint and the time M to failure."
        }
    }
}

/// A job attempt that a node or an incident ended.
pub(crate) struct Failure<'a> {
    end: UnixMillis,
    pub(crate) attempt: &'a Attempt,
    blame: &'a Blame,
}

/// The last jobs that a node or an incident ended, the newest first, and the number of all of them.
pub(crate) fn last_failures<'a>(history: &'a History, judgement: &'a Judgement) -> (usize, Vec<Failure<'a>>) {
    let failure = |(attempt, blame): (&'a Attempt, &'a Blame)| match blame {
        Blame::Node { .. } | Blame::Incident { .. } => Some(Failure { end: attempt.end?.0, attempt, blame }),
        _ => None,
    };
    let mut all: Vec<Failure<'a>> =
        history.attempts().iter().zip(&judgement.blames).filter_map(failure).collect();
    // Stable: the history has them by job and attempt.
    all.sort_by_key(|failure| Reverse(failure.end));
    let count = all.len();
    all.truncate(MOST_FAILURES);
    (count, all)
}

pub(crate) fn failures(facts: &Facts<'_>) -> Markup {
    let Facts { history, judgement, names, .. } = facts;
    let (count, last) = last_failures(history, judgement);
    let row = |Failure { end, attempt, blame }: &Failure<'_>| {
        let why = match blame {
            Blame::Node { node, cause } => format!("{node}: {cause}"),
            Blame::Incident { incident } => judgement
                .incidents
                .get(*incident)
                .map_or_else(|| UNKNOWN.to_owned(), |found| names.incident(found, history)),
            _ => UNKNOWN.to_owned(),
        };
        let ran = end.saturating_sub(attempt.start) as f64 / 1000.0;
        let mut cells = vec![time(*end)];
        if names.are_shown() {
            cells.extend([attempt.job.to_string(), names.user(attempt.uid)]);
        }
        cells.extend([attempt.nodes.len().to_string(), span(ran), why]);
        cells
    };
    let rows: Vec<Vec<String>> = last.iter().map(row).collect();
    let head: &[&str] = if names.are_shown() {
        &["@End", "#Job", "User", "#Nodes", "#Ran", "Cause"]
    } else {
        &["@End", "#Nodes", "#Ran", "Cause"]
    };
    html! {
        h2 { "Last jobs that a node or an incident ended" }
        div.card {
            @if rows.is_empty() { p { "None." } }
            (table(head, &rows))
            (more(count, rows.len(), "railgate fleet export"))
        }
    }
}

//! One line for each attempt: duration, end, node, and the decision.

use railgate_model::UnixMillis;
use railgate_node_report::comm::newest_launch;
use railgate_node_report::plain::{clock, float, plain, span};
use railgate_node_report::{ActKind, DecisionKind};
use railgate_text::shorten;

use super::{Row, short};
use crate::exits::telling_exit;
use crate::why::decided;
use crate::{Attempt, EndKind, JobReport};

/// Maximum number of attempts shown; those in the middle are summed up.
const MOST: usize = 4;

pub(super) fn rows(report: &JobReport) -> Vec<Row> {
    let attempts = &report.attempts;
    let row = |text| Row::open_to_all("WHY", text);
    let one = |place: usize| {
        let line = line(report, place)?;
        let many = attempts.len() > 1;
        let lead = attempts.get(place).filter(|_| many).map(|attempt| format!("{}: ", number(attempt)));
        Some(row(format!("{}{line}", lead.unwrap_or_default())))
    };
    if attempts.len() <= MOST {
        return (0..attempts.len()).filter_map(one).collect();
    }
    let (first, last) = (MOST / 2, MOST - MOST / 2);
    let left_out = row(format!("… {} attempts between them", attempts.len() - MOST));
    let ends = (attempts.len() - last..attempts.len()).filter_map(one);
    (0..first).filter_map(one).chain([left_out]).chain(ends).collect()
}

/// `attempt 1`, by Slurm's restart count, as in logs and comments.
pub(super) fn number(attempt: &Attempt) -> String {
    format!("attempt {}", attempt.attempt)
}

fn line(report: &JobReport, place: usize) -> Option<String> {
    let attempt = report.attempts.get(place)?;
    if attempt.ended.kind == EndKind::Running {
        return None;
    }
    let mut parts = vec![how(attempt)];
    parts.extend(proof(attempt));
    parts.extend(attempt.first_error.as_ref().map(|first| plain(&first.what)));
    parts.extend(done(attempt));
    if let Some(next) = report.attempts.get(place + 1) {
        if let (Some(end), Some(start)) = (attempt.end, next.start)
            && let Some(pause) = start.checked_sub(end)
        {
            parts.push(format!("started again after {}", span(float(pause) / 1000.0)));
        }
        let good = next.analysis.as_ref().and_then(|analysis| analysis.goodput.known());
        parts.extend(
            good.filter(|good| good.redone_s >= 1.0).map(|good| format!("{} redone", span(good.redone_s))),
        );
    }
    let back = [DecisionKind::Requeued, DecisionKind::RequeuedBySlurm];
    let decision = attempt.decision.as_ref().filter(|decision| back.contains(&decision.what));
    if let Some(budget) = decision.and_then(|decision| decision.budget).filter(|budget| budget.restarts > 0) {
        // Slurm restarts a job after a node failure regardless of railgate's limit.
        let limit = match budget.max_restarts {
            most if most >= budget.restarts => format!(" of at most {most}"),
            _ => String::new(),
        };
        parts.push(format!("restart {}{limit}", budget.restarts));
    }
    Some(parts.join("; "))
}

/// Duration and end, `31 h 02 min HARDWARE FAULT, exit code 1`.
fn how(attempt: &Attempt) -> String {
    let ran = match (attempt.start, attempt.end) {
        (Some(start), Some(end)) => span(float(end.saturating_sub(start)) / 1000.0),
        _ => "for an unknown time".to_owned(),
    };
    let title = match attempt.ended.kind {
        EndKind::Running => "RUNNING",
        EndKind::Waiting => return "WAITING to start".to_owned(),
        EndKind::Completed => "COMPLETED",
        EndKind::Cancelled => "CANCELLED",
        EndKind::Timeout => "TIME LIMIT",
        EndKind::Deadline => "DEADLINE",
        EndKind::Preempted => "PREEMPTED",
        EndKind::OutOfMemory => "OUT OF MEMORY",
        EndKind::NodeDied => "NODE DIED",
        EndKind::MovedByGate => return "REFUSED BY THE GATE before it started".to_owned(),
        EndKind::Requeued => "REQUEUED",
        EndKind::Hardware => "HARDWARE FAULT",
        EndKind::Preflight => "NAMED BY ITS OWN PREFLIGHT",
        EndKind::Hung => "HUNG, ended by the guard",
        EndKind::Application => "FAILED, looks like the application",
        EndKind::Unknown => "ENDED, could not tell why",
    };
    let exit = telling_exit(attempt).map(|exit| format!(", {exit}")).unwrap_or_default();
    format!("{ran} {title}{exit}")
}

/// The first proof, with its time.
fn proof(attempt: &Attempt) -> Option<String> {
    let first = attempt.ended.proof.first()?;
    let time = first.time.map(|time| {
        let beside = progress(attempt, time).map(|text| format!(", {text}")).unwrap_or_default();
        format!(" at {}Z{beside}", clock(time).get(..8).unwrap_or_default())
    });
    Some(format!("{} {}{}", shorten(&first.node, 24), shorten(&first.what, 120), time.unwrap_or_default()))
}

/// Time between the last progress and an event, or for how long the job continued after it. Progress is
/// measured in steps if the program counts them, else in collectives. Clocks of nodes may differ, by
/// milliseconds if they are synchronized.
fn progress(attempt: &Attempt, time: UnixMillis) -> Option<String> {
    // A partial report is older than the end of the job.
    let whole = || attempt.nodes.iter().filter(|node| node.as_of.is_none());
    let ranks = whole().filter_map(|node| node.application.as_ref()).flat_map(|told| &told.ranks);
    let comms = whole().filter_map(|node| node.communication.as_ref()).flat_map(|comm| &comm.communicators);
    let step = ranks.filter_map(|rank| rank.last_step).max();
    let launched = newest_launch(comms);
    let (last, one, many) = match (step, launched) {
        (Some(step), _) => (step, "step", "steps"),
        (None, Some(launched)) => (launched, "collective was launched", "collectives"),
        (None, None) => return None,
    };
    let seconds = |from: UnixMillis, to: UnixMillis| span(float(to.saturating_sub(from)) / 1000.0);
    Some(match last > time {
        true => format!("{many} continued for {}", seconds(time, last)),
        false => format!("{} after the last {one}", seconds(last, time)),
    })
}

fn done(attempt: &Attempt) -> Vec<String> {
    let nodes = |kind: ActKind| -> Vec<&str> {
        let did = |node: &&railgate_node_report::NodeReport| node.acts.iter().any(|act| act.what == kind);
        attempt.nodes.iter().filter(did).map(|node| node.node.as_str()).collect()
    };
    let mut parts = Vec::new();
    for kind in [ActKind::Drained, ActKind::WouldDrain, ActKind::Breaker] {
        let what = kind.title();
        match nodes(kind).as_slice() {
            [] => {}
            [one] => parts.push(format!("{} {what}", shorten(one, 24))),
            many => parts.push(format!("{} nodes {what}", many.len())),
        }
    }
    parts.extend(attempt.decision.as_ref().map(|decision| match decision.what {
        DecisionKind::Requeued => "requeued by railgate".to_owned(),
        DecisionKind::RequeuedBySlurm => "requeued by Slurm".to_owned(),
        DecisionKind::Moved => "requeued by Slurm".to_owned(),
        DecisionKind::Held => because("held", &decision.why, 100),
        DecisionKind::Left | DecisionKind::Cancelled => {
            because("not requeued", &decided(attempt, decision), 140)
        }
        DecisionKind::Failed => because("requeue failed", &decision.why, 100),
    }));
    parts
}

fn because(what: &str, why: &str, most: usize) -> String {
    if why.is_empty() { what.to_owned() } else { format!("{what}: {}", shorten(why, most)) }
}

/// GPU-hours between the end of an attempt and the start of the next one, which are not billed.
pub(super) fn between(report: &JobReport, gpus: u32) -> Option<String> {
    let pairs = report.attempts.iter().zip(report.attempts.iter().skip(1));
    let pauses = pairs.filter_map(|(one, next)| next.start?.checked_sub(one.end?));
    let hours = float(pauses.sum()) / 3.6e6 * f64::from(gpus.max(1));
    let unit = if gpus > 0 { "GPU-h" } else { "h" };
    (hours > 0.0).then(|| plain(&format!("between attempts {} {unit} unallocated", short(hours))))
}

//! What is wrong with a job, in one line, and what shows it.

use railgate_model::UnixMillis;
use railgate_node_report::plain::{clock, float, plain, span};
use railgate_node_report::{Hang, NodeReport};
use railgate_text::shorten;

use super::screen::{hang_evidence, telling, verdict};
use crate::{Attempt, EndKind, JobReport};

/// The content of `railgate why`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The job and its state.
    pub(crate) job: String,
    /// Name and text of rows. The first one is the answer.
    pub(crate) rows: Vec<(&'static str, String)>,
}

/// Builds the answer at the time `now`.
pub(crate) fn answer(report: &JobReport, now: UnixMillis) -> Answer {
    let name = report.name.as_ref().map(|name| format!(" '{}'", shorten(name, 40))).unwrap_or_default();
    let cluster = plain(&report.cluster);
    let job = format!("job {}{name} on {cluster}: {}", report.job, report.ended.kind.title());
    let last = report.attempts.last();
    let runs = report.ended.kind == EndKind::Running;
    let mut rows = Vec::new();
    match last.and_then(|attempt| first_open(attempt)) {
        Some((node, hang)) if runs => hangs(&mut rows, node, hang, now),
        _ if runs => rows.extend(no_hang(report, last)),
        found => {
            let text = match telling(report) {
                Some((_, analysis)) => verdict(report, analysis),
                None => report.ended.why.clone(),
            };
            rows.push(("ANSWER", text));
            rows.extend(
                found.into_iter().flat_map(|(_, hang)| &hang.signs).map(|sign| ("SIGN", plain(sign))),
            );
        }
    }
    rows.extend(last.into_iter().flat_map(hang_evidence));
    if !report.next_steps.is_empty() && !runs {
        rows.push(("DO", report.next_steps.join(" | ")));
    }
    Answer { job, rows }
}

/// That no hang is known is no proof that the job advances: what was looked at, and where to look next.
fn no_hang(report: &JobReport, last: Option<&Attempt>) -> [(&'static str, String); 2] {
    let (seen, silent) = last.map_or((0, 0), |attempt| (attempt.nodes.len(), attempt.silent_nodes.len()));
    let nodes = match silent {
        0 => String::new(),
        _ => format!("; {seen} of {} nodes have reported", seen + silent),
    };
    // Stacks are taken before a wait is called a hang, and they stay after it.
    let waited = match last {
        Some(attempt) if !attempt.stacks.is_empty() => {
            "; its ranks waited when STACKS was taken, and may have continued since"
        }
        _ => "",
    };
    let next = format!(
        "look at PHASES in `railgate report {} --live`; hangs are not looked for with [guard] mode = \"off\", and not found on GPUs before Hopper",
        report.job
    );
    [("ANSWER", format!("it runs, and no hang is known{nodes}{waited}")), ("DO", next)]
}

/// The first hang that has not ended, of a rank that is known if there is one; a wait for storage counts last.
fn first_open(attempt: &Attempt) -> Option<(&NodeReport, &Hang)> {
    let open = attempt.nodes.iter().filter_map(|node| {
        let hang = node.hangs.as_ref()?.list.last()?;
        hang.over.is_none().then_some((node, hang))
    });
    open.min_by_key(|(_, hang)| (!hang.kind.is_hang(), hang.culprits.is_empty(), hang.since))
}

fn hangs(rows: &mut Vec<(&'static str, String)>, node: &NodeReport, hang: &Hang, now: UnixMillis) {
    let what = if hang.kind.is_hang() { "hung" } else { "waiting for storage" };
    let lasts = span(float(now.saturating_sub(hang.since)) / 1000.0);
    let since = clock(hang.since);
    let since = since.get(..8).unwrap_or_default();
    let sentence = plain(&hang.sentence());
    rows.push((
        "ANSWER",
        format!("it has been {what} since {since} UTC ({lasts}): {sentence} ({})", shorten(&node.node, 40)),
    ));
    rows.extend(hang.signs.iter().map(|sign| ("SIGN", plain(sign))));
    rows.extend(hang.act.iter().map(|act| ("GUARD", plain(&act.sentence()))));
    rows.push(("DO", plain(&hang.advice())));
}

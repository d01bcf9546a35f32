//! Content of the report of a running job.

use railgate_model::UnixMillis;
use railgate_node_report::plain::{clock, float, plain, span};
use railgate_text::shorten;

use super::screen;
use crate::{Attempt, EndKind, JobReport};

/// A running job at one moment.
#[derive(Debug)]
pub(crate) struct Live {
    /// Job and state, `48213 on alpha: running, for 5.0 s; 08:00:05 Z`.
    pub(crate) job: String,
    /// Name and text of rows, as on the screen of an ended job.
    pub(crate) rows: Vec<(&'static str, String)>,
}

/// Builds the content at the time `now`. `None` if the job does not run.
pub(crate) fn live(report: &JobReport, now: UnixMillis) -> Option<Live> {
    let attempt = report.attempts.last().filter(|_| report.ended.kind == EndKind::Running)?;
    let since = attempt.start.map(|start| format!(", for {}", ago(start, now))).unwrap_or_default();
    let tries = match attempt.attempt {
        0 => String::new(),
        number => format!(", attempt {number}"),
    };
    let name = report.name.as_ref().map(|name| format!(" '{}'", shorten(name, 40))).unwrap_or_default();
    let job = format!(
        "{}{name} on {}: running{since}{tries}; {} Z",
        report.job,
        plain(&report.cluster),
        clock(now).get(..8).unwrap_or_default()
    );
    let (reported, words) = heard(attempt, now);
    let mut rows = vec![("REPORTS", words)];
    for row in screen::rows(report) {
        match row.name {
            // These rows describe an end.
            "RAN" | "UNKNOWN" | "DO" => {}
            "VERDICT" => rows.push(("SO FAR", so_far(attempt))),
            name => rows.push((name, row.text())),
        }
    }
    let mut unknown = vec![
        "how it ends, the gate's findings after it, port errors, NVLink bytes and ECC errors (compared at its end)"
            .to_owned(),
    ];
    if reported == 0 {
        unknown.push("everything else: no node has reported".to_owned());
    }
    rows.push(("NOT YET", unknown.join("; ")));
    Some(Live { job, rows })
}

fn ago(time: UnixMillis, now: UnixMillis) -> String {
    span(float(now.saturating_sub(time)) / 1000.0)
}

/// Number of nodes that reported, and the age of their reports.
fn heard(attempt: &Attempt, now: UnixMillis) -> (usize, String) {
    let times: Vec<UnixMillis> = attempt.nodes.iter().filter_map(|node| node.as_of).collect();
    let all = attempt.node_count.max(attempt.nodes.len());
    let (Some(oldest), Some(newest)) = (times.iter().min(), times.iter().max()) else {
        let why = if attempt.nodes.is_empty() {
            "[report] dir is not set or not shared, its file server does not answer, or railgate is disabled on the nodes"
        } else {
            "only their prologs have reported. The sampler reports 20 s after the start, then less often, down to every [report] \
             live; jobs without a GPU have no sampler"
        };
        return (0, format!("0 of {all} nodes have sent a partial report: {why}"));
    };
    let age = match (ago(*newest, now), ago(*oldest, now)) {
        (newest, oldest) if newest == oldest => format!("{newest} ago"),
        (newest, oldest) => format!("{newest} to {oldest} ago"),
    };
    let silent: Vec<String> = attempt
        .silent_nodes
        .iter()
        .map(String::as_str)
        .chain(attempt.nodes.iter().filter(|node| node.as_of.is_none()).map(|node| node.node.as_str()))
        .map(plain)
        .collect();
    let silent = match silent.as_slice() {
        [] => String::new(),
        names if names.len() <= 4 => format!("; nothing from {}", names.join(", ")),
        names => format!("; nothing from {} and {} more", names[..4].join(", "), names.len() - 4),
    };
    (times.len(), format!("{} of {all} nodes, {age}{silent}", times.len()))
}

fn so_far(attempt: &Attempt) -> String {
    let Some(analysis) = &attempt.analysis else { return "nothing measured yet".to_owned() };
    let ranks: Vec<_> = attempt
        .nodes
        .iter()
        .filter_map(|node| node.application.as_ref())
        .flat_map(|told| &told.ranks)
        .collect();
    let most = ranks.iter().filter_map(|rank| rank.last_number).max();
    let least = ranks.iter().filter_map(|rank| rank.last_number).min();
    let step = match (least, most) {
        (Some(least), Some(most)) if least == most => format!("step {most}. "),
        (Some(least), Some(most)) => format!("steps {least} to {most}. "),
        _ => String::new(),
    };
    let sentence = analysis.sentence().unwrap_or_else(|| "no figures yet".to_owned());
    format!("{step}{}", plain(&sentence))
}

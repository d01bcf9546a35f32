//! What is known of a job that runs, on one screen.

use railgate_model::UnixMillis;
use railgate_text::{Lines, shorten};

use super::Text;
use crate::plain::{clock, float, plain, span};
use crate::view::screen;
use crate::{Attempt, EndKind, JobReport};

/// The screen of a job that runs, at `now`. It says how old the nodes' words are and what cannot be known yet. Of a
/// job that does not run it is [`super::text`].
pub fn live(report: &JobReport, now: UnixMillis) -> Lines {
    let attempt = report.attempts.last().filter(|_| report.ended.kind == EndKind::Running);
    let Some(attempt) = attempt else { return super::text(report, false) };
    let mut out = Text::default();
    let since = attempt.start.map(|start| format!(", for {}", ago(start, now))).unwrap_or_default();
    let tries = match attempt.attempt {
        0 => String::new(),
        number => format!(", attempt {number}"),
    };
    let name = report.name.as_ref().map(|name| format!(" '{}'", shorten(name, 40))).unwrap_or_default();
    out.line(&format!(
        "job {}{name} on {}: running{since}{tries}; {} Z",
        report.job,
        plain(&report.cluster),
        clock(now).get(..8).unwrap_or_default()
    ));
    let (spoken, words) = heard(attempt, now);
    out.screen("HEARD", &words);
    for row in screen::rows(report) {
        match row.name {
            // It has no end to be told.
            "RAN" | "UNKNOWN" | "DO" => {}
            "VERDICT" => out.screen("SO FAR", &so_far(attempt)),
            name => out.screen(name, &row.text()),
        }
    }
    let mut unknown = vec![
        "how it ends, what the gate finds after it, errors of ports, NVLink bytes and ECC (its end compares them)"
            .to_owned(),
    ];
    if spoken == 0 {
        unknown.push("everything else: no node has spoken".to_owned());
    }
    out.screen("NOT YET", &unknown.join("; "));
    out.0
}

fn ago(time: UnixMillis, now: UnixMillis) -> String {
    span(float(now.saturating_sub(time)) / 1000.0)
}

/// How many nodes have spoken, and how long ago.
fn heard(attempt: &Attempt, now: UnixMillis) -> (usize, String) {
    let times: Vec<UnixMillis> = attempt.nodes.iter().filter_map(|node| node.as_of).collect();
    let all = attempt.node_count.max(attempt.nodes.len());
    let (Some(oldest), Some(newest)) = (times.iter().min(), times.iter().max()) else {
        let why = if attempt.nodes.is_empty() {
            "not even that it begins: [report] dir is not set, not shared or does not answer, or railgate is off there"
        } else {
            "only that it begins: the sampler speaks 20 s after that, then more seldom up to every [report] live; \
             jobs without a GPU have none"
        };
        return (0, format!("0 of {all} nodes have said anything of it, {why}"));
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
    let Some(analysis) = &attempt.analysis else { return "nothing is measured yet".to_owned() };
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
    let sentence = analysis.sentence().unwrap_or_else(|| "nothing stands out".to_owned());
    format!("{step}{}", plain(&sentence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{job, merged, part, slurm};

    #[test]
    fn a_job_that_runs_says_what_it_cannot_know_yet() {
        let words = |as_of: [Option<u64>; 2]| {
            let parts: Vec<_> = ["n1", "n2"]
                .iter()
                .zip(as_of)
                .map(|(name, as_of)| {
                    let mut node = part(name, &job(0..8), "", vec![], 0);
                    (node.end, node.exit, node.as_of) = (None, None, as_of);
                    node
                })
                .collect();
            let start = parts[0].start;
            (start, merged(parts, vec![], slurm("RUNNING")))
        };
        let (start, silent) = words([None, None]);
        let text = live(&silent, start + 60_000);
        assert!(text.contains("0 of 2 nodes have said anything of it, only that it begins"), "{text}");
        assert!(text.contains("running, for 1 min") && text.contains("NOT YET  how it ends"), "{text}");
        let (start, report) = words([Some(0), None]);
        let mut report = report;
        report.attempts[0].nodes[0].as_of = Some(start + 55_000);
        let text = live(&report, start + 60_000);
        assert!(text.contains("HEARD    1 of 2 nodes, 5.0 s ago; nothing from n2"), "{text}");
        assert!(!text.contains("VERDICT") && !text.contains("everything else"), "{text}");
    }
}

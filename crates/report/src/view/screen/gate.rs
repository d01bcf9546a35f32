//! Verdicts of the gate before and after each attempt.

use railgate_model::{Fitness, Severity};
use railgate_text::shorten;

use super::why::number;
use crate::{Attempt, JobReport};

/// Maximum number of attempts shown.
const MOST: usize = 3;

/// Row text, `attempt 0: 64/64 fit (p99 0.41 s), attempt 1: 64/64 fit; gpu-0391 ecc-rate`.
pub(super) fn line(report: &JobReport) -> Option<String> {
    let many = report.attempts.len() > 1;
    let looked = |attempt: &Attempt| attempt.nodes.iter().any(|node| node.prolog.is_some());
    let all: Vec<&Attempt> = report.attempts.iter().filter(|attempt| looked(attempt)).collect();
    if all.is_empty() {
        return None;
    }
    let shown = all.get(all.len().saturating_sub(MOST)..).unwrap_or_default();
    let fit: Vec<String> = shown
        .iter()
        .map(|attempt| {
            let lead = if many { format!("{}: ", number(attempt)) } else { String::new() };
            format!("{lead}{}", fit(attempt))
        })
        .collect();
    let mut checks: Vec<String> = shown
        .iter()
        .flat_map(|attempt| &attempt.nodes)
        .flat_map(|node| {
            // A node that was fit before the job may be unfit afterwards.
            let before = node.prolog.iter().map(move |look| (node, look, ""));
            before.chain(node.epilog.iter().map(move |look| (node, look, " (afterwards)")))
        })
        .flat_map(|(node, look, when)| look.verdict.findings.iter().map(move |found| (node, found, when)))
        .filter(|(_, found, _)| found.severity >= Severity::Warn)
        .map(|(node, found, when)| format!("{} {}{when}", shorten(&node.node, 24), found.subject()))
        .collect();
    checks.dedup();
    let more = checks.len().saturating_sub(3);
    checks.truncate(3);
    let found = if checks.is_empty() { String::new() } else { format!("; {}", checks.join(", ")) };
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!("{}{found}{more}", fit.join(", ")))
}

fn fit(attempt: &Attempt) -> String {
    let looks: Vec<_> = attempt.nodes.iter().filter_map(|node| node.prolog.as_ref()).collect();
    let fit = looks.iter().filter(|look| look.verdict.fitness == Fitness::Fit).count();
    let mut took: Vec<f64> = looks.iter().filter_map(|look| look.took_ms).collect();
    took.sort_by(f64::total_cmp);
    let slowest = took.get((took.len() * 99).div_ceil(100).saturating_sub(1)).map(|took| {
        let name = if looks.len() < 100 { "slowest" } else { "p99" };
        format!(" ({name} {:.2} s)", took / 1000.0)
    });
    let of = attempt.node_count.max(attempt.nodes.len());
    format!("{fit}/{of} fit{}", slowest.unwrap_or_default())
}

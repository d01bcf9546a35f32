//! The simple thresholds that Meta describes (arXiv 2410.21680), on the same events: a node is a lemon with at least two of these
//! signals over 28 days. Tickets and exclusions by users are not in the events.

use std::collections::{BTreeMap, BTreeSet};

use railgate_fleet::{Event, Grade, Outcome, Source, What};
use railgate_model::Severity;

use crate::generator::{DAY, MINUTE};

#[derive(Clone, Debug, Default)]
struct Signals {
    /// Distinct faults that checks found: in place of distinct Xids.
    checks: BTreeSet<String>,
    /// Times out of service.
    out: usize,
    /// Failures in jobs with several nodes.
    multi: usize,
    single: usize,
    jobs: usize,
}

/// Thresholds: times out of service, failures in jobs with several nodes.
pub(crate) const USUAL: (usize, usize) = (3, 3);
pub(crate) const OTHERS: [(usize, usize); 12] =
    [(2, 3), (4, 3), (3, 4), (4, 4), (5, 4), (4, 6), (5, 6), (6, 6), (5, 8), (6, 8), (6, 10), (8, 12)];

/// The lemons by each pair of thresholds: the usual ones first.
pub(crate) fn lemons(events: &[Event], now: u64) -> Vec<BTreeSet<String>> {
    let from = now - 28 * DAY;
    let mut nodes: BTreeMap<String, Signals> = BTreeMap::new();
    let mut critical: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let recent = |event: &&Event| (from..=now).contains(&event.time) && event.source == Source::Root;
    let events: Vec<&Event> =
        events.iter().filter(recent).filter(|event| seen.insert(event.id.clone())).collect();
    for event in &events {
        match &event.what {
            What::Finding(finding) if finding.severity == Severity::Fail && finding.grade >= Grade::Sign => {
                nodes.entry(finding.node.clone()).or_default().checks.insert(finding.check.clone());
                critical.entry(finding.node.clone()).or_default().push(event.time);
            }
            What::Down { node } => {
                nodes.entry(node.to_owned()).or_default().out += 1;
                critical.entry(node.clone()).or_default().push(event.time);
            }
            What::Drained { node, .. } => nodes.entry(node.to_owned()).or_default().out += 1,
            _ => {}
        }
    }
    for event in &events {
        let What::JobEnded(attempt) = &event.what else { continue };
        let Some((end, outcome)) = attempt.end else { continue };
        for node in attempt.nodes.iter() {
            let near = |time: &&u64| (end - 10 * MINUTE..=end + 5 * MINUTE).contains(*time);
            let found = critical.get(node).is_some_and(|times| times.iter().any(|time| near(&time)));
            let failed = outcome == Outcome::NodeFail || (outcome == Outcome::Failed && found);
            let signals = nodes.entry(node.to_owned()).or_default();
            if attempt.nodes.len() == 1 {
                signals.jobs += 1;
                signals.single += usize::from(failed);
            } else {
                signals.multi += usize::from(failed);
            }
        }
    }
    let mut checks: Vec<usize> = nodes.values().map(|signals| signals.checks.len()).collect();
    checks.sort_unstable();
    let p99 = checks.get(checks.len() * 99 / 100).copied().unwrap_or(0).max(1);
    let (single, jobs) =
        nodes.values().fold((0, 0), |(single, jobs), one| (single + one.single, jobs + one.jobs));
    let fleet = single as f64 / (jobs as f64).max(1.0);
    let is_lemon = |signals: &Signals, (out, multi): (usize, usize)| {
        let rate = signals.single as f64 / (signals.jobs as f64).max(1.0);
        let signals = [
            signals.checks.len() >= p99,
            signals.out >= out,
            signals.multi >= multi,
            signals.jobs >= 5 && rate >= 3.0 * fleet,
        ];
        signals.iter().filter(|signal| **signal).count() >= 2
    };
    let by = |limits: (usize, usize)| {
        nodes.iter().filter(|(_, signals)| is_lemon(signals, limits)).map(|(node, _)| node.clone()).collect()
    };
    std::iter::once(USUAL).chain(OTHERS).map(by).collect()
}

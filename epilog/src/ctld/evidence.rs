use std::path::Path;

use railgate_node::{Class, Phase, Severity};
use railgate_slurm::{Channel, JobState, NodeEvidence, NodeState, Reason, hostlist};
use railgate_stats::store::load_parts;
use railgate_stats::{DecisionNode, NodeReport};

use crate::call::Call;

/// A drain reason's time is slurmctld's, a job's start too, but both are whole seconds.
const SECOND: u64 = 1;

/// What the nodes of a job have to say.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// In favour of a restart.
    pub(crate) evidence: Vec<NodeEvidence>,
    /// Every node as it was seen, for the report.
    pub(crate) nodes: Vec<DecisionNode>,
    /// What could not be had.
    pub(crate) problems: Vec<String>,
}

/// Asks slurmctld for the nodes' reasons (one query) and reads the nodes' reports.
pub(crate) fn gather(call: &Call, job: &[JobState]) -> Gathered {
    let mut found = Gathered::default();
    let states = states(call, &mut found.problems);
    let start = job.first().and_then(|job| job.start);
    let ids: Vec<u32> = job.iter().map(|job| job.id).collect();
    for state in &states {
        let item = from_reason(state, &ids, start);
        let reason = state.reason.as_ref().map_or_else(String::new, |reason| reason.text.clone());
        found.nodes.push(DecisionNode {
            node: state.name.clone(),
            state: state.state(),
            reason,
            evidence: item.is_some(),
            source: item.as_ref().map_or_else(String::new, |_| "drain reason".to_owned()),
        });
        found.evidence.extend(item);
    }
    let names = hostlist::expand(call.nodelist()).unwrap_or_default();
    for report in reports(call, &ids, &mut found.problems) {
        // Node names go into ExcNodeList, and a report may hold anything.
        if !names.contains(&report.node) {
            continue;
        }
        let held = states.iter().any(|state| state.name == report.node && state.held());
        let items = from_report(&report, held);
        if items.is_empty() {
            continue;
        }
        match found.nodes.iter_mut().find(|node| node.node == report.node) {
            Some(node) if node.evidence => {}
            Some(node) => {
                node.evidence = true;
                node.source = "report".to_owned();
            }
            None => found.nodes.push(DecisionNode {
                node: report.node.clone(),
                state: String::new(),
                reason: String::new(),
                evidence: true,
                source: "report".to_owned(),
            }),
        }
        found.evidence.extend(items);
    }
    found
}

/// The job's nodes; without an answer nothing is known of them.
pub(crate) fn states(call: &Call, problems: &mut Vec<String>) -> Vec<NodeState> {
    let names = match hostlist::expand(call.nodelist()) {
        Ok(names) => names,
        Err(why) => {
            problems.push(why.to_string());
            return Vec::new();
        }
    };
    call.client.nodes(&names).unwrap_or_else(|why| {
        problems.push(why.to_string());
        Vec::new()
    })
}

/// Only the epilog of a node that saw the job die names it in a reason of phase `epilog`.
fn from_reason(state: &NodeState, ids: &[u32], start: Option<u64>) -> Option<NodeEvidence> {
    let standing = state.reason.as_ref().filter(|_| state.held())?;
    let reason = Reason::parse(&standing.text).filter(|reason| reason.phase == Phase::Epilog)?;
    if !reason.jobs.iter().any(|job| ids.contains(job)) {
        return None;
    }
    // Left from an earlier attempt of the same job.
    if let (Some(since), Some(start)) = (standing.since, start)
        && since + SECOND < start
    {
        return None;
    }
    Some(NodeEvidence {
        node: state.name.clone(),
        subject: reason.subject,
        part: String::new(),
        channel: Channel::DrainReason,
        severity: Severity::Fail,
        class: Class::Node,
        own: Some(true),
        at: None,
        held: true,
    })
}

fn reports(call: &Call, ids: &[u32], problems: &mut Vec<String>) -> Vec<NodeReport> {
    let config = &call.config.report;
    let Some(dir) = config.dir.as_deref() else { return Vec::new() };
    let dirs: [&Path; 1] = [dir];
    let mut found = Vec::new();
    for &id in ids {
        let uid = Some(call.job.uid);
        let parts = load_parts(&dirs, Some(&call.cluster), id, uid, config.max_bytes(), config.deadline);
        found.extend(
            parts.nodes.into_iter().filter(|part| part.attempt == call.job.restarts && part.job.id == id),
        );
        problems.extend(parts.problems);
    }
    found
}

fn from_report(report: &NodeReport, held: bool) -> Vec<NodeEvidence> {
    report
        .evidence
        .iter()
        .map(|item| NodeEvidence {
            node: report.node.clone(),
            subject: plain(&item.finding.subject()),
            part: plain(&item.device),
            channel: Channel::Report,
            severity: item.finding.severity,
            class: item.finding.class,
            own: item.own,
            at: item.time,
            held,
        })
        .collect()
}

fn plain(text: &str) -> String {
    text.chars().take(60).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

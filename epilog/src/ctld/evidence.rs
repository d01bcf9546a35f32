use std::path::Path;

use railgate_node::{Class, Phase, Severity};
use railgate_slurm::{Channel, JobState, NodeEvidence, NodeState, Reason, fatal, hostlist};
use railgate_stats::store::{Query, load_parts};
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
    let mut shared: Vec<String> = Vec::new();
    for state in &states {
        let item = from_reason(state, &ids, start);
        if item.is_some() && names_several_jobs(state) {
            shared.push(state.name.clone());
        }
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
        let counts = job.first().is_some_and(|job| !fatal(&items, job, &call.config.requeue).is_empty());
        if !counts {
            found.evidence.extend(items);
            continue;
        }
        // A reason that names several jobs is about the first of them: what hit this one, the report knows.
        found.evidence.retain(|item| !(shared.contains(&item.node) && item.node == report.node));
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
    states_of(call, call.nodelist(), problems)
}

/// The nodes of a list.
pub(crate) fn states_of(call: &Call, nodelist: &str, problems: &mut Vec<String>) -> Vec<NodeState> {
    let names = match hostlist::expand(nodelist) {
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

fn names_several_jobs(state: &NodeState) -> bool {
    let text = state.reason.as_ref().map_or("", |reason| reason.text.as_str());
    Reason::parse(text).is_some_and(|reason| reason.jobs.len() > 1)
}

fn reports(call: &Call, ids: &[u32], problems: &mut Vec<String>) -> Vec<NodeReport> {
    let config = &call.config.report;
    let Some(dir) = config.dir.as_deref() else { return Vec::new() };
    let dirs: [&Path; 1] = [dir];
    let mut found = Vec::new();
    for &id in ids {
        let query = Query {
            cluster: Some(&call.cluster),
            job: id,
            uid: Some(call.job.uid),
            attempt: Some(call.job.restarts),
            brief: true,
            ..Query::default()
        };
        let parts = load_parts(&dirs, &query, config.max_bytes(), config.deadline);
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

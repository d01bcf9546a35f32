use std::collections::HashMap;
use std::time::Duration;

use railgate_model::JobRequest;
use railgate_node_report::{
    Budget, Decision, DecisionKind, DecisionNode, Discounted, REPORT_SCHEMA, reason_for_reader,
};
use railgate_slurm::{Blamed, Entry, Event, NodeEvidence, NodeState, Uncounted, Used, used};
use railgate_store::store_decision;

use crate::call::{Call, now};
use crate::ends::{self, End};
use crate::evidence::states_of;
use crate::tally;

/// The decision about an attempt, to be written.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    /// The attempt that ended.
    pub(crate) attempt: u32,
    /// The decision.
    pub(crate) what: DecisionKind,
    /// One sentence of explanation.
    pub(crate) why: String,
    /// Slurm's state of the job, if known.
    pub(crate) state: Option<String>,
    /// Resources that the job requested, if Slurm was queried about it.
    pub(crate) request: JobRequest,
    /// Faults that do not count as the cause, and why.
    pub(crate) discounted: Vec<Discounted>,
    /// The job would have been considered for a restart if its owner had requested one.
    pub(crate) not_asked: bool,
    /// The used budget, including this attempt.
    pub(crate) used: Option<Used>,
    /// State of its nodes.
    pub(crate) nodes: &'a [DecisionNode],
    /// How long this program waited for the nodes.
    pub(crate) waited: Duration,
}

/// Writes the decision beside the node reports, and a line to the log.
pub(crate) fn decision(call: &Call, record: Record<'_>) {
    let ended = End { time: now(), nodelist: call.nodelist().to_owned() };
    decision_about(call, record, ended, call.exit.job);
}

/// As [`decision`], about an earlier attempt than the one of this call.
fn decision_about(call: &Call, record: Record<'_>, ended: End, exit: Option<u32>) {
    let what = record.what;
    tracing::info!(job = %call.name, attempt = record.attempt, "{what:?}: {}", record.why);
    let config = &call.config.requeue;
    let decision = Decision {
        schema: REPORT_SCHEMA,
        cluster: call.cluster.clone(),
        job: call.job.id,
        attempt: record.attempt,
        time: ended.time,
        what,
        why: record.why,
        state: record.state,
        request: record.request,
        discounted: record.discounted,
        not_asked: record.not_asked,
        exit_status: exit.map(u32::cast_signed),
        consent: call.consent.to_string(),
        budget: record.used.map(|used| Budget {
            restarts: used.deaths,
            max_restarts: call.consent.at_most(config.max_restarts),
            moves: used.moves,
            max_moves: config.max_moves,
        }),
        nodelist: ended.nodelist,
        nodes: record.nodes.to_vec(),
        waited_ms: u64::try_from(record.waited.as_millis()).unwrap_or(u64::MAX),
    };
    for problem in store_decision(&call.config.report, &decision, call.job.uid, call.job.gid).problems {
        tracing::warn!(job = %call.name, "decision: {problem}");
    }
}

/// Makes a line for the ledger.
pub(crate) fn entry(
    call: &Call,
    event: Event,
    attempt: u32,
    ran: Option<Duration>,
    blamed: Vec<Blamed>,
    why: &str,
) -> Entry {
    Entry {
        schema: 1,
        time: now(),
        event,
        job: call.job.id,
        name: call.name.to_string(),
        attempt,
        ran_s: ran.map(|ran| ran.as_secs()),
        blamed,
        why: why.to_owned(),
        uid: Some(call.job.uid),
    }
}

/// Blamed nodes and parts, without duplicates.
pub(crate) fn blamed(evidence: &[&NodeEvidence]) -> Vec<Blamed> {
    let mut blamed: Vec<Blamed> = Vec::new();
    let mut places: HashMap<(&str, &str), usize> = HashMap::new();
    for item in evidence {
        let place = *places.entry((&item.node, &item.subject)).or_insert(blamed.len());
        match blamed.get_mut(place) {
            Some(have) if have.part.is_empty() => have.part.clone_from(&item.part),
            Some(_) => {}
            None => blamed.push(Blamed {
                node: item.node.clone(),
                subject: item.subject.clone(),
                part: item.part.clone(),
            }),
        }
    }
    blamed
}

/// The used part of the job's budget. If the first restart has no ledger entry yet, one is added now.
///
/// # Errors
/// The ledger cannot be read: no job may be requeued then.
pub(crate) fn budget(call: &Call, restarts: u32, ran: Option<Duration>) -> Result<Used, Uncounted> {
    let mut entries = call.ledger.of_job(call.job.id, call.job.uid, now())?;
    if restarts > 0 && !entries.iter().any(|entry| entry.attempt == 0) {
        entries.insert(0, first_restart(call)?);
    }
    Ok(used(&entries, &call.config.requeue, now(), restarts, ran))
}

/// Explains, in a sentence, why a job with an unknown budget is not restarted.
pub(crate) fn not_counted(why: &Uncounted) -> String {
    format!("the ledger cannot be used: {why}; how often the job was restarted is not known")
}

/// The entry for a first restart that this program did not observe. Its cause is a node of that attempt that has been
/// down since; the restart alone is no evidence, because a job may also have been requeued by hand while railgate was
/// off on the controller.
fn first_restart(call: &Call) -> std::io::Result<Entry> {
    let ended = ends::find(&call.own, call.job.id);
    let mut problems = Vec::new();
    let nodes = ended.as_ref().map(|end| states_of(call, &end.nodelist, &mut problems)).unwrap_or_default();
    for problem in problems {
        tracing::warn!(job = %call.name, "{problem}");
    }
    let ended = ended.unwrap_or_else(|| End { time: now(), nodelist: String::new() });
    // Nodes that went down later are unrelated to this job.
    let down: Vec<&NodeState> = nodes
        .iter()
        .filter(|node| down_since(node).is_none_or(|since| since <= ended.time / 1000 + 5))
        .collect();
    let down = Down::of(down.into_iter());
    let (event, why) = if down.blamed.is_empty() {
        (Event::Requeued, "requeued without railgate; Slurm shows no node that went down".to_owned())
    } else {
        (Event::NodeFail, down.text)
    };
    let mut first = entry(call, event, 0, None, down.blamed, &why);
    first.time = ended.time;
    call.ledger.append(&first)?;
    tally::count(&call.config, &call.own, &first);
    // The report about a past attempt is changed only by evidence.
    if event != Event::NodeFail {
        return Ok(first);
    }
    let shown: Vec<DecisionNode> = nodes.iter().map(seen).collect();
    let record = Record {
        attempt: 0,
        what: DecisionKind::RequeuedBySlurm,
        why,
        state: None,
        request: JobRequest::default(),
        discounted: Vec::new(),
        not_asked: false,
        used: None,
        nodes: &shown,
        waited: Duration::ZERO,
    };
    decision_about(call, record, ended, Some(0));
    Ok(first)
}

/// Nodes that are down, and their description.
#[derive(Debug, Default)]
pub(crate) struct Down {
    /// For the ledger.
    pub(crate) blamed: Vec<Blamed>,
    /// `gn2 went down (Not responding)`; empty if there is none.
    pub(crate) text: String,
}

impl Down {
    pub(crate) fn of<'a>(nodes: impl Iterator<Item = &'a NodeState>) -> Self {
        const MOST: usize = 4;
        let mut down = Down::default();
        let mut told = Vec::new();
        for node in nodes.filter(|node| node.has("DOWN")) {
            let subject = "down".to_owned();
            down.blamed.push(Blamed { node: node.name.clone(), subject, part: String::new() });
            // The reader must not see the job ids of other users.
            let reason = node.reason.as_ref().map_or("", |reason| reason.text.as_str());
            let reason = reason_for_reader(reason, &[]);
            let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
            told.push(format!("{} went down{reason}", node.name));
        }
        let more = told.len().saturating_sub(MOST);
        told.truncate(MOST);
        down.text = told.join(", ");
        if more > 0 {
            down.text.push_str(&format!(" and {more} more"));
        }
        down
    }
}

fn down_since(node: &NodeState) -> Option<u64> {
    node.reason.as_ref().and_then(|reason| reason.since)
}

/// A node's state in the form of the report.
pub(crate) fn seen(node: &NodeState) -> DecisionNode {
    DecisionNode {
        node: node.name.clone(),
        state: node.state(),
        reason: node.reason.as_ref().map_or_else(String::new, |reason| reason.text.clone()),
        evidence: false,
        source: String::new(),
    }
}

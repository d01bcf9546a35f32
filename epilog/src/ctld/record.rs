use std::time::Duration;

use railgate_slurm::{Blamed, Entry, Event, NodeEvidence, Used, used};
use railgate_stats::store::store_decision;
use railgate_stats::{Budget, Decision, DecisionKind, DecisionNode, REPORT_SCHEMA};

use crate::call::{Call, now};

/// What is written about an attempt.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    /// The attempt that ended.
    pub(crate) attempt: u32,
    /// What was done.
    pub(crate) what: DecisionKind,
    /// One sentence.
    pub(crate) why: String,
    /// Slurm's state of the job, where it shows one.
    pub(crate) state: Option<String>,
    /// What of the budget is used, this attempt included.
    pub(crate) used: Option<Used>,
    /// The nodes.
    pub(crate) nodes: &'a [DecisionNode],
    /// How long we waited.
    pub(crate) waited: Duration,
}

/// Writes the decision beside the nodes' reports, and a line to the log.
pub(crate) fn decision(call: &Call, record: Record<'_>) {
    let what = record.what;
    tracing::info!(job = %call.name, attempt = record.attempt, "{what:?}: {}", record.why);
    let config = &call.config.requeue;
    let decision = Decision {
        schema: REPORT_SCHEMA,
        cluster: call.cluster.clone(),
        job: call.job.id,
        attempt: record.attempt,
        time: now(),
        what,
        why: record.why,
        state: record.state,
        exit_status: call.exit.job.map(u32::cast_signed),
        consent: call.consent.to_string(),
        budget: record.used.map(|used| Budget {
            restarts: used.deaths,
            max_restarts: call.consent.at_most(config.max_restarts),
            moves: used.moves,
            max_moves: config.max_moves,
        }),
        nodes: record.nodes.to_vec(),
        waited_ms: u64::try_from(record.waited.as_millis()).unwrap_or(u64::MAX),
    };
    for problem in store_decision(&call.config.report, &decision, call.job.uid, call.job.gid).problems {
        tracing::warn!(job = %call.name, "decision: {problem}");
    }
}

/// A line for the ledger.
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
    }
}

/// Who is blamed, each node and part once.
pub(crate) fn blamed(evidence: &[&NodeEvidence]) -> Vec<Blamed> {
    let mut blamed: Vec<Blamed> = Vec::new();
    for item in evidence {
        match blamed.iter_mut().find(|have| have.node == item.node && have.subject == item.subject) {
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

/// What of the job's budget is used. A first restart that no line explains gets its line now.
///
/// # Errors
/// The ledger cannot be read: nothing may be restarted then.
pub(crate) fn budget(call: &Call, restarts: u32, ran: Option<Duration>) -> Result<Used, String> {
    let unread = |why: std::io::Error| format!("the ledger cannot be used: {why}");
    let mut entries = call.ledger.of_job(call.job.id).map_err(unread)?;
    if restarts > 0 && !entries.iter().any(|entry| entry.attempt == 0) {
        let why = "Slurm put it back; no request and no check of a node explains it, so a node probably died";
        let first = entry(call, Event::NodeFail, 0, None, Vec::new(), why);
        call.ledger.append(&first).map_err(unread)?;
        entries.insert(0, first);
        let record = Record {
            attempt: 0,
            what: DecisionKind::RequeuedBySlurm,
            why: why.to_owned(),
            state: None,
            used: None,
            nodes: &[],
            waited: Duration::ZERO,
        };
        decision(call, record);
    }
    Ok(used(&entries, &call.config.requeue, now(), restarts, ran))
}

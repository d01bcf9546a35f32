use std::collections::{HashMap, HashSet};
use std::time::Duration;

use railgate_model::{Class, Phase, Severity};
use railgate_node_report::DecisionNode;
use railgate_slurm::{
    Channel, HangNote, HangStage, JobState, NodeEvidence, NodeState, Reason, Weight, fatal, hostlist, weigh,
};
use railgate_store::{Asked, NodeWord, Words, load_words};

use crate::call::Call;
use crate::wait::turn_of;

/// Most processes that read reports at once; each takes about 25 MB.
const READERS: u32 = 4;
/// Longest wait for a turn to read; a reader needs only a moment.
const TURN: Duration = Duration::from_secs(60);
/// Time limit for the largest job; `[report] deadline` sets a shorter one for smaller jobs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tolerance, seconds: slurmctld stamps drain reasons and job starts in whole seconds.
const SECOND: u64 = 1;

/// Evidence from the nodes of a job.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// Evidence for a requeue.
    pub(crate) evidence: Vec<NodeEvidence>,
    /// State of every node, for the report.
    pub(crate) nodes: Vec<DecisionNode>,
    /// Errors, for the log.
    pub(crate) problems: Vec<String>,
    /// Names nodes whose evidence could not be read, for the decision.
    pub(crate) untold: Option<String>,
    /// The node whose guard ended the job because it hung.
    pub(crate) hung_on: Option<String>,
}

/// Queries slurmctld for the nodes' reasons (one query) and reads the node reports.
pub(crate) fn gather(call: &Call, job: &[JobState]) -> Gathered {
    let mut found = Gathered::default();
    let states = states(call, &mut found.problems);
    let start = job.first().and_then(|job| job.start);
    let ids: Vec<u32> = job.iter().map(|job| job.id).collect();
    found.hung_on = job.first().and_then(|leader| hung_on(&states, &ids, leader));
    let mut shared: HashSet<String> = HashSet::new();
    for state in &states {
        let item = from_reason(state, &ids, start);
        if item.is_some() && names_several_jobs(state) {
            shared.insert(state.name.clone());
        }
        let reason = state.reason.as_ref().map_or_else(String::new, |reason| reason.text.clone());
        let counts = item
            .as_ref()
            .zip(job.first())
            .is_some_and(|(item, job)| weigh(item, job, &call.config.requeue) == Weight::Counts);
        found.nodes.push(DecisionNode {
            node: state.name.clone(),
            state: state.state(),
            reason,
            evidence: counts,
            source: if counts { "drain reason".to_owned() } else { String::new() },
        });
        found.evidence.extend(item);
    }
    let words = match words(call, &ids) {
        Ok(words) => words,
        Err(why) => {
            // A problem with the directory is for the admin, and is logged.
            found.problems.push(format!("the nodes' reports: {why}"));
            found.untold = Some("could not tell what its nodes reported".to_owned());
            Words::default()
        }
    };
    found.untold = found.untold.or(words.could_not_tell());
    found.problems.extend(words.problems);
    let held: HashMap<&str, bool> = states.iter().map(|state| (state.name.as_str(), state.held())).collect();
    let mut place: HashMap<String, usize> =
        found.nodes.iter().enumerate().map(|(place, node)| (node.node.clone(), place)).collect();
    let mut of_reports = Vec::new();
    let mut counted: HashSet<String> = HashSet::new();
    for word in words.nodes {
        let held = held.get(word.node.as_str()).copied().unwrap_or(false);
        let items = from_word(&word, held);
        let counts = job.first().is_some_and(|job| !fatal(&items, job, &call.config.requeue).is_empty());
        of_reports.extend(items);
        if !counts {
            continue;
        }
        let place = *place.entry(word.node.clone()).or_insert_with(|| {
            found.nodes.push(DecisionNode {
                node: word.node.clone(),
                state: String::new(),
                reason: String::new(),
                evidence: false,
                source: String::new(),
            });
            found.nodes.len() - 1
        });
        if let Some(node) = found.nodes.get_mut(place).filter(|node| !node.evidence) {
            node.evidence = true;
            node.source = "report".to_owned();
        }
        counted.insert(word.node);
    }
    // A reason with several jobs describes the fault that hit the first of them; the fault of this job is in its
    // report.
    found.evidence.retain(|item| !(shared.contains(&item.node) && counted.contains(&item.node)));
    found.evidence.extend(of_reports);
    found
}

/// State of the job's nodes; empty without an answer of slurmctld.
pub(crate) fn states(call: &Call, problems: &mut Vec<String>) -> Vec<NodeState> {
    states_of(call, call.nodelist(), problems)
}

/// State of the nodes in a list.
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

/// The first node whose guard ended this attempt of the job, shortly before its end. Only root and SlurmUser write comments of nodes.
pub(crate) fn hung_on(states: &[NodeState], ids: &[u32], job: &JobState) -> Option<String> {
    let ended_it = |note: &HangNote| {
        note.stage == HangStage::Ended
            && ids.contains(&note.job)
            && job.start.is_none_or(|start| note.time + SECOND >= start)
            && job
                .end
                .is_none_or(|end| (note.time..=note.time + HangNote::ENDS_WITHIN_S).contains(&(end + SECOND)))
    };
    let mut by = states.iter().filter(|state| HangNote::all(&state.comment).iter().any(ended_it));
    by.next().map(|state| state.name.clone())
}

/// Evidence in a drain reason: only the epilog of a node on which the job failed names it in a reason of phase
/// `epilog`.
fn from_reason(state: &NodeState, ids: &[u32], start: Option<u64>) -> Option<NodeEvidence> {
    let standing = state.reason.as_ref().filter(|_| state.held())?;
    let reason = Reason::parse(&standing.text).filter(|reason| reason.phase == Phase::Epilog)?;
    if !reason.jobs.iter().any(|job| ids.contains(job)) {
        return None;
    }
    // From an earlier attempt of the same job.
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

/// Reads the node reports. A child does this and returns only short fields, and only a few processes read at a time:
/// users decide how large the files are and how many jobs end at once.
fn words(call: &Call, ids: &[u32]) -> Result<Words, String> {
    let nodes = hostlist::expand(call.nodelist()).map_err(|why| why.to_string())?;
    let asked = Asked {
        cluster: &call.cluster,
        jobs: ids,
        uid: call.job.uid,
        attempt: call.job.restarts,
        nodes: &nodes,
    };
    let dir = call.own.join("readers");
    // Without the lock files the memory of a hundred jobs that end together would be unbounded.
    let turn =
        turn_of(&dir, READERS, TURN, call.job.id).map_err(|why| format!("{}: {why}", dir.display()))?;
    if turn.is_none() {
        return Err(format!("{READERS} other processes have been reading reports for {} s", TURN.as_secs()));
    }
    load_words(&call.config.report, &asked, PATIENCE)
}

fn from_word(word: &NodeWord, held: bool) -> Vec<NodeEvidence> {
    word.evidence
        .iter()
        .map(|item| NodeEvidence {
            node: word.node.clone(),
            subject: item.subject.clone(),
            part: item.part.clone(),
            channel: Channel::Report,
            severity: item.severity,
            class: item.class,
            own: item.own,
            at: item.at,
            held,
        })
        .collect()
}

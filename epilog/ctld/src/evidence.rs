use std::collections::{HashMap, HashSet};
use std::time::Duration;

use railgate_model::{Class, Phase, Severity};
use railgate_slurm::{Channel, JobState, NodeEvidence, NodeState, Reason, Weight, fatal, hostlist, weigh};
use railgate_stats::DecisionNode;
use railgate_stats::store::{Asked, NodeWord, Words, load_words};

use crate::call::Call;
use crate::wait::turn_of;

/// At most so many of our processes read reports at once; each takes some 25 MB while it does.
const READERS: u32 = 4;
/// A reader is done in a moment, so this is a long queue.
const TURN: Duration = Duration::from_secs(60);
/// For the largest job; `[report] deadline` says less of a smaller one.
const PATIENCE: Duration = Duration::from_secs(30);

/// A drain reason's time is slurmctld's, a job's start too, but both are whole seconds.
const SECOND: u64 = 1;

/// What the nodes of a job have to say.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// In favour of a restart.
    pub(crate) evidence: Vec<NodeEvidence>,
    /// Every node as it was seen, for the report.
    pub(crate) nodes: Vec<DecisionNode>,
    /// What could not be had, for the log.
    pub(crate) problems: Vec<String>,
    /// Nodes that may have evidence which could not be read, for the decision.
    pub(crate) untold: Option<String>,
}

/// Asks slurmctld for the nodes' reasons (one query) and reads the nodes' reports.
pub(crate) fn gather(call: &Call, job: &[JobState]) -> Gathered {
    let mut found = Gathered::default();
    let states = states(call, &mut found.problems);
    let start = job.first().and_then(|job| job.start);
    let ids: Vec<u32> = job.iter().map(|job| job.id).collect();
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
            // What is wrong with the directory is the admin's matter and stands in the log.
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
    // A reason that names several jobs is about the first of them: what hit this one, the report knows.
    found.evidence.retain(|item| !(shared.contains(&item.node) && counted.contains(&item.node)));
    found.evidence.extend(of_reports);
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

/// What the nodes' reports say. They are read in a child, which gives short fields alone, and by a few of our processes
/// at a time: a user decides how large the files are and how many jobs end at once.
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
    // Without the lock files nothing bounds the memory of a hundred jobs that end together.
    let turn =
        turn_of(&dir, READERS, TURN, call.job.id).map_err(|why| format!("{}: {why}", dir.display()))?;
    if turn.is_none() {
        return Err(format!("{READERS} others read reports, and did so for {} s", TURN.as_secs()));
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

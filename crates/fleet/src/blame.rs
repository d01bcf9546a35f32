//! Why a job ended: by which node, in which incident, or by itself.

use std::collections::{BTreeMap, BTreeSet};

use railgate_model::gamma_quantile;
use serde::{Deserialize, Serialize};

use crate::event::{Cause, Grade};
use crate::exposure::{Exposure, Rates};
use crate::fault::{Fault, has_failed, in_window};
use crate::history::History;
use crate::incident::{Found, Reason};
use crate::parallel;
use crate::settings::Settings;

/// Share below the lower end of a job's interval: few of the fleet's jobs may be accused by chance.
const UNLIKELY: f64 = 0.01;

/// Why an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blame {
    /// It runs, or its end is not known.
    Running,
    /// Slurm's record leaves no room for a node: completed, cancelled, preempted, beyond its memory or its time limit.
    NotANode,
    /// One node failed, by the evidence of root within the window around the end.
    Node {
        /// The node.
        node: String,
        /// What failed.
        cause: Cause,
    },
    /// It ended in an incident.
    Incident {
        /// Index in [`crate::Judgement::incidents`].
        incident: usize,
    },
    /// The job took its nodes with it.
    Itself,
    /// Several of its nodes failed, and the evidence does not decide between them.
    Unclear {
        /// The nodes, sorted.
        nodes: Vec<String>,
    },
    /// It failed without evidence against a node: the program, or a fault that no check found.
    Unknown,
}

/// For each attempt of the history why it ended.
pub(crate) fn blames(
    history: &History,
    settings: &Settings,
    faults: &[Fault],
    found: &Found,
    killers: &BTreeSet<usize>,
) -> Vec<Blame> {
    let mut of_attempt: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, fault) in faults.iter().enumerate() {
        for attempt in &fault.attempts {
            of_attempt.entry(*attempt).or_default().push(index);
        }
    }
    let blame = |(index, attempt): &(usize, &crate::Attempt)| {
        let Some((end, _)) = attempt.end else { return Blame::Running };
        if !has_failed(attempt) {
            return Blame::NotANode;
        }
        let near: Vec<usize> = of_attempt.get(index).into_iter().flatten().copied().collect();
        let near: Vec<usize> =
            near.into_iter().filter(|fault| in_window(history, settings, &faults[*fault], end)).collect();
        of_one(history, faults, found, killers, &near)
    };
    let attempts: Vec<(usize, &crate::Attempt)> = history.attempts.iter().enumerate().collect();
    parallel::map(&attempts, blame)
}

fn of_one(
    history: &History,
    faults: &[Fault],
    found: &Found,
    killers: &BTreeSet<usize>,
    near: &[usize],
) -> Blame {
    if let Some(incident) = near.iter().find_map(|fault| found.of_fault[*fault]) {
        return match found.incidents.get(incident).map(|incident| &incident.reason) {
            Some(Reason::Job { .. } | Reason::User { .. }) => Blame::Itself,
            _ => Blame::Incident { incident },
        };
    }
    if near.iter().any(|fault| killers.contains(fault)) {
        return Blame::Itself;
    }
    let near = || near.iter().filter(|fault| !found.collateral.contains(fault)).map(|fault| &faults[*fault]);
    let nodes: BTreeSet<usize> = near().map(|fault| fault.node).collect();
    let proven: BTreeSet<usize> =
        near().filter(|fault| fault.grade == Grade::Proof).map(|fault| fault.node).collect();
    let one = [&proven, &nodes].into_iter().find(|nodes| nodes.len() == 1).and_then(BTreeSet::first);
    let strongest = |node: usize| near().filter(|fault| fault.node == node).max_by_key(|fault| fault.grade);
    match one.and_then(|node| strongest(*node)) {
        Some(fault) => Blame::Node { node: history.name(fault.node).to_owned(), cause: fault.cause },
        None if nodes.is_empty() => Blame::Unknown,
        None => {
            let mut nodes: Vec<String> =
                nodes.into_iter().map(|node| history.name(node).to_owned()).collect();
            nodes.sort();
            Blame::Unclear { nodes }
        }
    }
}

/// A job or a user with faults on several nodes.
struct Suspect {
    faults: Vec<usize>,
    /// Lower end of the interval of its number of nodes.
    lower: f64,
    /// Its attempts.
    attempts: Vec<usize>,
}

/// Faults that a job or a user carries from node to node: on at least [`Settings::fewest_nodes`] nodes, and far more often than
/// nodes of the fleet fail in that time. Each of these faults counts against no node.
///
/// `alone`: faults without an incident.
pub(crate) fn killers(
    history: &History,
    settings: &Settings,
    faults: &[Fault],
    alone: &[usize],
    exposure: &Exposure,
    rates: &Rates,
) -> BTreeSet<usize> {
    let mut of_job: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let mut of_user: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for index in alone {
        let failed = faults[*index].attempts.iter().filter_map(|attempt| history.attempts.get(*attempt));
        let failed: Vec<&crate::Attempt> = failed.filter(|attempt| has_failed(attempt)).collect();
        for job in failed.iter().map(|attempt| attempt.job).collect::<BTreeSet<u32>>() {
            of_job.entry(job).or_default().push(*index);
        }
        for uid in failed.iter().map(|attempt| attempt.uid).collect::<BTreeSet<u32>>() {
            of_user.entry(uid).or_default().push(*index);
        }
    }
    let suspect = |of: Vec<usize>| {
        // A lemon that fails the jobs of one user again and again is one node.
        let nodes = of.iter().map(|fault| faults[*fault].node).collect::<BTreeSet<usize>>().len();
        let lower = gamma_quantile(nodes as f64, UNLIKELY);
        (nodes >= settings.fewest_nodes).then_some(Suspect { faults: of, lower, attempts: Vec::new() })
    };
    let suspects = |of: BTreeMap<u32, Vec<usize>>| -> BTreeMap<u32, Suspect> {
        of.into_iter().filter_map(|(of, faults)| Some((of, suspect(faults)?))).collect()
    };
    let (mut of_job, mut of_user) = (suspects(of_job), suspects(of_user));
    for (index, attempt) in history.attempts.iter().enumerate() {
        for suspect in of_job.get_mut(&attempt.job).into_iter().chain(of_user.get_mut(&attempt.uid)) {
            suspect.attempts.push(index);
        }
    }
    let fails_nodes = |suspect: &Suspect| {
        // Faults that nodes of the fleet would have had in its place. Nearly all users are cleared after a few of their attempts.
        let mut expected = 0.0;
        suspect.attempts.iter().all(|index| {
            let (attempt, members) = (&history.attempts[*index], &history.members[*index]);
            let end = attempt.end.map_or(history.now, |(end, _)| end);
            let of = |node: &usize| exposure.expected(rates, *node, attempt.start, end);
            expected += members.iter().map(of).sum::<f64>();
            suspect.lower > settings.job_times * expected
        })
    };
    let suspects: Vec<Suspect> = of_job.into_values().chain(of_user.into_values()).collect();
    let killers = suspects.iter().zip(parallel::map(&suspects, fails_nodes));
    killers
        .filter(|(_, fails_nodes)| *fails_nodes)
        .flat_map(|(suspect, _)| &suspect.faults)
        .copied()
        .collect()
}

//! Observations become faults: one fault is one episode on one node.

use std::collections::BTreeSet;

use railgate_model::UnixMillis;

use crate::event::{Attempt, Cause, Grade, Outcome};
use crate::history::{History, Node, Observed, Span};
use crate::parallel;
use crate::settings::Settings;

/// One episode on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) node: usize,
    /// First observation.
    pub(crate) time: UnixMillis,
    /// Last observation.
    pub(crate) last: UnixMillis,
    /// That of the first observation with the highest grade.
    pub(crate) cause: Cause,
    pub(crate) grade: Grade,
    /// The card of that observation, else the first card that is named.
    pub(crate) card: Option<String>,
    /// Leaf switches at the other ends of ports that are named.
    pub(crate) leafs: BTreeSet<String>,
    pub(crate) checks: BTreeSet<String>,
    /// Attempts that the fault may have ended or that may have caused it.
    pub(crate) attempts: Vec<usize>,
    /// Number of nodes of the largest job on the node at the time; 0 without a job.
    pub(crate) job_nodes: usize,
}

/// All faults, by time and node.
///
/// Observations with at most [`Settings::burst`] between them are one fault, and so are those of a node that has been out of
/// service since. A single sign without the end of a job counts only at the second sight.
pub(crate) fn faults(history: &History, settings: &Settings) -> Vec<Fault> {
    let nodes: Vec<(usize, &Node)> = history.nodes.iter().enumerate().collect();
    let of_nodes = parallel::map(&nodes, |(index, node)| of_node(history, settings, *index, node));
    let mut all: Vec<Fault> = of_nodes.into_iter().flatten().collect();
    all.sort_by_key(|fault: &Fault| (fault.time, fault.node));
    all
}

fn of_node(history: &History, settings: &Settings, index: usize, node: &Node) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut episode: Vec<&Observed> = Vec::new();
    for observed in &node.observed {
        if let Some(last) = episode.last()
            && !is_one_episode(node, last.time, observed.time, settings)
        {
            faults.extend(fault(history, settings, index, &episode));
            episode.clear();
        }
        episode.push(observed);
    }
    faults.extend(fault(history, settings, index, &episode));
    faults
}

fn is_one_episode(node: &Node, last: UnixMillis, next: UnixMillis, settings: &Settings) -> bool {
    // Drained by the prolog or epilog that made the observation, some seconds or minutes later.
    let drained = |(from, to): &(UnixMillis, UnixMillis)| {
        *from <= last + settings.after_end && next <= *to && last <= *to
    };
    next <= last + settings.burst || node.out.iter().any(drained)
}

fn fault(history: &History, settings: &Settings, node: usize, episode: &[&Observed]) -> Option<Fault> {
    let first = episode.first()?;
    let last = episode.last()?;
    let grade = episode.iter().map(|observed| observed.grade).max()?;
    let strongest = episode.iter().find(|observed| observed.grade == grade)?;
    let attempts = near(history, settings, node, first.time, last.time);
    let ended_a_job = attempts.iter().any(|index| history.attempts.get(*index).is_some_and(has_failed));
    let is_fault = grade == Grade::Proof || episode.len() > 1 || ended_a_job;
    let cards = || episode.iter().find_map(|observed| observed.card.clone());
    is_fault.then(|| Fault {
        node,
        time: first.time,
        last: last.time,
        cause: strongest.cause,
        grade,
        card: strongest.card.clone().or_else(cards),
        leafs: episode.iter().filter_map(|observed| observed.leaf.clone()).collect(),
        checks: episode.iter().map(|observed| observed.check.clone()).collect(),
        job_nodes: attempts
            .iter()
            .filter_map(|index| history.members.get(*index))
            .map(Vec::len)
            .max()
            .unwrap_or(0),
        attempts,
    })
}

/// Attempts on the node that ran at the first observation, or whose end is near an observation.
fn near(
    history: &History,
    settings: &Settings,
    node: usize,
    first: UnixMillis,
    last: UnixMillis,
) -> Vec<usize> {
    let Some(of_node) = history.nodes.get(node) else { return Vec::new() };
    let is_near = |index: &&usize| {
        let Span { start, end } = history.spans[**index];
        match end {
            None => start <= first,
            Some(end) => {
                let from = start.max(end.saturating_sub(settings.before_end));
                let ran = start <= first && first <= end;
                // An episode can last for days: its first observation counts, or one inside the window of this end.
                let in_window = |time: UnixMillis| from <= time && time <= end + settings.after_end;
                ran || in_window(first) || in_window(last)
            }
        }
    };
    // Sorted by start: those that start later than the last observation are at the end.
    let until = of_node.attempts.partition_point(|index| history.spans[*index].start <= last);
    of_node.attempts[..until].iter().filter(is_near).copied().collect()
}

/// Whether Slurm's record of the end leaves room for a node as the cause. Slurm itself ends a job by its time limit: a hang can be
/// the reason, but a limit that was too short as well.
pub(crate) fn has_failed(attempt: &Attempt) -> bool {
    matches!(attempt.end, Some((_, Outcome::Failed | Outcome::NodeFail)))
}

/// Whether one of the node's observations of this fault lies in the window around the end of an attempt.
pub(crate) fn in_window(history: &History, settings: &Settings, fault: &Fault, end: UnixMillis) -> bool {
    let from = end.saturating_sub(settings.before_end);
    let observed = history.nodes.get(fault.node).into_iter().flat_map(|node| &node.observed);
    observed
        .filter(|observed| (fault.time..=fault.last).contains(&observed.time))
        .any(|observed| (from..=end + settings.after_end).contains(&observed.time))
}

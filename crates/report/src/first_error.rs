//! The first error in the job's own logs, merged over its nodes.
//!
//! An error text is the job's own claim. Where it points at hardware it is compared with what the gate found, and is never
//! evidence against a node.

use std::collections::{BTreeMap, BTreeSet};

use railgate_joblog::{EXCEPTION, Hardware, Kind, Rule, rule};
use railgate_node_report::phases::{Phase, PhaseKind};
use railgate_node_report::plain::plain;
use railgate_node_report::{JobLog, LogError, NodeReport};
use railgate_text::shorten;
use serde::{Deserialize, Serialize};

use crate::why::{hardware, unseen};
use crate::{Attempt, EndKind, Proof};

/// The first error of an attempt, from the job's own logs. Only the job's owner gets it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FirstError {
    /// One sentence: `rank 1 on gn4: ValueError: bad sample in shard 17 (train.py:88); other ranks followed 0.8 s later`.
    pub what: String,
    /// The rule that recognised it, `cuda-oom`, or `exception`.
    pub rule: String,
    /// Where its cause lies as far as a text can tell: `application`, `data`, `memory`, `node`, `network`, `storage`,
    /// `site`.
    pub class: String,
    /// What to do; empty if the message is all there is.
    pub advice: String,
    /// The message, credentials masked.
    pub text: String,
    /// The exception that it was raised from.
    pub from: Option<String>,
    /// File of the innermost frame in the user's own code, and the line in it.
    pub file: Option<String>,
    /// Line in `file`.
    pub line: Option<u32>,
    /// The rank that failed; `None` if the log does not tell.
    pub rank: Option<u32>,
    /// Node of that rank; `None` if not known.
    pub node: Option<String>,
    /// Number of ranks that wrote the same message.
    pub ranks: u32,
    /// Seconds until the next rank's error, where the log has times.
    pub ahead_s: Option<f64>,
    /// For a text that points at hardware: what the gate found.
    pub gate: Option<String>,
    /// An earlier error may lie before the part of the log that was read.
    pub may_lie_before: bool,
    /// Path of the log.
    pub log: String,
    /// Line in the log, from 1; 0: not known.
    pub log_line: u64,
}

/// The first error of an attempt. `None` if its logs have none, or show only what follows from one.
pub(crate) fn first_error(attempt: &Attempt, logs: &[JobLog]) -> Option<FirstError> {
    let of_attempt = || logs.iter().filter(|log| log.attempt == attempt.attempt);
    let known = || of_attempt().filter_map(|log| Some((log, log.found.first.as_ref()?)));
    let (log, first) = [Kind::Cause, Kind::Exit].into_iter().find_map(|kind| {
        known()
            .filter(|(_, first)| kind_of(first) == kind)
            .reduce(|a, b| if is_earlier(b.1, a.1) { b } else { a })
    })?;
    let row = rule(&first.rule).unwrap_or(EXCEPTION);
    let others = known().filter(|(other, _)| other.node != log.node);
    let consequences: u64 = of_attempt().map(|log| log.found.consequences).sum();
    // A launcher's own lines follow as well from the end of the only rank, which has number 0.
    let seen = attempt.nodes.iter().flat_map(|node| node.ranks.iter().copied());
    let ranks: BTreeSet<u32> = seen.chain(first.rank).collect();
    let is_only = ranks.len() == 1 && ranks.contains(&0);
    let followed = !is_only && (others.clone().count() > 0 || consequences > 0);
    let later = others.filter_map(|(_, other)| {
        let apart = other.when? - first.when?;
        (first.exact && other.exact && apart >= 0.0).then_some(apart)
    });
    let ahead_s = later.chain(first.ahead_s).reduce(f64::min);
    let node = first.rank.and_then(|rank| node_of(attempt, rank)).or_else(|| only_node(attempt));
    let mut error = FirstError {
        what: String::new(),
        rule: first.rule.clone(),
        class: row.class.as_str().to_owned(),
        advice: row.advice.to_owned(),
        text: first.text.clone(),
        from: first.from.clone(),
        file: first.file.clone(),
        line: first.line,
        rank: first.rank,
        node,
        ranks: first.ranks,
        ahead_s,
        gate: row.points_at.map(|part| compared(attempt, part)),
        may_lie_before: log.found.may_lie_before,
        log: first.log.clone(),
        log_line: first.log_line,
    };
    error.what = sentence(&error, followed);
    Some(error)
}

/// Logs that were not searched, or not as a whole, with the reason, if no error was found.
pub(crate) fn unsearched(attempt: &Attempt, logs: &[JobLog]) -> Vec<String> {
    const MOST: usize = 8;
    let of_attempt =
        logs.iter().filter(|log| log.attempt == attempt.attempt && attempt.first_error.is_none());
    let line = |log: &JobLog, why: &String| {
        format!("attempt {} {}: the job's log: {}", log.attempt, log.node, shorten(why, 300))
    };
    of_attempt.flat_map(|log| log.found.problems.iter().map(move |why| line(log, why))).take(MOST).collect()
}

fn kind_of(error: &LogError) -> Kind {
    rule(&error.rule).map_or(Kind::Cause, |rule: &Rule| rule.kind)
}

/// Whether an error of another node came before. Unknown times change nothing: the first node's log comes first.
fn is_earlier(error: &LogError, before: &LogError) -> bool {
    matches!((error.when, before.when), (Some(when), Some(before)) if when < before)
}

/// The node where a rank ran: where its processes were seen, else where it reported itself.
fn node_of(attempt: &Attempt, rank: u32) -> Option<String> {
    let seen = |node: &&railgate_node_report::NodeReport| node.ranks.contains(&rank);
    let told = |node: &&railgate_node_report::NodeReport| {
        let ranks = node.application.iter().flat_map(|told| &told.ranks);
        ranks.into_iter().any(|one| one.rank == Some(rank))
    };
    let mut nodes = attempt.nodes.iter().filter(seen);
    let found = match (nodes.next(), nodes.next()) {
        (Some(one), None) => Some(one),
        // Two programs in one job number their ranks alike.
        (Some(_), Some(_)) => None,
        (None, _) => attempt.nodes.iter().find(told),
    };
    found.map(|node| node.node.clone())
}

fn only_node(attempt: &Attempt) -> Option<String> {
    match attempt.nodes.as_slice() {
        [one] if attempt.node_count <= 1 => Some(one.node.clone()),
        _ => None,
    }
}

fn sentence(error: &FirstError, followed: bool) -> String {
    /// The epilog keeps so many characters.
    const KEPT: usize = 300;
    let node = error.node.as_deref().map(|node| shorten(node, 40));
    let mut lead = match (error.rank, node) {
        (Some(rank), Some(node)) => format!("rank {rank} on {node}: "),
        (Some(rank), None) => format!("rank {rank}: "),
        (None, Some(node)) => format!("on {node}: "),
        (None, None) => String::new(),
    };
    if error.ranks > 1 {
        lead = format!("{} ranks alike, first {lead}", error.ranks);
    }
    let place = match (&error.file, error.line) {
        (Some(file), Some(line)) => format!(" ({}:{line})", shorten(file, 60)),
        _ => String::new(),
    };
    let after = match error.ahead_s {
        Some(ahead) if followed || ahead > 0.0 => format!("; other ranks followed {ahead:.1} s later"),
        _ if followed => "; other ranks followed".to_owned(),
        _ => String::new(),
    };
    let text = plain(&shorten(&error.text, KEPT));
    format!("{lead}{text}{place}{after}")
}

/// What the gate found of the hardware that a text points at.
fn compared(attempt: &Attempt, part: Hardware) -> String {
    let is_of = |proof: &&Proof| {
        // A drain reason names its check as a finding does.
        let what = proof.what.trim_start_matches("railgate: ");
        let names = |checks: &[&str]| checks.iter().any(|check| what.starts_with(check));
        match part {
            Hardware::Gpu => names(&["gpu-", "Xid "]),
            Hardware::Port => names(&["ib-", "roce-", "optic", "rdma-"]),
            Hardware::Node => true,
        }
    };
    let found = hardware(attempt);
    if let Some(proof) = found.iter().find(is_of) {
        return format!("confirmed on {}: {}", shorten(&proof.node, 40), shorten(&proof.what, 160));
    }
    if part == Hardware::Node && attempt.ended.kind == EndKind::NodeDied {
        return "confirmed: Slurm lost a node of the job".to_owned();
    }
    let seen = match unseen(attempt).first() {
        None => "the gate found no such fault on the job's nodes".to_owned(),
        Some(why) => format!("the gate found no such fault, but not all was checked ({})", shorten(why, 100)),
    };
    format!("{seen}; the text alone is no evidence against a node")
}

impl FirstError {
    /// What is to be known beside it: what the gate found, and what was not read.
    pub(crate) fn notes(&self) -> Vec<String> {
        let gate = self.gate.as_ref().map(|gate| format!("its text points at hardware; {gate}"));
        let before = self
            .may_lie_before
            .then(|| "only the end of the log was read: an earlier error may lie before".to_owned());
        gate.into_iter().chain(before).collect()
    }

    /// Where to read on, and what to do.
    pub(crate) fn step(&self) -> String {
        let place = if self.may_lie_before {
            format!("read {}", self.log)
        } else if self.log_line == 0 {
            format!("read the end of {}", self.log)
        } else {
            format!("read line {} of {}", self.log_line, self.log)
        };
        match self.advice.as_str() {
            "" => place,
            advice => format!("{advice}; {place}"),
        }
    }
}

/// Whether the error is only a launcher's message that processes were ended, which the guard did.
pub(crate) fn of_the_guard(attempt: &Attempt, error: &FirstError) -> bool {
    const LAUNCHERS: [&str; 3] = ["srun-task", "torchrun-failed", "mpirun-process"];
    attempt.ended.kind == EndKind::Hung && LAUNCHERS.contains(&error.rule.as_str())
}

/// Whether an end can be explained by an error in the log.
pub(crate) fn explains(attempt: &Attempt) -> bool {
    match attempt.ended.kind {
        EndKind::Completed
        | EndKind::Running
        | EndKind::Waiting
        | EndKind::MovedByGate
        | EndKind::Requeued
        | EndKind::Preempted => false,
        // The script did not start: its log has only the output of the preflight.
        EndKind::Preflight => false,
        // Without Slurm's state, an exit code of 0 may be that of a job that succeeded.
        EndKind::Unknown => {
            attempt.exit().is_some_and(|exit| exit.status != 0 || exit.derived.unwrap_or(0) != 0)
        }
        // A program that worked until it was ended had caught its errors.
        EndKind::Cancelled | EndKind::Timeout | EndKind::Deadline => !worked_to_the_end(attempt),
        EndKind::OutOfMemory
        | EndKind::NodeDied
        | EndKind::Hardware
        | EndKind::Hung
        | EndKind::Application => true,
    }
}

/// Whether samples show all GPUs of all nodes at work until Slurm ended the processes; `false` if that is not known.
fn worked_to_the_end(attempt: &Attempt) -> bool {
    /// Processes that are ended leave their GPUs idle for a sample or two.
    const ENDING_S: f64 = 15.0;
    let works = |node: &NodeReport| {
        let Some(phases) = node.usage.as_ref().and_then(|usage| usage.phases.as_ref()) else { return false };
        let is_last = |phase: &&Phase| !matches!(phase.kind, PhaseKind::Tail | PhaseKind::Saving);
        let after_s: f64 =
            phases.list.iter().rev().take_while(|phase| !is_last(phase)).map(Phase::seconds).sum();
        let last = phases.list.iter().rev().find(is_last);
        let at_rest_s = |gpu: &BTreeMap<PhaseKind, f64>| -> f64 {
            [PhaseKind::Tail, PhaseKind::Stalled].iter().filter_map(|kind| gpu.get(kind)).sum()
        };
        last.is_some_and(|phase| phase.kind.is_training())
            && after_s <= ENDING_S
            && phases.gpus.iter().all(|gpu| at_rest_s(gpu) <= ENDING_S)
    };
    let all_reported = !attempt.nodes.is_empty() && attempt.nodes.len() >= attempt.node_count;
    all_reported && attempt.nodes.iter().all(works)
}

#[cfg(test)]
mod tests;

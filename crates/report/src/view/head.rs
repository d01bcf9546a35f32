//! Head of a report: the job, how and why it ended, and the next steps.

use railgate_model::UnixMillis;
use railgate_node_report::plain::plain;
use railgate_text::shorten;
#[cfg(test)]
use serde::Serialize;

use super::{Sentence, screen};
use crate::{Attempt, EndKind, Ended, FirstError, JobReport};

/// Maximum number of earlier attempts that are listed.
const MOST_BEFORE: usize = 12;

/// Head of a report.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Head {
    /// Job, `48213 'llama70b' (heterogeneous: 48213, 48214) on alpha`.
    pub(crate) job: String,
    pub(crate) ended: Ending,
    /// The first error in the job's own logs, and what is to be known beside it.
    pub(crate) first_error: Vec<Sentence>,
    /// Nodes and GPUs, `64 nodes x 8 H100 80GB HBM3`; `None` if the nodes differ, or no node report has
    /// figures.
    pub(crate) shape: Option<String>,
    /// Next steps for the owner of the job, the most useful first.
    pub(crate) steps: Vec<Sentence>,
    /// Earlier attempts.
    pub(crate) before: Vec<Before>,
    /// Number of earlier attempts not listed.
    pub(crate) more_before: usize,
    /// File of the job's standard error.
    pub(crate) log: Option<Sentence>,
    /// State and reason in Slurm.
    pub(crate) slurm: Option<Sentence>,
}

/// How a job or an attempt ended.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Ending {
    pub(crate) kind: EndKind,
    pub(crate) why: Sentence,
    /// Evidence in time order.
    pub(crate) evidence: Vec<Evidence>,
    /// Evidence against the conclusion, and missing data.
    pub(crate) doubts: Vec<Sentence>,
}

/// Evidence for an ending.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Evidence {
    /// Time; `None` if it is between the check runs before and after the job.
    pub(crate) time: Option<UnixMillis>,
    pub(crate) node: String,
    pub(crate) what: Sentence,
}

/// An earlier attempt.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Before {
    pub(crate) attempt: u32,
    pub(crate) kind: EndKind,
    /// Nodes that ended the attempt, ` (n1, n2)`; empty if none did.
    pub(crate) nodes: String,
}

pub(super) fn head(report: &JobReport) -> Head {
    let components: Vec<String> = report.components.iter().map(u32::to_string).collect();
    let components = match components.as_slice() {
        [] => String::new(),
        ids => format!(" (heterogeneous: {})", ids.join(", ")),
    };
    let cluster = plain(&report.cluster);
    let place = if cluster.is_empty() { String::new() } else { format!(" on {cluster}") };
    let name = report.name.as_ref().map(|name| format!(" '{}'", shorten(name, 40))).unwrap_or_default();
    let earlier = report.attempts.split_last().map_or(&[][..], |(_, earlier)| earlier);
    let before = earlier.iter().take(MOST_BEFORE).map(|attempt| Before {
        attempt: attempt.attempt,
        kind: attempt.ended.kind,
        nodes: blamed(attempt),
    });
    let slurm = report.slurm.as_ref().map(|slurm| match slurm.reason.as_str() {
        "" | "None" => slurm.state.clone(),
        reason => format!("{}, reason {reason}", slurm.state),
    });
    let slurm = slurm.filter(|text| !text.is_empty());
    Head {
        job: format!("{}{name}{components}{place}", report.job),
        ended: ending(&report.ended),
        first_error: report.first_error.as_ref().map(first_error).unwrap_or_default(),
        shape: screen::shape(report),
        steps: report.next_steps.iter().cloned().map(Sentence::from).collect(),
        before: before.collect(),
        more_before: earlier.len().saturating_sub(MOST_BEFORE),
        log: report.log.clone().map(Sentence::from),
        slurm: slurm.map(Sentence::from),
    }
}

/// The sentence, its notes, and the exception that it was raised from.
pub(super) fn first_error(error: &FirstError) -> Vec<Sentence> {
    let from = error.from.as_ref().map(|from| format!("raised from {from}"));
    [error.what.clone()].into_iter().chain(from).chain(error.notes()).map(Sentence::from).collect()
}

pub(super) fn ending(ended: &Ended) -> Ending {
    let evidence = ended.proof.iter().map(|proof| Evidence {
        time: proof.time,
        node: proof.node.clone(),
        what: proof.what.clone().into(),
    });
    Ending {
        kind: ended.kind,
        why: ended.why.clone().into(),
        evidence: evidence.collect(),
        doubts: ended.doubts.iter().cloned().map(Sentence::from).collect(),
    }
}

/// Nodes that ended an attempt.
fn blamed(attempt: &Attempt) -> String {
    if !matches!(
        attempt.ended.kind,
        EndKind::Hardware | EndKind::Preflight | EndKind::MovedByGate | EndKind::NodeDied
    ) {
        return String::new();
    }
    let mut names: Vec<&str> = attempt.ended.proof.iter().map(|proof| proof.node.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match names.as_slice() {
        [] => String::new(),
        names if names.len() > 4 => format!(" ({} nodes)", names.len()),
        names => format!(" ({})", names.join(", ")),
    }
}

//! The beginning of a report: the job, how it ended and why, and what to do.

use railgate_model::UnixMillis;
use railgate_text::shorten;
use serde::Serialize;

use super::{Sentence, screen};
use crate::plain::plain;
use crate::{Attempt, EndKind, Ended, JobReport};

/// Earlier attempts beyond so many are counted.
const MOST_BEFORE: usize = 12;

/// The beginning of a report.
#[derive(Debug, Serialize)]
pub(crate) struct Head {
    /// `48213 'llama70b' (heterogeneous: 48213, 48214) on alpha`
    pub(crate) job: String,
    pub(crate) ended: Ending,
    /// `64 nodes x 8 H100 80GB HBM3`; `None` where the nodes differ, or no part has numbers.
    pub(crate) shape: Option<String>,
    /// What the owner of the job does next, the most useful first.
    pub(crate) steps: Vec<Sentence>,
    /// Attempts before the last one.
    pub(crate) before: Vec<Before>,
    /// Further ones.
    pub(crate) more_before: usize,
    /// The file with the job's errors.
    pub(crate) log: Option<Sentence>,
    /// State and reason, by Slurm.
    pub(crate) slurm: Option<Sentence>,
}

/// How a job or an attempt ended.
#[derive(Debug, Serialize)]
pub(crate) struct Ending {
    pub(crate) kind: EndKind,
    pub(crate) why: Sentence,
    /// In time order.
    pub(crate) evidence: Vec<Evidence>,
    /// What speaks against it, or was not seen.
    pub(crate) doubts: Vec<Sentence>,
}

/// What an ending stands on.
#[derive(Debug, Serialize)]
pub(crate) struct Evidence {
    /// `None`: between the check runs before and after the job.
    pub(crate) time: Option<UnixMillis>,
    pub(crate) node: String,
    pub(crate) what: Sentence,
}

/// An earlier attempt.
#[derive(Debug, Serialize)]
pub(crate) struct Before {
    pub(crate) attempt: u32,
    pub(crate) kind: EndKind,
    /// ` (n1, n2)`: nodes that ended it; empty where none did.
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
        shape: screen::shape(report),
        steps: report.next_steps.iter().cloned().map(Sentence::from).collect(),
        before: before.collect(),
        more_before: earlier.len().saturating_sub(MOST_BEFORE),
        log: report.log.clone().map(Sentence::from),
        slurm: slurm.map(Sentence::from),
    }
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

/// Which nodes an attempt left behind.
fn blamed(attempt: &Attempt) -> String {
    if !matches!(attempt.ended.kind, EndKind::Hardware | EndKind::MovedByGate | EndKind::NodeDied) {
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

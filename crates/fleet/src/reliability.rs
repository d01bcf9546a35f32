//! Mean time to failure by job size, and how often to write checkpoints.

use railgate_model::{Mttf, mttf};
use serde::{Deserialize, Serialize};

use crate::blame::Blame;
use crate::event::Outcome;
use crate::exposure::{STRATA, stratum};
use crate::history::History;
use crate::judgement::Judgement;
use crate::settings::{Settings, hours};

/// Jobs of about one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BySize {
    /// Smallest number of nodes.
    pub from: usize,
    /// Largest number of nodes; `None` for the largest jobs.
    pub to: Option<usize>,
    /// Attempts.
    pub attempts: usize,
    /// Hours that these jobs ran.
    pub job_hours: f64,
    /// Mean number of nodes, weighted by time.
    pub nodes: f64,
    /// Hours of a node per failure of a job by a node or in an incident.
    pub node: Mttf,
}

impl BySize {
    /// Returns the mean time to failure of a job of this size, hours: lower end, mean, upper end. `None` without a failure.
    pub fn job_hours_to_failure(&self) -> (f64, Option<f64>, Option<f64>) {
        let of_job = |node_hours: f64| node_hours / self.nodes;
        (of_job(self.node.lower), self.node.hours.map(of_job), self.node.upper.map(of_job))
    }
}

/// Returns the mean time to failure by job size, over all attempts of the history.
pub fn by_size(history: &History, judgement: &Judgement) -> Vec<BySize> {
    #[derive(Clone, Copy, Default)]
    struct Sum {
        attempts: usize,
        job_hours: f64,
        node_hours: f64,
        failures: u32,
        unknown: u32,
    }
    let mut sums = [Sum::default(); STRATA.len()];
    for ((attempt, members), blame) in history.attempts.iter().zip(&history.members).zip(&judgement.blames) {
        let sum = &mut sums[stratum(members.len())];
        let end = attempt.end.map_or(history.now, |(end, _)| end);
        let ran = hours(end.saturating_sub(attempt.start));
        sum.attempts += 1;
        sum.job_hours += ran;
        sum.node_hours += ran * members.len() as f64;
        match blame {
            Blame::Node { .. } | Blame::Incident { .. } => sum.failures += 1,
            Blame::Unclear { .. } => sum.unknown += 1,
            // Slurm lost a node, and it is not known which or why.
            Blame::Unknown if matches!(attempt.end, Some((_, Outcome::NodeFail))) => sum.unknown += 1,
            _ => {}
        }
    }
    let sizes = sums.iter().enumerate().skip(1);
    sizes
        .filter_map(|(index, sum)| {
            Some(BySize {
                from: STRATA[index],
                to: STRATA.get(index + 1).map(|next| next - 1),
                attempts: sum.attempts,
                job_hours: sum.job_hours,
                nodes: if sum.job_hours > 0.0 { sum.node_hours / sum.job_hours } else { 0.0 },
                node: mttf(sum.node_hours, sum.failures, sum.unknown)?,
            })
        })
        .collect()
}

/// Advice about checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Advice {
    /// Write one in this interval.
    Every {
        /// Seconds.
        seconds: f64,
        /// Seconds that follow from the lower end of the mean time to failure.
        low: f64,
        /// Seconds that follow from the upper end.
        high: f64,
    },
    /// There is no advice, for this reason.
    Refused(String),
}

/// Returns the interval between checkpoints with the least expected loss: √(2·w·M), with the time `write_s` that training waits for
/// one and the mean time to failure M of a job with this many nodes.
///
/// Refused with fewer than [`Settings::fewest_for_advice`] failures in jobs of about this size, and where writing one takes more than a
/// tenth of M: the formula is a first approximation for a short w.
pub fn checkpoint_interval(sizes: &[BySize], nodes: usize, write_s: f64, settings: &Settings) -> Advice {
    if !(write_s.is_finite() && write_s > 0.0) || nodes == 0 {
        return Advice::Refused("the time to write a checkpoint is not known".to_owned());
    }
    let size = sizes.iter().find(|size| size.from <= nodes && size.to.is_none_or(|to| nodes <= to));
    let Some(size) = size else {
        return Advice::Refused("no job of about this size has run".to_owned());
    };
    let (Some(mean), Some(upper)) = (size.node.hours, size.node.upper) else {
        return Advice::Refused("no job of about this size has failed because of a node".to_owned());
    };
    if size.node.failures < settings.fewest_for_advice {
        return Advice::Refused(format!(
            "too few failures of jobs of about this size: {}, at least {} are needed",
            size.node.failures, settings.fewest_for_advice
        ));
    }
    let job_s = |node_hours: f64| node_hours * 3600.0 / nodes as f64;
    if write_s > job_s(mean) / 10.0 {
        return Advice::Refused(format!(
            "writing a checkpoint takes more than a tenth of the {:.1} h between failures",
            job_s(mean) / 3600.0
        ));
    }
    let every = |node_hours: f64| (2.0 * write_s * job_s(node_hours)).sqrt();
    Advice::Every { seconds: every(mean), low: every(size.node.lower), high: every(upper) }
}

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Finding, Phase, UnixMillis};

/// Whether a node is fit for jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fitness {
    /// No relevant finding.
    Fit,
    /// There are findings; jobs may run.
    Degraded,
    /// Jobs must not run on this node.
    Unfit,
    /// A part that the policy requires could not be read. Never drains.
    Unknown,
}

impl fmt::Display for Fitness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fitness::Fit => "fit",
            Fitness::Degraded => "degraded",
            Fitness::Unfit => "unfit",
            Fitness::Unknown => "unknown",
        })
    }
}

/// The strongest action for a finding, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// The check is off.
    Off,
    /// Judge and count it, without changing the verdict or notifying a user.
    Shadow,
    /// Log and report it.
    Report,
    /// Also notify the job's owner.
    Notify,
    /// Drain the node.
    Drain,
}

/// The gate's verdict about a node, with its reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The phase in which the gate ran.
    pub phase: Phase,
    /// Whether the node is fit.
    pub fitness: Fitness,
    /// The action that the policy asks for. The gate does not decide whether it is carried out (`mode`, breaker,
    /// pause).
    pub action: Action,
    /// All findings, worst first.
    pub findings: Vec<Finding>,
    /// Index of the finding that decided; `None` for a plain `fit`.
    pub deciding: Option<usize>,
    /// Findings of checks in shadow, worst first. They are counted, without further consequences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadow: Vec<Finding>,
    /// Subjects of transient findings that count as a strike, for example `ib-rate@mlx5_2`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strikes: Vec<String>,
    /// Faults that only kernel log records show. Each record counts towards `[gate] strikes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signs: Vec<Sign>,
}

/// A fault with a single source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sign {
    /// Check and part, for example `gpu-xid@3`.
    pub subject: String,
    /// Times of the records.
    pub written: Vec<UnixMillis>,
}

impl Verdict {
    /// Returns the finding that decided.
    pub fn cause(&self) -> Option<&Finding> {
        self.deciding.and_then(|index| self.findings.get(index))
    }
}

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Finding, Phase, UnixMillis};

/// The gate's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fitness {
    /// Nothing that matters was found.
    Fit,
    /// Something is worse than it should be; jobs may run.
    Degraded,
    /// Jobs must not run here.
    Unfit,
    /// A part that the policy requires gave nothing. Never drains.
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

/// The strongest thing that may follow from a finding, in rising order.
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

/// What the gate decided about a node, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// When the gate ran.
    pub phase: Phase,
    /// The answer.
    pub fitness: Fitness,
    /// What the policy wants done. Whether it is done (`mode`, breaker, pause) is not the gate's business.
    pub action: Action,
    /// Everything that was found, worst first.
    pub findings: Vec<Finding>,
    /// Index of the finding that decided; `None` for a plain `fit`.
    pub deciding: Option<usize>,
    /// What checks in shadow found, worst first. It is counted, and nothing else follows from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadow: Vec<Finding>,
    /// Subjects of what may pass by itself and was bad enough to count as a strike: `ib-rate@mlx5_2`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strikes: Vec<String>,
    /// What only records of the kernel log show, and no other source confirms: each record counts towards `[gate] strikes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signs: Vec<Sign>,
}

/// A fault that one source reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sign {
    /// `gpu-xid@3`
    pub subject: String,
    /// When the records were written.
    pub written: Vec<UnixMillis>,
}

impl Verdict {
    /// The finding that decided.
    pub fn cause(&self) -> Option<&Finding> {
        self.deciding.and_then(|index| self.findings.get(index))
    }
}

use std::fmt;

use serde::{Deserialize, Serialize};

/// When the gate runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Before a job starts on the node.
    Prolog,
    /// After it left.
    Epilog,
    /// From time to time, beside jobs.
    Periodic,
}

impl Phase {
    /// The name as it stands in configuration, reasons and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Prolog => "prolog",
            Phase::Epilog => "epilog",
            Phase::Periodic => "periodic",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One entry of `SLURM_JOB_GPUS`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuId {
    /// Gres index on the node.
    Index(u32),
    /// A MIG device or a GPU by UUID.
    Uuid(String),
}

/// What a job holds on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Allocation {
    /// No GPUs.
    NoGpus,
    /// These GPUs.
    Gpus(Vec<GpuId>),
    /// Slurm's list could not be parsed; the text is that list.
    Unreadable(String),
}

/// What a job asked for, as far as advice to its owner needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRequest {
    /// The file that its errors go to. Its owner's text; `None` for a job without one.
    pub log: Option<String>,
    /// Memory, in Slurm's words: `4G per node`, `500M per CPU`; `None` without a limit of its own.
    pub memory: Option<String>,
    /// The time limit, seconds; `None` without one.
    pub time_limit_s: Option<u64>,
}

/// A job as this node sees it. Made by `slurm` from the environment Slurm gives to its hooks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// `SLURM_JOB_ID`.
    pub id: u32,
    /// `SLURM_JOB_UID`.
    pub uid: u32,
    /// `SLURM_JOB_GID`.
    pub gid: u32,
    /// `SLURM_JOB_USER`.
    pub user: String,
    /// `SLURM_JOB_RESTART_COUNT` as this hook saw it (prolog and epilog of one run may differ).
    pub restarts: u32,
    /// Nodes of the job, `SLURM_JOB_NODELIST` (`SLURM_NODELIST` before 23.02), unexpanded.
    pub nodelist: String,
    /// `SLURM_HET_JOB_ID`.
    pub het_leader: Option<u32>,
    /// GPUs it holds here, `SLURM_JOB_GPUS`.
    pub allocation: Allocation,
    /// `SLURM_JOB_PARTITION`.
    pub partition: String,
}

use std::fmt;

use serde::{Deserialize, Serialize};

/// The phase in which the gate runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Before a job starts on the node.
    Prolog,
    /// After a job has left the node.
    Epilog,
    /// Periodically, independent of jobs.
    Periodic,
}

impl Phase {
    /// Returns the name used in configuration, drain reasons and on the command line.
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
    /// Index of the Gres on the node.
    Index(u32),
    /// UUID of a GPU or a MIG device.
    Uuid(String),
}

impl GpuId {
    /// The index, if the entry is one.
    pub fn index(&self) -> Option<u32> {
        match self {
            GpuId::Index(index) => Some(*index),
            GpuId::Uuid(_) => None,
        }
    }
}

/// The GPUs of a job on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Allocation {
    /// No GPUs.
    NoGpus,
    /// These GPUs.
    Gpus(Vec<GpuId>),
    /// Slurm's list could not be parsed; this is its text.
    Unreadable(String),
}

/// Properties of a job's request that are used for advice to its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRequest {
    /// The job's error file. Untrusted text; `None` for a job without one.
    pub log: Option<String>,
    /// Memory in Slurm's notation, for example `4G per node` or `500M per CPU`; `None` without a limit.
    pub memory: Option<String>,
    /// The time limit, seconds; `None` without one.
    pub time_limit_s: Option<u64>,
}

/// A job as this node sees it. The crate `slurm` builds it from the environment of Slurm's hooks.
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
    /// `SLURM_JOB_RESTART_COUNT` of this hook. Prolog and epilog of one run may have different values.
    pub restarts: u32,
    /// Nodes of the job, `SLURM_JOB_NODELIST` (`SLURM_NODELIST` before 23.02), unexpanded.
    pub nodelist: String,
    /// `SLURM_HET_JOB_ID`.
    pub het_leader: Option<u32>,
    /// GPUs of the job on this node, `SLURM_JOB_GPUS`.
    pub allocation: Allocation,
    /// `SLURM_JOB_PARTITION`.
    pub partition: String,
}

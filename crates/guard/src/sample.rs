//! What the guard is given.

use std::time::Duration;

use railgate_model::{ProcessExit, UnixMillis};
use railgate_node_report::GpuError;
use railgate_node_report::phases::GpuActivity;
use serde::{Deserialize, Serialize};

/// What was seen on the node during one sample.
#[derive(Clone, Copy, Debug)]
pub struct NodeSample<'a> {
    /// Beginning of the sample.
    pub start: UnixMillis,
    /// Its end.
    pub end: UnixMillis,
    /// The job runs and is sampled: it is not suspended, and no GPU profiler has asked for a pause.
    pub running: bool,
    /// What each GPU of the job did.
    pub gpus: &'a [GpuActivity],
    /// The ranks of the newest step on this node.
    pub ranks: &'a [RankSample],
    /// NCCL's counts; `None`: no profiler plugin, or counts that do not show who waits.
    pub counts: Option<&'a Counts>,
    /// Whether the job has no other node.
    pub alone: bool,
    /// When a process of the job last wrote to a log; `None`: not known.
    pub logged: Option<UnixMillis>,
    /// Ports of the job's rails on this node that are not active, `mlx5_2:1 is DOWN`.
    pub ports_down: &'a [String],
    /// Errors of the job's GPUs on this node since the run began.
    pub gpu_errors: &'a [SampledError],
}

/// An error of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledError {
    /// Place of the GPU in [`NodeSample::gpus`].
    pub place: usize,
    /// The process that the driver named.
    pub pid: Option<u32>,
    /// The error, without its rank.
    pub error: GpuError,
}

impl NodeSample<'_> {
    pub(crate) fn seconds(&self) -> f64 {
        Duration::from_millis(self.end.saturating_sub(self.start)).as_secs_f64()
    }
}

/// One rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankSample {
    /// `RANK` of a launcher, else `SLURM_PROCID`.
    pub rank: u32,
    /// Process id of its program.
    pub pid: u32,
    /// When its process ended, and how.
    pub ended: Option<(UnixMillis, ProcessExit)>,
    /// State of its program; `None`: not looked at, or not known.
    pub state: Option<RankState>,
}

/// What the program of a rank does, from the kernel, since the last such reading.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankState {
    /// State of the main thread, as in `/proc/PID/stat`.
    pub state: Option<char>,
    /// Function of the kernel in which the main thread waits; `None`: it runs, or it is not known.
    pub kernel: Option<String>,
    /// CPU time of the program and of all processes below it, percent of one core.
    pub cpu_percent: Option<f64>,
    /// Bytes that they read and wrote, per second.
    pub bytes_s: Option<f64>,
}

/// Operations that the node's ranks have enqueued, from NCCL's profiler plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// When a rank of the node last enqueued an operation.
    pub moved: UnixMillis,
    /// Communicators in which ranks of the node have enqueued something.
    pub communicators: Vec<CountsOf>,
}

/// Counts of one communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CountsOf {
    /// [`railgate_node_report::comm::Communicator::hash`].
    pub communicator: String,
    /// Number of its ranks, on all nodes.
    pub size: u32,
    /// The ranks of this node.
    pub ranks: Vec<RankOps>,
    /// The last operation of a rank with the most.
    pub op: String,
    /// Its number among operations of the same name; `None` if not known.
    pub seq: Option<u64>,
}

/// What one rank has enqueued in a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankOps {
    /// Its number in the communicator.
    pub rank: u32,
    /// Process id of its program.
    pub pid: u32,
    /// Number of its operations.
    pub ops: u64,
    /// The last one; empty if not known.
    pub op: String,
}

impl CountsOf {
    /// Process ids of the ranks with fewer operations than others; empty if all have the same number.
    pub(crate) fn behind(&self) -> Vec<u32> {
        let most = self.ranks.iter().map(|one| one.ops).max().unwrap_or(0);
        let fewest = self.ranks.iter().map(|one| one.ops).min().unwrap_or(0);
        let behind = self.ranks.iter().filter(|one| one.ops == fewest && fewest < most);
        behind.map(|one| one.pid).collect()
    }

    /// Whether all ranks have enqueued the same number of operations, and the last ones differ.
    pub(crate) fn differs(&self) -> bool {
        let Some(first) = self.ranks.first() else { return false };
        let known = self.ranks.iter().all(|one| one.ops == first.ops && !one.op.is_empty());
        known && self.ranks.iter().any(|one| one.op != first.op)
    }
}

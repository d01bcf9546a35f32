use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

use crate::gpu_errors::bound_errors;
use crate::hangs::{MOST_NAME, bound_ports};
use crate::{Culprit, GpuError};

/// Most ranks in it.
pub const MOST_AT_REST: usize = 16;

/// A node on which no GPU has worked for long: its ranks wait for others, or do nothing. Only in the partial report of a running
/// job, where the job's first node reads it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeWait {
    /// Since when.
    pub since: UnixMillis,
    /// The time of this statement.
    pub as_of: UnixMillis,
    /// The job's GPUs on the node.
    pub gpus: u32,
    /// Those that only run kernels that wait. 0: none does, and all ranks of the node are at rest: they neither compute, nor
    /// transfer data, nor wait for requests.
    pub waiting_gpus: u32,
    /// The ranks at rest, if no GPU waits; at most [`MOST_AT_REST`].
    pub at_rest: Vec<Culprit>,
    /// Ranks that have enqueued fewer operations than others of this node and wait for their own GPU, if GPUs wait; at most
    /// [`MOST_AT_REST`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<Culprit>,
    /// When a rank last enqueued an operation; `None`: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved: Option<UnixMillis>,
    /// When a process of the job last wrote to a log; `None`: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logged: Option<UnixMillis>,
    /// Ports of the job's rails that are not active, `mlx5_2:1 is DOWN`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports_down: Vec<String>,
    /// Errors of the job's GPUs on the node, from two minutes before `since` on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu_errors: Vec<GpuError>,
}

impl NodeWait {
    /// The same within the limits, for one from a file.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        bound_ports(&mut self.ports_down);
        bound_errors(&mut self.gpu_errors, MOST_NAME);
        for ranks in [&mut self.at_rest, &mut self.behind] {
            ranks.truncate(MOST_AT_REST);
            *ranks = std::mem::take(ranks).into_iter().map(Culprit::bounded).collect();
        }
        self
    }
}

use railgate_model::{JobRequest, UnixMillis};
use serde::{Deserialize, Serialize};

/// State of a job in Slurm, from `scontrol show job` or `sacct`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlurmView {
    /// `FAILED`, `CANCELLED by 1000`, `RUNNING`.
    pub state: String,
    /// Slurm's reason, `Reason=`.
    pub reason: String,
    /// Job name, `JobName=`.
    pub name: Option<String>,
    /// `SubmitTime=`; for a requeued job, time of the requeue.
    pub submitted: Option<UnixMillis>,
    /// `ExitCode=`: code and signal.
    pub exit: Option<(i32, i32)>,
    /// `Restarts=`: the attempt that this describes. `None`: the last one.
    pub restarts: Option<u32>,
    /// Start of that attempt.
    pub start: Option<UnixMillis>,
    /// End of that attempt.
    pub end: Option<UnixMillis>,
    /// Nodes, `NodeList=`.
    pub nodelist: String,
    /// For a pending job: earliest or expected start (`StartTime=`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub may_start: Option<UnixMillis>,
    /// Nodes requested by name (`ReqNodeList=`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<String>,
    /// The job's request.
    pub request: JobRequest,
    /// Nodes of the job that are down now, if that was queried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub down: Vec<DownNode>,
}

/// A node that Slurm shows as down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DownNode {
    /// Slurm's name of the node.
    pub node: String,
    /// Time since which it is down.
    pub since: UnixMillis,
    /// Slurm's reason, `Not responding`.
    pub reason: String,
}

use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

/// File in the part of the run's directory that belongs to the job, on the node of the batch script: a [`Launched`].
pub const LAUNCH_FILE: &str = "launch.json";

/// Starts of the program by `railgate launch`, inside one attempt. It runs as the job's user, so all of it is self-reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Launched {
    /// Most restarts after faults of nodes and hangs (`--restarts`, within the site's limit).
    pub restarts: u32,
    /// In order.
    pub starts: Vec<LaunchStart>,
}

/// One start of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaunchStart {
    /// `RAILGATE_START`, from 0.
    pub number: u32,
    /// When it began.
    pub began: UnixMillis,
    /// When it ended; `None` while it runs, and if launch ended before it.
    pub ended: Option<UnixMillis>,
    /// Its nodes, as a host list.
    pub nodes: String,
    /// Their number; 0 if it was not recorded.
    pub node_count: usize,
    /// The nodes in the order of the ranks, if that is not the order of the list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub order: Vec<String>,
    /// Nodes that took no part, as a host list.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub spares: String,
    /// Exit code of srun.
    pub code: Option<u8>,
    /// `done`, `node`, `hang`, `unknown`, `program`, `stopped`, `spent` or `no-spare`.
    pub cause: Option<String>,
    /// The reason, in words.
    pub why: Option<String>,
    /// Nodes that the next start leaves out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
}

/// A node that a start leaves out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftOut {
    /// The node.
    pub node: String,
    /// Why.
    pub why: String,
}

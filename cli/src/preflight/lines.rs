//! What the tasks of a test are asked, and what they print.

use railgate_model::GpuSelfTested;
use railgate_pair::Outcome;
use serde::{Deserialize, Serialize};

use super::results::Net;

/// The variable with the order, as JSON.
pub(crate) const ORDER: &str = "RAILGATE_PREFLIGHT";

/// What each task does on its node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Test the GPUs: `quick` or `full`. `waits_ms`: the nodes that wait before, and how long.
    Gpus { length: String, waits_ms: Vec<(String, u64)> },
    /// Name the compute HCAs.
    Devices,
    /// Test the rails with the other node of the pair. Nodes that are in no pair do nothing.
    Pairs { net: Net, pairs: Vec<(String, String)>, port: u16 },
    /// Nodes that are named, each with what was found: they keep it for their epilog.
    Named { nodes: Vec<(String, String)> },
}

/// A line of a task.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Line {
    /// The result of one test of a GPU.
    Gpu { node: String, test: GpuSelfTested },
    /// The compute HCAs of a node, in the order of its rails.
    Devices {
        node: String,
        devices: Vec<String>,
        /// Its leaf switch, as Slurm names it.
        #[serde(default)]
        leaf: Option<String>,
    },
    /// What one end of a pair measured.
    Rail { node: String, rail: usize, outcome: Outcome },
    /// Why a node has no result.
    Problem { node: String, why: String },
}

impl Line {
    /// The node that it is about.
    pub(crate) fn node(&self) -> &str {
        match self {
            Line::Gpu { node, .. }
            | Line::Devices { node, .. }
            | Line::Rail { node, .. }
            | Line::Problem { node, .. } => node,
        }
    }
}

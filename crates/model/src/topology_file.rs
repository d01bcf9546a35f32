use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Reading;

/// A topology file for NCCL that railgate did not write: that of the site, or one that the daemon of a hypervisor left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Its content; unsupported if there is none.
    pub text: Reading<String>,
    /// Problems of the file, the worst first. Filled in by the crate that parses such files; `None` if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<Vec<TopologyRemark>>,
}

/// One problem of a topology file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyRemark {
    /// NCCL rejects the file. Otherwise it continues with wrong data.
    pub refused: bool,
    /// Line and column from 1, for example `3:17`; empty for the whole file.
    pub place: String,
    /// The problem.
    pub what: String,
}

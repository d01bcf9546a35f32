use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Reading;

/// A topology file for NCCL that is not ours: the site's own, or the one that a hypervisor's daemon leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its content; unsupported if there is none.
    pub text: Reading<String>,
    /// Its problems, the worst first. Filled in by the crate that reads such files; `None` if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<Vec<TopologyRemark>>,
}

/// One thing that is wrong with a topology file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyRemark {
    /// NCCL stops at it. Else it goes on, with something that is not so.
    pub refused: bool,
    /// `3:17`, line and column from 1; empty where it is about the whole file.
    pub place: String,
    /// What is wrong.
    pub what: String,
}

//! Xids from NVML, for machines without access to the kernel log (pods). NVML only reports them to a process that
//! waits, so a resident process does. Earlier Xids, and records of other drivers, are not available.

use std::path::PathBuf;
use std::time::Duration;

use railgate_child::{Line, Stream, Task};
use serde::{Deserialize, Serialize};

use crate::nvml;

const WATCH: &str = "node-xid-watch";
/// Maximum silence of the child, which sends a message several times in this period.
const SILENCE: Duration = Duration::from_secs(120);

/// The child task of waiting for Xids. A program that starts an [`XidWatch`] passes it to [`crate::dispatch`].
pub(crate) const TASK: Task = Task::stream(WATCH, task);

/// A request to wait for Xids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidWatch {
    /// NVML: a library name for the dynamic loader, or a path.
    pub library: PathBuf,
}

impl XidWatch {
    /// Starts to wait in a child process. It sends lists of [`railgate_model::XidEvent`] as JSON; an empty list is a
    /// sign of life.
    ///
    /// # Errors
    /// Returns an error if the child cannot be started.
    pub fn start(&self) -> Result<Stream, String> {
        let input = serde_json::to_vec(self).map_err(|why| why.to_string())?;
        Stream::start(WATCH, &input, SILENCE).map_err(|why| format!("child {WATCH}: {why}"))
    }
}

fn task(line: &mut Line) -> Result<(), String> {
    let watch: XidWatch = serde_json::from_slice(line.input()).map_err(|why| format!("input: {why}"))?;
    nvml::xids(&watch.library, line)
}

//! Xids as NVML tells them: for machines that do not let us read the kernel's log (pods). NVML tells only whoever waits, so
//! a resident process does, and what came before or between is lost; other drivers' lines are not told at all.

use std::path::PathBuf;
use std::time::Duration;

use railgate_child::{Line, Stream, Task};
use serde::{Deserialize, Serialize};

use crate::nvml;

const WATCH: &str = "node-xid-watch";
/// The child speaks several times as often.
const SILENCE: Duration = Duration::from_secs(120);

/// The task that a program which waits for Xids must know.
pub(crate) const TASK: Task = Task::stream(WATCH, task);

/// Where NVML is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidWatch {
    /// NVML: a library name for the dynamic loader, or a path.
    pub library: PathBuf,
}

impl XidWatch {
    /// Begins to wait, in a child. It says lists of [`railgate_model::XidEvent`] as JSON; an empty one says that it still waits.
    ///
    /// # Errors
    /// No child could be started.
    pub fn start(&self) -> Result<Stream, String> {
        let input = serde_json::to_vec(self).map_err(|why| why.to_string())?;
        Stream::start(WATCH, &input, SILENCE).map_err(|why| format!("child {WATCH}: {why}"))
    }
}

fn task(line: &mut Line) -> Result<(), String> {
    let watch: XidWatch = serde_json::from_slice(line.input()).map_err(|why| format!("input: {why}"))?;
    nvml::xids(&watch.library, line)
}

//! Samples GPUs over time in a resident child process.

use std::path::PathBuf;
use std::time::Duration;

use railgate_child::{Line, Stream, Task};
use railgate_model::GpuId;
use serde::{Deserialize, Serialize};

use crate::nvml;

const WATCH: &str = "node-gpu-watch";

/// The child task of GPU sampling. A program that starts a [`GpuWatch`] passes it to [`crate::dispatch`].
pub(crate) const TASK: Task = Task::stream(WATCH, task);

/// A request to sample GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuWatch {
    /// NVML library.
    pub library: PathBuf,
    /// The GPUs. The index of a GPU in MIG mode does not name an instance, so only values of the whole GPU are read for
    /// it.
    pub gpus: Vec<GpuId>,
    /// Interval between samples, seconds.
    pub interval_s: f64,
    /// Whether to report Xids as well, of all GPUs of the node, so that a single process uses NVML rather than two.
    pub xids: bool,
}

impl GpuWatch {
    /// Starts to sample in a child process. It sends [`railgate_model::Watched`] messages as JSON, the list of GPUs
    /// first. If it is silent for a minute longer than the interval, the stream ends.
    ///
    /// # Errors
    /// Returns an error if the child cannot be started.
    pub fn start(&self) -> Result<Stream, String> {
        let input = serde_json::to_vec(self).map_err(|why| why.to_string())?;
        let silence = Duration::try_from_secs_f64(self.interval_s + 60.0).unwrap_or(Duration::from_secs(600));
        Stream::start(WATCH, &input, silence).map_err(|why| format!("child {WATCH}: {why}"))
    }
}

/// Returns the proportional set size (PSS) of this process in MiB, so that pages shared by two processes are not
/// counted twice. `None` if the kernel does not report it.
pub fn own_memory_mib() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: f64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib / 1024.0)
}

fn task(line: &mut Line) -> Result<(), String> {
    let watch: GpuWatch = serde_json::from_slice(line.input()).map_err(|why| format!("input: {why}"))?;
    nvml::watch(&watch, line)
}

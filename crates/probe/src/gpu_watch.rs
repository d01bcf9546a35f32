//! GPUs watched over time: what a resident process reads of them, sample by sample.

use std::path::PathBuf;
use std::time::Duration;

use railgate_child::{Line, Stream, Task};
use railgate_model::GpuId;
use serde::{Deserialize, Serialize};

use crate::nvml;

const WATCH: &str = "node-gpu-watch";

/// The task that a program which watches GPUs must know.
pub(crate) const TASK: Task = Task::stream(WATCH, task);

/// Which GPUs, and how often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuWatch {
    /// NVML.
    pub library: PathBuf,
    /// Which; an index of a GPU in MIG mode names no instance, so of such a one only what concerns the whole GPU is
    /// read.
    pub gpus: Vec<GpuId>,
    /// Seconds between samples.
    pub interval_s: f64,
    /// Whether it waits for Xids too, of every GPU of the node: so that one process holds NVML and not two.
    pub xids: bool,
}

impl GpuWatch {
    /// Starts to watch, in a child. It says a [`railgate_model::Watched`] as JSON, the GPUs first; silent for a minute longer than the
    /// interval it ends by itself.
    ///
    /// # Errors
    /// No child could be started.
    pub fn start(&self) -> Result<Stream, String> {
        let input = serde_json::to_vec(self).map_err(|why| why.to_string())?;
        let silence = Duration::try_from_secs_f64(self.interval_s + 60.0).unwrap_or(Duration::from_secs(600));
        Stream::start(WATCH, &input, silence).map_err(|why| format!("child {WATCH}: {why}"))
    }
}

/// This process's memory, MiB: what it shares with others counts by its share, so that two of one program do not
/// count their common pages twice. `None` where the kernel does not say.
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

//! GPU samples over time, as the child process that watches the GPUs reports them.

use serde::{Deserialize, Serialize};

use crate::{Reading, XidEvent};

/// A message from the child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Watched {
    /// The GPUs of the samples, in order. The first message.
    Gpus(Vec<WatchedGpu>),
    /// One sample.
    Sample(GpuSamples),
    /// New Xids, in order. The first such message is empty; all Xids after it are reported.
    Xids(Vec<XidEvent>),
    /// Xids are not or no longer reported; the text gives the reason. Sampling continues.
    NoXids(String),
}

/// A GPU that is sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchedGpu {
    /// NVML index; for a MIG instance, that of its parent.
    pub index: Reading<u32>,
    /// UUID; for a MIG instance, its own.
    pub uuid: Reading<String>,
    /// `nvmlDeviceGetName`.
    pub name: Reading<String>,
    /// GPU instance id, if it is a MIG instance.
    pub instance: Option<u32>,
    /// `multiprocessorCount` of the instance.
    pub instance_sms: Reading<u32>,
    /// Memory in MiB; for a MIG instance, its own.
    pub memory_total_mib: Reading<u64>,
    /// Whether the GPU supports GPM. Without it, the activities below are missing.
    pub gpm: Reading<bool>,
}

/// Samples of all GPUs for one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSamples {
    /// Length of the interval, seconds.
    pub seconds: f64,
    /// In the order of [`Watched::Gpus`].
    pub gpus: Vec<GpuSample>,
    /// CPU time of the child so far, seconds.
    pub cpu_s: f64,
    /// Peak memory of the child, MiB.
    pub memory_mib: f64,
}

/// Sample of one GPU for one interval. Activities come from GPM, in per cent of the interval's cycles; the number
/// before each is its GPM metric id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// 1: graphics or compute engine busy.
    pub graphics: Reading<f64>,
    /// 2: SMs with at least one warp.
    pub sm: Reading<f64>,
    /// 3: active warps, relative to the maximum.
    pub occupancy: Reading<f64>,
    /// 5: any tensor pipe.
    pub tensor: Reading<f64>,
    /// 6: tensor pipe, double precision.
    pub dfma: Reading<f64>,
    /// 7: tensor pipe, floating point below double.
    pub hmma: Reading<f64>,
    /// 9: tensor pipe, integers.
    pub imma: Reading<f64>,
    /// 10: memory bandwidth, relative to the peak.
    pub dram: Reading<f64>,
    /// 11: double precision.
    pub fp64: Reading<f64>,
    /// 12: single precision.
    pub fp32: Reading<f64>,
    /// 13: half precision.
    pub fp16: Reading<f64>,
    /// 20: PCIe bytes sent per second.
    pub pcie_tx: Reading<f64>,
    /// 21: PCIe bytes received per second.
    pub pcie_rx: Reading<f64>,
    /// 61: NVLink bytes sent per second.
    pub nvlink_tx: Reading<f64>,
    /// 60: NVLink bytes received per second.
    pub nvlink_rx: Reading<f64>,
    /// SM activity × SM clock while SMs were active, in per cent × MHz. Both are read in windows shorter than the
    /// interval, because the clock changes with the load.
    pub sm_work: Reading<f64>,
    /// Tensor activity × SM clock, in per cent × MHz. Activity is a ratio of cycles, so its product with the mean clock
    /// gives the cycles of the pipe even if the clock changed, as long as NVML reports the true clock.
    pub tensor_work: Reading<f64>,
    /// Single precision activity × SM clock, in per cent × MHz, likewise.
    pub fp32_work: Reading<f64>,
    /// The part of `tensor_work` for which the clock was read while tensor kernels ran. SMs then run slower than the
    /// clock that NVML reports: by a tenth on an H200, regardless of power.
    pub tensor_work_slowed: Reading<f64>,
    /// `nvmlDeviceGetUtilizationRates`, percent.
    pub any_kernel: Reading<f64>,
    /// The same for memory accesses, per cent.
    pub memory_busy: Reading<f64>,
    /// MHz, mean of readings every 50 ms.
    pub clock: Reading<f64>,
    /// Watts, mean of readings every 50 ms.
    pub power: Reading<f64>,
    /// Joules since the first reading. The call costs milliseconds, so only one GPU per interval is read, in turn.
    pub energy: Reading<f64>,
    /// Temperature, °C.
    pub temperature: Reading<f64>,
    /// Memory in use, MiB.
    pub memory_used: Reading<f64>,
    /// Share of readings every 50 ms with throttle reason 0x4, 0x8, 0x20, 0x40, 0x80, per cent each.
    pub reasons: Reading<[f64; 5]>,
}

//! GPUs over time: what a process that watches them reads, sample by sample.

use serde::{Deserialize, Serialize};

use crate::{Reading, XidEvent};

/// A message of the child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Watched {
    /// Which GPUs the samples are of, in order.
    Gpus(Vec<WatchedGpu>),
    /// One sample.
    Sample(GpuSamples),
    /// Xids, in order; none with the first word, from which on nothing is missed.
    Xids(Vec<XidEvent>),
    /// Xids are not waited for (any longer), and why. Sampling continues.
    NoXids(String),
}

/// A GPU that is watched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchedGpu {
    /// NVML index, of the parent where it is a MIG instance.
    pub index: Reading<u32>,
    /// UUID, of the instance where it is one.
    pub uuid: Reading<String>,
    /// `nvmlDeviceGetName`.
    pub name: Reading<String>,
    /// GPU instance id, for a MIG instance.
    pub instance: Option<u32>,
    /// `multiprocessorCount` of the instance.
    pub instance_sms: Reading<u32>,
    /// MiB, of the instance where it is one.
    pub memory_total_mib: Reading<u64>,
    /// Whether it has GPM; a GPU without it has no activities below.
    pub gpm: Reading<bool>,
}

/// All GPUs over one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSamples {
    /// How long the interval was, seconds.
    pub seconds: f64,
    /// In the order of [`Watched::Gpus`].
    pub gpus: Vec<GpuSample>,
    /// CPU time of the child so far, seconds.
    pub cpu_s: f64,
    /// The most memory that the child held, MiB.
    pub memory_mib: f64,
}

/// One GPU over one interval. Activities are percent of the interval's elapsed cycles, by GPM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// 1: graphics or compute engine busy.
    pub graphics: Reading<f64>,
    /// 2: SMs with a warp.
    pub sm: Reading<f64>,
    /// 3: warps of those that fit.
    pub occupancy: Reading<f64>,
    /// 5: any tensor pipe.
    pub tensor: Reading<f64>,
    /// 6: tensor pipe, double precision.
    pub dfma: Reading<f64>,
    /// 7: tensor pipe, floating point below double.
    pub hmma: Reading<f64>,
    /// 9: tensor pipe, integers.
    pub imma: Reading<f64>,
    /// 10: memory traffic of its peak.
    pub dram: Reading<f64>,
    /// 11: double precision.
    pub fp64: Reading<f64>,
    /// 12: single precision.
    pub fp32: Reading<f64>,
    /// 13: half precision.
    pub fp16: Reading<f64>,
    /// 20: bytes per second.
    pub pcie_tx: Reading<f64>,
    /// 21: bytes per second.
    pub pcie_rx: Reading<f64>,
    /// 61: bytes per second.
    pub nvlink_tx: Reading<f64>,
    /// 60: bytes per second.
    pub nvlink_rx: Reading<f64>,
    /// SM activity × SM clock while SMs worked, percent MHz: both taken in windows shorter than the interval, as the
    /// clock changes with the load.
    pub sm_work: Reading<f64>,
    /// Tensor activity × SM clock, percent MHz. Activity is a quotient of cycles, so times the mean clock it is the
    /// pipe's cycles whatever the clock did in between, as far as the clock that NVML reads is the true one.
    pub tensor_work: Reading<f64>,
    /// Single precision activity × SM clock, percent MHz, likewise.
    pub fp32_work: Reading<f64>,
    /// The part of `tensor_work` that a clock counts for which was read while tensor kernels ran. SMs run slower then
    /// than NVML's clock says: on an H200 by a tenth, whatever the power.
    pub tensor_work_slowed: Reading<f64>,
    /// `nvmlDeviceGetUtilizationRates`, percent.
    pub any_kernel: Reading<f64>,
    /// The same of memory, percent.
    pub memory_busy: Reading<f64>,
    /// MHz, mean of readings every 50 ms.
    pub clock: Reading<f64>,
    /// Watts, mean of readings every 50 ms.
    pub power: Reading<f64>,
    /// Joules since the first reading, read of one GPU per interval in turn: this call costs milliseconds.
    pub energy: Reading<f64>,
    /// °C
    pub temperature: Reading<f64>,
    /// MiB
    pub memory_used: Reading<f64>,
    /// Percent of readings every 50 ms with reason 0x4, 0x8, 0x20, 0x40, 0x80.
    pub reasons: Reading<[f64; 5]>,
}

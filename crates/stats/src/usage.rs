//! What the job got out of its hardware: the sampler's figures, summed up per node.
//!
//! Means are over time, not over samples: a sample that stands for ten seconds weighs twice as much as one that
//! stands for five. Time in which the job was suspended, in which the user asked the sampler to stand aside, and in
//! which nobody looked is in none of them; [`Coverage`] says how long each of these was. A value that could not be
//! had is [`Reading::Unsupported`] or [`Reading::Failed`], never zero.

mod fold;
pub mod format;
pub mod peaks;
mod sample;
mod summary;

use railgate_model::{Reading, UnixMillis};
use serde::{Deserialize, Serialize};

pub use fold::Fold;
pub use sample::{Field, GpuField, HostField, RailField, Sample, State, Value, Values};
pub use summary::{joined, moment, summarize, timeline};

/// What the sampler of one node found over one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// What the samples are of.
    pub coverage: Coverage,
    /// The job's GPUs, in NVML's order; a MIG instance is one of its own.
    #[serde(default)]
    pub gpus: Vec<GpuUsage>,
    /// The node's RDMA ports. On a shared node they are not split between its jobs.
    #[serde(default)]
    pub rails: Vec<RailUsage>,
    /// The job's processes as a whole.
    pub host: HostUsage,
    /// What the sampler itself took.
    pub sampler: SamplerCost,
    /// The samples themselves, beside this report: `<node>.samples`; `None` where they could not be kept.
    #[serde(default)]
    pub file: Option<String>,
    /// What went wrong, one line each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// How much of the run was seen. The four lengths add up to the time from `start` to `end`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coverage {
    /// When the sampler began.
    pub start: UnixMillis,
    /// When the epilog began.
    pub end: UnixMillis,
    /// Seconds between samples, as configured.
    pub interval_s: f64,
    /// Seconds that samples stand for.
    pub sampled_s: f64,
    /// Seconds in which the job was suspended: neither run nor idle.
    pub suspended_s: f64,
    /// Seconds in which the user had asked that the GPUs be left alone.
    pub yielded_s: f64,
    /// Seconds of which nothing is known.
    pub missing_s: f64,
    /// Which those were, the longest ones, in order.
    pub gaps: Vec<Gap>,
    /// How many shorter ones there were.
    pub more_gaps: usize,
}

/// A time of which nothing is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// From.
    pub start: UnixMillis,
    /// To.
    pub end: UnixMillis,
    /// Why, in a few words.
    pub why: String,
}

/// A value over time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Mean over `over_s`.
    pub mean: f64,
    /// The lowest sample.
    pub min: f64,
    /// The highest sample.
    pub max: f64,
    /// Seconds in which it was known.
    pub over_s: f64,
}

/// One GPU of the job. Percentages are GPM's: of the elapsed cycles, or of the peak rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuUsage {
    /// NVML index.
    pub index: u32,
    /// UUID, of the MIG device where it is one.
    pub uuid: String,
    /// NVML's model name.
    pub model: String,
    /// The slice, where the job holds one of several.
    #[serde(default)]
    pub mig: Option<MigSlice>,
    /// Seconds with samples of this GPU.
    pub sampled_s: f64,
    /// GPM 1: some context was busy.
    pub graphics_percent: Reading<Spread>,
    /// GPM 2: SMs with at least one warp.
    pub sm_percent: Reading<Spread>,
    /// GPM 3: warps resident, of what would fit.
    pub occupancy_percent: Reading<Spread>,
    /// GPM 5: any tensor pipe active. Counts recomputation, padding and everything else that is not progress.
    pub tensor_percent: Reading<Spread>,
    /// GPM 6: tensor pipe on double precision.
    pub dfma_percent: Reading<Spread>,
    /// GPM 7: tensor pipe on every floating-point type below double; fp8 shows up here as well.
    pub hmma_percent: Reading<Spread>,
    /// GPM 9: tensor pipe on integers.
    pub imma_percent: Reading<Spread>,
    /// GPM 10: memory traffic, of the theoretical peak.
    pub dram_percent: Reading<Spread>,
    /// GPM 11: double precision outside the tensor pipe.
    pub fp64_percent: Reading<Spread>,
    /// GPM 12: single precision outside the tensor pipe.
    pub fp32_percent: Reading<Spread>,
    /// GPM 13: half precision outside the tensor pipe.
    pub fp16_percent: Reading<Spread>,
    /// GPM 20, bytes per second that the GPU sent.
    pub pcie_tx_bytes_s: Reading<Spread>,
    /// GPM 21, bytes per second that the GPU received.
    pub pcie_rx_bytes_s: Reading<Spread>,
    /// GPM 61, bytes per second over all NVLinks, sent.
    pub nvlink_tx_bytes_s: Reading<Spread>,
    /// GPM 60, bytes per second over all NVLinks, received.
    pub nvlink_rx_bytes_s: Reading<Spread>,
    /// `nvmlDeviceGetUtilizationRates`: time with any kernel at all, however small. For GPUs without GPM.
    pub any_kernel_percent: Reading<Spread>,
    /// `nvmlDeviceGetUtilizationRates`: time in which memory was read or written at all. For GPUs without GPM.
    pub memory_busy_percent: Reading<Spread>,
    /// SM clock, MHz, over all of the time.
    pub sm_clock_mhz: Reading<Spread>,
    /// SM clock, MHz, each moment weighted by how busy the SMs were in it.
    pub busy_clock_mhz: Reading<f64>,
    /// Watts, `nvmlDeviceGetPowerUsage`. On MIG: of the whole GPU.
    pub power_w: Reading<Spread>,
    /// Joules, by the GPU's own energy counter. On MIG: of the whole GPU.
    pub energy_j: Reading<f64>,
    /// Joules, the integral of `power_w`: a cross-check.
    pub energy_from_power_j: Reading<f64>,
    /// °C.
    pub temperature_c: Reading<Spread>,
    /// MiB in use.
    pub memory_used_mib: Reading<Spread>,
    /// MiB that there are.
    pub memory_total_mib: Reading<u64>,
    /// What held the clock down.
    pub throttled: Reading<Throttled>,
    /// Hardware FLOP utilisation.
    pub flop: HardwareFlop,
}

/// A MIG instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigSlice {
    /// GPU instance id.
    pub instance: u32,
    /// SMs that it has.
    pub sms: u32,
    /// SMs that the whole GPU has.
    pub of_sms: u32,
}

/// Seconds in which NVML gave a reason for a lower clock, by reason. They may overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Throttled {
    /// Seconds in which the reasons were known.
    pub over_s: f64,
    /// 0x4: the power cap. Normal under full tensor load.
    pub power_cap_s: f64,
    /// 0x8: hardware slowdown of any kind.
    pub hw_slowdown_s: f64,
    /// 0x20: software's thermal limit.
    pub sw_thermal_s: f64,
    /// 0x40: hardware's thermal limit.
    pub hw_thermal_s: f64,
    /// 0x80: power brake, asserted from outside (power supply, rack).
    pub power_brake_s: f64,
}

/// How much arithmetic the GPU did, of what it could have done at its datasheet clock. It counts what the pipes did,
/// recomputation and padding included: hardware FLOP utilisation, never model FLOP utilisation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HardwareFlop {
    /// Of the dense tensor peak, 0 to 1: tensor activity × SM clock ÷ datasheet clock, the clock calibrated for the
    /// time in which tensor kernels ran. It is the same fraction for bf16, fp16, tf32 and fp8, whose peaks stand in
    /// fixed ratios: GPM cannot tell them apart.
    pub tensor_fraction: Reading<f64>,
    /// The same without the calibration.
    pub uncalibrated_fraction: Reading<f64>,
    /// Where the calibration comes from, and how far the fraction may be off.
    pub calibration: Calibration,
    /// The peak that it is a fraction of; `None` for a model without an entry.
    #[serde(default)]
    pub peak: Option<PeakUsed>,
    /// TFLOP/s by what the tensor work is declared to be: `bf16`, `fp16`, `tf32`, `fp8`, as far as the model has
    /// them. Without a declaration the truth lies between the lowest and the highest, also for mixtures.
    #[serde(default)]
    pub tensor_tflops: std::collections::BTreeMap<String, f64>,
    /// TFLOP/s of single precision outside the tensor pipe.
    pub fp32_tflops: Reading<f64>,
    /// TFLOP/s of double precision outside the tensor pipe.
    pub fp64_tflops: Reading<f64>,
}

/// What corrects NVML's clock, which SMs do not reach while tensor kernels run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// What that clock is multiplied with; 1 without a calibration.
    pub factor: f64,
    /// `site`, `built-in` or `none`.
    pub from: String,
    /// The truth lies within this fraction of the figure, on either side.
    pub band: f64,
}

/// The peak that a fraction is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeakUsed {
    /// The row of the table, `h200-sxm`, or `site`.
    pub model: String,
    /// Dense bf16 (fp16 where it has no bf16), TFLOP/s, of the job's slice.
    pub bf16_tflops: f64,
    /// The SM clock that this is at, MHz.
    pub clock_mhz: f64,
    /// Memory bandwidth, GB/s, of the job's slice.
    pub memory_gbytes_s: Reading<f64>,
    /// Where it comes from.
    pub source: String,
}

/// One RDMA port over the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailUsage {
    /// `mlx5_0`
    pub hca: String,
    /// From 1.
    pub port: u32,
    /// Its rail, `None` for a port that is none.
    pub rail: Option<usize>,
    /// Bytes per second sent.
    pub tx_bytes_s: Reading<Spread>,
    /// Bytes per second received.
    pub rx_bytes_s: Reading<Spread>,
    /// Errors: everything that counts a fault on the way, together.
    pub errors: Reading<u64>,
    /// Packets sent again, or asked for again.
    pub retransmits: Reading<u64>,
    /// Marks of congestion (ECN marks, congestion notices) sent and received.
    pub congestion_marks: Reading<u64>,
    /// `port_xmit_wait` ticks per second: data to send and no credits. Its unit is the device's own: compare with
    /// its past or its neighbours.
    pub xmit_wait_s: Reading<Spread>,
}

/// The job's cgroup over the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostUsage {
    /// Cores busy.
    pub cpu_cores: Reading<Spread>,
    /// Cores that the job may use.
    pub cpus_allowed: Reading<f64>,
    /// MiB in use, page cache included.
    pub memory_mib: Reading<Spread>,
    /// MiB at most, by the kernel's own account.
    pub memory_peak_mib: Reading<u64>,
    /// Kills for want of memory in the job's cgroup.
    pub oom_kills: Reading<u64>,
    /// Percent of the time in which some task waited for the CPU.
    pub cpu_pressure_percent: Reading<Spread>,
    /// Percent of the time in which some task waited for memory.
    pub memory_pressure_percent: Reading<Spread>,
    /// Percent of the time in which some task waited for I/O.
    pub io_pressure_percent: Reading<Spread>,
    /// Bytes per second read from block devices.
    pub io_read_bytes_s: Reading<Spread>,
    /// Bytes per second written to block devices.
    pub io_write_bytes_s: Reading<Spread>,
}

/// What the sampler itself took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplerCost {
    /// Samples written.
    pub samples: u64,
    /// Seconds of CPU time, the child that asks NVML included; `None` where it was killed before it could say.
    pub cpu_s: Option<f64>,
    /// Memory that both its processes held, MiB; pages that they share count once.
    pub memory_mib: Option<f64>,
}

//! Use of the hardware by a job: the sampler's figures, summed up per node.
//!
//! Means are over time, not over samples: a sample of ten seconds weighs twice as much as one of five. Time in
//! which the job was suspended, in which the user asked the sampler to pause, and without samples is excluded;
//! [`Coverage`] has the length of each. Unavailable values are [`Reading::Unsupported`] or [`Reading::Failed`],
//! never zero.

mod cards;
mod fold;
pub mod format;
pub mod peaks;
mod quiet;
mod sample;
mod summary;

pub use railgate_model::GpuField;
use railgate_model::{GpuCounters, Reading, UnixMillis};
use serde::{Deserialize, Serialize};

pub use cards::{Card, Cards, GpuFigures};
pub use fold::Fold;
pub use quiet::{QuietTime, RailQuiet};
pub use sample::{Field, HostField, RailField, Sample, State, Value, Values};
pub(crate) use summary::cell;
pub use summary::{is_idle, joined, moment, phases, summarize, timeline};

/// Figures of the sampler of one node over one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Time that the samples cover.
    pub coverage: Coverage,
    /// The job's GPUs in NVML's order; a MIG instance has its own entry.
    #[serde(default)]
    pub gpus: Vec<GpuUsage>,
    /// The node's RDMA ports, shared by all jobs of the node.
    #[serde(default)]
    pub rails: Vec<RailUsage>,
    /// Figures of the job's cgroup.
    pub host: HostUsage,
    /// Cost of the sampler itself.
    pub sampler: SamplerCost,
    /// What the job did when; `None` if no GPU was sampled, or the release that wrote the report did not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<crate::phases::Phases>,
    /// Name of the samples file beside this report, `<node>.samples`; `None` if it could not be stored.
    #[serde(default)]
    pub file: Option<String>,
    /// Problems, one line each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// How much of the run was sampled. The four durations add up to the time from `start` to `end`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coverage {
    /// Start of the sampler.
    pub start: UnixMillis,
    /// Start of the epilog.
    pub end: UnixMillis,
    /// Configured interval between samples, seconds.
    pub interval_s: f64,
    /// Time covered by samples, seconds.
    pub sampled_s: f64,
    /// Time in which the job was suspended, seconds.
    pub suspended_s: f64,
    /// Time in which the user had asked the sampler not to access the GPUs, seconds.
    pub yielded_s: f64,
    /// Time without data, seconds.
    pub missing_s: f64,
    /// The longest periods without data, in time order.
    pub gaps: Vec<Gap>,
    /// Number of shorter ones.
    pub more_gaps: usize,
}

/// A period without data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// Beginning.
    pub start: UnixMillis,
    /// End.
    pub end: UnixMillis,
    /// Reason, in a few words.
    pub why: String,
}

/// Statistics of a value over time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Mean over `over_s`.
    pub mean: f64,
    /// Lowest sample.
    pub min: f64,
    /// Highest sample.
    pub max: f64,
    /// Time in which the value was known, seconds.
    pub over_s: f64,
}

/// One GPU of the job. Percentages are from GPM: of the elapsed cycles, or of the peak rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuUsage {
    /// NVML index.
    pub index: u32,
    /// UUID; that of the MIG device if it is one.
    pub uuid: String,
    /// NVML's model name.
    pub model: String,
    /// The MIG slice, if the job holds one.
    #[serde(default)]
    pub mig: Option<MigSlice>,
    /// Time with samples of this GPU, seconds.
    pub sampled_s: f64,
    /// What was sampled: `sm_percent` and the others that [`GpuCounters`] names.
    #[serde(flatten)]
    pub counters: GpuCounters<Spread>,
    /// Time without a kernel.
    #[serde(default = "no_idle_time")]
    pub idle: Reading<IdleTime>,
    /// SM clock, MHz, weighted by SM activity.
    pub busy_clock_mhz: Reading<f64>,
    /// Energy, joules, from the GPU's energy counter. With MIG: of the whole GPU.
    pub energy_j: Reading<f64>,
    /// Energy, joules, integral of the power, as a cross-check.
    pub energy_from_power_j: Reading<f64>,
    /// Total memory, MiB.
    pub memory_total_mib: Reading<u64>,
    /// Reasons for a reduced clock.
    pub throttled: Reading<Throttled>,
    /// Hardware FLOP utilisation.
    pub flop: HardwareFlop,
}

/// Time in which a GPU ran no kernel. A sample counts as idle if kernels ran in at most 1 % of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleTime {
    /// Sampled time in which that was known, seconds; suspended and yielded time is not part of it.
    pub over_s: f64,
    /// Part of it without a kernel, seconds.
    pub idle_s: f64,
    /// Since when no kernel ran, up to the last sample; `None`: one ran in the last sample.
    pub since: Option<UnixMillis>,
}

/// Of a report whose writer did not know the field.
fn no_idle_time() -> Reading<IdleTime> {
    Reading::Failed("not sampled by the release that wrote the report".to_owned())
}

/// A MIG instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigSlice {
    /// GPU instance id.
    pub instance: u32,
    /// Number of its SMs.
    pub sms: u32,
    /// Number of SMs of the whole GPU.
    pub of_sms: u32,
}

/// Seconds in which NVML reported a reason for a reduced clock, by reason. They may overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Throttled {
    /// Time in which the reasons were known, seconds.
    pub over_s: f64,
    /// 0x4: the power cap. Normal under full tensor load.
    pub power_cap_s: f64,
    /// 0x8: hardware slowdown of any kind.
    pub hw_slowdown_s: f64,
    /// 0x20: thermal limit of the software.
    pub sw_thermal_s: f64,
    /// 0x40: thermal limit of the hardware.
    pub hw_thermal_s: f64,
    /// 0x80: power brake, asserted externally (power supply, rack).
    pub power_brake_s: f64,
}

/// Work of the GPU's pipes over its maximum at the datasheet clock. It includes recomputation and padding:
/// hardware FLOP utilisation, not model FLOP utilisation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HardwareFlop {
    /// Fraction of the dense tensor peak, 0 to 1: tensor activity × SM clock ÷ datasheet clock, with the clock
    /// calibrated for time in which tensor kernels ran. The fraction is the same for bf16, fp16, tf32 and fp8,
    /// since their peaks have fixed ratios and GPM does not distinguish them.
    pub tensor_fraction: Reading<f64>,
    /// The same without the calibration.
    pub uncalibrated_fraction: Reading<f64>,
    /// Source of the calibration, and its uncertainty.
    pub calibration: Calibration,
    /// Peak that the fraction refers to; `None` for a model without an entry.
    #[serde(default)]
    pub peak: Option<PeakUsed>,
    /// TFLOP/s for each possible data type of the tensor work: `bf16`, `fp16`, `tf32`, `fp8`, as supported by
    /// the model. If the type is not known, the true value is between the lowest and the highest, also for
    /// mixtures.
    #[serde(default)]
    pub tensor_tflops: std::collections::BTreeMap<String, f64>,
    /// TFLOP/s of single precision outside the tensor pipe.
    pub fp32_tflops: Reading<f64>,
    /// TFLOP/s of double precision outside the tensor pipe.
    pub fp64_tflops: Reading<f64>,
}

/// Correction of NVML's clock, which SMs do not reach while tensor kernels run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Factor by which NVML's clock is multiplied; 1 without a calibration.
    pub factor: f64,
    /// `card` (measured on this GPU), `site`, `built-in` or `none`.
    pub from: String,
    /// Relative uncertainty: the true value is within this fraction of the figure.
    pub band: f64,
}

/// The peak that a fraction refers to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeakUsed {
    /// Id of the row in the table, `h200-sxm`, or `site`.
    pub model: String,
    /// Dense bf16 peak (fp16 on models without bf16) of the job's slice, TFLOP/s.
    pub bf16_tflops: f64,
    /// SM clock of that peak, MHz.
    pub clock_mhz: f64,
    /// Memory bandwidth of the job's slice, GB/s.
    pub memory_gbytes_s: Reading<f64>,
    /// Source of the figures.
    pub source: String,
}

/// One RDMA port over the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailUsage {
    /// HCA name, `mlx5_0`.
    pub hca: String,
    /// Port number, from 1.
    pub port: u32,
    /// Rail number; `None` for a port that is not on a rail.
    pub rail: Option<usize>,
    /// Bytes per second sent.
    pub tx_bytes_s: Reading<Spread>,
    /// Bytes per second received.
    pub rx_bytes_s: Reading<Spread>,
    /// Sum of all error counters.
    pub errors: Reading<u64>,
    /// Packets sent again, or requested again.
    pub retransmits: Reading<u64>,
    /// Congestion marks (ECN marks, congestion notifications) sent and received.
    pub congestion_marks: Reading<u64>,
    /// `port_xmit_wait` ticks per second: data to send and no credits. The unit depends on the device, so
    /// compare with earlier values or with other ports.
    pub xmit_wait_s: Reading<Spread>,
    /// When it carried nothing while the other rails carried traffic; `Unsupported` if they never did.
    #[serde(default = "quiet::unknown")]
    pub quiet: Reading<RailQuiet>,
}

/// The job's cgroup over the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostUsage {
    /// Busy CPU cores.
    pub cpu_cores: Reading<Spread>,
    /// CPU cores that the job may use.
    pub cpus_allowed: Reading<f64>,
    /// Memory in use including page cache, MiB.
    pub memory_mib: Reading<Spread>,
    /// Peak memory as counted by the kernel, MiB.
    pub memory_peak_mib: Reading<u64>,
    /// Processes killed for lack of memory in the job's cgroup.
    pub oom_kills: Reading<u64>,
    /// Percent of the time in which a task waited for the CPU.
    pub cpu_pressure_percent: Reading<Spread>,
    /// Percent of the time in which a task waited for memory.
    pub memory_pressure_percent: Reading<Spread>,
    /// Percent of the time in which a task waited for I/O.
    pub io_pressure_percent: Reading<Spread>,
    /// Bytes per second read from block devices.
    pub io_read_bytes_s: Reading<Spread>,
    /// Bytes per second written to block devices.
    pub io_write_bytes_s: Reading<Spread>,
}

/// Cost of the sampler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplerCost {
    /// Number of samples written.
    pub samples: u64,
    /// CPU time, seconds, including the child that queries NVML; `None` if the sampler was killed before it
    /// could record it.
    pub cpu_s: Option<f64>,
    /// Memory of both its processes, MiB; shared pages count once.
    pub memory_mib: Option<f64>,
}

use railgate_node_report::HangKind;
use railgate_node_report::usage::{GpuField, HostField, Values, is_idle};
use serde::{Deserialize, Serialize};

use super::WorkNow;
use super::page::{Kind, Metric, Series, count, page};
use super::work::CollectiveNow;

/// A label that identifies the job; set only if the site configures it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobLabel {
    /// `job`: job id. Creates a new series for every job.
    Job,
    /// `user`: name of the owner.
    User,
    /// `partition`.
    Partition,
}

/// Current state of a job on this node.
#[derive(Clone, Debug, Default)]
pub struct JobNow {
    /// Job id.
    pub job: u32,
    /// Name of the owner.
    pub user: String,
    /// Its partition.
    pub partition: String,
    /// Seconds since its prolog.
    pub running_s: f64,
    /// The job's GPUs.
    pub gpus: Vec<GpuNow>,
    /// Figures of the job's cgroup.
    pub host: Values<HostField>,
    /// Figures of its program and of NCCL; `None` if they could not be read.
    pub work: Option<WorkNow>,
    /// The hang that has not ended.
    pub hang: Option<HangNow>,
}

/// A hang of the job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HangNow {
    /// What keeps the ranks waiting.
    pub kind: HangKind,
    /// For how long, seconds.
    pub seconds: f64,
}

/// Current state of one GPU of the job.
#[derive(Clone, Debug, Default)]
pub struct GpuNow {
    /// NVML index.
    pub index: u32,
    /// UUID; that of the MIG device if it is one.
    pub uuid: String,
    /// Values of the last samples.
    pub values: Values<GpuField>,
    /// Tensor work over the dense peak at the datasheet clock, calibrated, 0 to 1; `None` if not known.
    pub tensor_fraction: Option<f64>,
}

/// Contents of `railgate-job-<id>.prom`.
pub fn job_page(job: &JobNow, labels: &[JobLabel]) -> String {
    let id = job.job.to_string();
    let mut labels = labels.to_vec();
    labels.sort_unstable();
    labels.dedup();
    let common: Vec<(&str, &str)> = labels
        .iter()
        .map(|label| match label {
            JobLabel::Job => ("job_id", id.as_str()),
            JobLabel::User => ("user", job.user.as_str()),
            JobLabel::Partition => ("partition", job.partition.as_str()),
        })
        .collect();
    page(JOB_METRICS, job, &common)
}

const GPU: &[&str] = &["gpu", "uuid"];

fn gpu(job: &JobNow, series: &mut Series, value: impl Fn(&GpuNow) -> Option<f64>) {
    for gpu in &job.gpus {
        series.put_some(&[&gpu.index.to_string(), &gpu.uuid], value(gpu));
    }
}

/// Writes a field of each GPU, multiplied by `by`.
fn field(job: &JobNow, series: &mut Series, field: GpuField, by: f64) {
    gpu(job, series, |gpu| gpu.values.mean(field).map(|value| value * by));
}

/// List of the job's GPUs, `0-3,6`, which distinguishes it from other jobs on the node.
fn gpu_list(job: &JobNow) -> String {
    let mut indices: Vec<u32> = job.gpus.iter().map(|gpu| gpu.index).collect();
    indices.sort_unstable();
    indices.dedup();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for index in indices {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(index) => *last = index,
            _ => runs.push((index, index)),
        }
    }
    let text = |(first, last): (u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.into_iter().map(text).collect::<Vec<_>>().join(",")
}

/// Number of GPUs without a kernel; `None` if it is not known of each, since an unknown GPU is not a busy one.
fn idle_gpus(job: &JobNow) -> Option<f64> {
    let idle: Option<Vec<bool>> = job.gpus.iter().map(|gpu| is_idle(&gpu.values)).collect();
    let idle = idle.filter(|idle| !idle.is_empty())?.into_iter().filter(|idle| *idle).count();
    u64::try_from(idle).ok().map(count)
}

fn of_job(job: &JobNow, series: &mut Series, value: Option<f64>) {
    series.put_some(&[&gpu_list(job)], value);
}

/// Writes a figure of the program.
fn of_work(job: &JobNow, series: &mut Series, value: impl Fn(&WorkNow) -> Option<f64>) {
    of_job(job, series, job.work.as_ref().and_then(value));
}

/// Writes a figure of each NCCL operation.
fn of_op(job: &JobNow, series: &mut Series, value: impl Fn(&CollectiveNow) -> Option<f64>) {
    let gpus = gpu_list(job);
    for one in job.work.iter().flat_map(|work| &work.collectives) {
        series.put_some(&[&gpus, &one.op], value(one));
    }
}

const PERCENT: f64 = 0.01;
const MIB: f64 = 1_048_576.0;
const JOB: &[&str] = &["gpus"];

macro_rules! gpu_gauge {
    ($name:literal, $field:ident, $by:expr, $help:literal) => {
        Metric {
            name: $name,
            kind: Kind::Gauge,
            labels: GPU,
            help: $help,
            read: |job, series| field(job, series, GpuField::$field, $by),
        }
    };
}

macro_rules! job_gauge {
    ($name:literal, $field:ident, $by:expr, $help:literal) => {
        Metric {
            name: $name,
            kind: Kind::Gauge,
            labels: JOB,
            help: $help,
            read: |job, series| {
                of_job(job, series, job.host.mean(HostField::$field).map(|value| value * $by))
            },
        }
    };
}

/// The rows of a job's file. Values are means over the time since the file was last written.
pub const JOB_METRICS: &[Metric<JobNow>] = &[
    Metric {
        name: "railgate_job_running_seconds",
        kind: Kind::Gauge,
        labels: JOB,
        help: "Time since the job's prolog on this node.",
        read: |job, series| of_job(job, series, Some(job.running_s)),
    },
    Metric {
        name: "railgate_job_gpus",
        kind: Kind::Gauge,
        labels: JOB,
        help: "GPUs that the job holds on this node.",
        read: |job, series| of_job(job, series, u64::try_from(job.gpus.len()).ok().map(count)),
    },
    Metric {
        name: "railgate_job_idle_gpus",
        kind: Kind::Gauge,
        labels: JOB,
        help: "GPUs of the job on this node on which kernels ran for at most 1 % of the time. Absent if that is not known of each of them, and while the job is suspended.",
        read: |job, series| of_job(job, series, idle_gpus(job)),
    },
    Metric {
        name: "railgate_job_hang_seconds",
        kind: Kind::Gauge,
        labels: &["gpus", "kind"],
        help: "How long ranks on this node have waited for one that does not come (docs/guard.md). kind: gone, stopped, behind, own-gpu, order, all-wait, blocked, gpu-error, storage. Absent if there is no hang.",
        read: |job, series| {
            if let Some(hang) = job.hang {
                series.put(&[&gpu_list(job), hang.kind.id()], hang.seconds);
            }
        },
    },
    Metric {
        name: "railgate_gpu_hardware_flop_ratio",
        kind: Kind::Gauge,
        labels: GPU,
        help: "Tensor work as a fraction of the dense peak at the datasheet clock, calibrated. It includes recomputation and padding, so it is not the model FLOP utilisation.",
        read: |job, series| gpu(job, series, |gpu| gpu.tensor_fraction),
    },
    Metric {
        name: "railgate_job_model_flop_ratio",
        kind: Kind::Gauge,
        labels: JOB,
        help: "Model FLOP utilisation of the ranks on this node while steps ran, self-reported (docs/application-reports.md).",
        read: |job, series| of_work(job, series, |work| work.model_flop_ratio),
    },
    Metric {
        name: "railgate_job_goodput_ratio",
        kind: Kind::Gauge,
        labels: JOB,
        help: "Share of the time since the job's prolog that went into steps not done before, self-reported.",
        read: |job, series| of_work(job, series, |work| work.goodput_ratio),
    },
    Metric {
        name: "railgate_job_steps_total",
        kind: Kind::Counter,
        labels: JOB,
        help: "Steps that have ended, self-reported.",
        read: |job, series| of_work(job, series, |work| work.steps.map(count)),
    },
    Metric {
        name: "railgate_job_step_duration_seconds",
        kind: Kind::Gauge,
        labels: JOB,
        help: "Mean length of a step so far, self-reported.",
        read: |job, series| of_work(job, series, |work| work.step_s),
    },
    Metric {
        name: "railgate_job_collective_calls_total",
        kind: Kind::Counter,
        labels: &["gpus", "op"],
        help: "Calls of NCCL's operations by the ranks on this node, counted by railgate's profiler plugin.",
        read: |job, series| of_op(job, series, |one| Some(count(one.calls))),
    },
    Metric {
        name: "railgate_job_collective_bytes_total",
        kind: Kind::Counter,
        labels: &["gpus", "op"],
        help: "Bytes of these calls.",
        read: |job, series| of_op(job, series, |one| Some(count(one.bytes))),
    },
    Metric {
        name: "railgate_job_collective_bus_bytes",
        kind: Kind::Gauge,
        labels: &["gpus", "op"],
        help: "Bus bandwidth of the timed calls so far, by nccl-tests' formula, bytes per second.",
        read: |job, series| of_op(job, series, |one| one.bus_bytes_s),
    },
    gpu_gauge!(
        "railgate_gpu_tensor_active_ratio",
        Tensor,
        PERCENT,
        "Time with any tensor pipe active (GPM)."
    ),
    gpu_gauge!("railgate_gpu_sm_active_ratio", Sm, PERCENT, "Share of SMs with at least one warp (GPM)."),
    gpu_gauge!(
        "railgate_gpu_sm_occupancy_ratio",
        Occupancy,
        PERCENT,
        "Resident warps, of the maximum (GPM)."
    ),
    gpu_gauge!(
        "railgate_gpu_fp32_active_ratio",
        Fp32,
        PERCENT,
        "Single precision outside the tensor pipe (GPM)."
    ),
    gpu_gauge!(
        "railgate_gpu_fp64_active_ratio",
        Fp64,
        PERCENT,
        "Double precision outside the tensor pipe (GPM)."
    ),
    gpu_gauge!(
        "railgate_gpu_dram_active_ratio",
        Dram,
        PERCENT,
        "Memory traffic, of the theoretical peak (GPM)."
    ),
    gpu_gauge!(
        "railgate_gpu_kernel_time_ratio",
        AnyKernel,
        PERCENT,
        "Time with any kernel, however small: what nvidia-smi calls utilisation."
    ),
    gpu_gauge!("railgate_gpu_sm_clock_hertz", SmClock, 1e6, "SM clock."),
    gpu_gauge!("railgate_gpu_power_watts", Power, 1.0, "Power; on MIG that of the whole GPU."),
    Metric {
        name: "railgate_gpu_energy_joules_total",
        kind: Kind::Counter,
        labels: GPU,
        help: "Energy since the job's sampler began, by the GPU's own counter; on MIG that of the whole GPU.",
        read: |job, series| field(job, series, GpuField::Energy, 1.0),
    },
    gpu_gauge!("railgate_gpu_temperature_celsius", Temperature, 1.0, "Temperature."),
    gpu_gauge!("railgate_gpu_memory_used_bytes", MemoryUsed, MIB, "Memory in use."),
    gpu_gauge!("railgate_gpu_pcie_transmit_bytes", PcieTx, 1.0, "Sent over PCIe, bytes per second (GPM)."),
    gpu_gauge!("railgate_gpu_pcie_receive_bytes", PcieRx, 1.0, "Received over PCIe, bytes per second (GPM)."),
    gpu_gauge!(
        "railgate_gpu_nvlink_transmit_bytes",
        NvlinkTx,
        1.0,
        "Sent over NVLink, bytes per second (GPM)."
    ),
    gpu_gauge!(
        "railgate_gpu_nvlink_receive_bytes",
        NvlinkRx,
        1.0,
        "Received over NVLink, bytes per second (GPM)."
    ),
    Metric {
        name: "railgate_gpu_throttled_ratio",
        kind: Kind::Gauge,
        labels: &["gpu", "uuid", "why"],
        help: "Share of the time in which this reason reduced the clock: power-cap (normal under full load), hw-slowdown, sw-thermal, hw-thermal, power-brake.",
        read: |job, series| {
            const WHY: [(&str, GpuField); 5] = [
                ("power-cap", GpuField::PowerCap),
                ("hw-slowdown", GpuField::HwSlowdown),
                ("sw-thermal", GpuField::SwThermal),
                ("hw-thermal", GpuField::HwThermal),
                ("power-brake", GpuField::PowerBrake),
            ];
            for gpu in &job.gpus {
                for (why, field) in WHY {
                    let share = gpu.values.mean(field).map(|percent| percent * PERCENT);
                    series.put_some(&[&gpu.index.to_string(), &gpu.uuid, why], share);
                }
            }
        },
    },
    job_gauge!("railgate_job_cpu_cores", Cpu, 1.0, "Cores busy in the job's cgroup."),
    job_gauge!("railgate_job_memory_bytes", Memory, MIB, "Memory of the job's cgroup, page cache included."),
    Metric {
        name: "railgate_job_pressure_ratio",
        kind: Kind::Gauge,
        labels: &["gpus", "resource"],
        help: "Share of the time in which a task of the job waited for cpu, memory or io.",
        read: |job, series| {
            let gpus = gpu_list(job);
            for (resource, field) in [
                ("cpu", HostField::CpuPressure),
                ("memory", HostField::MemoryPressure),
                ("io", HostField::IoPressure),
            ] {
                series.put_some(&[&gpus, resource], job.host.mean(field).map(|percent| percent * PERCENT));
            }
        },
    },
    job_gauge!("railgate_job_read_bytes", IoRead, 1.0, "Read from block devices, bytes per second."),
    job_gauge!("railgate_job_write_bytes", IoWrite, 1.0, "Written to block devices, bytes per second."),
];

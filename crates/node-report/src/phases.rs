//! What a job did when, on one node: start-up, training, pauses, the end.
//!
//! Means over a whole run mix phases: a job that needs 28 s to start and trains for 17 s has idle GPUs most of the
//! time, and no loader is slow. Phases follow from the sampler's figures alone, so they exist for programs that report
//! nothing. Their resolution is that of the samples (`[stats] sample`, 5 s by default; one minute for what is older than
//! an hour).

mod by_gpu;
mod classify;

use std::collections::BTreeMap;

use railgate_model::{GpuCounters, Reading, UnixMillis};
use serde::{Deserialize, Serialize};

use crate::usage::{Coverage, GpuUsage, HardwareFlop, HostUsage, Sample, Spread, Usage, cell};

pub(crate) use by_gpu::by_gpu;
pub(crate) use classify::{Cell, CellGpu, classify_starts};

/// The phases of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phases {
    /// In time order. Time without samples, or in which the job was suspended, is in none of them.
    pub list: Vec<Phase>,
    /// Seconds of each kind that occurs on each GPU, from its own samples, in the order of [`Usage::gpus`]; empty if all GPUs agree
    /// with `list`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<BTreeMap<PhaseKind, f64>>,
    /// Figures of the time in which the job trained; `None` if it never did, or not for a whole sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
}

/// A period in which the job did the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// What it did.
    pub kind: PhaseKind,
    /// Beginning.
    pub start: UnixMillis,
    /// End.
    pub end: UnixMillis,
    /// Which start of the step inside the attempt it belongs to ([`crate::StepStart::start_number`]).
    #[serde(default, skip_serializing_if = "crate::plain::is_zero")]
    pub start_number: u32,
}

impl Phase {
    /// Duration, seconds.
    pub fn seconds(&self) -> f64 {
        crate::plain::float(self.end.saturating_sub(self.start)) / 1000.0
    }
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PhaseKind {
    /// Before the first sustained work of a program: imports, data, compilation, communicators. Of one after another also what runs before it.
    StartUp,
    /// GPUs work at their usual level.
    Steady,
    /// GPUs work at less than three quarters of it, for three samples or longer.
    Slow,
    /// GPUs wait for another rank: kernels run without a pause on few SMs, without memory traffic or tensor activity,
    /// and no GPU of the node works.
    Stalled,
    /// No GPU works, and the job writes to disks or copies from GPUs; after the last work only if it copies.
    Saving,
    /// Some GPU works while at least half of them wait for it.
    Evaluating,
    /// No GPU works, for no known reason.
    Idle,
    /// After the last work.
    Tail,
}

impl PhaseKind {
    /// All kinds, in the order in which a report lists them.
    pub const ALL: [PhaseKind; 8] = [
        PhaseKind::StartUp,
        PhaseKind::Steady,
        PhaseKind::Slow,
        PhaseKind::Stalled,
        PhaseKind::Saving,
        PhaseKind::Evaluating,
        PhaseKind::Idle,
        PhaseKind::Tail,
    ];

    /// The kind in words.
    pub fn title(self) -> &'static str {
        match self {
            PhaseKind::StartUp => "start-up",
            PhaseKind::Steady => "training",
            PhaseKind::Slow => "training slowly",
            PhaseKind::Stalled => "stalled",
            PhaseKind::Saving => "saving",
            PhaseKind::Evaluating => "one rank working, others waiting",
            PhaseKind::Idle => "idle",
            PhaseKind::Tail => "after the last work",
        }
    }

    /// Whether the job trains.
    pub fn is_training(self) -> bool {
        matches!(self, PhaseKind::Steady | PhaseKind::Slow)
    }
}

/// What a GPU does during one sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuActivity {
    /// It runs kernels that do something.
    Works,
    /// It only runs kernels that wait, as NCCL's do: all the time, on few SMs, without tensor activity or memory traffic. Known
    /// only with GPM.
    Waits,
    /// It runs almost no kernel.
    Idle,
    /// Not sampled.
    #[default]
    Unknown,
}

/// What each GPU of a sample does. `others`: the job has another GPU that one can wait for.
pub fn gpu_activities(sample: &Sample, others: bool) -> Vec<GpuActivity> {
    cell(sample).gpus.iter().map(|gpu| gpu.activity(others)).collect()
}

/// Means over the samples that lie completely in [`PhaseKind::Steady`] and [`PhaseKind::Slow`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// Length of these samples, seconds.
    pub seconds: f64,
    /// In the order of [`crate::Usage::gpus`].
    pub gpus: Vec<TrainingGpu>,
    /// The job's cgroup.
    pub host: TrainingHost,
}

/// Means of one GPU while the job trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingGpu {
    /// As [`crate::usage::GpuUsage::counters`].
    #[serde(flatten)]
    pub counters: GpuCounters<f64>,
    /// As [`crate::usage::GpuUsage::busy_clock_mhz`].
    pub busy_clock_mhz: Reading<f64>,
    /// As [`crate::usage::HardwareFlop::tensor_fraction`].
    pub tensor_fraction: Reading<f64>,
}

/// Means of the job's cgroup while the job trained; see [`crate::usage::HostUsage`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingHost {
    /// Busy CPU cores.
    pub cpu_cores: Reading<f64>,
    /// Percent of the time in which a task waited for the CPU.
    pub cpu_pressure_percent: Reading<f64>,
    /// Percent of the time in which a task waited for memory.
    pub memory_pressure_percent: Reading<f64>,
    /// Percent of the time in which a task waited for I/O.
    pub io_pressure_percent: Reading<f64>,
}

impl Phases {
    /// The stall that lasted until the job ended, if there is one. After their processes were ended, GPUs are idle for a moment, or a
    /// handler saves before.
    pub fn last_stall(&self) -> Option<&Phase> {
        let is_after =
            |phase: &&Phase| matches!(phase.kind, PhaseKind::Tail | PhaseKind::Idle | PhaseKind::Saving);
        let mut back = self.list.iter().rev();
        let after_s: f64 = back.clone().take_while(is_after).map(Phase::seconds).sum();
        let stall = back.find(|phase| !is_after(phase))?;
        let is_stall =
            stall.kind == PhaseKind::Stalled && self.list.last()?.start_number == stall.start_number;
        (is_stall && after_s < stall.seconds()).then_some(stall)
    }
}

impl Usage {
    /// The same figures over the time in which the job trained. Figures that are not kept by phase are those of the whole
    /// run: energy, throttling, rails. `None` if phases are not known or the job did not train.
    #[must_use]
    pub fn while_training(&self) -> Option<Usage> {
        let training = self.phases.as_ref()?.training.as_ref()?;
        let flat = |reading: &Reading<f64>| {
            let over_s = training.seconds;
            reading.clone().map(|mean| Spread { mean, min: mean, max: mean, over_s })
        };
        let gpus = self.gpus.iter().zip(&training.gpus).map(|(gpu, then)| GpuUsage {
            sampled_s: training.seconds,
            counters: then.counters.clone().map(|reading| flat(&reading)),
            busy_clock_mhz: then.busy_clock_mhz.clone(),
            flop: HardwareFlop { tensor_fraction: then.tensor_fraction.clone(), ..gpu.flop.clone() },
            ..gpu.clone()
        });
        // Time without samples is spread over phases as the samples are.
        let sampled_s = self.coverage.sampled_s.max(training.seconds);
        let share = if sampled_s > 0.0 { training.seconds / sampled_s } else { 0.0 };
        Some(Usage {
            coverage: Coverage {
                sampled_s: training.seconds,
                missing_s: self.coverage.missing_s * share,
                yielded_s: self.coverage.yielded_s * share,
                suspended_s: 0.0,
                ..self.coverage.clone()
            },
            gpus: gpus.collect(),
            host: HostUsage {
                cpu_cores: flat(&training.host.cpu_cores),
                cpu_pressure_percent: flat(&training.host.cpu_pressure_percent),
                memory_pressure_percent: flat(&training.host.memory_pressure_percent),
                io_pressure_percent: flat(&training.host.io_pressure_percent),
                ..self.host.clone()
            },
            ..self.clone()
        })
    }
}

//! What a job's numbers mean: model FLOP utilisation, goodput, where the time went, who was slow, what hung.
//!
//! Pure functions over what the nodes' parts hold (usage, communication, application). What a rule needs and is not
//! there makes its answer unknown, never zero and never "fine".

mod catalogue;
mod facts;
mod goodput;
mod mfu;
mod register;
pub(crate) mod rules;
mod shares;
#[cfg(test)]
pub(crate) mod simulator;

use railgate_model::{Reading, UnixMillis};
use serde::{Deserialize, Serialize};

use crate::NodeReport;
pub use catalogue::{by_id, explain, rules_markdown};
pub(crate) use facts::{Facts, Outcome, median};
pub(crate) use register::Line;
pub use register::{Class, Number, Rule, Threshold, Time, Value};
pub use rules::{RULES, Rules};

/// What the numbers of one attempt mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    /// Model FLOP utilisation: what the program says it did, of what the GPUs could do.
    pub model: Reading<ModelUse>,
    /// Hardware FLOP utilisation and the like, over all GPUs of the job: what the pipes did, useful or not.
    pub hardware: Reading<HardwareUse>,
    /// How much of the allocated time moved the training forward.
    pub goodput: Reading<Goodput>,
    /// Where the GPUs' time went.
    pub shares: Reading<Shares>,
    /// What stands out, costliest first.
    pub diagnoses: Vec<Diagnosis>,
    /// Ranks that have reported, and how many there were meant to be.
    pub ranks: u32,
    /// See `ranks`; `None` if not reported.
    pub world: Option<u32>,
}

/// Model FLOP utilisation, with what it is made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelUse {
    /// Model FLOP per second over the peak of all its GPUs, while steps ran: checkpoints, start-up and restarts are
    /// not in it. 0 to 1.
    pub fraction: f64,
    /// The same over the whole allocated time.
    pub of_allocated: Reading<f64>,
    /// Whose way of counting: [`crate::application::Convention::title`].
    pub convention: String,
    /// `bf16`
    pub dtype: String,
    /// Dense peak of one GPU in that type, TFLOP/s.
    pub peak_tflops: f64,
    /// FLOP per token or sample, forward and backward.
    pub flops_per_unit: f64,
    /// `tokens` or `samples`.
    pub unit: String,
    /// Tokens or samples of the whole job per second, while steps ran.
    pub units_per_s: f64,
    /// Mean time of a step, seconds, over all ranks.
    pub step_s: f64,
    /// GPUs that it is shared out over.
    pub gpus: f64,
}

/// What the job's GPUs did, means over those that were sampled, by time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HardwareUse {
    /// GPUs that were sampled.
    pub gpus: u32,
    /// [`crate::usage::HardwareFlop::tensor_fraction`].
    pub tensor_fraction: Reading<f64>,
    /// It may be off by this fraction of itself, the worst of the GPUs.
    pub band: f64,
    /// All of them are calibrated.
    pub calibrated: bool,
    /// Time with any kernel, percent: GPM's graphics activity, else NVML's utilisation, which `nvidia-smi` shows.
    pub busy_percent: Reading<f64>,
    /// SMs with work, percent.
    pub sm_percent: Reading<f64>,
    /// Memory traffic, percent of the peak.
    pub dram_percent: Reading<f64>,
    /// MHz.
    pub sm_clock_mhz: Reading<f64>,
    /// Watts per GPU.
    pub power_w: Reading<f64>,
    /// Joules of all of them.
    pub energy_j: Reading<f64>,
    /// Share of the allocated time that samples stand for, 0 to 1.
    pub coverage: f64,
}

/// Productive time over allocated time. All in seconds, means over the ranks; they add up to `allocated_s`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    /// `productive_s` over `allocated_s`, 0 to 1.
    pub fraction: f64,
    /// From the first prolog to the last epilog.
    pub allocated_s: f64,
    /// In steps that were not done before.
    pub productive_s: f64,
    /// From the beginning (and after a restart in the job) to the first step's end.
    pub start_up_s: f64,
    /// In checkpoints.
    pub checkpoint_s: f64,
    /// In steps that had been done before, in this attempt or, up to the checkpoint, in an earlier one.
    pub redone_s: f64,
    /// From the last step to the end.
    pub tail_s: f64,
    /// What is left: evaluation, pauses between steps and restarts that the program does not tell.
    pub other_s: f64,
    /// GPUs of the job, to make GPU-hours of it.
    pub gpus: u32,
}

/// Where the GPUs' time went, percent; they add up to 100.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// SMs at work, neither waiting for memory nor for other ranks.
    pub compute: f64,
    /// In collectives, waiting for a rank that came later; at most, as overlap with compute cannot be told.
    pub comm_wait: Reading<f64>,
    /// In collectives, moving data; likewise.
    pub comm_wire: Reading<f64>,
    /// Limited by memory traffic.
    pub memory: f64,
    /// Waiting for input.
    pub input: Reading<f64>,
    /// Kernels too small, or launched too late.
    pub launch: f64,
    /// Some kernel ran on few SMs, and whether it was NCCL's or the program's own is not known: NCCL's plugin was not
    /// loaded, or has no times.
    #[serde(default)]
    pub unknown: f64,
    /// Nothing to do, for no reason that was found.
    pub idle: f64,
    /// In checkpoints.
    pub checkpoint: Reading<f64>,
    /// Lost to clocks held down by heat or power supply; a part of the others, and not in the sum.
    pub throttled: Reading<f64>,
    /// How sure: `high` with every source, `medium` without the program's or NCCL's own word, `low` without both, or
    /// where NCCL's calls or a fifth of the samples are missing.
    pub confidence: String,
}

/// What stands out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Which rule: its id in [`RULES`].
    pub rule: String,
    /// [`Class`] of the rule: `hardware`, `application` or `unknown`.
    pub class: String,
    /// `high`, `medium`, `low`.
    pub confidence: String,
    /// What it costs, 0 to 1 of the job; `None`: not known, or not a matter of speed.
    pub costs: Option<f64>,
    /// Who: `n1 GPU 5 rank 13`; empty: all.
    pub part: String,
    /// When it began, where that is known.
    pub since: Option<UnixMillis>,
    /// One sentence.
    pub what: String,
    /// What to do about it.
    pub fix: String,
}

/// Most that are kept of one rule.
const MOST: usize = 8;

/// Model FLOP utilisation and goodput of a part whose job still runs, at `now`; `None`: not known.
pub(crate) fn said_so_far(part: &NodeReport, now: UnixMillis) -> (Option<f64>, Option<f64>) {
    let facts = Facts::new(std::slice::from_ref(part), Some(now), Outcome::Good, None);
    let model = mfu::model(&facts).known().map(|model| model.fraction);
    (model, goodput::goodput(&facts).known().map(|goodput| goodput.fraction))
}

/// What the parts of one attempt mean. `end` is `None` while it runs; `before` is the highest step that an earlier
/// attempt had reached; `rules` has the thresholds in force.
pub(crate) fn analyse(
    nodes: &[NodeReport],
    end: Option<UnixMillis>,
    outcome: Outcome,
    before: Option<u64>,
    rules: &Rules,
) -> Option<Analysis> {
    let told = |node: &NodeReport| {
        node.usage.is_some() || node.application.is_some() || node.communication.is_some()
    };
    if !nodes.iter().any(told) {
        return None;
    }
    let facts = Facts::new(nodes, end, outcome, before).under(rules);
    let model = mfu::model(&facts);
    let found = |rule: &'static Rule| {
        (rule.find)(&facts).into_iter().take(MOST).map(|found| Diagnosis::new(rule, found))
    };
    let mut diagnoses: Vec<Diagnosis> = RULES.iter().flat_map(found).collect();
    // What has no price ended the job, and the rules stand in order of that.
    diagnoses.sort_by(|a, b| {
        let price = |diagnosis: &Diagnosis| diagnosis.costs.unwrap_or(f64::INFINITY);
        price(b).total_cmp(&price(a))
    });
    Some(Analysis {
        goodput: goodput::goodput(&facts),
        hardware: mfu::hardware(&facts),
        shares: shares::shares(&facts),
        model,
        diagnoses,
        ranks: u32::try_from(facts.reporting().count()).unwrap_or(u32::MAX),
        world: facts.world,
    })
}

impl Diagnosis {
    fn new(rule: &Rule, found: register::Found) -> Self {
        Diagnosis {
            rule: rule.id.to_owned(),
            class: rule.class.as_str().to_owned(),
            confidence: found.confidence.to_owned(),
            costs: found.costs,
            part: found.part,
            since: found.since,
            what: found.what,
            fix: found.fix.unwrap_or(rule.fix).to_owned(),
        }
    }
}

impl Analysis {
    /// The diagnoses whose rules name this line of the first screen.
    pub(crate) fn on_line(&self, line: Line) -> impl Iterator<Item = &Diagnosis> {
        self.diagnoses.iter().filter(move |one| by_id(&one.rule).is_some_and(|rule| rule.line == line))
    }

    /// "GPU utilisation 95 %, MFU 12 %" in one sentence.
    pub fn sentence(&self) -> Option<String> {
        let busy = self.hardware.known().and_then(|hardware| hardware.busy_percent.known().copied());
        let mfu = self.model.known().map(|model| model.fraction * 100.0);
        let tensor = self.hardware.known().and_then(|hardware| hardware.tensor_fraction.known().copied());
        let numbers = match (busy, mfu, tensor) {
            (Some(busy), Some(mfu), _) => format!("GPU utilisation {busy:.0} %, MFU {mfu:.1} %"),
            (Some(busy), None, Some(tensor)) => {
                format!("GPU utilisation {busy:.0} %, hardware FLOP utilisation {:.1} %", tensor * 100.0)
            }
            (None, Some(mfu), _) => format!("MFU {mfu:.1} %"),
            (Some(busy), None, None) => format!("GPU utilisation {busy:.0} %"),
            (None, None, _) => return self.diagnoses.first().map(|first| first.what.clone()),
        };
        Some(match self.diagnoses.first() {
            Some(first) => format!("{numbers}: {}", first.what),
            None => format!("{numbers}; nothing stands out"),
        })
    }
}

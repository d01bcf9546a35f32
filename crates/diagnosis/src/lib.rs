//! Interpretation of a job's figures: model FLOP utilisation, goodput, shares of time, stragglers, hangs.
//!
//! Pure functions of the node reports (usage, communication, application). If an input of a rule is missing,
//! its result is unknown, never zero and never "healthy".

mod catalogue;
mod dependence;
mod ends;
mod facts;
mod goodput;
mod host_time;
mod mfu;
mod phases;
mod register;
mod rules;
mod shares;
#[cfg(any(test, feature = "testing"))]
pub mod simulator;

use railgate_model::{Reading, UnixMillis};
use railgate_node_report::NodeReport;
use serde::{Deserialize, Serialize};

pub use catalogue::{by_id, explain, rules_markdown};
pub(crate) use facts::Facts;
pub use facts::{Outcome, median};
pub use phases::{PhaseTime, trained_s};
pub use register::{Class, Line, Number, Rule, Threshold, Time, Value};
use register::{Found, Over};
pub use rules::idle_gpus::{IdleUse, idle_use};
pub use rules::{RULES, Rules};

/// Id of the rule that finds a GPU with a slower clock than the others, which the job's owner can exclude.
pub const SLOW_CLOCK: &str = rules::slow_clock::RULE.id;
/// Id of the rule that finds the rank that others waited for until the job ended.
pub const HANG: &str = rules::hang::RULE.id;
/// Id of the rule that finds the rank that ended before the others.
pub const KILLED_RANK: &str = rules::killed_rank::RULE.id;
/// Id of the rule that finds a rail with less traffic than the others.
pub const RAIL_IMBALANCE: &str = rules::rail_imbalance::RULE.id;
/// Id of the rule that finds a rail that stopped while the others carried traffic.
pub const DEGRADED_RAIL: &str = rules::degraded_rail::RULE.id;

/// Interpretation of the figures of one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    /// Model FLOP utilisation: FLOP that the program reports over the peak of its GPUs.
    pub model: Reading<ModelUse>,
    /// Hardware utilisation over all GPUs of the job, whether the work was useful or not.
    pub hardware: Reading<HardwareUse>,
    /// Share of the allocated time that advanced the training.
    pub goodput: Reading<Goodput>,
    /// Shares of the GPUs' time: of the training, if `phases` are known.
    pub shares: Reading<Shares>,
    /// How long the job did what: means over the nodes that know it. Empty if none does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseTime>,
    /// Hardware utilisation while the job trained; `None` if phases are not known, or it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<HardwareUse>,
    /// Findings, sorted by cost in descending order.
    pub diagnoses: Vec<Diagnosis>,
    /// Seconds of training that the rules of slowness need, if the job trained for less: then none of them judged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub too_short_s: Option<f64>,
    /// Several programs trained at different times, so that the means over the node are of none of them, or one after the other for too short a
    /// time each: no rule of slowness judged the job.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_turns: bool,
    /// Number of starts of the step inside the attempt, if a launcher started it more than once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts: Option<u32>,
    /// Number of ranks that reported.
    pub ranks: u32,
    /// Number of ranks expected; `None` if not reported.
    pub world: Option<u32>,
}

/// Model FLOP utilisation, with the figures that it is computed from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelUse {
    /// Model FLOP per second over the peak of all GPUs of the job while steps ran, excluding checkpoints,
    /// start-up and restarts, 0 to 1.
    pub fraction: f64,
    /// The same over the whole allocated time.
    pub of_allocated: Reading<f64>,
    /// Convention of counting: [`railgate_node_report::application::Convention::title`].
    pub convention: String,
    /// Data type, `bf16`.
    pub dtype: String,
    /// Dense peak of one GPU in that data type, TFLOP/s.
    pub peak_tflops: f64,
    /// FLOP per token or sample, forward and backward.
    pub flops_per_unit: f64,
    /// `tokens` or `samples`.
    pub unit: String,
    /// Tokens or samples of the whole job per second, while steps ran.
    pub units_per_s: f64,
    /// Mean time of a step, seconds, over all ranks.
    pub step_s: f64,
    /// Number of GPUs that the work is divided over.
    pub gpus: f64,
}

/// Means over the sampled GPUs of the job, weighted by time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HardwareUse {
    /// Number of sampled GPUs.
    pub gpus: u32,
    /// [`railgate_node_report::usage::HardwareFlop::tensor_fraction`].
    pub tensor_fraction: Reading<f64>,
    /// Relative uncertainty of `tensor_fraction`, the largest of the GPUs.
    pub band: f64,
    /// Whether all GPUs are calibrated.
    pub calibrated: bool,
    /// Number of GPUs by the source of their calibration ([`railgate_node_report::usage::Calibration::from`]): `card`,
    /// `site`, `built-in`, `none`. Empty in analyses of earlier releases.
    #[serde(default)]
    pub calibrations: std::collections::BTreeMap<String, u32>,
    /// Time with any kernel running, percent: GPM's graphics activity, else NVML's utilisation, as in
    /// `nvidia-smi`.
    pub busy_percent: Reading<f64>,
    /// Share of SMs that are active, percent.
    pub sm_percent: Reading<f64>,
    /// Memory traffic, percent of the peak bandwidth.
    pub dram_percent: Reading<f64>,
    /// SM clock, MHz.
    pub sm_clock_mhz: Reading<f64>,
    /// Power per GPU, watts.
    pub power_w: Reading<f64>,
    /// Energy of all of them, joules.
    pub energy_j: Reading<f64>,
    /// Share of the allocated time that is covered by samples, 0 to 1.
    pub coverage: f64,
}

/// Productive time over allocated time. All times are in seconds, means over the ranks, and add up to
/// `allocated_s`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    /// `productive_s` over `allocated_s`, 0 to 1.
    pub fraction: f64,
    /// From the first prolog to the last epilog.
    pub allocated_s: f64,
    /// Steps done for the first time.
    pub productive_s: f64,
    /// From each start of the program to the end of its first step.
    pub start_up_s: f64,
    /// In checkpoints.
    pub checkpoint_s: f64,
    /// Repeated steps: done before in this attempt or, up to the checkpoint, in an earlier one.
    pub redone_s: f64,
    /// From the end of the last step to the end.
    pub tail_s: f64,
    /// Remainder: evaluation, pauses between steps, and restarts that the program does not report.
    pub other_s: f64,
    /// GPUs of the job, to compute GPU-hours.
    pub gpus: u32,
    /// The same by start of `railgate launch`, in order; empty if all reports are of one start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<StartWork>,
}

/// Steps of one start inside an attempt, seconds: means over the ranks that report in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StartWork {
    /// `RAILGATE_START`.
    pub number: u32,
    /// Steps done for the first time.
    pub productive_s: f64,
    /// Steps that an earlier start or attempt had done.
    pub redone_s: f64,
}

/// Shares of the GPUs' time, percent; they add up to 100.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// SMs active, waiting neither for memory nor for other ranks.
    pub compute: f64,
    /// In collectives, waiting for a late rank. An upper bound, since overlap with computation cannot be
    /// measured.
    pub comm_wait: Reading<f64>,
    /// In collectives, transferring data; likewise an upper bound.
    pub comm_wire: Reading<f64>,
    /// Limited by memory traffic.
    pub memory: f64,
    /// Waiting for input.
    pub input: Reading<f64>,
    /// Kernels too small, or launched too late.
    pub launch: f64,
    /// A kernel ran on few SMs, and it is not known whether it was NCCL's or the program's: the NCCL plugin was
    /// not loaded, or has no times.
    #[serde(default)]
    pub unknown: f64,
    /// Idle, with no cause found.
    pub idle: f64,
    /// In checkpoints.
    pub checkpoint: Reading<f64>,
    /// Lost to clocks reduced by heat or power supply; included in other shares and not in the sum.
    pub throttled: Reading<f64>,
    /// `high` with every source; `medium` without the report of the program or of NCCL; `low` without both, or
    /// if NCCL calls or a fifth of the samples are missing.
    pub confidence: String,
}

/// A finding of a rule about the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Id of the rule in [`RULES`].
    pub rule: String,
    /// [`Class`] of the rule: `hardware`, `application` or `unknown`.
    pub class: String,
    /// `high`, `medium`, `low`.
    pub confidence: String,
    /// Cost as a fraction of the job, 0 to 1; `None` if not known, or if the finding is not about speed.
    pub costs: Option<f64>,
    /// Affected GPU, rank or node, `n1 GPU 5 rank 13`; empty for all.
    pub part: String,
    /// When it began, if known.
    pub since: Option<UnixMillis>,
    /// The finding, in one sentence.
    pub what: String,
    /// How to fix it.
    pub fix: String,
}

/// Maximum of findings of one rule.
const MOST: usize = 8;
/// Rules of slowness need this much training: seconds, and samples. Less is mostly the edge of the start-up.
const LEAST_TRAINED_S: f64 = 10.0;
const LEAST_TRAINED_SAMPLES: f64 = 2.0;

/// Model FLOP utilisation and goodput of one node while the job runs, up to `now`; `None` if not known.
pub fn said_so_far(part: &NodeReport, now: UnixMillis) -> (Option<f64>, Option<f64>) {
    let facts = Facts::new(std::slice::from_ref(part), Some(now), Outcome::Good, None);
    let model = mfu::model(&facts).known().map(|model| model.fraction);
    (model, goodput::goodput(&facts).known().map(|goodput| goodput.fraction))
}

/// Interprets the node reports of one attempt. `end` is `None` while it runs; `before` is the highest step of
/// earlier attempts; `rules` has the thresholds in force.
pub fn analyse(
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
    let training = facts::training(nodes);
    let judged = Facts::new(nodes, end, outcome, before).under(rules).in_training(&training);
    let phases = phases::times(nodes);
    // Rules state what is lost of the time that they judge.
    let share = judged.training_s().map_or(1.0, |_| phases::training_share(&phases));
    let trained_s = phases::trained_s(&phases);
    let interval_s =
        nodes.iter().filter_map(|node| Some(node.usage.as_ref()?.coverage.interval_s)).fold(0.0, f64::max);
    let least_s = LEAST_TRAINED_S.max(LEAST_TRAINED_SAMPLES * interval_s);
    let too_short_s = (!phases.is_empty() && trained_s < least_s).then_some(least_s);
    // Of short programs one after the other only the edges are known.
    let hardly_known = || judged.training_s().is_none_or(|seconds| seconds < least_s);
    let in_turns =
        !facts.ranks_depend && phases::in_turns(nodes) || phases::in_series(nodes) && hardly_known();
    let unjudged = |rule: &Rule| {
        rule.over == Over::Training && (too_short_s.is_some() || in_turns && rule.class != Class::Hardware)
    };
    let found = |rule: &'static Rule| {
        let (facts, share) = match rule.over {
            Over::Training => (&judged, share),
            Over::AllTime => (&facts, 1.0),
        };
        let of_all = move |found: Found| Found { costs: found.costs.map(|costs| costs * share), ..found };
        let found = if unjudged(rule) { Vec::new() } else { (rule.find)(facts) };
        found.into_iter().take(MOST).map(move |found| Diagnosis::new(rule, of_all(found)))
    };
    let mut diagnoses: Vec<Diagnosis> = RULES.iter().flat_map(found).collect();
    // Findings without a cost ended the job; they follow the order of the register.
    diagnoses.sort_by(|a, b| {
        let price = |diagnosis: &Diagnosis| diagnosis.costs.unwrap_or(f64::INFINITY);
        price(b).total_cmp(&price(a))
    });
    Some(Analysis {
        goodput: goodput::goodput(&facts),
        hardware: mfu::hardware(&facts),
        shares: shares::shares(&judged),
        training: judged.training_s().and_then(|_| mfu::hardware(&judged).known().cloned()),
        phases,
        model,
        diagnoses,
        too_short_s,
        in_turns,
        starts: facts.restarted().map(|last| last.saturating_add(1)),
        ranks: u32::try_from(facts.reporting().count()).unwrap_or(u32::MAX),
        world: facts.world,
    })
}

impl Diagnosis {
    fn new(rule: &Rule, found: Found) -> Self {
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
    /// Findings whose rules name this line of the first screen.
    pub fn on_line(&self, line: Line) -> impl Iterator<Item = &Diagnosis> {
        self.diagnoses.iter().filter(move |one| by_id(&one.rule).is_some_and(|rule| rule.line == line))
    }

    /// GPU utilisation and MFU in one sentence: "GPU utilisation 95 %, MFU 12 %".
    pub fn sentence(&self) -> Option<String> {
        let hardware = self.training.as_ref().or(self.hardware.known());
        let busy = hardware.and_then(|hardware| hardware.busy_percent.known().copied());
        let mfu = self.model.known().map(|model| model.fraction * 100.0);
        let tensor = hardware.and_then(|hardware| hardware.tensor_fraction.known().copied());
        let numbers = match (busy, mfu, tensor) {
            (Some(busy), Some(mfu), _) => format!("GPU utilisation {busy:.0} %, MFU {mfu:.1} %"),
            (Some(busy), None, Some(tensor)) => {
                format!("GPU utilisation {busy:.0} %, hardware FLOP utilisation {:.1} %", tensor * 100.0)
            }
            (None, Some(mfu), _) => format!("MFU {mfu:.1} %"),
            (Some(busy), None, None) => format!("GPU utilisation {busy:.0} %"),
            (None, None, _) => return self.diagnoses.first().map(|first| first.what.clone()),
        };
        // A program's own MFU is of its steps already.
        let numbers = if self.training.is_some() { format!("{numbers} while training") } else { numbers };
        Some(match self.diagnoses.first() {
            Some(first) => format!("{numbers}: {}", first.what),
            None => numbers,
        })
    }
}

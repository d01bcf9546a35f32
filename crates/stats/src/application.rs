//! What the program says of itself: model, steps, tokens, checkpoints, trouble.
//!
//! A rank reports through `contrib/python/railgate.py` or by lines of text (docs/application-reports.md). All of it is
//! the user's own word: shown, compared with what the hardware did, and never a reason to drain a node.

mod file;
mod flops;
mod lines;

use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

pub use file::{APP_DIR, MOST_BYTES, read};
pub use flops::{Convention, Model, ModelFlops};

/// What the ranks of one node have reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Application {
    /// By rank; those without a number last.
    pub ranks: Vec<RankApplication>,
    /// Files that were refused or damaged, one line each.
    pub problems: Vec<String>,
}

/// What one rank has reported over the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankApplication {
    /// The file that it wrote.
    pub file: String,
    /// `RANK`, else `SLURM_PROCID`.
    pub rank: Option<u32>,
    /// `LOCAL_RANK`, else `SLURM_LOCALID`: the GPU among the job's own ones on this node, where a rank has one.
    pub local_rank: Option<u32>,
    /// `WORLD_SIZE`, else `SLURM_NTASKS`.
    pub world: Option<u32>,
    /// The model, where it was described.
    pub model: Option<Model>,
    /// How often the program began within this run; 1 without a restart inside the job.
    pub starts: u32,
    /// When it first began.
    pub started: UnixMillis,
    /// When the first step ended; `None` where none did.
    pub first_step: Option<UnixMillis>,
    /// When the last step ended.
    pub last_step: Option<UnixMillis>,
    /// The last sign of life of any kind: a step, a checkpoint's beginning or end.
    pub last_seen: UnixMillis,
    /// Steps that ended.
    pub steps: u64,
    /// How long they took. The first one after each start has no beginning and is in none of these.
    pub step_s: Option<StepTimes>,
    /// Tokens that were worked on, as the program counts them; `None` where it does not.
    pub tokens: Option<f64>,
    /// Samples, likewise.
    pub samples: Option<f64>,
    /// Tokens and samples of the steps in [`StepTimes`] alone: what a rate is made from.
    pub timed_tokens: Option<f64>,
    /// See `timed_tokens`.
    pub timed_samples: Option<f64>,
    /// Number of the first step, where the program numbers them.
    pub first_number: Option<u64>,
    /// The highest number.
    pub last_number: Option<u64>,
    /// Steps whose number had been reached before in this run: work done twice.
    pub redone: u64,
    /// Seconds that they took.
    pub redone_s: f64,
    /// Checkpoints that ended.
    pub checkpoints: u64,
    /// Seconds in checkpoints.
    pub checkpoint_s: f64,
    /// The last step whose checkpoint ended.
    pub checkpoint_number: Option<u64>,
    /// A checkpoint has begun and not ended.
    pub in_checkpoint: bool,
    /// Seconds that the program says it waited for its input; `None` where it does not say.
    pub input_s: Option<f64>,
    /// Seconds from each start to its first step, together.
    pub start_up_s: f64,
    /// NaN, spikes and what else the program told, in order, the first and the last ones.
    pub events: Vec<AppEvent>,
    /// How many more there were.
    pub more_events: u64,
    /// The run in equal spans, for plots.
    pub course: Option<Course>,
}

/// Times of steps, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepTimes {
    /// How many.
    pub count: u64,
    /// Together.
    pub total: f64,
    /// Mean.
    pub mean: f64,
    /// Shortest.
    pub min: f64,
    /// Longest.
    pub max: f64,
    /// Percentiles, from a histogram whose classes are 5 % wide.
    pub p50: f64,
    /// See `p50`.
    pub p90: f64,
    /// See `p50`.
    pub p99: f64,
}

/// Something that the program told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AppEvent {
    /// When.
    pub time: UnixMillis,
    /// In which step, where steps are numbered; else how many had ended.
    pub step: u64,
    /// What.
    pub what: AppEventKind,
    /// The loss, where the user asked for it to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
}

/// Kinds of [`AppEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AppEventKind {
    /// The loss was not a number, or infinite.
    Nan,
    /// The loss was more than five times its running mean.
    Spike,
    /// The program began (again).
    Start,
    /// The program ended in its own way.
    End,
}

/// A run in equal spans.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Course {
    /// Beginning of the first span.
    pub start: UnixMillis,
    /// Length of a span, seconds.
    pub span_s: f64,
    /// Mean time of the steps that ended in each, seconds; `None` where none did.
    pub step_s: Vec<Option<f32>>,
}

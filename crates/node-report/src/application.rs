//! Self-reported data of the program: model, steps, tokens, checkpoints, NaN losses.
//!
//! A rank reports through `contrib/python/railgate.py` or with lines of text (docs/application-reports.md). The
//! user controls all of it: it is shown and compared with what the hardware did, but never drains a node.

mod file;
mod flops;
mod lines;

use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

pub use file::{APP_DIR, MOST_BYTES, read};
pub use flops::{Convention, Model, ModelFlops};

/// Reports of the ranks of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Application {
    /// Sorted by rank; ranks without a number last.
    pub ranks: Vec<RankApplication>,
    /// Files that were refused or damaged, one line each.
    pub problems: Vec<String>,
}

/// Report of one rank over the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankApplication {
    /// Name of the rank's file.
    pub file: String,
    /// `RANK`, else `SLURM_PROCID`.
    pub rank: Option<u32>,
    /// `LOCAL_RANK`, else `SLURM_LOCALID`: index of the rank's GPU among the job's GPUs on this node.
    pub local_rank: Option<u32>,
    /// `WORLD_SIZE`, else `SLURM_NTASKS`.
    pub world: Option<u32>,
    /// The model, if the program describes it.
    pub model: Option<Model>,
    /// Which start of the step inside the attempt it belongs to (`RAILGATE_START`): the newest, if several wrote the file.
    #[serde(skip_serializing_if = "crate::plain::is_zero")]
    pub start_number: u32,
    /// Number of starts of the program within this run; 1 unless it was restarted inside the job.
    pub starts: u32,
    /// Time of the first start.
    pub started: UnixMillis,
    /// End of the first step; `None` if no step ended.
    pub first_step: Option<UnixMillis>,
    /// End of the last step.
    pub last_step: Option<UnixMillis>,
    /// Last activity of any kind: a step, or the beginning or end of a checkpoint.
    pub last_seen: UnixMillis,
    /// Number of steps that ended.
    pub steps: u64,
    /// Duration of steps, excluding the first one after each start, whose beginning is not known.
    pub step_s: Option<StepTimes>,
    /// Tokens processed, as the program counts them; `None` if it does not.
    pub tokens: Option<f64>,
    /// Samples processed, likewise.
    pub samples: Option<f64>,
    /// Tokens of the steps in [`StepTimes`] alone, used for rates.
    pub timed_tokens: Option<f64>,
    /// Samples of those steps.
    pub timed_samples: Option<f64>,
    /// Number of the first step, if the program numbers them.
    pub first_number: Option<u64>,
    /// Highest step number.
    pub last_number: Option<u64>,
    /// Steps whose number had been reached before in this run, and which were therefore repeated.
    pub redone: u64,
    /// Duration of the repeated steps, seconds.
    pub redone_s: f64,
    /// Number of checkpoints that ended.
    pub checkpoints: u64,
    /// Seconds in checkpoints.
    pub checkpoint_s: f64,
    /// The last step whose checkpoint ended.
    pub checkpoint_number: Option<u64>,
    /// A checkpoint began and has not ended.
    pub in_checkpoint: bool,
    /// Time waited for input, seconds, as the program reports; `None` if it does not.
    pub input_s: Option<f64>,
    /// Time from each start to its first step, seconds, summed over the starts.
    pub start_up_s: f64,
    /// Starts, ends, NaN losses and loss spikes in time order: the first and the last ones.
    pub events: Vec<AppEvent>,
    /// Number of events omitted between them.
    pub more_events: u64,
    /// Mean step time over the run in equal intervals, for plots.
    pub course: Option<Course>,
}

/// Durations of steps, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepTimes {
    /// Number of steps.
    pub count: u64,
    /// Sum.
    pub total: f64,
    /// Mean.
    pub mean: f64,
    /// Shortest.
    pub min: f64,
    /// Longest.
    pub max: f64,
    /// Percentiles, from a histogram with buckets 5 % wide.
    pub p50: f64,
    /// See `p50`.
    pub p90: f64,
    /// See `p50`.
    pub p99: f64,
}

/// An event that the program reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AppEvent {
    /// When it happened.
    pub time: UnixMillis,
    /// Step number if steps are numbered, else the number of steps that had ended.
    pub step: u64,
    /// Kind of event.
    pub what: AppEventKind,
    /// The loss, if the user enabled recording it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
}

/// Kinds of [`AppEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AppEventKind {
    /// The loss was NaN or infinite.
    Nan,
    /// The loss was more than five times its running mean.
    Spike,
    /// The program started or restarted.
    Start,
    /// The program ended normally.
    End,
}

/// Step times over the run, in equal intervals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Course {
    /// Beginning of the first interval.
    pub start: UnixMillis,
    /// Length of an interval, seconds.
    pub span_s: f64,
    /// Mean duration of the steps that ended in each interval, seconds; `None` if none did.
    pub step_s: Vec<Option<f32>>,
}

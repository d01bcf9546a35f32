//! Productive time of jobs, as intervals.
//!
//! Slurm's records do not show progress. An attempt that completed was productive but for its start and its checkpoints, for which
//! [`Settings`] has limits; one that did not complete has kept anything from nothing to all of its time. What the program reports
//! narrows this. Work that was lost and is repeated counts once, in the attempt that keeps it.

use std::collections::BTreeMap;
use std::fmt;

use railgate_model::{UnixMillis, rfc3339};
use serde::{Deserialize, Serialize};

use crate::blame::Blame;
use crate::event::{Attempt, Cause, Outcome, Progress};
use crate::history::History;
use crate::incident::Reason;
use crate::judgement::Judgement;
use crate::parallel;
use crate::settings::{DAY, Settings, hours, seconds};

/// Both ends of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Bounds {
    fn plus(self, other: Bounds) -> Bounds {
        Bounds { low: self.low + other.low, high: self.high + other.high }
    }

    fn times(self, factor: f64) -> Bounds {
        Bounds { low: self.low * factor, high: self.high * factor }
    }

    fn within(self, low: f64, high: f64) -> Bounds {
        Bounds { low: self.low.clamp(low, high), high: self.high.clamp(low, high) }
    }
}

/// A job with all its attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobCost {
    /// Job id.
    pub job: u32,
    /// The owner.
    pub uid: u32,
    /// The partition of the last attempt.
    pub partition: String,
    /// Number of attempts that are known.
    pub attempts: usize,
    /// From the beginning of the first wait to the last end, or to now, hours.
    pub wall_hours: f64,
    /// Productive hours.
    pub productive_hours: Bounds,
    /// Productive time over wall-clock time, the wait in the queue included; `None` if no time has passed.
    pub ettr: Option<Bounds>,
    /// Whether the program reported the progress of each attempt that ran.
    pub reported: bool,
}

/// Productive GPU hours of a partition in a month.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    /// Partition.
    pub partition: String,
    /// Month in UTC, for example `2026-11`.
    pub month: String,
    /// GPU hours that jobs held.
    pub gpu_hours: f64,
    /// Productive ones.
    pub productive: Bounds,
}

/// The productive part of a whole, summed over jobs or months.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// Productive hours, or GPU hours.
    pub productive: Bounds,
    /// All hours, or GPU hours.
    pub whole: f64,
}

impl Share {
    /// The ETTR of all jobs together: productive hours of wall-clock hours, the wait in the queue included.
    pub fn ettr(costs: &[JobCost]) -> Share {
        Share::sum(costs.iter().map(|job| (job.productive_hours, job.wall_hours)))
    }

    /// The goodput of all partitions and months together: productive GPU hours of those that jobs held.
    pub fn goodput(months: &[Goodput]) -> Share {
        Share::sum(months.iter().map(|month| (month.productive, month.gpu_hours)))
    }

    /// Returns the part, 0 to 1; `None` without a whole.
    pub fn of_one(self) -> Option<Bounds> {
        let Share { productive, whole } = self;
        (whole > 0.0).then(|| Bounds { low: productive.low / whole, high: productive.high / whole })
    }

    fn sum(parts: impl Iterator<Item = (Bounds, f64)>) -> Share {
        parts.fold(Share::default(), |sum, (productive, whole)| Share {
            productive: sum.productive.plus(productive),
            whole: sum.whole + whole,
        })
    }
}

/// Why GPU hours were lost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// A node failed.
    Node(Cause),
    /// In an incident, by the kind of its reason.
    Incident(String),
    /// The job took its nodes with it.
    Itself,
    /// Failed, with no evidence or undecided evidence against nodes.
    Unknown,
    /// By the job's time limit.
    Timeout,
    /// Ended by a user or an admin.
    Cancelled,
    /// For another job.
    Preempted,
    /// Beyond its memory.
    OutOfMemory,
    /// Starts and checkpoints of attempts that completed.
    Overhead,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Node(cause) => write!(f, "node: {cause}"),
            Loss::Incident(kind) => write!(f, "incident: {kind}"),
            Loss::Itself => f.write_str("job that failed its nodes"),
            Loss::Unknown => f.write_str("unknown"),
            Loss::Timeout => f.write_str("time limit"),
            Loss::Cancelled => f.write_str("cancelled"),
            Loss::Preempted => f.write_str("preempted"),
            Loss::OutOfMemory => f.write_str("out of memory"),
            Loss::Overhead => f.write_str("start and checkpoints"),
        }
    }
}

/// GPU hours that were lost for one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// Why.
    pub why: Loss,
    /// Attempts.
    pub attempts: usize,
    /// GPU hours.
    pub gpu_hours: Bounds,
}

/// Returns the costs of all jobs, by id.
pub fn costs(history: &History, settings: &Settings) -> Vec<JobCost> {
    let jobs: Vec<&[Attempt]> = history.attempts.chunk_by(|one, other| one.job == other.job).collect();
    parallel::map(&jobs, |of_job| cost(history, settings, of_job)).into_iter().flatten().collect()
}

/// The cost of a job by its attempts; `None` without any.
fn cost(history: &History, settings: &Settings, of_job: &[Attempt]) -> Option<JobCost> {
    let (first, last) = (of_job.first()?, of_job.last()?);
    let queued = of_job.iter().map(|attempt| attempt.queued.min(attempt.start)).min()?;
    let end = of_job.iter().map(|attempt| end_of(history, attempt)).max()?;
    let wall_hours = hours(end.saturating_sub(queued));
    let productive = of_job.iter().map(|attempt| productive_s(history, settings, attempt));
    let productive_hours = productive.fold(Bounds::default(), Bounds::plus).times(1.0 / 3600.0);
    Some(JobCost {
        job: first.job,
        uid: last.uid,
        partition: last.partition.clone(),
        attempts: of_job.len(),
        wall_hours,
        productive_hours,
        ettr: (wall_hours > 0.0).then(|| productive_hours.times(1.0 / wall_hours).within(0.0, 1.0)),
        reported: of_job.iter().all(|attempt| believable(history, attempt).is_some()),
    })
}

fn end_of(history: &History, attempt: &Attempt) -> UnixMillis {
    attempt.end.map_or(history.now, |(end, _)| end).max(attempt.start)
}

fn run_s(history: &History, attempt: &Attempt) -> f64 {
    seconds(end_of(history, attempt) - attempt.start)
}

/// Productive seconds of all attempts, in the order of [`History::attempts`].
fn all_productive_s(history: &History, settings: &Settings) -> Vec<Bounds> {
    parallel::map(&history.attempts, |attempt| productive_s(history, settings, attempt))
}

/// Productive seconds of an attempt.
fn productive_s(history: &History, settings: &Settings, attempt: &Attempt) -> Bounds {
    let run = run_s(history, attempt);
    let completed = matches!(attempt.end, Some((_, Outcome::Completed)));
    if let Some(progress) = believable(history, attempt) {
        return reported_s(history, attempt, progress, run, completed);
    }
    let restarts = history.restarts.get(&(attempt.job, attempt.attempt)).map_or(0, Vec::len);
    // A restart inside the allocation can lose all that was before it.
    let low = if completed && restarts == 0 {
        (run - settings.longest_start_up_s) * (1.0 - settings.largest_checkpoint_share)
    } else {
        0.0
    };
    Bounds { low, high: run }.within(0.0, run)
}

/// The progress of an attempt, if it is possible: within its run, without negative times.
fn believable<'a>(history: &'a History, attempt: &Attempt) -> Option<&'a Progress> {
    /// Difference between the clocks of a node and the controller, milliseconds.
    const CLOCKS: UnixMillis = 5_000;
    let progress = history.progress.get(&(attempt.job, attempt.attempt))?;
    let times = [progress.start_up_s, progress.checkpoint_s, progress.redone_s];
    let run = run_s(history, attempt) + seconds(CLOCKS);
    let possible =
        times.iter().all(|time| time.is_finite() && *time >= 0.0) && times.iter().sum::<f64>() <= run;
    let span = attempt.start.saturating_sub(CLOCKS)..=end_of(history, attempt) + CLOCKS;
    let saved = progress.saved.is_none_or(|saved| span.contains(&saved));
    (possible && saved && span.contains(&progress.last_step)).then_some(progress)
}

fn reported_s(
    history: &History,
    attempt: &Attempt,
    progress: &Progress,
    run: f64,
    completed: bool,
) -> Bounds {
    let without = progress.start_up_s + progress.checkpoint_s + progress.redone_s;
    let until = |time: UnixMillis| seconds(time.saturating_sub(attempt.start)) - without;
    let steps = until(progress.last_step);
    // Steps after the last one that is reported: the file of the program is written at intervals.
    let after = seconds(end_of(history, attempt).saturating_sub(progress.last_step));
    let low = match (completed, progress.saved) {
        (true, _) => steps,
        // What follows the last checkpoint is lost, unless a later checkpoint was not reported.
        (false, Some(saved)) => until(saved.min(progress.last_step)),
        (false, None) => 0.0,
    };
    // A start and repeated steps after the last checkpoint are not part of what was before it.
    let restarted = history.restarts.contains_key(&(attempt.job, attempt.attempt));
    let later = progress.redone_s + if restarted { progress.start_up_s } else { 0.0 };
    let high = match progress.saved {
        Some(_) if attempt.end.is_some() && !completed => low.max(0.0) + later,
        _ => steps + after,
    };
    Bounds { low, high: high.max(low) }.within(0.0, run)
}

/// Returns productive GPU hours by partition and month. An attempt that spans months can have been productive in either: both
/// intervals hold that.
pub fn goodput(history: &History, settings: &Settings) -> Vec<Goodput> {
    let begin = history.attempts.iter().map(|attempt| attempt.start).min().unwrap_or(history.now);
    let end = history.attempts.iter().map(|attempt| end_of(history, attempt)).max().unwrap_or(history.now);
    let months = months(begin, end);
    let mut sums: BTreeMap<(&str, &str), Goodput> = BTreeMap::new();
    for (attempt, productive) in history.attempts.iter().zip(all_productive_s(history, settings)) {
        let run = run_s(history, attempt);
        for (month, part) in parts(&months, attempt.start, end_of(history, attempt)) {
            let partition = attempt.partition.as_str();
            let new =
                || Goodput { partition: partition.to_owned(), month: month.to_owned(), ..Goodput::default() };
            let sum = sums.entry((partition, month)).or_insert_with(new);
            let of_month =
                Bounds { low: productive.low - (run - part), high: productive.high }.within(0.0, part);
            let gpu_hours = f64::from(attempt.gpus) / 3600.0;
            sum.gpu_hours += part * gpu_hours;
            sum.productive = sum.productive.plus(of_month.times(gpu_hours));
        }
    }
    sums.into_values().collect()
}

/// The months between two times: when each begins, the first one at any time before, and its name.
fn months(from: UnixMillis, to: UnixMillis) -> Vec<(UnixMillis, String)> {
    // Months begin with a day in UTC.
    let days = (from / DAY..=to / DAY).map(|day| day * DAY);
    // A time without a name, thousands of years from now, belongs to the last month.
    let named = days.map_while(|day| Some((day, rfc3339(day)?.get(..7)?.to_owned())));
    let mut months: Vec<(UnixMillis, String)> = named.collect();
    months.dedup_by(|(_, month), (_, before)| month == before);
    months
}

/// The months in which an attempt ran, with their seconds.
fn parts(
    months: &[(UnixMillis, String)],
    from: UnixMillis,
    to: UnixMillis,
) -> impl Iterator<Item = (&str, f64)> {
    let first = months.partition_point(|(begin, _)| *begin <= from).saturating_sub(1);
    let of_run = months.iter().enumerate().skip(first).take_while(move |(_, (begin, _))| *begin < to);
    of_run.filter(move |_| from < to).map(move |(index, (begin, month))| {
        let end = months.get(index + 1).map_or(to, |(next, _)| to.min(*next));
        (month.as_str(), seconds(end - from.max(*begin)))
    })
}

/// Returns the GPU hours that ended attempts lost, by reason.
pub fn lost_by_cause(history: &History, judgement: &Judgement, settings: &Settings) -> Vec<Lost> {
    let mut sums: BTreeMap<Loss, Lost> = BTreeMap::new();
    let blamed = history.attempts.iter().zip(&judgement.blames);
    for ((attempt, blame), productive) in blamed.zip(all_productive_s(history, settings)) {
        let Some(why) = loss(attempt, blame, judgement) else { continue };
        let run = run_s(history, attempt);
        let lost = Bounds { low: run - productive.high, high: run - productive.low };
        let lost = lost.times(f64::from(attempt.gpus) / 3600.0);
        let new = || Lost { why: why.clone(), attempts: 0, gpu_hours: Bounds::default() };
        let sum = sums.entry(why.clone()).or_insert_with(new);
        sum.attempts += 1;
        sum.gpu_hours = sum.gpu_hours.plus(lost);
    }
    sums.into_values().collect()
}

fn loss(attempt: &Attempt, blame: &Blame, judgement: &Judgement) -> Option<Loss> {
    let (_, outcome) = attempt.end?;
    Some(match (outcome, blame) {
        (Outcome::Completed, _) => Loss::Overhead,
        (Outcome::Timeout, _) => Loss::Timeout,
        (Outcome::Cancelled, _) => Loss::Cancelled,
        (Outcome::Preempted, _) => Loss::Preempted,
        (Outcome::OutOfMemory, _) => Loss::OutOfMemory,
        (_, Blame::Node { cause, .. }) => Loss::Node(*cause),
        (_, Blame::Itself) => Loss::Itself,
        (_, Blame::Incident { incident }) => {
            match judgement.incidents.get(*incident).map(|found| &found.reason) {
                Some(Reason::Shared(shared)) => Loss::Incident(shared.kind.to_string()),
                _ => Loss::Unknown,
            }
        }
        _ => Loss::Unknown,
    })
}

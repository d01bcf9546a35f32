use std::time::Duration;

use railgate_model::{Gpu, Severity};

use crate::gpu_counters::{self, Counter, Counts};
use crate::scene::Scene;

/// How far back a check run without a job's baseline reaches.
const REACH: Duration = Duration::from_secs(3600);

/// Counters of a GPU from earlier in the same boot, and their age: from before the job, otherwise from the oldest check
/// run of the last hour. Counters are judged only over such a window; the first check run has none.
pub(super) struct Window<'a> {
    before: Before<'a>,
    now: &'a Gpu,
    pub(super) millis: u64,
}

enum Before<'a> {
    Job(&'a Gpu),
    CheckRun(&'a Counts),
}

impl<'a> Window<'a> {
    pub(super) fn of(scene: &Scene<'a>, now: &'a Gpu) -> Option<Window<'a>> {
        let elapsed = scene.seen.before.and_then(|before| scene.now.taken.checked_sub(before.taken));
        if let Some((before, millis)) = scene.before(now).zip(elapsed) {
            return Some(Window { before: Before::Job(before), now, millis });
        }
        let (before, ago) = gpu_counters::before(&scene.seen.memory.gpus, now, scene.now, REACH)?;
        let millis = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        Some(Window { before: Before::CheckRun(before), now, millis })
    }

    /// The growth of a counter; `None` if it decreased (the driver was reloaded) or is not known.
    pub(super) fn rose(&self, counter: Counter) -> Option<u64> {
        let before = match self.before {
            Before::Job(gpu) => counter.of(gpu)?,
            Before::CheckRun(counts) => counter.of_counts(counts)?,
        };
        counter.of(self.now)?.checked_sub(before)
    }

    /// The growth allowed within this window at `each` per `unit_ms` milliseconds. A window shorter than one unit
    /// counts as one unit.
    pub(super) fn allowed(&self, each: u64, unit_ms: u64) -> u64 {
        each.saturating_mul(self.millis.div_ceil(unit_ms).max(1))
    }

    /// For example `in 3 min`.
    pub(super) fn text(&self) -> String {
        format!("in {} min", self.minutes())
    }

    /// For example `the job` or `the last 3 min`.
    pub(super) fn name(&self) -> String {
        if self.is_job() { "the job".to_owned() } else { format!("the last {} min", self.minutes()) }
    }

    /// Lowers a severity to a warning outside of a job: several check runs cover the same hour, and must not count its
    /// errors twice.
    pub(super) fn at_most(&self, severity: Severity) -> Severity {
        if self.is_job() { severity } else { severity.min(Severity::Warn) }
    }

    fn is_job(&self) -> bool {
        matches!(self.before, Before::Job(_))
    }

    fn minutes(&self) -> u64 {
        self.millis.div_ceil(60_000).max(1)
    }
}

//! What a training program does in one attempt, and what it reports of it.

use railgate_fleet::Progress;

use crate::random::Random;

/// Habits of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    /// Seconds of work between checkpoints; `None` if it writes none.
    pub(crate) interval_s: Option<f64>,
    /// Seconds that a checkpoint takes.
    pub(crate) write_s: f64,
    /// Whether it reports its progress.
    pub(crate) reports: bool,
}

impl Program {
    pub(crate) fn draw(random: &mut Random) -> Program {
        let (interval_s, write_s) = match random.unit() {
            none if none < 0.15 => (None, 0.0),
            // Above the share that railgate assumes.
            often if often < 0.20 => (Some(600.0), random.between(60.0, 120.0)),
            _ => (Some(random.between(1800.0, 7200.0)), random.between(10.0, 120.0)),
        };
        Program { interval_s, write_s, reports: random.chance(0.6) }
    }

    /// Seconds that an attempt takes which has `left_s` seconds of work to do, without the start.
    pub(crate) fn takes_s(&self, left_s: f64) -> f64 {
        self.interval_s.map_or(left_s, |interval| left_s + (left_s / interval).floor() * self.write_s)
    }
}

/// What became of an attempt.
pub(crate) struct Done {
    /// Seconds of work that are kept.
    pub(crate) kept_s: f64,
    /// What the program would report.
    pub(crate) progress: Progress,
}

/// An attempt from `start` to `end`. `restart`: the program was started again inside the attempt at this time, and continued
/// from its last checkpoint.
pub(crate) fn attempt(
    program: &Program,
    (job, attempt): (u32, u32),
    (start, end): (u64, u64),
    starts_s: (f64, f64),
    restart: Option<u64>,
    completed: bool,
    random: &mut Random,
) -> Done {
    let mut progress = Progress {
        job,
        attempt,
        start_up_s: 0.0,
        last_step: start,
        checkpoint_s: 0.0,
        redone_s: 0.0,
        saved: None,
    };
    let parts: Vec<(u64, u64, f64)> = match restart {
        Some(at) => vec![(start, at, starts_s.0), (at, end, starts_s.1)],
        None => vec![(start, end, starts_s.0)],
    };
    let count = parts.len();
    let mut kept_s = 0.0;
    for (index, (from, to, start_s)) in parts.into_iter().enumerate() {
        let is_last = index + 1 == count;
        let run = (to - from) as f64 / 1000.0;
        // The last seconds of a program that completes are no steps.
        let tail = if is_last && completed { random.between(2.0, 40.0) } else { 0.0 };
        let steps = (run - start_s - tail).max(0.0);
        progress.start_up_s += start_s.min(run);
        let (cycles, saved_work) = match program.interval_s {
            Some(interval) => {
                let cycles = (steps / (interval + program.write_s)).floor();
                (cycles, cycles * interval)
            }
            None => (0.0, 0.0),
        };
        let work = (steps - cycles * program.write_s).max(0.0);
        let open = program.interval_s.map_or(work, |interval| (work - saved_work).min(interval));
        let keeps = if is_last && completed { saved_work + open } else { saved_work };
        kept_s += keeps;
        progress.checkpoint_s += cycles * program.write_s;
        if !is_last {
            // The next start does the steps since the last checkpoint again.
            progress.redone_s += open;
        }
        let ms = |seconds: f64| (seconds.max(0.0) * 1000.0) as u64;
        let seen = (steps - random.between(0.0, 30.0)).max(0.0);
        if steps > 0.0 {
            progress.last_step = from + ms(start_s + seen);
        }
        if cycles > 0.0 {
            let saved = from + ms(start_s + cycles * (program.interval_s.unwrap() + program.write_s));
            progress.saved = Some(saved);
            progress.last_step = progress.last_step.max(saved);
        }
    }
    Done { kept_s, progress }
}

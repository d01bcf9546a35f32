//! Pauses of a GPU, from the driver's record of its utilisation.
//!
//! A sample of some seconds shows the mean of what happened in it: a pause of 1.5 s for an evaluation looks like kernels
//! that are launched late. The driver keeps the utilisation of windows of about 0.2 s for 14 s (H100), and one call returns
//! those since the last one.

/// Shortest pause, seconds: at least one whole window of 0.2 s lies in it.
const SHORTEST_S: f64 = 0.4;
/// Utilisation in percent up to which a window counts as empty: copies while a checkpoint is saved show as a few percent.
const EMPTY: u32 = 5;
/// A longer window than this, in seconds, means that the record has a gap.
const LONGEST_WINDOW_S: f64 = 1.5;

/// One window of the driver's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// Its end, microseconds since the epoch.
    pub(super) end_us: u64,
    /// Time with any kernel, percent.
    pub(super) percent: u32,
}

/// What the windows of one sample show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Over {
    /// Time with any kernel, percent.
    pub(super) busy_percent: f64,
    /// Time in pauses, percent.
    pub(super) paused_percent: f64,
    /// Pauses that began, per minute.
    pub(super) per_minute: f64,
}

/// Finds pauses in consecutive windows. A pause counts from the sample in which it is long enough.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pauses {
    /// End of the last window, microseconds since the epoch; 0: none yet.
    last_us: u64,
    /// Time without a kernel in the last window if that was not empty, seconds: a pause may have begun in it.
    edge_s: f64,
    /// Time without a kernel in the present run of empty windows and in the one before it, seconds; `None`: no such run.
    run_s: Option<f64>,
    /// Seconds in windows, with a kernel, and in pauses, and the number of pauses since the last sample.
    covered_s: f64,
    busy_s: f64,
    paused_s: f64,
    count: f64,
}

impl Pauses {
    /// Time of the last window, from which the record is read on.
    pub(super) fn last_us(&self) -> u64 {
        self.last_us
    }

    /// Adds windows in time order; known ones are skipped.
    pub(super) fn add(&mut self, windows: impl IntoIterator<Item = Window>) {
        for window in windows {
            if window.end_us <= self.last_us {
                continue;
            }
            let first = self.last_us == 0;
            #[expect(clippy::cast_precision_loss, reason = "a window has few microseconds")]
            let seconds = (window.end_us - self.last_us) as f64 / 1e6;
            self.last_us = window.end_us;
            if first || seconds > LONGEST_WINDOW_S {
                (self.edge_s, self.run_s) = (0.0, None);
            } else {
                self.step(seconds, window.percent.min(100));
            }
        }
    }

    fn step(&mut self, seconds: f64, percent: u32) {
        let idle_s = seconds * (1.0 - f64::from(percent) / 100.0);
        self.covered_s += seconds;
        self.busy_s += seconds - idle_s;
        let before_s = self.run_s.unwrap_or(0.0);
        if percent <= EMPTY {
            let run_s = self.run_s.unwrap_or(self.edge_s) + idle_s;
            self.counted(before_s, run_s);
            (self.run_s, self.edge_s) = (Some(run_s), 0.0);
        } else if self.run_s.is_some() {
            // The pause ended in this window, so that none begins in it.
            self.counted(before_s, before_s + idle_s);
            (self.run_s, self.edge_s) = (None, 0.0);
        } else {
            self.edge_s = idle_s;
        }
    }

    /// A run grows from one length to another.
    fn counted(&mut self, from_s: f64, to_s: f64) {
        if to_s < SHORTEST_S {
            return;
        }
        if from_s < SHORTEST_S {
            self.count += 1.0;
            self.paused_s += to_s;
        } else {
            self.paused_s += to_s - from_s;
        }
    }

    /// What was added since the last call; `None` without a window.
    pub(super) fn take(&mut self) -> Option<Over> {
        if self.covered_s <= 0.0 {
            return None;
        }
        // A pause that was too short to count at the end of the last sample belongs to this one.
        let paused_s = self.paused_s.min(self.covered_s);
        let over = Over {
            busy_percent: 100.0 * self.busy_s / self.covered_s,
            paused_percent: 100.0 * paused_s / self.covered_s,
            per_minute: 60.0 * self.count / self.covered_s,
        };
        self.paused_s -= paused_s;
        (self.covered_s, self.busy_s, self.count) = (0.0, 0.0, 0.0);
        Some(over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of 0.2 s, continued after those that `pauses` knows.
    fn add(pauses: &mut Pauses, percents: &[u32]) -> Option<Over> {
        let from = pauses.last_us.max(1_000_000);
        let windows = percents.iter().zip(1_u64..);
        pauses.add(
            windows.map(|(percent, number)| Window { end_us: from + 200_000 * number, percent: *percent }),
        );
        pauses.take()
    }

    fn started() -> Pauses {
        let mut pauses = Pauses::default();
        assert_eq!(add(&mut pauses, &[98]), None);
        pauses
    }

    fn assert_near(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-6, "{found}, not {wanted}");
    }

    /// Recorded on an H100 while a program slept 1.5 s, and 0.5 s at two places in the windows.
    #[test]
    fn pauses_have_the_length_that_the_program_measured() {
        for (windows, slept_s) in [
            (&[99, 22, 0, 0, 0, 0, 0, 0, 26, 98][..], 1.5),
            (&[99, 83, 0, 0, 63, 98], 0.5),
            (&[99, 13, 0, 38, 99], 0.5),
        ] {
            let over = add(&mut started(), windows).unwrap();
            #[expect(clippy::cast_precision_loss, reason = "few windows")]
            let covered_s = 0.2 * windows.len() as f64;
            let found_s = over.paused_percent / 100.0 * covered_s;
            assert!((found_s - slept_s).abs() < 0.02, "{found_s} {slept_s}");
            assert_near(over.per_minute * covered_s / 60.0, 1.0);
        }
    }

    /// Many short gaps, as between small kernels or while a loader is slower than each step, are no pauses.
    #[test]
    fn short_gaps_are_no_pauses() {
        for windows in [&[20, 25, 22, 18, 24][..], &[99, 0, 99, 0, 99, 0, 99], &[98, 35, 12, 98]] {
            let over = add(&mut started(), windows).unwrap();
            assert_near(over.paused_percent, 0.0);
            assert_near(over.per_minute, 0.0);
        }
    }

    /// A pause over the end of a sample counts once, and its time is in the samples in which it passed.
    #[test]
    fn a_pause_may_span_samples() {
        let mut pauses = started();
        let first = add(&mut pauses, &[98, 98, 98, 0]).unwrap();
        assert_near(first.per_minute, 0.0);
        let second = add(&mut pauses, &[0, 0, 0, 0]).unwrap();
        assert_near(second.paused_percent, 100.0);
        assert_near(second.per_minute, 60.0 / 0.8);
        let third = add(&mut pauses, &[0, 98, 98, 98]).unwrap();
        assert_near(third.per_minute, 0.0);
        // And what was too short to count in the first sample: its end and an edge of 0.004 s.
        assert_near(third.paused_percent, 100.0 * (0.204 + 0.2 + 0.004) / 0.8);
        assert_near(add(&mut pauses, &[98; 4]).unwrap().paused_percent, 0.0);
    }

    /// The record was not read for longer than the driver keeps it, or starts anew: nothing is known of that time.
    #[test]
    fn a_gap_in_the_record_ends_a_run() {
        let mut pauses = started();
        add(&mut pauses, &[0]);
        let end_us = pauses.last_us + 9_000_000;
        pauses.add([Window { end_us, percent: 0 }, Window { end_us: end_us - 1, percent: 0 }]);
        assert_eq!(pauses.take(), None);
        assert_near(add(&mut pauses, &[0, 90]).unwrap().per_minute, 0.0);
    }

    #[test]
    fn busy_time_is_the_mean_of_the_windows() {
        assert_near(add(&mut started(), &[100, 50, 0, 50]).unwrap().busy_percent, 50.0);
    }
}

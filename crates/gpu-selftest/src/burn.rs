//! The tests of `full` again and again, for a time: a card that is wrong or slow only when it is hot, or only now and then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use railgate_model::{GpuSelfTested, ValueCheck};

use crate::cards::Work;
use crate::print;
use crate::series::Series;
use crate::wait::{Sink, Wait};

/// Length unless another is given.
pub(crate) const SECONDS: u64 = 600;
/// From one line of progress to the next.
const BETWEEN: Duration = Duration::from_secs(10);

/// Collects results, and shows progress.
#[derive(Debug)]
struct Burn {
    series: Series,
    begun: Instant,
    seconds: u64,
    shown: Instant,
    round: u32,
    /// Results of this round and of the one before.
    results: (u32, u32),
    without_result: u32,
}

/// Runs rounds until the time is over or the program is to end.
///
/// # Errors
/// No test was run in the time.
pub(crate) fn run(work: &Arc<Work>, wait: &mut Wait, (begun, seconds): (Instant, u64)) -> Result<(), String> {
    let (series, shown) = (Series::default(), Instant::now());
    let mut burn = Burn { series, begun, seconds, shown, round: 0, results: (0, 0), without_result: 0 };
    let mut given_up = BTreeSet::new();
    while !work.stop.is_due() && given_up.len() < work.devices.len() {
        burn.round += 1;
        let asked = Instant::now();
        let silent = crate::round(work, wait, &given_up, &mut burn)?;
        given_up.extend(silent);
        burn.show();
        burn.results = (0, burn.results.0);
        // Where each GPU is in use, a round takes no time.
        std::thread::sleep(Duration::from_secs(1).saturating_sub(asked.elapsed()));
    }
    burn.series.lines().try_for_each(|line| print(&line))?;
    if burn.series.is_empty() && work.stop.signal().is_none() {
        return Err(format!("no test began within {seconds} s: give more --seconds"));
    }
    Ok(())
}

impl Burn {
    /// `burn: 20 of 600 s, 580 s left; round 1, 13 results; 0 wrong values`
    fn show(&mut self) {
        self.shown = Instant::now();
        let passed = self.begun.elapsed().as_secs();
        let results = match self.results {
            (now, 0) => format!("{now} results"),
            (now, before) => format!("{now} of {before} results"),
        };
        let without = match self.without_result {
            0 => String::new(),
            some => format!(", {some} tests without a result"),
        };
        eprintln!(
            "burn: {passed} of {} s, {} s left; round {}, {results}; {} wrong values{without}",
            self.seconds,
            self.seconds.saturating_sub(passed),
            self.round,
            self.series.wrong_values
        );
    }
}

impl Sink for Burn {
    fn line(&mut self, mut line: GpuSelfTested) -> Result<(), String> {
        self.results.0 += 1;
        self.without_result += u32::from(line.unknown.is_some());
        let is_new = self.series.add(line.clone());
        if is_new || matches!(line.values, ValueCheck::Wrong { .. }) {
            // At once, since the program may not come to its end.
            line.measured.insert("round".to_owned(), f64::from(self.round));
            print(&line)?;
        }
        Ok(())
    }

    fn time_passes(&mut self) {
        if self.shown.elapsed() >= BETWEEN {
            self.show();
        }
    }
}

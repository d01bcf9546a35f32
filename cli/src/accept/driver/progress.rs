//! How far the run is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use railgate_accept::{State, Unit};

/// Repeats an unchanged line after this time.
const AGAIN: Duration = Duration::from_secs(300);

/// The last line, and when units had their results.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    last: Option<(String, Instant)>,
    /// Since when this driver works on a stage, and how many units had a result then.
    stages: BTreeMap<&'static str, (Instant, usize)>,
}

impl Progress {
    /// Returns the line to print, if it differs from the last one.
    pub(crate) fn line(
        &mut self,
        units: &[Unit],
        state: &State,
        attempts: u32,
        open: usize,
    ) -> Option<String> {
        let settled = |unit: &&Unit| state.of(unit).is_some_and(|of| of.is_settled(attempts));
        let stage = units.iter().find(|unit| !settled(unit)).or(units.last())?.stage;
        let of_stage = || units.iter().filter(move |unit| unit.stage == stage);
        let (done, all) = (of_stage().filter(settled).count(), of_stage().count());
        let total = units.iter().filter(settled).count();
        let line = format!(
            "{stage}: {done} of {all} jobs of the plan done, {open} in the queue; all stages: {total} of {}",
            units.len()
        );
        let (since, before) = *self.stages.entry(stage).or_insert_with(|| (Instant::now(), done));
        let same = self.last.as_ref().is_some_and(|(last, at)| *last == line && at.elapsed() < AGAIN);
        if same {
            return None;
        }
        self.last = Some((line.clone(), Instant::now()));
        let left = left(since.elapsed(), done.saturating_sub(before), all - done);
        Some(match left {
            Some(left) if done < all => {
                format!("{line}; about {} min left in this stage", left.as_secs().div_ceil(60))
            }
            _ => line,
        })
    }
}

/// Time for the rest, once a tenth or three units are done.
fn left(elapsed: Duration, done: usize, rest: usize) -> Option<Duration> {
    let enough = done >= 3 || (done > 0 && done * 10 >= rest);
    let (done, rest) = (u32::try_from(done).ok()?, u32::try_from(rest).ok()?);
    (enough && done > 0).then(|| elapsed / done * rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_needs_some_results() {
        assert_eq!(left(Duration::from_secs(60), 0, 10), None);
        assert_eq!(left(Duration::from_secs(60), 1, 100), None);
        assert_eq!(left(Duration::from_secs(60), 3, 100), Some(Duration::from_secs(2000)));
    }
}

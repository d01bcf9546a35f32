//! Means over an interval, and a GPU's clock under different loads.

use std::mem;

use railgate_model::Reading;

/// Ratio of tensor activity to SM activity above which only tensor kernels are assumed to run: GEMMs of size 1,536 to
/// 10,240 have 0.78 to 0.98.
const ALL_TENSOR: f64 = 0.85;

/// Sum and count of values that are read every tick.
#[derive(Clone, Debug)]
pub(super) struct Mean {
    sum: f64,
    count: f64,
    without: Reading<()>,
}

impl Mean {
    pub(super) fn new() -> Self {
        Mean { sum: 0.0, count: 0.0, without: Reading::Failed("not read yet".to_owned()) }
    }

    pub(super) fn add(&mut self, value: Reading<f64>) {
        match value {
            Reading::Known(value) => {
                self.sum += value;
                self.count += 1.0;
            }
            Reading::Unsupported => self.without = Reading::Unsupported,
            Reading::Failed(why) => self.without = Reading::Failed(why),
        }
    }

    /// Adds a value that holds for this time.
    fn add_for(&mut self, value: f64, seconds: f64) {
        self.sum += value * seconds;
        self.count += seconds;
    }

    pub(super) fn take(&mut self) -> Reading<f64> {
        let Mean { sum, count, without } = mem::replace(self, Mean::new());
        if count > 0.0 { Reading::Known(sum / count) } else { without.map(|()| 0.0) }
    }
}

/// The clock of a GPU, read every tick, and its activities in windows, which show the load at that time.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    all: Mean,
    window: Mean,
    /// SM activity × clock, and SM activity.
    at_work: (f64, f64),
    slowed: Mean,
}

/// Clocks of one interval, MHz.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Over {
    /// Mean of all readings.
    pub(super) mean: Reading<f64>,
    /// Mean over the time in which SMs were active; 0 if they never were.
    pub(super) at_work: Reading<f64>,
    /// The part of the mean that was read while tensor kernels ran.
    pub(super) slowed: Reading<f64>,
}

impl Clocks {
    pub(super) fn new() -> Self {
        Clocks { all: Mean::new(), window: Mean::new(), at_work: (0.0, 0.0), slowed: Mean::new() }
    }

    pub(super) fn tick(&mut self, clock: Reading<f64>) {
        self.all.add(clock.clone());
        self.window.add(clock);
    }

    /// Adds the activities since the previous window, per cent.
    pub(super) fn window(&mut self, [graphics, sm, tensor]: [Reading<f64>; 3], seconds: f64) {
        match self.window.take().zip(graphics).zip(sm.zip(tensor)) {
            Reading::Known(((clock, graphics), (sm, tensor))) => {
                self.at_work.0 += sm * clock * seconds;
                self.at_work.1 += sm * seconds;
                let share = if sm > 0.0 { (tensor / sm / ALL_TENSOR).min(1.0) } else { 0.0 };
                self.slowed.add_for(clock * graphics / 100.0 * share, seconds);
            }
            missing => self.slowed.add(missing.map(|_| 0.0)),
        }
    }

    pub(super) fn take(&mut self) -> Over {
        let (work, active) = mem::take(&mut self.at_work);
        let slowed = self.slowed.take();
        let at_work = slowed.clone().map(|_| if active > 0.0 { work / active } else { 0.0 });
        Over { mean: self.all.take(), at_work, slowed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(windows: &[(f64, [f64; 3])]) -> Over {
        let mut clocks = Clocks::new();
        for (clock, activities) in windows {
            (0..4).for_each(|_| clocks.tick(Reading::Known(*clock)));
            clocks.window(activities.map(Reading::Known), 0.2);
        }
        clocks.take()
    }

    fn known(reading: Reading<f64>) -> f64 {
        reading.known().copied().unwrap().round()
    }

    #[test]
    fn the_clock_under_load_and_the_idle_clock_are_told_apart() {
        let (gemm, rest) = ((1455.0, [100.0, 96.0, 93.0]), (1980.0, [0.0, 0.0, 0.0]));
        let half = over(&[gemm, rest, gemm, rest]);
        assert_eq!((known(half.mean), known(half.at_work), known(half.slowed)), (1718.0, 1455.0, 728.0));
        assert_eq!(known(over(&[gemm, gemm]).slowed), 1455.0);
        let idle = over(&[rest, rest]);
        assert_eq!((known(idle.mean), known(idle.at_work), known(idle.slowed)), (1980.0, 0.0, 0.0));
    }

    #[test]
    fn time_of_kernels_without_tensors_is_not_counted_as_slowed() {
        // First an equal time of GEMMs and of kernels that only move memory, then only the latter.
        assert_eq!(known(over(&[(1600.0, [100.0, 98.0, 41.65])]).slowed), 800.0);
        assert_eq!(known(over(&[(1980.0, [100.0, 97.0, 0.0])]).slowed), 0.0);
    }

    #[test]
    fn missing_activities_leave_the_clocks_unsupported() {
        let mut clocks = Clocks::new();
        clocks.tick(Reading::Known(1000.0));
        clocks.window([Reading::Known(1.0), Reading::Unsupported, Reading::Known(1.0)], 0.2);
        let over = clocks.take();
        assert_eq!(over.mean, Reading::Known(1000.0));
        assert_eq!((over.at_work, over.slowed), (Reading::Unsupported, Reading::Unsupported));
        assert!(matches!(clocks.take().mean, Reading::Failed(_)));
    }
}

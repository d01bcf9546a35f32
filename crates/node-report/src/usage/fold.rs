use super::{Field, Sample, State, Value, Values};

/// Samples of one state, folded into one.
#[derive(Clone, Debug, Default)]
pub struct Fold {
    first: Option<Sample>,
    seconds: f64,
    folded: u16,
    gpus: Vec<Sums>,
    rails: Vec<Sums>,
    host: Sums,
}

/// Fields of one device: sums over time, minima and maxima.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums(Vec<Sum>);

#[derive(Clone, Copy, Debug)]
pub(super) struct Sum {
    pub(super) weighted: f64,
    pub(super) seconds: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Default for Sum {
    fn default() -> Self {
        Sum { weighted: 0.0, seconds: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

impl Sum {
    pub(super) fn mean(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.weighted / self.seconds)
    }
}

impl Sums {
    pub(super) fn add<F: Field>(&mut self, values: &Values<F>, seconds: f64) {
        self.0.resize(F::ALL.len(), Sum::default());
        for (sum, field) in self.0.iter_mut().zip(F::ALL) {
            let Some(value) = values.get(*field) else { continue };
            sum.weighted += f64::from(value.mean) * seconds;
            sum.seconds += seconds;
            sum.min = sum.min.min(value.min.into());
            sum.max = sum.max.max(value.max.into());
        }
    }

    pub(super) fn get<F: Field>(&self, field: F) -> Sum {
        self.0.get(field.place()).copied().unwrap_or_default()
    }

    #[expect(clippy::cast_possible_truncation, reason = "seven digits are more than any sensor has")]
    fn values<F: Field>(&self) -> Values<F> {
        let mut values = Values::default();
        for field in F::ALL {
            let sum = self.get(*field);
            let value = sum.mean().map(|mean| {
                if field.grows() {
                    let last = sum.max as f32;
                    return Value { mean: last, min: last, max: last };
                }
                Value { mean: mean as f32, min: sum.min as f32, max: sum.max as f32 }
            });
            values.set(*field, value);
        }
        values
    }
}

impl Fold {
    /// Duration of the samples so far, seconds.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Whether a sample can be added: same devices, same state.
    pub fn takes(&self, state: State, gpus: usize, rails: usize) -> bool {
        self.first.as_ref().is_none_or(|first| {
            first.state == state && first.gpus.len() == gpus && first.rails.len() == rails
        })
    }

    /// Whether the sample has data of the same GPUs. Otherwise the folded sample would imply data that does not
    /// exist.
    pub fn knows_as(&self, sample: &Sample) -> bool {
        let known = |sample: &Sample| sample.gpus.iter().map(super::Values::is_empty).collect::<Vec<_>>();
        self.first.as_ref().is_none_or(|first| known(first) == known(sample))
    }

    /// Adds a sample.
    pub fn add(&mut self, sample: &Sample) {
        let seconds = f64::from(sample.seconds);
        self.gpus.resize_with(sample.gpus.len(), Sums::default);
        self.rails.resize_with(sample.rails.len(), Sums::default);
        for (sums, values) in self.gpus.iter_mut().zip(&sample.gpus) {
            sums.add(values, seconds);
        }
        for (sums, values) in self.rails.iter_mut().zip(&sample.rails) {
            sums.add(values, seconds);
        }
        self.host.add(&sample.host, seconds);
        self.seconds += seconds;
        self.folded = self.folded.saturating_add(sample.folded);
        self.first.get_or_insert_with(|| sample.clone());
    }

    /// Returns all samples as one, and resets. `None` if there were none.
    #[expect(clippy::cast_possible_truncation, reason = "a minute has few digits")]
    pub fn take(&mut self) -> Option<Sample> {
        let Fold { first, seconds, folded, gpus, rails, host } = std::mem::take(self);
        let first = first?;
        Some(Sample {
            start: first.start,
            seconds: seconds as f32,
            folded,
            state: first.state,
            gpus: gpus.iter().map(Sums::values).collect(),
            rails: rails.iter().map(Sums::values).collect(),
            host: host.values(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::{GpuField, HostField};

    fn sample(start: u64, seconds: f32, tensor: Option<f64>, energy: f64) -> Sample {
        let mut gpu = Values::default();
        gpu.put(GpuField::Tensor, tensor);
        gpu.put(GpuField::Energy, Some(energy));
        Sample { start, seconds, folded: 1, gpus: vec![gpu], ..Sample::default() }
    }

    #[test]
    fn means_are_weighted_by_time_and_unknown_values_are_ignored() {
        let mut fold = Fold::default();
        fold.add(&sample(1000, 5.0, Some(90.0), 10.0));
        fold.add(&sample(6000, 10.0, Some(30.0), 25.0));
        fold.add(&sample(16_000, 5.0, None, 31.0));
        let one = fold.take().unwrap();
        assert_eq!((one.start, one.seconds, one.folded), (1000, 20.0, 3));
        let want = Value { mean: 50.0, min: 30.0, max: 90.0 };
        assert_eq!(one.gpus[0].get(GpuField::Tensor), Some(want));
        assert_eq!(one.gpus[0].mean(GpuField::Energy), Some(31.0));
        assert_eq!(one.host.get(HostField::Cpu), None);
        assert!(fold.take().is_none());
    }

    #[test]
    fn samples_of_different_states_are_not_folded() {
        let mut fold = Fold::default();
        assert!(fold.takes(State::Suspended, 8, 8));
        fold.add(&sample(0, 5.0, None, 0.0));
        assert!(fold.takes(State::Running, 1, 0));
        assert!(!fold.takes(State::Suspended, 1, 0) && !fold.takes(State::Running, 2, 0));
    }
}

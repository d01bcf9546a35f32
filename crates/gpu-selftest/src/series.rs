//! Results of a burn: of each test one line over all rounds.

use std::collections::BTreeMap;

use railgate_model::{GpuSelfTested, PciAddress, ValueCheck};

/// Figures that are the same in each round, or bits.
const SINGLE: [&str; 3] = ["throttle_reasons_mask", "cublaslt_version", "numa_node"];
/// Wrong values that a line shows.
const MOST_SHOWN: usize = 8;

type Key = (PciAddress, Option<PciAddress>, String);

/// All results until now.
#[derive(Debug, Default)]
pub(crate) struct Series {
    /// In the order of their first result.
    rows: Vec<(Key, Row)>,
    pub(crate) wrong_values: u64,
}

#[derive(Debug, Default)]
struct Row {
    model: String,
    uuid: Option<String>,
    rounds: u32,
    seconds: f64,
    compared: u64,
    digest: Option<String>,
    wrong: u64,
    first: Vec<railgate_model::WrongValue>,
    figures: BTreeMap<String, Vec<f64>>,
    without_result: u32,
    unknown: Option<String>,
    not_applicable: Option<String>,
}

impl Series {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a result. Returns whether it is the first of its test that is unknown.
    pub(crate) fn add(&mut self, line: GpuSelfTested) -> bool {
        let key = (line.gpu, line.to, line.test);
        let place = self.rows.iter().position(|(known, _)| *known == key);
        let place = place.unwrap_or_else(|| {
            self.rows.push((key, Row { model: line.model, uuid: line.uuid, ..Row::default() }));
            self.rows.len() - 1
        });
        let Some((_, row)) = self.rows.get_mut(place) else { return false };
        let is_unknown = line.unknown.is_some();
        row.rounds += 1;
        row.seconds += line.seconds;
        match line.values {
            ValueCheck::None => {}
            ValueCheck::Right { compared, digest } => {
                row.compared += compared;
                row.digest = row.digest.take().or(digest);
            }
            ValueCheck::Wrong { compared, wrong, first } => {
                row.compared += compared;
                row.wrong += wrong;
                self.wrong_values += wrong;
                row.first.extend(first);
                row.first.truncate(MOST_SHOWN);
            }
        }
        for (name, value) in line.measured {
            row.figures.entry(name).or_default().push(value);
        }
        if let Some(why) = line.unknown {
            row.without_result += 1;
            row.unknown.get_or_insert(why);
        }
        row.not_applicable = row.not_applicable.take().or(line.not_applicable);
        is_unknown && row.without_result == 1
    }

    /// One line for each test. A figure is the median of all rounds; `min_`, `max_` and `last_` stand before its name for the others.
    pub(crate) fn lines(&self) -> impl Iterator<Item = GpuSelfTested> {
        self.rows.iter().map(|((gpu, to, test), row)| row.line(*gpu, *to, test))
    }
}

impl Row {
    fn line(&self, gpu: PciAddress, to: Option<PciAddress>, test: &str) -> GpuSelfTested {
        let values = match (self.wrong, self.compared) {
            (0, 0) => ValueCheck::None,
            (0, compared) => ValueCheck::Right { compared, digest: self.digest.clone() },
            (wrong, compared) => ValueCheck::Wrong { compared, wrong, first: self.first.clone() },
        };
        let mut measured = BTreeMap::from([("rounds_count".to_owned(), f64::from(self.rounds))]);
        for (name, values) in &self.figures {
            if SINGLE.contains(&name.as_str()) {
                measured.extend(single(name, values).map(|value| (name.clone(), value)));
                continue;
            }
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let figures = [
                ("", sorted.get(sorted.len() / 2)),
                ("min_", sorted.first()),
                ("max_", sorted.last()),
                ("last_", values.last()),
            ];
            measured.extend(
                figures.into_iter().filter_map(|(which, value)| Some((format!("{which}{name}"), *value?))),
            );
        }
        let unknown = self.unknown.as_ref().map(|why| match self.without_result {
            all if all == self.rounds => why.clone(),
            some => format!("{some} of {} rounds: {why}", self.rounds),
        });
        GpuSelfTested {
            gpu,
            uuid: self.uuid.clone(),
            to,
            model: self.model.clone(),
            test: test.to_owned(),
            seconds: self.seconds,
            values,
            measured,
            unknown,
            not_applicable: self.not_applicable.clone(),
        }
    }
}

/// All bits that were set in any round, or the value of the last one.
fn single(name: &str, values: &[f64]) -> Option<f64> {
    if !name.ends_with("_mask") {
        return values.last().copied();
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "NVML's bits; the conversion saturates"
    )]
    let bits = values.iter().fold(0, |all, mask| all | *mask as u64);
    #[expect(clippy::cast_precision_loss, reason = "a mask of few bits")]
    let bits = bits as f64;
    Some(bits)
}

#[cfg(test)]
mod tests {
    use railgate_model::WrongValue;

    use super::*;

    fn line(figures: &[(&str, f64)], values: ValueCheck, unknown: Option<&str>) -> GpuSelfTested {
        GpuSelfTested {
            gpu: "0000:10:00.0".parse().unwrap(),
            uuid: None,
            to: None,
            model: "NVIDIA H200".to_owned(),
            test: "t".to_owned(),
            seconds: 0.5,
            values,
            measured: figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            unknown: unknown.map(str::to_owned),
            not_applicable: None,
        }
    }

    #[test]
    fn figures_have_least_median_most_and_last() {
        let mut series = Series::default();
        for (rate, mask) in [(30.0, 1.0), (10.0, 4.0), (20.0, 4.0)] {
            let figures = [("rate_tflops", rate), ("throttle_reasons_mask", mask)];
            series.add(line(&figures, ValueCheck::Right { compared: 4, digest: None }, None));
        }
        let [one] = &series.lines().collect::<Vec<_>>()[..] else { panic!() };
        let names = ["rate_tflops", "min_rate_tflops", "max_rate_tflops", "last_rate_tflops", "rounds_count"];
        assert_eq!(names.map(|name| one.measured[name]), [20.0, 10.0, 30.0, 20.0, 3.0]);
        assert_eq!((one.measured["throttle_reasons_mask"], one.measured.len(), one.seconds), (5.0, 6, 1.5));
        assert_eq!(one.values, ValueCheck::Right { compared: 12, digest: None });
    }

    #[test]
    fn wrong_values_add_up_and_a_round_without_result_is_told() {
        let mut series = Series::default();
        let first = vec![WrongValue { place: "p".to_owned(), got: "1".to_owned(), want: "0".to_owned() }];
        let wrong = ValueCheck::Wrong { compared: 4, wrong: 2, first };
        series.add(line(&[], wrong.clone(), None));
        series.add(line(&[], ValueCheck::Right { compared: 4, digest: None }, None));
        series.add(line(&[], wrong, None));
        series.add(line(&[], ValueCheck::None, Some("in use")));
        let one = series.lines().next().unwrap();
        let ValueCheck::Wrong { compared: 12, wrong: 4, first } = &one.values else { panic!("{one:?}") };
        assert_eq!((first.len(), series.wrong_values), (2, 4));
        assert_eq!(one.unknown.as_deref(), Some("1 of 4 rounds: in use"));
    }
}

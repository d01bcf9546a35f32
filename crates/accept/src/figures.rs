//! Measured figures: distribution, outliers, repeatability.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plan::Expect;
use crate::report::{Item, Outcome};

/// Outliers that an item lists; the rest is counted.
const MOST_OUTLIERS: usize = 50;

/// Which end of a figure is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Rates.
    Higher,
    /// Latencies, temperatures.
    Lower,
    /// Neither.
    Neither,
}

/// What a figure is compared with if the plan has no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Tolerance {
    /// Nothing: it is shown.
    None,
    /// A share of the median of all parts.
    ShareOfMedian { share: f64, source: &'static str },
}

/// A measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// The node; empty for all nodes together.
    pub node: String,
    /// The part, with its node: `gn1 0000:61:00.0`.
    pub part: String,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// The value.
    pub value: f64,
}

/// A value beyond the tolerance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outlier {
    /// The part.
    pub part: String,
    /// Number of the repetition.
    pub repetition: u32,
    /// The value.
    pub value: f64,
}

/// A figure of all parts of a machine type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Its id, for example `node.gemm-rate-bf16.rate_tflops`; followed by `@MACHINE` if the plan has several machine types.
    pub id: String,
    /// Unit of its values.
    pub unit: String,
    /// Which end is good.
    pub better: Better,
    /// Lowest value.
    pub min: f64,
    /// Median of all values.
    pub median: f64,
    /// Highest value.
    pub max: f64,
    /// Lower limit.
    pub at_least: Option<f64>,
    /// Upper limit.
    pub at_most: Option<f64>,
    /// The limit in words; empty: not judged.
    pub tolerance: String,
    /// Where the limit comes from.
    pub source: String,
    /// Values beyond the limit.
    pub outliers: Vec<Outlier>,
    /// Largest difference between two repetitions of one part, per cent of its median; `None` without repetitions, or where the median is 0.
    pub spread_percent: Option<f64>,
    /// All values.
    pub values: Vec<Value>,
}

/// Figures while results are read.
#[derive(Debug, Default)]
pub(crate) struct Figures(BTreeMap<(String, String), Collected>);

#[derive(Debug)]
struct Collected {
    unit: &'static str,
    better: Better,
    tolerance: Tolerance,
    values: Vec<Value>,
}

impl Figures {
    /// Adds a value. One that is not a finite number is left out: it is not a measurement.
    #[expect(clippy::too_many_arguments, reason = "a row of a table")]
    pub(crate) fn add(
        &mut self,
        id: &str,
        unit: &'static str,
        better: Better,
        tolerance: Tolerance,
        machine: &str,
        node: &str,
        part: &str,
        repetition: u32,
        value: f64,
    ) {
        if !value.is_finite() {
            return;
        }
        let value = Value { node: node.to_owned(), part: part.to_owned(), repetition, value };
        let key = (id.to_owned(), machine.to_owned());
        self.0
            .entry(key)
            .or_insert_with(|| Collected { unit, better, tolerance, values: Vec::new() })
            .values
            .push(value);
    }

    /// Returns the figures; ids have the machine type if `several`.
    pub(crate) fn all(self, expect: &[Expect], several: bool) -> Vec<Figure> {
        let one = |((id, machine), collected): ((String, String), Collected)| {
            let limits = expect
                .iter()
                .find(|expect| expect.figure == id || expect.figure == format!("{id}@{machine}"));
            let id = if several { format!("{id}@{machine}") } else { id };
            figure(id, collected, limits)
        };
        self.0.into_iter().filter_map(one).collect()
    }
}

/// Returns the median, `None` without values.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        Some(upper)
    } else {
        Some(f64::midpoint(*values.get(middle.checked_sub(1)?)?, upper))
    }
}

fn figure(id: String, collected: Collected, limits: Option<&Expect>) -> Option<Figure> {
    let Collected { unit, better, tolerance, values } = collected;
    let all = || values.iter().map(|value| value.value);
    let median = median(all())?;
    let (at_least, at_most, words, source) = match (limits, tolerance) {
        (Some(Expect { min, max, source, .. }), _) => {
            let words = [min.map(|min| format!("at least {min}")), max.map(|max| format!("at most {max}"))];
            let words: Vec<String> = words.into_iter().flatten().collect();
            (*min, *max, format!("{} {unit}", words.join(", ")), source.clone())
        }
        // With two values the median lies between them, and cannot name the bad one.
        (None, Tolerance::ShareOfMedian { share, source }) if values.len() > 2 => {
            let words = format!("at least {:.0} % of the median", share * 100.0);
            (Some(median * share), None, words, source.to_owned())
        }
        (None, _) => (None, None, String::new(), String::new()),
    };
    let beyond = |value: f64| {
        at_least.is_some_and(|limit| value < limit) || at_most.is_some_and(|limit| value > limit)
    };
    let outliers = values
        .iter()
        .filter(|value| beyond(value.value))
        .map(|value| Outlier { part: value.part.clone(), repetition: value.repetition, value: value.value })
        .collect();
    Some(Figure {
        unit: unit.to_owned(),
        better,
        min: all().fold(f64::INFINITY, f64::min),
        median,
        max: all().fold(f64::NEG_INFINITY, f64::max),
        at_least,
        at_most,
        tolerance: words,
        source,
        outliers,
        spread_percent: spread(&values),
        values,
        id,
    })
}

/// Largest difference between the repetitions of a part, per cent of the part's own median: parts that differ from each other are no
/// spread. A part with several values in one repetition counts with their median. A median of 0 has no percentage.
fn spread(values: &[Value]) -> Option<f64> {
    let mut parts: BTreeMap<&str, BTreeMap<u32, Vec<f64>>> = BTreeMap::new();
    for value in values {
        parts.entry(&value.part).or_default().entry(value.repetition).or_default().push(value.value);
    }
    let repeated = parts.values().filter(|repetitions| repetitions.len() > 1).filter_map(|repetitions| {
        let medians: Vec<f64> = repetitions.values().filter_map(|all| median(all.iter().copied())).collect();
        let low = medians.iter().copied().reduce(f64::min)?;
        let high = medians.iter().copied().reduce(f64::max)?;
        let own = median(medians.iter().copied())?.abs();
        Some((high - low) / own * 100.0).filter(|percent| percent.is_finite())
    });
    repeated.reduce(f64::max)
}

/// A number with about four digits.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

impl Figure {
    /// The figure as an item of the checklist, if it has a limit.
    pub(crate) fn item(&self) -> Option<Item> {
        if self.tolerance.is_empty() {
            return None;
        }
        let outcome = if self.outliers.is_empty() { Outcome::Pass } else { Outcome::Fail };
        let what = format!(
            "{}: {} from {} to {} {}, median {}",
            self.id,
            if self.values.len() == 1 {
                "1 value".to_owned()
            } else {
                format!("{} values", self.values.len())
            },
            short(self.min),
            short(self.max),
            self.unit,
            short(self.median)
        );
        let shown = self.outliers.iter().take(MOST_OUTLIERS);
        let mut details: Vec<String> = shown
            .map(|one| format!("{} r{}: {} {}", one.part, one.repetition, short(one.value), self.unit))
            .collect();
        if let Some(more) = self.outliers.len().checked_sub(MOST_OUTLIERS).filter(|more| *more > 0) {
            details.push(format!("{more} more"));
        }
        let stage = self.id.split('.').next().unwrap_or_default();
        let item = Item::new(&format!("figure.{}", self.id), stage, outcome, &what);
        Some(item.details(details).tolerance(&self.tolerance, &self.source))
    }
}

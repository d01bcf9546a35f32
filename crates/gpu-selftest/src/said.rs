//! Results, and how they are printed.

use std::collections::BTreeMap;
use std::time::Instant;

use railgate_model::{GpuSelfTested, ValueCheck, WrongValue};

use crate::cuda::Device;
use crate::kernels::WrongWord;

/// Wrong values that a line shows.
const MOST_SHOWN: usize = 8;

/// What a test found.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) values: ValueCheck,
    pub(crate) measured: BTreeMap<String, f64>,
    pub(crate) unknown: Option<String>,
    pub(crate) not_applicable: Option<String>,
}

impl Default for Outcome {
    fn default() -> Self {
        Outcome { values: ValueCheck::None, measured: BTreeMap::new(), unknown: None, not_applicable: None }
    }
}

impl Outcome {
    /// A test that cannot be made on this card or node, which is no gap.
    pub(crate) fn not_applicable(why: &str) -> Self {
        Outcome { not_applicable: Some(why.to_owned()), ..Outcome::default() }
    }

    /// Adds a figure. Its name ends with its unit.
    pub(crate) fn with(mut self, name: &str, value: f64) -> Self {
        self.measured.insert(name.to_owned(), value);
        self
    }
}

/// A test and its result, of one GPU.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) test: String,
    pub(crate) seconds: f64,
    pub(crate) outcome: Outcome,
}

impl Said {
    /// Runs a test.
    pub(crate) fn of(test: impl Into<String>, run: impl FnOnce() -> Result<Outcome, String>) -> Self {
        let began = Instant::now();
        let outcome = run().unwrap_or_else(|why| Outcome { unknown: Some(why), ..Outcome::default() });
        Said { test: test.into(), seconds: began.elapsed().as_secs_f64(), outcome }
    }

    pub(crate) fn unknown(test: impl Into<String>, why: &str) -> Self {
        Said::of(test, || Err(why.to_owned()))
    }

    /// A test that does not apply to the card.
    pub(crate) fn not_applicable(test: impl Into<String>, why: &str) -> Self {
        Said::of(test, || Ok(Outcome::not_applicable(why)))
    }

    /// Adds the number of other processes that used the card, if there were any.
    pub(crate) fn beside(mut self, others: usize) -> Self {
        if let Ok(count @ 1..) = u32::try_from(others) {
            self.outcome.measured.insert("other_processes_count".to_owned(), f64::from(count));
        }
        self
    }

    /// The line that is printed; `to`: the other GPU of a copy between two.
    pub(crate) fn line(self, of: &Device, to: Option<&Device>) -> GpuSelfTested {
        GpuSelfTested {
            gpu: of.pci,
            uuid: of.uuid.get().cloned(),
            to: to.map(|to| to.pci),
            model: of.name.clone(),
            test: self.test,
            seconds: self.seconds,
            values: self.outcome.values,
            measured: self.outcome.measured,
            unknown: self.outcome.unknown,
            not_applicable: self.outcome.not_applicable,
        }
    }
}

/// Wrong values for a line; `place` says where one is, `bytes` how long it is.
pub(crate) fn wrong_values(
    wrong: &[WrongWord],
    bytes: usize,
    place: impl Fn(u64) -> String,
) -> Vec<WrongValue> {
    let bits = |value: u64| format!("{value:0digits$x}", digits = 2 * bytes);
    let one =
        |word: &WrongWord| WrongValue { place: place(word.at), got: bits(word.got), want: bits(word.want) };
    wrong.iter().take(MOST_SHOWN).map(one).collect()
}

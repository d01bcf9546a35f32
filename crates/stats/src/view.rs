//! The content of a report, made once from a [`JobReport`]: its sentences and its rows, without a layout.
//!
//! Text and HTML render the same [`View`], so they cannot disagree. A renderer adds headings, columns, escapes and
//! charts; it makes no sentence of its own.

mod environment;
mod rails;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub(crate) use environment::{Environment, NodesAlike};
pub(crate) use rails::Rails;

use crate::JobReport;

/// A sentence that every form shows. Tests find them by this type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Sentence {
    sentence: String,
}

impl Sentence {
    pub(crate) fn as_str(&self) -> &str {
        &self.sentence
    }
}

impl From<String> for Sentence {
    fn from(sentence: String) -> Self {
        Sentence { sentence }
    }
}

/// A report as it is shown.
#[derive(Debug, Serialize)]
pub(crate) struct View {
    /// In order.
    pub(crate) attempts: Vec<OfAttempt>,
}

/// One attempt.
#[derive(Debug, Serialize)]
pub(crate) struct OfAttempt {
    /// Rails of the nodes; `None` where no node has a map of them.
    pub(crate) rails: Option<Rails>,
    /// NCCL's variables and transport; `None` where nothing is known of them.
    pub(crate) environment: Option<Environment>,
}

/// Makes the content of a report.
pub(crate) fn view(report: &JobReport) -> View {
    let attempts = report.attempts.iter().enumerate().map(|(position, attempt)| {
        let earlier = report.attempts.get(..position).unwrap_or_default();
        OfAttempt {
            rails: rails::rails(earlier, attempt),
            environment: environment::environment(earlier, attempt),
        }
    });
    View { attempts: attempts.collect() }
}

//! The content of a report, made once from a [`JobReport`]: its sentences and its rows, without a layout.
//!
//! Text and HTML render the same [`View`], so they cannot disagree. A renderer adds headings, columns, escapes and
//! charts; it makes no sentence of its own.

mod environment;
pub(crate) mod nccl;
mod rails;
pub(crate) mod screen;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub(crate) use environment::{Environment, NodesAlike};
pub(crate) use rails::Rails;
pub(crate) use screen::Row;

use crate::JobReport;
use crate::diagnosis::Diagnosis;

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
    /// The first screen; only what to do where no part has numbers.
    pub(crate) screen: Vec<Row>,
    /// What stands out, costliest first.
    pub(crate) diagnoses: Vec<DiagnosisRow>,
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
    View { screen: screen::rows(report), diagnoses: diagnoses(report), attempts: attempts.collect() }
}

/// What a rule found.
#[derive(Debug, Serialize)]
pub(crate) struct DiagnosisRow {
    pub(crate) rule: String,
    pub(crate) what: String,
    /// `3.1 %`; empty where it is not known or nothing.
    pub(crate) costs: String,
    /// `hardware, high`: who has to act, and how sure that is.
    pub(crate) whose: String,
    pub(crate) fix: String,
}

/// What stands out in the attempt that has numbers.
pub(crate) fn diagnoses(report: &JobReport) -> Vec<DiagnosisRow> {
    let all = screen::telling(report).into_iter().flat_map(|(_, analysis)| &analysis.diagnoses);
    let row = |one: &Diagnosis| {
        let costs = one.costs.filter(|costs| *costs > 0.0);
        DiagnosisRow {
            rule: one.rule.clone(),
            what: one.what.clone(),
            costs: costs.map_or_else(String::new, |costs| format!("{:.1} %", 100.0 * costs)),
            whose: format!("{}, {}", one.class, one.confidence),
            fix: one.fix.clone(),
        }
    };
    all.map(row).collect()
}

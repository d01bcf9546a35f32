//! The content of a report, made once from a [`JobReport`]: its sentences and its rows, without a layout.
//!
//! Text and HTML render the same [`View`], so they cannot disagree. A renderer adds headings, columns, escapes and
//! charts; it makes no sentence of its own.

mod attempt;
mod counters;
mod environment;
mod head;
pub(crate) mod live;
pub(crate) mod nccl;
mod rails;
pub(crate) mod screen;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub(crate) use attempt::{AskedNode, Controller, Found, GateRow, OfAttempt, Ran};
pub(crate) use counters::{Count, Counters, GpuRow, NodeCounters, PortRow};
pub(crate) use environment::{Environment, NodesAlike};
pub(crate) use head::{Before, Ending, Head};
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
    pub(crate) head: Head,
    /// The first screen; empty where no part has numbers.
    pub(crate) screen: Vec<Row>,
    /// The costliest kinds of collectives over all nodes; columns are [`screen::COLLECTIVES`].
    pub(crate) collectives: Vec<[String; 6]>,
    /// What stands out, costliest first.
    pub(crate) diagnoses: Vec<DiagnosisRow>,
    /// In order.
    pub(crate) attempts: Vec<OfAttempt>,
    /// What is missing, and how to collect it.
    pub(crate) lacking: Vec<Lacking>,
    /// Files that were refused, and why.
    pub(crate) problems: Vec<Sentence>,
}

/// A part of the report that is missing.
#[derive(Debug, Serialize)]
pub(crate) struct Lacking {
    pub(crate) what: Sentence,
    pub(crate) why: Sentence,
    pub(crate) collect: Sentence,
}

/// Makes the content of a report.
pub(crate) fn view(report: &JobReport) -> View {
    let attempts =
        report.attempts.iter().enumerate().map(|(position, one)| {
            attempt::attempt(report.attempts.get(..position).unwrap_or_default(), one)
        });
    let lacking = report.missing.iter().map(|missing| Lacking {
        what: missing.what.clone().into(),
        why: missing.why.clone().into(),
        collect: missing.collect.clone().into(),
    });
    View {
        head: head::head(report),
        screen: screen::telling(report).map(|_| screen::rows(report)).unwrap_or_default(),
        collectives: screen::telling(report)
            .map(|(attempt, _)| screen::collectives(attempt))
            .unwrap_or_default(),
        diagnoses: diagnoses(report),
        attempts: attempts.collect(),
        lacking: lacking.collect(),
        problems: report.problems.iter().cloned().map(Sentence::from).collect(),
    }
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

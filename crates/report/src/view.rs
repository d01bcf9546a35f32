//! Content of a report, built once from a [`JobReport`]: sentences and rows, without a layout.
//!
//! Text and HTML render the same [`View`], so they cannot disagree. A renderer adds headings, columns, escapes
//! and charts, but no sentences.

pub(crate) mod answer;
mod attempt;
mod counters;
mod environment;
mod head;
pub(crate) mod live;
pub(crate) mod nccl;
mod rails;
pub(crate) mod screen;
mod starts;
#[cfg(test)]
mod tests;

#[cfg(test)]
use serde::Serialize;

pub(crate) use attempt::{AskedNode, Controller, Found, GateRow, ListedRows, OfAttempt, Ran};
pub(crate) use counters::{Count, Counters, GpuRow, NodeCounters, PortRow};
pub(crate) use environment::{Environment, NodesAlike};
pub(crate) use head::{Before, Ending, Head};
pub(crate) use rails::Rails;
pub(crate) use screen::Row;

use railgate_diagnosis::Diagnosis;

use crate::JobReport;

/// A sentence that every format shows. Tests find sentences by this type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Serialize))]
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

/// Counted phrase, `1 more node` or `300 more nodes`.
pub(crate) fn more_nodes(count: usize) -> String {
    format!("{count} more node{}", if count == 1 { "" } else { "s" })
}

/// Content of a report.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct View {
    pub(crate) head: Head,
    /// The first screen; empty if no node report has figures.
    pub(crate) screen: Vec<Row>,
    /// The costliest collective signatures over all nodes; columns are [`screen::COLLECTIVES`].
    pub(crate) collectives: Vec<[String; 6]>,
    /// Findings of the diagnosis rules, sorted by cost in descending order.
    pub(crate) diagnoses: Vec<DiagnosisRow>,
    /// Attempts in order.
    pub(crate) attempts: Vec<OfAttempt>,
    /// Missing node reports, and how to collect them.
    pub(crate) lacking: Vec<Lacking>,
    /// Refused files, with the reason.
    pub(crate) problems: Vec<Sentence>,
}

/// A missing part of the report.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Lacking {
    pub(crate) what: Sentence,
    pub(crate) why: Sentence,
    pub(crate) collect: Sentence,
}

/// Builds the content of a report.
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

/// A finding of a diagnosis rule.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct DiagnosisRow {
    pub(crate) rule: String,
    pub(crate) what: String,
    /// Cost, `3.1 %`; empty if unknown or zero.
    pub(crate) costs: String,
    /// Class and confidence: `hardware, high`.
    pub(crate) class: String,
    pub(crate) fix: String,
}

/// Findings about the attempt that has figures.
pub(crate) fn diagnoses(report: &JobReport) -> Vec<DiagnosisRow> {
    let all = screen::telling(report).into_iter().flat_map(|(_, analysis)| &analysis.diagnoses);
    let row = |one: &Diagnosis| {
        let costs = one.costs.filter(|costs| *costs > 0.0);
        DiagnosisRow {
            rule: one.rule.clone(),
            what: one.what.clone(),
            costs: costs.map_or_else(String::new, |costs| format!("{:.1} %", 100.0 * costs)),
            class: format!("{}, {}", one.class, one.confidence),
            fix: one.fix.clone(),
        }
    };
    all.map(row).collect()
}

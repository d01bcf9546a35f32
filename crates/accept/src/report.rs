//! The report: a checklist, figures, heat maps, and what else a person must know who signs it.

mod build;
mod chart;
mod heat;

use railgate_model::Mttf;
use serde::{Deserialize, Serialize};

use crate::compare::Change;
use crate::figures::Figure;
use crate::journal::{BadJournal, Entry, Event};
use crate::plan::Plan;
pub(crate) use build::Build;
pub(crate) use chart::Samples;
pub use chart::{Chart, ChartRow, Point};
pub use heat::{HeatMap, HeatRow};

/// Whether an item of the checklist is met. The later, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Met.
    Pass,
    /// Could not be determined: neither met nor failed.
    Unknown,
    /// Not met.
    Fail,
}

/// A failure that a person accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiver {
    /// The name of the person.
    pub by: String,
    /// When, milliseconds since 1970.
    pub at: u64,
    /// The reason.
    pub why: String,
}

/// A row of the checklist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Its id.
    pub id: String,
    /// Its stage; `run` for the run itself.
    pub stage: String,
    /// Whether it is met. A waiver does not change this.
    pub outcome: Outcome,
    /// What was tested and found, in a line.
    pub what: String,
    /// Parts that failed or are not known.
    pub details: Vec<String>,
    /// What must hold.
    pub tolerance: String,
    /// Where that comes from.
    pub source: String,
    /// The waiver of exactly this failure.
    pub waiver: Option<Waiver>,
}

/// The answer to whether the cluster meets its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overall {
    /// Every item is met.
    Pass,
    /// Every item is met or waived.
    PassWithWaivers,
    /// Some are not known, none failed.
    Incomplete,
    /// Some failed.
    Fail,
}

/// A report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// 1.
    pub schema: u32,
    /// Title of the plan.
    pub title: String,
    /// Id of the run.
    pub run: String,
    /// Version of railgate.
    pub railgate: String,
    /// Beginning of the run, milliseconds since 1970.
    pub began: u64,
    /// When the report was made, milliseconds since 1970.
    pub made: u64,
    /// SHA-256 of the plan.
    pub plan_digest: String,
    /// SHA-256 over the lines of `results`, each `SHA256  NAME`, sorted by name.
    pub results_digest: String,
    /// The result files that the journal names, each with the SHA-256 that the journal recorded, sorted by name.
    #[serde(default)]
    pub results: Vec<Named>,
    /// SHA-256 of the whole lines of the journal when the report was made.
    #[serde(default)]
    pub journal_digest: String,
    /// The nodes as a hostlist.
    #[serde(default)]
    pub hostlist: String,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// Units with a result.
    pub units_done: usize,
    /// All units.
    pub units: usize,
    /// The answer.
    pub overall: Overall,
    /// The checklist, worst first.
    pub items: Vec<Item>,
    /// Parts and versions.
    pub inventory: Vec<Inventory>,
    /// All figures.
    pub figures: Vec<Figure>,
    /// Heat maps.
    pub heat_maps: Vec<HeatMap>,
    /// Values over time.
    #[serde(default)]
    pub charts: Vec<Chart>,
    /// Mean time to failure; `None`: no node worked.
    pub mttf: Option<Mttf>,
    /// What a reader must know: repeated units, lost jobs, interruptions, results that were not used.
    pub exceptions: Vec<String>,
    /// Stages that the plan does not have.
    pub not_in_plan: Vec<String>,
    /// What changed since an earlier report.
    pub changes: Option<Vec<Change>>,
}

/// The values of a part or version on the nodes of a machine type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// For example `gpu-driver`.
    pub key: String,
    /// Machine type, or `all nodes`.
    pub machine: String,
    /// Its different values.
    pub values: Vec<Counted>,
}

/// A value, and how many nodes have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// The value.
    pub value: String,
    /// Number of nodes.
    pub nodes: usize,
}

impl Inventory {
    /// Returns the values in words: `580.159.04 (3), 570.1 (1)`.
    pub(crate) fn words(&self) -> String {
        let words: Vec<String> =
            self.values.iter().map(|one| format!("{} ({})", one.value, one.nodes)).collect();
        words.join(", ")
    }
}

/// A result file that the journal names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// The SHA-256 that the journal recorded.
    pub sha256: String,
}

/// A file of the results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its content.
    pub content: Vec<u8>,
}

/// What a report is made of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// SHA-256 of its text.
    pub plan_digest: &'a str,
    /// The journal.
    pub entries: &'a [Entry],
    /// SHA-256 of its whole lines.
    pub journal_digest: &'a str,
    /// The nodes of the plan as a hostlist.
    pub hostlist: &'a str,
    /// All files of the results.
    pub files: &'a [File],
    /// Now, milliseconds since 1970.
    pub now: u64,
    /// Version of railgate.
    pub railgate: &'a str,
}

impl Item {
    pub(crate) fn new(id: &str, stage: &str, outcome: Outcome, what: &str) -> Self {
        Item {
            id: id.to_owned(),
            stage: stage.to_owned(),
            outcome,
            what: what.to_owned(),
            details: Vec::new(),
            tolerance: String::new(),
            source: String::new(),
            waiver: None,
        }
    }

    pub(crate) fn details(mut self, details: Vec<String>) -> Self {
        self.details = details;
        self
    }

    pub(crate) fn tolerance(mut self, tolerance: &str, source: &str) -> Self {
        tolerance.clone_into(&mut self.tolerance);
        source.clone_into(&mut self.source);
        self
    }

    /// Returns what a waiver of this item accepts.
    pub fn failure(&self) -> String {
        [std::slice::from_ref(&self.what), &self.details].concat().join("\n")
    }

    /// Returns the word for people: a waived failure is shown as such, with its details.
    pub fn word(&self) -> &'static str {
        match (self.outcome, &self.waiver) {
            (Outcome::Pass, _) => "pass",
            (_, Some(_)) => "waived",
            (Outcome::Unknown, None) => "unknown",
            (Outcome::Fail, None) => "fail",
        }
    }
}

impl Overall {
    fn of(items: &[Item]) -> Overall {
        let open = |outcome| items.iter().any(|item| item.outcome == outcome && item.waiver.is_none());
        if open(Outcome::Fail) {
            Overall::Fail
        } else if open(Outcome::Unknown) {
            Overall::Incomplete
        } else if items.iter().any(|item| item.outcome != Outcome::Pass) {
            Overall::PassWithWaivers
        } else {
            Overall::Pass
        }
    }

    /// Returns the answer in words.
    pub fn words(self) -> &'static str {
        match self {
            Overall::Pass => "every item passes",
            Overall::PassWithWaivers => "every item passes or is waived",
            Overall::Incomplete => "nothing failed, but items are unknown",
            Overall::Fail => "items failed",
        }
    }
}

/// Makes the report.
///
/// # Errors
/// Returns the line of the journal that does not fit the lines before it.
pub fn report(facts: &Facts<'_>) -> Result<Report, BadJournal> {
    let mut report = build::build(facts)?;
    for item in &mut report.items {
        let failure = item.failure();
        item.waiver = facts.entries.iter().rev().find_map(|entry| match &entry.event {
            Event::Waive { item: id, failure: of, by, why } if *id == item.id && *of == failure => {
                Some(Waiver { by: by.clone(), at: entry.at, why: why.clone() })
            }
            _ => None,
        });
    }
    let worst_first = |item: &Item| (std::cmp::Reverse(item.outcome), item.waiver.is_some());
    report.items.sort_by_key(worst_first);
    report.overall = Overall::of(&report.items);
    Ok(report)
}

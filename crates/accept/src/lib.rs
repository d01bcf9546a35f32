//! Acceptance of a cluster: the plan, the units of work that follow from it, the journal of a run, and the report that a person
//! signs. Pure functions of text; the caller submits jobs, and reads and writes the files.
//!
//! 1. [`Plan::parse`] reads the plan. [`Plan::units`] returns its units: each is one job, with the programs that it runs.
//! 2. The driver appends an [`Event`] to the journal before and after each action. [`State`] follows from the journal alone, so
//!    that a driver that was killed continues from it.
//! 3. [`report()`] judges the raw results: each stage in its own file below `stages`, with one row in [`STAGES`].

mod compare;
mod digest;
mod figures;
mod html;
mod journal;
mod plan;
mod report;
mod result;
mod stages;
mod state;
#[cfg(test)]
mod tests;

pub use compare::{Change, compare};
pub use digest::{digest, digest_of_all};
pub use figures::{Better, Figure, Outlier, Value};
pub use html::html;
pub use journal::{BadJournal, Entry, Event, Journal};
pub use plan::{BadPlan, Expand, Group, Plan};
pub use report::{
    Chart, ChartRow, Counted, Facts, File, HeatMap, HeatRow, Inventory, Item, Named, Outcome, Overall, Point,
    Report, Waiver, report,
};
pub use result::{Output, UnitResult};
pub use stages::{Command, GpuSample, Program, STAGES, Span, Stage, StorageTested, Unit, self_test_kind};
pub use state::{Attempt, Fate, State, UnitState};

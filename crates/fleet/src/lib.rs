//! What a fleet's history means: which nodes fail more often than others, what failed at once, why jobs ended, and what it cost.
//! Pure functions of events; the caller collects and stores them.
//!
//! 1. [`History::new`] puts [`Event`]s in order. Late, doubled and shuffled events give the same history.
//! 2. [`judge`] makes faults of observations, incidents of faults that have a reason in common, and records of nodes from the
//!    faults that are left. It names why each job ended.
//! 3. [`costs`] derives the productive time of each job as an interval; [`goodput`] and [`lost_by_cause`] sum it up, [`by_size`] has the
//!    mean time to failure by job size, [`checkpoint_interval`] the advice that follows from it.
//! 4. [`confirmed_drains`] has how often what followed a drain confirmed the check that asked for it.
//!
//! Only what root or SlurmUser wrote counts for or against a node. What users wrote narrows the productive time of their own
//! jobs.

mod blame;
mod confirmed;
mod cost;
mod discovery;
mod event;
mod exposure;
mod fault;
mod history;
mod incident;
mod judgement;
mod lemon;
mod node_names;
mod parallel;
mod reliability;
mod settings;
#[cfg(test)]
mod tests;

pub use blame::Blame;
pub use confirmed::{CheckRecord, confirmed_drains};
pub use cost::{Bounds, Goodput, JobCost, Loss, Lost, Share, costs, goodput, lost_by_cause};
pub use event::{
    Attempt, Card, Cause, Drainer, Event, Grade, NodeFinding, Outcome, Progress, Shared, SharedKind, Source,
    What, is_node_name,
};
pub use history::{History, Outage};
pub use incident::{Incident, Reason};
pub use judgement::{FaultCounts, Judgement, NodeFault, judge};
pub use lemon::{NodeRecord, Ratio, Standing};
pub use node_names::NodeNames;
pub use reliability::{Advice, BySize, by_size, checkpoint_interval};
pub use settings::Settings;

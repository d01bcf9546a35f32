//! Makes events for the fleet's history from existing records of railgate and Slurm: the ledger, the report directory, the nodes of
//! Slurm, the site's table of racks and switches.
//!
//! | source | writer | events | counts as |
//! |---|---|---|---|
//! | `slurm-end.json`, owned by SlurmUser | controller | end of an attempt | root |
//! | `decision.json`, owned by SlurmUser | controller | end of an attempt, drain reasons, nodes that were down | root |
//! | `<node>.json`, owned by root | node | cards, findings | root |
//! | `<node>.json`, owned by the job's owner | node, as the job's owner | progress and restarts of that job | user |
//! | ledger | controller | nodes that were down; blamed parts, which reports name: hearsay | root |
//! | `scontrol show node` | slurmctld | down, drained, resumed, reboots, findings of drain reasons | root |
//! | `[fleet]` of the configuration | admin | what nodes share | root |
//!
//! The id of an event follows from its subject and not from the time of reading. So a source can be read any number of times, in any order, by two
//! controllers, with the same result. [`Intake`] keeps how far each source was read.

mod attempts;
mod cause;
mod intake;
mod ledger;
mod nodes;
mod site;
#[cfg(test)]
mod tests;

pub use cause::{CAUSES, cause};
pub use intake::Intake;

use railgate_fleet::{Event, Source, What, is_node_name};
use railgate_model::UnixMillis;

/// An event that root or SlurmUser wrote.
fn by_root(id: String, time: UnixMillis, what: What) -> Event {
    Event { id, time, source: Source::Root, what }
}

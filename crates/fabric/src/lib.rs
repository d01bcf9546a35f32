//! How the switches are wired: what `ibnetdiscover` says, which HCA port sits on which leaf, which of them sit on
//! the wrong one, and what Slurm is told of it. Pure: text in, text out.

mod analysis;
mod discover;
mod name;
mod render;
mod slurm;
#[cfg(test)]
mod testing;
mod tiers;
mod tree;
mod units;
mod wiring;

pub use analysis::{Analysis, Options, PortPlace, Switch, analyse};
pub use discover::{BadDiscovery, Device, End, Fabric, Kind, Link, MAX_TEXT, parse};
pub use render::table;
pub use slurm::{Hostlist, topology_block, topology_tree, topology_yaml};
pub use tiers::{Tier, Worst};
pub use tree::Branch;
pub use units::{Expected, Fault, FaultKind, Unit};
pub use wiring::{WiredRail, Wiring};

//! The wiring of switches: parses `ibnetdiscover`, LLDP or a cable table of the site, determines the leaf switch of
//! each HCA port, finds ports on wrong switches, and writes topology files for Slurm. Pure functions of text.

mod analysis;
mod discover;
mod lldp;
mod name;
mod render;
mod slurm;
#[cfg(test)]
mod testing;
mod tiers;
mod tree;
mod units;
mod wiring;

pub use analysis::{Analysis, Options, PortPlace, SharedName, Switch, analyse};
pub use discover::{BadDiscovery, Device, End, Fabric, Kind, Link, MAX_TEXT, parse};
pub use lldp::{BadSeen, Seen, analyse_seen, cable_table, lldp};
pub use render::table;
pub use slurm::{Hostlist, topology_block, topology_tree, topology_yaml};
pub use tiers::{Tier, Worst};
pub use tree::Branch;
pub use units::{Expected, Fault, FaultKind, LeafPort, Unit};
pub use wiring::{WiredRail, Wiring};

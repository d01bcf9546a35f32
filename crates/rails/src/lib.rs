//! How the node is wired: which HCA belongs to which GPU, and what NCCL is told of it.
//!
//! Pure functions of a snapshot, a machine profile and the site's configuration. NCCL gets one list of
//! ports for the whole node, the same for every rank, in rail order: never one HCA per rank.

mod config;
mod distance;
mod environment;
mod map;
mod render;
mod rules;
#[cfg(test)]
mod testing;
mod topology;

pub use config::RailsConfig;
pub use environment::{JobShape, environment, user_profiles};
pub use map::{BY_NOTHING, BY_PROFILE, BY_TREE, rail_map};
pub use render::{View, env, table};
pub use rules::{NOT_SET, NotSet, RULES, Rule};
pub use topology::{NoTopology, topology_needed, topology_xml};

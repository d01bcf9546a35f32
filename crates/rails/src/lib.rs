//! The wiring of a node (the HCA of each GPU), and the NCCL settings derived from it.
//!
//! Pure functions of a snapshot, a machine profile and the site's configuration. NCCL gets one list of ports for the
//! whole node, the same for every rank, in rail order; never one HCA per rank.

mod config;
mod environment;
mod folklore;
mod job_shape;
mod map;
pub mod nccl_devices;
mod nccl_range;
mod nccl_version;
mod net;
mod pairs;
#[cfg(test)]
mod properties;
mod render;
mod rules;
mod site_rule;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod topology;
mod topology_file;

pub use config::{RailsConfig, TopologyFile, UnknownProfile, UserProfile};
pub use environment::environment;
pub use folklore::{FOLKLORE, Folklore, FolkloreWarning, folklore};
pub use job_shape::JobShape;
pub use map::{BY_NOTHING, BY_ORDER, BY_PROFILE, BY_TREE, rail_map};
pub use nccl_range::{BadNcclRange, NcclRange};
pub use nccl_version::{BadNcclVersion, NcclVersion};
pub use net::net;
pub use render::{View, effective, env, explain, table};
pub use rules::{NotSet, RULES, Rule, not_set};
pub use site_rule::{Layer, Nodes, Share, SiteRule};
pub use topology::{NoTopology, topology, topology_needed, topology_wanted, topology_xml};

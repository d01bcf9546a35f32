//! The readings that are made on request only. A new one is a file here, an arm of [`begin`], and a row of [`TASKS`].

mod cloud_maintenance;
mod drive_log;
mod fabric_manager;
mod mounts;
mod site_check;
mod topology_file;

use railgate_child::Task;
use railgate_model::{Extra, Snapshot};

use crate::calls::{Answers, Calls};
use crate::{Request, SourceConfig};

pub(crate) use mounts::unescape;
pub use site_check::site_checks;
pub use topology_file::read_topology_file;

/// What a reading is made from; it adds its calls.
pub(crate) struct Ask<'a> {
    pub(crate) source: &'a SourceConfig,
    pub(crate) request: &'a Request,
    pub(crate) calls: &'a mut Calls,
}

/// Stores the answers of one reading.
pub(crate) type Put = Box<dyn FnOnce(&mut Snapshot, &mut Answers)>;

/// Adds the calls of a reading. `None` if it has none of its own, or if the part that it belongs to is not read.
pub(crate) fn begin(extra: &Extra, ask: &mut Ask<'_>) -> Option<Put> {
    match extra {
        // An input of the GPUs' own call.
        Extra::NvLinkErrors => None,
        Extra::DriveLogs => drive_log::begin(ask),
        Extra::Mounts(paths) => mounts::begin(paths, ask),
        Extra::SiteChecks(checks) => Some(site_check::begin(checks, ask)),
        Extra::TopologyFile => Some(topology_file::begin(ask)),
        Extra::FabricManager(program) => Some(fabric_manager::begin(program, ask)),
        Extra::CloudMaintenance(service) => cloud_maintenance::begin(*service, ask),
    }
}

pub(crate) const TASKS: &[Task] = &[
    drive_log::TASK,
    mounts::TASK,
    site_check::TASK,
    topology_file::TASK,
    fabric_manager::TASK,
    cloud_maintenance::TASK,
];

//! Reads this machine: NVML, sysfs, procfs, the kernel log, the modules of the network ports, the processes of a job, the
//! metadata service of a cloud.
//!
//! [`live()`] reads a whole [`Snapshot`](railgate_model::Snapshot). Reads that can hang run in a child process with a
//! deadline (`railgate-child`), so each program that uses this crate starts its `main` with [`dispatch`].

mod answer;
mod calls;
mod extras;
mod gpu_processes;
mod gpu_self_test;
mod gpu_watch;
mod ioctl;
mod job_group;
mod job_member;
mod job_outputs;
mod job_processes;
mod kernel_origin;
mod live;
mod nvml;
mod optics;
mod process_end;
mod rail_counters;
mod rank_processes;
mod rank_states;
mod rdma_self_test;
pub mod readers;
mod self_test;
mod source;
mod statistics;
mod sysfs;
mod xid_watch;

use std::process::ExitCode;

use railgate_child::Task;

pub use extras::{read_topology_file, site_checks};
pub use gpu_watch::{GpuWatch, own_memory_mib};
pub use job_group::{GroupUse, JobGroup};
pub use job_member::{JobMember, MemberState, MemberWork, NoMember};
pub use job_outputs::{MOST_OUTPUTS, job_outputs};
pub use job_processes::{JobHere, JobProbe, job_here, job_is_stopped, job_processes};
pub use live::{Request, follow_up, live};
pub use optics::module_of_dump;
pub use process_end::{EndedProcess, ExitTold, Hold, ProcessId, ProcessWatch};
pub use rail_counters::{RailTraffic, RailTrouble, port_state, rail_traffic, rail_trouble};
pub use rank_states::{RankReading, last_write, rank_readings};
pub use source::SourceConfig;
pub use xid_watch::XidWatch;

/// In a child process: runs its task and returns the exit code that `main` must return. Otherwise returns `None`.
///
/// `tasks` are the program's own; the tasks of this crate are always included. A program without this crate calls
/// [`railgate_child::dispatch`].
pub fn dispatch(tasks: &[Task]) -> Option<ExitCode> {
    railgate_child::dispatch(&[
        live::TASKS,
        extras::TASKS,
        &job_processes::TASKS,
        &[process_end::TASK],
        tasks,
    ])
}

//! Records of a job: what each node reports about an attempt, and what the controller adds.
//!
//! Each node writes a [`NodeReport`] per attempt: use of the hardware, counters before and after, NCCL, evidence.
//! The controller adds its [`Decision`] and a [`SlurmEnd`]. Reports never decide about a node, because they
//! belong to the user, who may have changed them.

pub mod application;
mod applied;
pub mod comm;
mod config;
mod counters;
mod decision;
mod evidence;
mod for_reader;
mod gpu_errors;
mod hangs;
mod job_log;
mod launched;
mod node_report;
mod node_wait;
pub mod phases;
pub mod plain;
pub mod python_file;
mod slurm_end;
mod slurm_view;
pub mod stacks;
mod task_ranks;
mod tasks;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transport;
pub mod usage;

pub use application::Application;
pub use applied::{Applied, AppliedBy, applied};
pub use comm::Communication;
pub use config::StatsConfig;
pub use counters::{Counter, ERROR_COUNTERS, GpuUse, PortUse, RunGpus, Window, gpu_uses, port_uses};
pub use decision::{Budget, Decision, DecisionKind, DecisionNode, Discounted};
pub use evidence::{evidence, kernel_events};
pub use for_reader::{finding_for_reader, reason_for_reader};
pub use gpu_errors::GpuError;
pub use hangs::{Culprit, Hang, HangAct, HangActKind, HangKind, Hangs, WaitedIn};
pub use job_log::{JobLog, LogError, LogFound};
pub use launched::{LAUNCH_FILE, LaunchStart, Launched, LeftOut};
pub use node_report::{
    Act, ActKind, EvidenceItem, Exit, GateRun, KernelEvents, MissingPart, NodeReport, Options, REPORT_SCHEMA,
    SetBy, StepEnv, StepSetting,
};
pub use node_wait::{MOST_AT_REST, NodeWait};
pub use slurm_end::SlurmEnd;
pub use slurm_view::{DownNode, SlurmView};
pub use stacks::{JobStacks, RankStack, Stacks};
pub use task_ranks::{TaskRank, add_ranks, programs};
pub use tasks::{JOB_NAME, StepStart, TaskGroup, Tasks, start_at};
pub use transport::{Over, Sure, Transport, transport};
pub use usage::Usage;

//! Statistics of a job: counters before and after it, why it ended, and the report.
//!
//! Each node writes a [`NodeReport`] per attempt, and the controller a [`Decision`]; a job's report is their
//! merge. Reports never decide about a node, because they belong to the user, who may have changed them.

pub mod application;
mod applied;
pub mod comm;
mod config;
mod counters;
mod decision;
pub mod diagnosis;
mod evidence;
mod exits;
mod for_reader;
mod html;
mod job_report;
mod json;
pub mod metrics;
mod next_step;
mod node_report;
mod plain;
mod redact;
mod slurm_end;
pub mod store;
mod tasks;
#[cfg(test)]
mod testing;
mod text;
mod timeline;
mod transport;
pub mod usage;
mod view;
mod why;

pub use application::Application;
pub use applied::{Applied, AppliedBy, applied};
pub use comm::Communication;
pub use config::{MetricsConfig, ReportAccess, ReportConfig, StatsConfig};
pub use counters::{Counter, ERROR_COUNTERS, GpuUse, PortUse, RunGpus, Window, gpu_uses, port_uses};
pub use decision::{Budget, Decision, DecisionKind, DecisionNode, Discounted};
pub use evidence::{evidence, kernel_events};
pub use for_reader::{finding_for_reader, reason_for_reader};
pub use html::{html, html_with, redacted_html};
pub use job_report::{Attempt, DownNode, JobReport, Missing, Parts, SlurmView};
pub use json::json;
pub use node_report::{
    Act, ActKind, EvidenceItem, Exit, KernelEvents, Look, MissingPart, NodeReport, Options, REPORT_SCHEMA,
    SetBy, StepEnv, StepSetting,
};
pub use redact::redacted_json;
pub use slurm_end::SlurmEnd;
pub use tasks::{JOB_NAME, TaskGroup, Tasks};
pub use text::{brief, live, redacted, summary, text};
pub use timeline::{Event, Weight};
pub use transport::{Over, Sure, Transport, transport};
pub use usage::Usage;
pub use why::{EndKind, Ended, Next, Proof, why_ended};

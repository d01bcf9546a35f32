//! Judges whether a node is fit: takes a [`railgate_model::Snapshot`] and the site's policy, returns a verdict with
//! evidence.
//!
//! Judging is a pure function: no files, no clock, no processes, no environment (`clippy.toml` forbids them in this
//! crate). [`judge()`] runs the checks of [`CHECKS`] that apply to the phase, the job and the configuration, gives each
//! finding the strongest action that its class, the policy of the phase and its check allow, and selects the one that
//! decides.
//!
//! ```text
//! checks/*.rs   one file per check: settings, explanation, judgement, tests
//! register.rs   the trait of a check, and the macro that makes the register
//! settings.rs   the macro that makes a check's table, defaults, limits and documentation from one list
//! scene.rs      what is judged: the job's GPUs, the ports nearest to them
//! plan.rs       what must be read for the running checks, from the needs that each states
//! judge.rs      findings and policy in, verdict out
//! ```

mod agreement;
mod catalogue;
mod checks;
mod config;
mod gpu_counters;
mod graded;
mod growth;
mod judge;
mod links;
mod near;
mod plan;
mod policy;
mod register;
mod report;
mod scene;
mod seen;
mod settings;
#[cfg(test)]
mod testing;
mod trend;
mod wanted;
mod when;

pub use catalogue::{catalogue_markdown, explain};
pub use checks::gpu_self_test::baseline as self_test_baseline;
pub use checks::kmsg_table::{KernelLineJudgement, kernel_line_judgement};
pub use checks::{CHECKS, Checks};
pub use config::{GateConfig, Mode, NewChecks};
pub use gpu_counters::KnownCounts;
pub use judge::{judge, would_drain};
pub use links::{KnownLink, Sample};
pub use plan::{follow_ups, plan};
pub use policy::{PhasePolicy, class_cap};
pub use register::{CheckInfo, Level, Scope};
pub use scene::covers_whole_node;
pub use seen::{KnownCheck, KnownHca, KnownSleep, Memory, Seen, Strike, devices_are_well};

//! Connects the crates for one phase: configuration, switches, history, one check run of the node, and the actions
//! that follow.
//!
//! prolog, epilog and the command line are thin because they share this crate.

mod act;
mod after_step;
mod application;
mod asked_check;
mod calibrations;
mod check_run;
mod config;
mod finding_history;
mod fleet_config;
mod hang_end;
mod history;
mod hook;
mod launch_config;
mod launched;
mod logging;
mod lost_script;
mod metrics;
mod notify;
mod places;
mod preflight_mark;
mod process;
mod ranks;
mod readmit;
mod sampler;
mod self_test_config;
mod silences;
mod standing;
mod sweep;
pub mod switches;
#[cfg(test)]
mod testing;
mod user_file;

pub use act::{Periodic, acting, desk, drain, periodic, record};
pub use after_step::check_after_step;
pub use application::application;
pub use asked_check::ask_full_check;
pub use calibrations::{calibrated_cards, gpu_figures, keep_calibration};
pub use check_run::{CheckRun, Purpose, check_node, profile_of, settle};
pub use config::{Config, ConfigError, InForce, Loaded, Problem, SetAt};
pub use finding_history::{Count, Episode, FindingHistory, Given};
pub use fleet_config::{FleetConfig, Lemons, StorageConfig, UfmConfig, UfmSeverity};
pub use hang_end::{HangEnd, HungJob, guard_of_job};
pub use history::{History, kernel_mark};
pub use hook::Hook;
pub use launch_config::LaunchConfig;
pub use launched::launched;
pub use logging::{LogConfig, LogLevel, start as start_logging, start_stderr};
pub use lost_script::{BatchScript, ScriptNode};
pub use metrics::forget_job;
pub use notify::{append_to_log, append_to_output, notify_owner};
pub use places::Places;
pub use preflight_mark::preflight_mark;
pub use process::{become_owner, guarded, node_name, now, own_process};
pub use ranks::communication;
pub use readmit::{Readmit, Readmitted, readmit};
pub use sampler::{
    SAMPLER_END, SAMPLER_FILES, SAMPLER_GPUS, SAMPLER_HANGS, SAMPLER_OUTPUTS, SAMPLER_PAUSES, SAMPLER_SOCKET,
    SAMPLER_TASKS, SAMPLER_WAIT, SAMPLER_XIDS, SAMPLES_EVENTS, SAMPLES_FINE, SAMPLES_MINUTES, SamplerEnd,
    YIELD_SOCKET, end_sampler, start_sampler,
};
pub use self_test_config::SelfTestConfig;
pub use silences::{FleetSilence, FleetSilences, NewSilence, SilenceFile, SilencesError};
pub use standing::{StandingNodes, looks_at_others, standing_nodes};

/// Tasks that the programs' isolated children can run, besides the probe's own.
pub fn tasks() -> Vec<railgate_child::Task> {
    let mut tasks = railgate_store::TASKS.to_vec();
    tasks.extend([application::TASK, ranks::TASK, preflight_mark::TASK, launched::TASK]);
    tasks.push(lost_script::TASK);
    tasks.extend(hang_end::TASKS);
    tasks.extend(notify::TASKS);
    tasks
}

//! The end of a step that `railgate launch` started: root checks this node if a task failed, so that launch can tell a fault of the node
//! from one of the program. `railgate check --after-step` does it, writes the result for the job, and drains an unfit node by the
//! site's policy.
//!
//! The step ends only after this. A task that succeeded costs nothing.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use railgate_rankfile::START_VARIABLE;
use slurm_spank::{LogLevel, SpankHandle};

use crate::child;
use crate::log::log;
use crate::remote::job_of_step;

const PROGRAM: &str = "/usr/bin/railgate";
/// The check itself ends after 10 s.
const DEADLINE: Duration = Duration::from_secs(12);

/// A task of this step ended with an exit code that is not 0, or by a signal.
static FAILED: OnceLock<()> = OnceLock::new();

/// Remembers a failed task.
pub(crate) fn note_end(handle: &SpankHandle<'_>) {
    if handle.task_exit_status().is_ok_and(|status| status != 0) {
        let _ = FAILED.set(());
    }
}

/// Checks the node after a failed step of `railgate launch`.
pub(crate) fn check_node(handle: &SpankHandle<'_>) {
    if FAILED.get().is_none() {
        return;
    }
    let Some(job) = job_of_step() else { return };
    // The job's own variable. Root does nothing with the number but to repeat it to the job.
    let Some(start) = handle.getenv_lossy(START_VARIABLE).ok().flatten() else { return };
    let Ok(start) = start.parse::<u32>() else { return };
    if let Err(why) = run(job, start) {
        log(LogLevel::Info, format_args!("no check of the node after the step: {PROGRAM}: {why}"));
    }
}

fn run(job: u32, start: u32) -> Result<(), String> {
    let mut command = Command::new(PROGRAM);
    command
        .args(["check", "--drain", "--after-step", &format!("{job}:{start}")])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Where slurmd has been told of another place.
    if let Some(conf) = std::env::var_os("SLURM_CONF") {
        command.env("SLURM_CONF", conf);
    }
    let mut started = command.process_group(0).spawn().map_err(|why| why.to_string())?;
    let status = child::wait(&mut started, DEADLINE)?;
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

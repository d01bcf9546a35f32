//! The end of a step that `railgate launch` started: root checks this node if a task failed, so that launch can tell a fault of the node
//! from one of the program. `railgate check --after-step` does it, writes the result for the job, and drains an unfit node by the
//! site's policy.
//!
//! The step ends only after this. If no task failed, a file that states so is all.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use railgate_rankfile::START_VARIABLE;
use railgate_rundir::{Root, StepCheck};
use slurm_spank::{LogLevel, SpankHandle};

use crate::arguments::Arguments;
use crate::child;
use crate::log::log;
use crate::remote::job_of_step;

const PROGRAM: &str = "/usr/bin/railgate";
/// The check itself ends after 10 s.
const DEADLINE: Duration = Duration::from_secs(12);
const PAUSE: Duration = Duration::from_millis(50);

/// A task of this step ended with an exit code that is not 0, or by a signal.
static FAILED: OnceLock<()> = OnceLock::new();

/// Remembers a failed task.
pub(crate) fn note_end(handle: &SpankHandle<'_>) {
    if handle.task_exit_status().is_ok_and(|status| status != 0) {
        let _ = FAILED.set(());
    }
}

/// Checks the node after a failed step of `railgate launch`.
pub(crate) fn check_node(handle: &SpankHandle<'_>, arguments: &Arguments) {
    let Some(job) = job_of_step() else { return };
    // The job's own variable. Root does nothing with the number but to repeat it to the job.
    let Some(start) = handle.getenv_lossy(START_VARIABLE).ok().flatten() else { return };
    let Ok(start) = start.parse::<u32>() else { return };
    let done = if FAILED.get().is_some() { run(job, start) } else { not_checked(arguments, job, start) };
    if let Err(why) = done {
        log(LogLevel::Info, format_args!("no check of the node after the step: {why}"));
    }
}

fn not_checked(arguments: &Arguments, job: u32, start: u32) -> Result<(), String> {
    let run = Root::new(&arguments.run_dir).job(job).current(job).map_err(|why| why.to_string())?;
    StepCheck::new(start, None, String::new()).write(&run).map_err(|why| why.to_string())
}

/// srun and slurmctld end a step with signals for all its processes; with `proctrack/linuxproc` and `pgid` these include what slurmstepd has
/// started.
fn run(job: u32, start: u32) -> Result<(), String> {
    let until = Instant::now() + DEADLINE;
    loop {
        let mut started = check(job, start).spawn().map_err(|why| format!("{PROGRAM}: {why}"))?;
        let left = until.saturating_duration_since(Instant::now());
        match child::wait(&mut started, left) {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) if status.signal().is_some() && Instant::now() < until => sleep(PAUSE),
            Ok(status) => return Err(format!("{PROGRAM}: {status}")),
            Err(why) => return Err(format!("{PROGRAM}: {why}")),
        }
    }
}

fn check(job: u32, start: u32) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(["check", "--drain", "--after-step", &format!("{job}:{start}")])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    // Slurm's own, where it is not in its usual place.
    if let Some(conf) = std::env::var_os("SLURM_CONF") {
        command.env("SLURM_CONF", conf);
    }
    command
}

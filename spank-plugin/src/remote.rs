//! In a task: a child of slurmstepd after the fork, with the user's rights, before the user's program. Its
//! parent had threads, so nothing here starts one or waits for one.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use railgate_rundir::{Change, NcclConf, TaskEnv, Used, merge};
use slurm_spank::{LogLevel, SpankHandle, spank_log};

use crate::arguments::Arguments;

/// Steps beyond write no file about what they used: the job's directory is small, and a job can have many.
const STEPS_NOTED: u32 = 64;

const BATCH: u32 = 0xffff_fffb;
const INTERACTIVE: u32 = 0xffff_fffa;

/// Gives the task its environment from the one file that the prolog left. Without it, or with one that cannot
/// be read, the task keeps what it has.
pub(crate) fn prepare(handle: &SpankHandle<'_>, arguments: &Arguments) {
    let (Ok(job), Ok(step)) = (handle.job_id(), handle.job_stepid()) else { return };
    let Some(step_name) = step_name(step) else { return };
    let job_dir = format!("{}/jobs/{job}/current", arguments.run_dir);
    let env = match TaskEnv::read(Path::new(&format!("{job_dir}/task.env"))) {
        Ok(env) => env,
        // The prolog was off, or came later than the job.
        Err(why) if why.kind() == io::ErrorKind::NotFound => return,
        Err(why) => {
            spank_log(LogLevel::Error, &format!("railgate: {job_dir}/task.env: {why}; nothing is set"));
            return;
        }
    };
    let now = |name: &str| handle.getenv_os(name).ok()?.map(OsStringExt::into_vec);
    let merged = merge(&env, &job_dir, now, || users_file(handle).unwrap_or_default());
    for change in &merged.changes {
        let (name, done) = match change {
            Change::Set(name, value) => (name, handle.setenv(name, value, true)),
            Change::Unset(name) => (name, handle.unsetenv(name)),
        };
        if let Err(why) = done {
            spank_log(LogLevel::Debug, &format!("railgate: {name}: {why}"));
        }
    }
    if !handle.task_id().is_ok_and(|task| task == 0) {
        return;
    }
    if step == BATCH {
        tell(&env.notices);
    }
    if step < STEPS_NOTED || step == BATCH || step == INTERACTIVE {
        // It is for the report alone, and the job may have filled its directory.
        let _ = note(&format!("{job_dir}/user/env.{step_name}"), &merged.used);
    }
}

/// The user's own file for NCCL, with the user's rights, as NCCL finds it: values there are the user's. A path
/// that is relative depends on where the program starts, and NCCL reads what is there.
fn users_file(handle: &SpankHandle<'_>) -> Option<NcclConf> {
    let variable = |name: &str| handle.getenv_os(name).ok().flatten().filter(|value| !value.is_empty());
    let path = match variable("NCCL_CONF_FILE") {
        Some(file) => PathBuf::from(file),
        None => PathBuf::from(variable("HOME")?).join(".nccl.conf"),
    };
    path.is_absolute().then(|| NcclConf::read(&path).ok()).flatten()
}

/// `None` for steps that run no program of the user's.
fn step_name(step: u32) -> Option<String> {
    match step {
        BATCH => Some("batch".to_owned()),
        INTERACTIVE => Some("interactive".to_owned()),
        // The extern step, and whatever Slurm makes of this range later.
        0xffff_fff0.. => None,
        _ => Some(step.to_string()),
    }
}

fn note(path: &str, used: &[Used]) -> io::Result<()> {
    File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?
        .write_all(Used::to_text(used).as_bytes())
}

/// Standard error is the task's own by now: the job's output file.
fn tell(notices: &[String]) {
    let mut text = String::new();
    for notice in notices.iter().take(16) {
        text.push_str(notice);
        text.push('\n');
    }
    let _ = io::stderr().write_all(text.as_bytes());
}

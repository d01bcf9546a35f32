//! In slurmstepd, and in a task: its child after the fork, with the user's rights, before the user's program. The
//! parent has threads, so nothing here starts one or waits for one.
//!
//! A plugin that starts containers (pyxis) has moved the task into one before it comes to us, and brought the image's
//! variables with it. So what lies on the node is read while slurmstepd itself is asked, and what the environment was
//! like by then is kept: what is new since is the image's.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use railgate_rundir::{Change, NcclConf, NoteDir, TaskEnv, Used, Winner, merge};
use slurm_spank::{LogLevel, SpankError, SpankHandle};

use crate::arguments::Arguments;
use crate::log::{log, tell};

/// Steps beyond write no file about what they used: the job's directory is small, and a job can have many.
const STEPS_NOTED: u32 = 64;

const BATCH: u32 = 0xffff_fffb;
const INTERACTIVE: u32 = 0xffff_fffa;

/// One slurmstepd has one step. Written before it forks, only read afterwards.
static KEPT: OnceLock<Kept> = OnceLock::new();

/// What slurmstepd saw on the node.
#[derive(Debug)]
struct Kept {
    job: u32,
    step: u32,
    /// What the prolog left, or why it cannot be read.
    env: io::Result<TaskEnv>,
    notes: Option<NoteDir>,
    /// Each variable of ours, as the step had it; `None` where Slurm did not say.
    before: Option<Vec<(String, Option<Vec<u8>>)>>,
}

impl Kept {
    /// A value that the step did not have.
    fn is_new(&self, used: &Used) -> bool {
        let Some(before) = &self.before else { return false };
        let had = before.iter().find(|(name, _)| *name == used.name).and_then(|(_, value)| value.as_ref());
        had.is_none_or(|had| Used::new(used.winner, &used.name, had).value != used.value)
    }
}

/// In slurmstepd, as root, before anything of the user's: reads what the prolog left.
pub(crate) fn remember(handle: &SpankHandle<'_>, arguments: &Arguments) {
    let (Ok(job), Ok(step)) = (handle.job_id(), handle.job_stepid()) else { return };
    if step_name(step).is_none() {
        return;
    }
    let job_dir = job_dir(arguments, job);
    // Only root can read it. An error is logged in the task.
    let env = TaskEnv::read(Path::new(&format!("{job_dir}/task.env")));
    if env.as_ref().is_err_and(|why| why.kind() == io::ErrorKind::NotFound) {
        return;
    }
    let had = |name: &str| handle.getenv_os(name).map(|value| value.map(OsStringExt::into_vec));
    let settings = env.iter().flat_map(|env| &env.settings);
    let before = settings.map(|setting| Ok((setting.name.clone(), had(&setting.name)?)));
    let before = before.collect::<Result<_, SpankError>>().ok();
    let notes = NoteDir::find(Path::new(&job_dir)).ok();
    let _ = KEPT.set(Kept { job, step, env, notes, before });
}

fn job_dir(arguments: &Arguments, job: u32) -> String {
    format!("{}/jobs/{job}/current", arguments.run_dir)
}

fn value(handle: &SpankHandle<'_>, name: &str) -> Option<Vec<u8>> {
    handle.getenv_os(name).ok()?.map(OsStringExt::into_vec)
}

/// Gives the task its environment from the one file that the prolog left. Without it, or with one that cannot
/// be read, the task keeps what it has.
pub(crate) fn prepare(handle: &SpankHandle<'_>, arguments: &Arguments) {
    let (Ok(job), Ok(step)) = (handle.job_id(), handle.job_stepid()) else { return };
    let Some(step_name) = step_name(step) else { return };
    let job_dir = job_dir(arguments, job);
    let kept = KEPT.get().filter(|kept| (kept.job, kept.step) == (job, step));
    let read;
    let env = match kept {
        Some(kept) => &kept.env,
        None => {
            read = TaskEnv::read(Path::new(&format!("{job_dir}/task.env")));
            &read
        }
    };
    let env = match env {
        Ok(env) => env,
        // The prolog was off, or came later than the job.
        Err(why) if why.kind() == io::ErrorKind::NotFound => return,
        Err(why) => {
            log(LogLevel::Error, format_args!("{job_dir}/task.env: {why}; nothing is set"));
            return;
        }
    };
    let conf = || users_file(handle).unwrap_or_default();
    let mut merged = merge(env, &job_dir, |name| value(handle, name), conf);
    for change in &merged.changes {
        let (name, done) = match change {
            Change::Set(name, value) => (name, handle.setenv(name, value, true)),
            Change::Unset(name) => (name, handle.unsetenv(name)),
        };
        if let Err(why) = done {
            log(LogLevel::Debug, format_args!("{name}: {why}"));
        }
    }
    if !handle.task_id().is_ok_and(|task| task == 0) {
        return;
    }
    if step == BATCH {
        tell(&env.notices);
    }
    if step < STEPS_NOTED || step == BATCH || step == INTERACTIVE {
        for used in merged.used.iter_mut().filter(|used| used.winner == Winner::User) {
            let in_file = value(handle, &used.name).is_none();
            if kept.is_some_and(|kept| !in_file && kept.is_new(used)) {
                used.winner = Winner::Image;
            }
        }
        let notes = match kept {
            Some(kept) => kept.notes.as_ref(),
            None => None,
        };
        let found = if notes.is_none() { NoteDir::find(Path::new(&job_dir)).ok() } else { None };
        if let Some(dir) = notes.or(found.as_ref()) {
            // It is for the report alone, and the job may have filled its directory.
            let _ = dir.write(&format!("env.{step_name}"), Used::to_text(&merged.used).as_bytes());
        }
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

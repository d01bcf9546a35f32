//! Runs in slurmstepd, and in its child after the fork with the user's rights, before the user's program (the task).
//! The parent has threads, so the child must neither start a thread nor wait for one.
//!
//! A plugin that starts containers (pyxis) has moved the task into one before this plugin is called, and has set the
//! image's variables. So the node's files are read in slurmstepd, and the environment of that moment is kept:
//! variables that are new later come from the image.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use railgate_rundir::{Change, NcclConf, NoteDir, TaskEnv, Used, Winner, merge};
use slurm_spank::{LogLevel, SpankError, SpankHandle};

use crate::arguments::Arguments;
use crate::before_script;
use crate::log::{log, tell};

/// Most steps that write a file about the settings they used: the job's directory is small, and a job can have many
/// steps.
const STEPS_NOTED: u32 = 64;

/// From here on numbers are not those of srun's steps.
const SPECIAL: u32 = 0xffff_fff0;
const BATCH: u32 = 0xffff_fffb;
const INTERACTIVE: u32 = 0xffff_fffa;

/// One slurmstepd has one step. Written before the fork, only read afterwards.
static KEPT: OnceLock<Kept> = OnceLock::new();

/// State of the node as read in slurmstepd.
#[derive(Debug)]
struct Kept {
    job: u32,
    step: u32,
    /// The prolog's settings, or why they cannot be read.
    env: io::Result<TaskEnv>,
    notes: Option<NoteDir>,
    /// railgate's variables in the step's environment; `None` if Slurm did not return it.
    before: Option<Vec<(String, Option<Vec<u8>>)>>,
}

impl Kept {
    /// Whether the step did not have this value yet.
    fn is_new(&self, used: &Used) -> bool {
        let Some(before) = &self.before else { return false };
        let had = before.iter().find(|(name, _)| *name == used.name).and_then(|(_, value)| value.as_ref());
        had.is_none_or(|had| Used::new(used.winner, &used.name, had).value != used.value)
    }
}

/// In slurmstepd, as root, before any user code: reads the prolog's files.
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

/// The job whose step this is, if the prolog has left files for it and the step runs a program of the user with srun.
pub(crate) fn job_of_step() -> Option<u32> {
    KEPT.get().filter(|kept| kept.env.is_ok() && kept.step < SPECIAL).map(|kept| kept.job)
}

fn job_dir(arguments: &Arguments, job: u32) -> String {
    format!("{}/jobs/{job}/current", arguments.run_dir)
}

fn value(handle: &SpankHandle<'_>, name: &str) -> Option<Vec<u8>> {
    handle.getenv_os(name).ok()?.map(OsStringExt::into_vec)
}

/// Sets the task's environment from the prolog's settings. If they are missing or unreadable, the environment is not
/// changed.
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
        // The prolog did not run, or was enabled after the job started.
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
            // A failure is ignored: the file is only for the report, and the job may have filled its directory.
            let _ = dir.write(&format!("env.{step_name}"), Used::to_text(&merged.used).as_bytes());
        }
    }
    if step == BATCH && before_script::is_asked(env) {
        before_script::preflight(handle);
    }
}

/// The user's own NCCL configuration file, found as NCCL finds it and read with the user's rights: its values take
/// precedence as the user's. A relative path depends on where the program starts, and is left to NCCL.
fn users_file(handle: &SpankHandle<'_>) -> Option<NcclConf> {
    let variable = |name: &str| handle.getenv_os(name).ok().flatten().filter(|value| !value.is_empty());
    let path = match variable("NCCL_CONF_FILE") {
        Some(file) => PathBuf::from(file),
        None => PathBuf::from(variable("HOME")?).join(".nccl.conf"),
    };
    path.is_absolute().then(|| NcclConf::read(&path).ok()).flatten()
}

/// Name of the step; `None` for steps that run no user program.
fn step_name(step: u32) -> Option<String> {
    match step {
        BATCH => Some("batch".to_owned()),
        INTERACTIVE => Some("interactive".to_owned()),
        // The extern step and other special steps, also future ones in this range.
        SPECIAL.. => None,
        _ => Some(step.to_string()),
    }
}

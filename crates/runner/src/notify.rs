//! Notifies a job's owner why the job does not start on this node: in its output file, and on the terminal of a
//! waiting srun or salloc.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc::{O_NOCTTY, O_NONBLOCK};
use nix::unistd::{Gid, getgrouplist};
use railgate_child::{Task, become_user};
use railgate_model::Job;
use railgate_slurm::{Client, JobRef, OwnersView};
use railgate_text::printable;
use serde::{Deserialize, Serialize};

use crate::Hook;
use crate::act::loaded;

/// A home directory on a network that hangs must not delay the prolog.
const DEADLINE: Duration = Duration::from_secs(5);
/// Nor must slurmctld: the node is drained already, only the notice is missing.
const SLURM_DEADLINE: Duration = Duration::from_secs(10);

const APPEND: &str = "tell-owner";
const OUTPUT: &str = "job-output";

pub(crate) const TASKS: [Task; 2] = [Task::new(APPEND, append), Task::new(OUTPUT, output)];

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    uid: u32,
    gid: u32,
    user: String,
    path: PathBuf,
    text: String,
    /// A job that has not started has no output file yet.
    create: bool,
}

/// Notifies the owner of the hook's job: on the terminal where srun or salloc waits, in the output file of a batch
/// job. `text` makes the line from Slurm's view of the job. A failure is logged and has no other effect. Returns the
/// line if it was delivered.
pub fn notify_owner(
    hook: &Hook,
    client: &Client,
    text: impl FnOnce(&OwnersView) -> String,
) -> Option<String> {
    let client = client.until(Instant::now() + SLURM_DEADLINE);
    let view = client.owners_view(hook.job.id).unwrap_or_else(|why| {
        tracing::warn!(job = hook.job.id, "unknown how to notify its owner: {why}");
        OwnersView::default()
    });
    let text = printable(&text(&view)).into_owned();
    let mut told = false;
    // A pending batch job has no step to notify, and a plain number could mean a whole array.
    if view.batch == Some(false) {
        match client.notify(&JobRef::plain(hook.job.id), &text) {
            Ok(()) => told = true,
            Err(why) => tracing::warn!(job = hook.job.id, "owner not notified: {why}"),
        }
    }
    if let Some(path) = view.output {
        match append_as_owner(&hook.job, &path, &text, true) {
            Ok(()) => told = true,
            Err(why) => tracing::warn!(job = hook.job.id, "{path:?}: owner not notified: {why}"),
        }
    }
    told.then_some(text)
}

/// Appends a line to the output of the hook's job if the file is visible on this node. A failure is logged.
pub fn append_to_output(hook: &Hook, client: &Client, text: &str) {
    let job = hook.job.id;
    match client.owners_view(job).map(|view| view.output) {
        Ok(Some(path)) => {
            if let Err(why) = append_as_owner(&hook.job, &path, &printable(text), false) {
                tracing::info!(job, "{path:?}: last line not written: {why}");
            }
        }
        Ok(None) => {}
        Err(why) => tracing::info!(job, "last line of the output not written: {why}"),
    }
}

/// Appends a line to a log of a running job. Returns after five seconds at the latest. `path`: if it is `None`, Slurm is asked for the output
/// file of the job, for up to ten seconds more: of a task that `srun` has started, only the node of the batch script knows where its output
/// goes.
///
/// # Errors
/// Returns why it was not written, with the path: its owner may not write there, it is no regular file, it does not exist, or slurmctld
/// does not answer.
pub fn append_to_log(job: &Job, path: Option<&Path>, text: &str) -> Result<(), String> {
    let path = path.map_or_else(|| output_of(job), |path| Ok(path.to_owned()))?;
    append_as_owner(job, &path, &printable(text), false).map_err(|why| format!("{path:?}: {why}"))
}

/// Asks in a child: Slurm's commands need memory.
fn output_of(job: &Job) -> Result<PathBuf, String> {
    if job.uid == 0 {
        return Err("a job of root".to_owned());
    }
    let order = serde_json::to_vec(&job.id).map_err(|why| why.to_string())?;
    let path = railgate_child::ask(OUTPUT, &order, SLURM_DEADLINE)?;
    serde_json::from_slice(&path).map_err(|why| why.to_string())
}

fn output(input: &[u8]) -> Result<Vec<u8>, String> {
    let job: u32 = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let (_, _, client) = loaded()?;
    let view = client.owners_view(job).map_err(|why| why.to_string())?;
    let path = view.output.ok_or("Slurm names no output file of the job")?;
    serde_json::to_vec(&path).map_err(|why| why.to_string())
}

fn append_as_owner(job: &Job, path: &Path, text: &str, create: bool) -> Result<(), String> {
    let line = Line {
        uid: job.uid,
        gid: job.gid,
        user: job.user.clone(),
        path: path.to_owned(),
        text: text.to_owned(),
        create,
    };
    let input = serde_json::to_vec(&line).map_err(|why| why.to_string())?;
    railgate_child::ask(APPEND, &input, DEADLINE).map(drop)
}

/// Runs in a child, as the job's user: only files that the user can write are written.
fn append(input: &[u8]) -> Result<Vec<u8>, String> {
    let line: Line = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let name = CString::new(line.user).map_err(|why| why.to_string())?;
    let groups = getgrouplist(&name, Gid::from_raw(line.gid)).unwrap_or_default();
    let groups: Vec<u32> = groups.into_iter().map(Gid::as_raw).collect();
    become_user(line.uid, line.gid, &groups).map_err(|why| why.to_string())?;
    let mut file = File::options()
        .append(true)
        .create(line.create)
        // The job's umask is unknown here, and the file remains the job's log.
        .mode(0o600)
        .custom_flags(O_NONBLOCK | O_NOCTTY)
        .open(&line.path)
        .map_err(|why| why.to_string())?;
    if !file.metadata().map_err(|why| why.to_string())?.is_file() {
        return Err("not a regular file".to_owned());
    }
    file.write_all(format!("{}\n", line.text).as_bytes()).map_err(|why| why.to_string())?;
    Ok(Vec::new())
}

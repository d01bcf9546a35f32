//! Telling a job's owner why it does not start here: in its output file, and on the terminal of an srun or a
//! salloc that waits.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc::{O_NOCTTY, O_NONBLOCK};
use nix::unistd::{Gid, getgrouplist};
use railgate_node::child::{self, Outcome, Task, become_user};
use railgate_slurm::{Client, JobRef};
use serde::{Deserialize, Serialize};

use crate::Hook;

/// A home on a network that hangs must not hold up the prolog.
const DEADLINE: Duration = Duration::from_secs(5);

const APPEND: &str = "tell-owner";

pub(crate) const TASK: Task = Task::new(APPEND, append);

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    uid: u32,
    gid: u32,
    user: String,
    path: PathBuf,
    text: String,
}

/// Tells the owner of the hook's job. Nothing depends on it: what cannot be told is logged.
pub fn tell_owner(hook: &Hook, client: &Client, text: &str) {
    let job = JobRef::plain(hook.job.id);
    if let Err(why) = client.notify(&job, text) {
        // Slurm refuses it for a batch job that has not started, which is most of them.
        tracing::debug!(job = hook.job.id, "notify: {why}");
    }
    let output = match client.output_file(&job) {
        Ok(path) => path,
        Err(why) => {
            tracing::warn!(job = hook.job.id, "output file: {why}");
            None
        }
    };
    let Some(path) = output.filter(|path| path != Path::new("/dev/null")) else {
        return;
    };
    let line = Line {
        uid: hook.job.uid,
        gid: hook.job.gid,
        user: hook.job.user.clone(),
        path,
        text: text.to_owned(),
    };
    let input = match serde_json::to_vec(&line) {
        Ok(input) => input,
        Err(why) => return tracing::warn!(job = hook.job.id, "output file: {why}"),
    };
    match child::run(APPEND, &input, DEADLINE) {
        Outcome::Done(_) => {}
        other => tracing::warn!(job = hook.job.id, "{}: owner not told: {other:?}", line.path.display()),
    }
}

/// In a child: as the job's user, so that nothing is written that they could not write themselves.
fn append(input: &[u8]) -> Result<Vec<u8>, String> {
    let line: Line = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let name = CString::new(line.user).map_err(|why| why.to_string())?;
    let groups = getgrouplist(&name, Gid::from_raw(line.gid)).unwrap_or_default();
    let groups: Vec<u32> = groups.into_iter().map(Gid::as_raw).collect();
    become_user(line.uid, line.gid, &groups).map_err(|why| why.to_string())?;
    let mut file = File::options()
        .append(true)
        .create(true)
        .mode(0o644)
        .custom_flags(O_NONBLOCK | O_NOCTTY)
        .open(&line.path)
        .map_err(|why| why.to_string())?;
    if !file.metadata().map_err(|why| why.to_string())?.is_file() {
        return Err("not a regular file".to_owned());
    }
    file.write_all(format!("{}\n", line.text).as_bytes()).map_err(|why| why.to_string())?;
    Ok(Vec::new())
}

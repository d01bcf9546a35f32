//! Files of a job's owner in the run's directory, read in a child with a deadline.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use railgate_rundir::{BadUserFile, Root, RunDir, UserDir};
use serde::de::DeserializeOwned;

const DEADLINE: Duration = Duration::from_secs(5);

/// Runs a task of this process in a child, for a job of this owner, and parses its answer. `run`: [`crate::Places::run`].
///
/// # Errors
/// In words: the child failed or did not answer in time.
pub(crate) fn ask<T: DeserializeOwned>(task: &str, run: &Path, job: u32, uid: u32) -> Result<T, String> {
    let order = serde_json::to_vec(&(run, job, uid)).map_err(|why| why.to_string())?;
    let reply = railgate_child::ask(task, &order, DEADLINE)?;
    serde_json::from_slice(&reply).map_err(|why| why.to_string())
}

/// In the child: the directory of the job's current run, and the owner, from the input of [`ask`].
///
/// # Errors
/// In words.
pub(crate) fn asked(input: &[u8]) -> Result<(RunDir, u32), String> {
    let (root, job, uid): (PathBuf, u32, u32) =
        serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let dir = Root::new(root).job(job).current(job).map_err(|why| why.to_string())?;
    Ok((dir, uid))
}

/// Reads a file that the job's owner may have written; `None` if there is none.
pub(crate) fn read_if_present(
    dir: &RunDir,
    uid: u32,
    name: &str,
    most_bytes: u64,
) -> Result<Option<Vec<u8>>, BadUserFile> {
    let absent = |why: &io::Error| why.kind() == io::ErrorKind::NotFound;
    let user = match UserDir::open(dir, uid) {
        Err(why) if absent(&why) => return Ok(None),
        opened => opened?,
    };
    match user.read(name, most_bytes) {
        Err(BadUserFile::Io(why)) if absent(&why) => Ok(None),
        read => read.map(Some),
    }
}

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

use railgate_fsutil::FileLock;
use railgate_slurm::{JobState, SlurmError};

use crate::call::Call;

/// The first pause; each further one is half as long again, up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(300);
const LONGEST: Duration = Duration::from_secs(8);

/// Result of waiting.
#[derive(Debug)]
pub(crate) struct Waited {
    /// The job's components in the last answer.
    pub(crate) job: Vec<JobState>,
    /// How long it took.
    pub(crate) took: Duration,
    /// For the decision: why some nodes are missing; `None` if all have finished.
    pub(crate) missing: Option<String>,
}

/// Waits until the epilogs of all nodes have ended. `job` is the first answer of slurmctld.
pub(crate) fn for_nodes(call: &Call, job: Vec<JobState>) -> Waited {
    let begun = Instant::now();
    if !completing(&job) {
        return Waited { job, took: Duration::ZERO, missing: None };
    }
    let limit = call.config.requeue.waiters;
    // Held while this process waits.
    let waiters = call.own.join("waiters");
    let slot = slot(&waiters, limit);
    let missing = match &slot {
        Ok(Some(_)) => None,
        Ok(None) => Some(format!("did not wait for the nodes: {limit} others do")),
        Err(why) => {
            // The admin must fix this; the reader of the decision cannot.
            tracing::error!(
                job = %call.name,
                "{}: {why}: cannot count the waiting processes, so this one decides at once, without node reports that \
                 are still missing; a job that failed because of a node may not be requeued. The directory must \
                 belong to SlurmUser: run `railgate doctor` on the controller",
                waiters.display()
            );
            Some("decided at once, before all its nodes had reported".to_owned())
        }
    };
    if let Some(missing) = missing {
        return Waited { job, took: Duration::ZERO, missing: Some(missing) };
    }
    let mut job = job;
    let mut pause = FIRST + spread(call.job.id);
    let deadline = call.config.requeue.wait;
    loop {
        let Some(left) = deadline.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else {
            let silent = job.iter().map(|job| job.nodes.as_str()).filter(|list| !list.is_empty());
            let silent = silent.collect::<Vec<_>>().join(",");
            let missing = format!("no answer within {} s from {silent}", deadline.as_secs());
            return Waited { job, took: begun.elapsed(), missing: Some(missing) };
        };
        std::thread::sleep(pause.min(left));
        pause = (pause * 3 / 2).min(LONGEST);
        match call.client.until(begun + deadline + LONGEST).job(&call.name) {
            Ok(seen) => job = seen,
            // slurmctld is busy or restarting: the last answer is kept, and polling continues.
            Err(why @ SlurmError::Silent { .. }) => tracing::warn!(job = %call.name, "{why}"),
            Err(why) if why.no_answer() => tracing::warn!(job = %call.name, "{why}"),
            Err(why) => {
                return Waited { job, took: begun.elapsed(), missing: Some(why.to_string()) };
            }
        }
        if !completing(&job) {
            return Waited { job, took: begun.elapsed(), missing: None };
        }
    }
}

/// Pauses, unless `[requeue] waiters` processes wait already. Returns whether it paused.
pub(crate) fn pause(call: &Call, pause: Duration) -> bool {
    let Ok(Some(_held)) = slot(&call.own.join("waiters"), call.config.requeue.waiters) else { return false };
    std::thread::sleep(pause + spread(call.job.id));
    true
}

/// Most processes that send their first query to slurmctld at once. Otherwise an array that fails as a whole would
/// send hundreds of queries while slurmctld handles hundreds of ends.
const ASKERS: u32 = 2;
/// Longest wait for a turn: a query out of turn is better than no decision.
const TURN: Duration = Duration::from_secs(30);

/// Takes a turn to query, held until the answer arrives. `None` after too long a wait or without lock files: the
/// query is then sent without a turn.
pub(crate) fn turn(call: &Call) -> Option<FileLock> {
    let dir = call.own.join("askers");
    turn_of(&dir, ASKERS, TURN, call.job.id).unwrap_or_else(|why| {
        tracing::warn!(job = %call.name, "{}: {why}", dir.display());
        None
    })
}

/// Takes one of `limit` lock files; `None` if all of them stayed taken.
///
/// # Errors
/// The lock files cannot be used.
pub(crate) fn turn_of(dir: &Path, limit: u32, patience: Duration, job: u32) -> io::Result<Option<FileLock>> {
    let begun = Instant::now();
    loop {
        if let Some(held) = slot(dir, limit)? {
            return Ok(Some(held));
        }
        if begun.elapsed() >= patience {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(100) + spread(job));
    }
}

fn completing(job: &[JobState]) -> bool {
    job.iter().any(JobState::completing)
}

/// Spreads the pauses of the members of an array that fails as a whole.
fn spread(job: u32) -> Duration {
    Duration::from_millis(u64::from(job % 16) * 25)
}

/// Tries to take one of `limit` lock files; `None` if all are taken.
fn slot(dir: &Path, limit: u32) -> io::Result<Option<FileLock>> {
    DirBuilder::new().mode(0o755).recursive(true).create(dir)?;
    for n in 0..limit {
        if let Some(held) = FileLock::try_take(&dir.join(n.to_string()))? {
            return Ok(Some(held));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scene;

    #[test]
    fn problems_for_the_admin_are_not_in_the_report() {
        let scene = Scene::new("256", "0");
        scene.file("waiters", "");
        let call = scene.call();
        let job =
            JobState { state: "COMPLETING".to_owned(), nodes: "n[1-2]".to_owned(), ..JobState::default() };
        let waited = for_nodes(&call, vec![job]);
        assert_eq!(waited.missing.as_deref(), Some("decided at once, before all its nodes had reported"));
    }

    #[test]
    fn the_number_of_slots_is_limited() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("waiters");
        let first = slot(&dir, 2).unwrap();
        let second = slot(&dir, 2).unwrap();
        assert!(first.is_some() && second.is_some());
        assert!(slot(&dir, 2).unwrap().is_none());
        drop(first);
        assert!(slot(&dir, 2).unwrap().is_some());
    }
}

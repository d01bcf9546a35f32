use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

use railgate_fsutil::FileLock;
use railgate_slurm::{JobState, SlurmError};

use crate::call::Call;

/// The first pause; each one is half as long again, up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(300);
const LONGEST: Duration = Duration::from_secs(8);

/// How the waiting ended.
#[derive(Debug)]
pub(crate) struct Waited {
    /// The job's components as they were seen last.
    pub(crate) job: Vec<JobState>,
    /// How long it took.
    pub(crate) took: Duration,
    /// For the decision, where not every node has answered.
    pub(crate) missing: Option<String>,
}

/// Waits until no node has its epilog still to run. `job` is what the first query said.
pub(crate) fn for_nodes(call: &Call, job: Vec<JobState>) -> Waited {
    let begun = Instant::now();
    if !completing(&job) {
        return Waited { job, took: Duration::ZERO, missing: None };
    }
    let limit = call.config.requeue.waiters;
    // Held for as long as we wait.
    let waiters = call.own.join("waiters");
    let slot = slot(&waiters, limit);
    let missing = match &slot {
        Ok(Some(_)) => None,
        Ok(None) => Some(format!("did not wait for the nodes: {limit} others do")),
        Err(why) => {
            // The decision's reader cannot do anything about it.
            tracing::error!(
                job = %call.name,
                "{}: {why}: how many programs wait cannot be counted, so this one decides at once, without what the \
                 nodes have not reported yet; a job that a fault ended may stay ended. The directory must belong to \
                 SlurmUser: `railgate doctor` on the controller says how",
                waiters.display()
            );
            Some("decided at once, without reports that its nodes had not sent yet".to_owned())
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
            // Busy or restarting: what we have may still become better.
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

/// At most so many ask slurmctld for the first time at once: an array that fails as a whole would otherwise
/// have it answer hundreds of questions while it takes in hundreds of ends.
const ASKERS: u32 = 2;
/// Nobody waits longer for a turn: asking out of turn is better than not deciding.
const TURN: Duration = Duration::from_secs(30);

/// A turn to ask; held while the answer is on its way. `None` where it took too long, or the lock files cannot
/// be had: then one asks without.
pub(crate) fn turn(call: &Call) -> Option<FileLock> {
    let dir = call.own.join("askers");
    turn_of(&dir, ASKERS, TURN, call.job.id).unwrap_or_else(|why| {
        tracing::warn!(job = %call.name, "{}: {why}", dir.display());
        None
    })
}

/// One of `limit` lock files; `None` if all of them were taken all the time.
///
/// # Errors
/// The lock files cannot be had.
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

/// An array that fails as a whole must not ask in step.
fn spread(job: u32) -> Duration {
    Duration::from_millis(u64::from(job % 16) * 25)
}

/// One of `limit` lock files; `None` if all are taken.
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
    fn what_the_admin_must_mend_is_not_told_to_the_reports_reader() {
        let scene = Scene::new("256", "0");
        scene.file("waiters", "");
        let call = scene.call();
        let job =
            JobState { state: "COMPLETING".to_owned(), nodes: "n[1-2]".to_owned(), ..JobState::default() };
        let waited = for_nodes(&call, vec![job]);
        assert_eq!(
            waited.missing.as_deref(),
            Some("decided at once, without reports that its nodes had not sent yet")
        );
    }

    #[test]
    fn there_are_only_so_many_slots() {
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

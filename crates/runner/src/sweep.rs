//! Run directories whose epilog did not run (slurmd was killed, the node was drained by hand) keep a tmpfs mounted
//! until the next boot. The periodic check removes those whose job is certainly gone.

use std::time::{Duration, Instant};

use railgate_rundir::Root;
use railgate_slurm::Client;

use crate::{Config, Places, now};

/// Least age of a run directory, seconds. The prolog or epilog of a younger one may still run.
const SETTLED: u64 = 3600;

/// The periodic check has a minute, most of it for other work.
const PATIENCE: Duration = Duration::from_secs(5);

/// Restricts run directories of an earlier version to root, and removes the directories of jobs that are gone: slurmd has no
/// process of the job, and slurmctld no longer lists it on this node. If either cannot be determined, the directory stays.
pub(crate) fn stale_runs(
    config: &Config,
    places: &Places,
    env: &railgate_slurm::Env,
    node: &str,
    until: Instant,
) {
    let runs = Root::new(&places.run);
    if let Err(why) = runs.close() {
        tracing::warn!("run directories: {why}; other users may read them");
    }
    let time = now() / 1000;
    let client = Client::new(&config.slurm, env).until(until.min(Instant::now() + PATIENCE));
    for (job, newest) in runs.jobs() {
        if newest.saturating_add(SETTLED) > time {
            continue;
        }
        let gone = client.has_steps_here(job).and_then(|here| Ok(!here && !client.runs_on(job, node)?));
        match gone {
            Ok(true) => match runs.job(job).remove() {
                Ok(()) => {
                    tracing::warn!(
                        job,
                        "the job is gone and its epilog did not run: its run directory is removed"
                    )
                }
                Err(why) => tracing::warn!(job, "its run directory is left behind: {why}"),
            },
            Ok(false) => {}
            Err(why) => tracing::debug!(job, "unknown whether the job is gone: {why}"),
        }
    }
}

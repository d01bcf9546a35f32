//! Root's check of the node after a failed step of `railgate launch`.
//!
//! Users start steps as they like, so that one check runs at a time, and a job gets one in [`INTERVAL`].

use std::time::{Duration, Instant, SystemTime};

use railgate_fsutil::FileLock;
use railgate_model::{Fitness, Phase};
use railgate_rundir::{Root, RunDir, StepCheck};
use railgate_slurm::Env;

use crate::act::{desk, drain_at};
use crate::check_run::{Purpose, check_node};
use crate::{Config, Places};

/// Time for all of it. The plugin ends the program after 12 s, and the step ends only then.
const ALL: Duration = Duration::from_secs(10);
/// Time for the readings, so that some is left for a drain.
const CHECK: Duration = Duration::from_secs(6);
const INTERVAL: Duration = Duration::from_secs(5);
/// In the directory of runs.
const LOCK: &str = "step-check.lock";

/// Checks this node, leaves the result for the job, and drains the node if policy requires it.
///
/// # Errors
/// In words: the job has no run here, another check takes too long, or the result cannot be written.
pub fn check_after_step(
    config: &Config,
    places: &Places,
    env: &Env,
    node: &str,
    (job, start): (u32, u32),
) -> Result<StepCheck, String> {
    let until = Instant::now() + ALL;
    let run = Root::new(&places.run).job(job).current(job).map_err(|why| why.to_string())?;
    let lock = places.run.join(LOCK);
    let _one = FileLock::take(&lock, CHECK).map_err(|why| format!("{}: {why}", lock.display()))?;
    let keep = |check: StepCheck| match check.write(&run) {
        Ok(()) => Ok(check),
        Err(why) => Err(format!("the result is not written: {why}")),
    };
    if is_recent(&run) {
        let why = format!("checked less than {} s before", INTERVAL.as_secs());
        return keep(StepCheck::new(start, Some(Fitness::Unknown), why));
    }
    let mut config = config.clone();
    config.gate.deadline =
        config.gate.deadline.min(CHECK).min(until.saturating_duration_since(Instant::now()));
    let check_run = check_node(&config, places, node, &Purpose::whole_node(Phase::Periodic));
    check_run.log(None);
    let cause = check_run.verdict.cause();
    let why = cause.map(|cause| format!("{}: {}", cause.subject(), cause.what)).unwrap_or_default();
    // The job need not wait for slurmctld.
    let kept = keep(StepCheck::new(start, Some(check_run.verdict.fitness), why));
    drain_at(desk(&config, places, env).until(until), &config, places, &check_run, &[]);
    kept
}

fn is_recent(run: &RunDir) -> bool {
    let recent = |time: SystemTime| time.elapsed().is_ok_and(|age| age < INTERVAL);
    StepCheck::written(run).is_some_and(recent)
}

//! Root's check of the node after a failed step of `railgate launch`.
//!
//! Users start steps as they like, so that one check runs at a time, and a job waits for its next one.

use std::time::{Duration, Instant, SystemTime};

use railgate_fsutil::FileLock;
use railgate_model::Phase;
use railgate_rundir::{Root, RunDir, StepCheck};
use railgate_slurm::Env;

use crate::act::{desk, drain_at};
use crate::check_run::{Purpose, check_node};
use crate::{Config, Places};

/// Time for all of it. The plugin ends the program after 12 s, and the step ends only then.
const ALL: Duration = Duration::from_secs(10);
/// Time for the readings, so that some is left for a drain.
const CHECK: Duration = Duration::from_secs(6);
/// Shortest time between two checks for a job.
const INTERVAL: Duration = Duration::from_secs(3);
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
    std::thread::sleep(until_next(&run));
    let lock = places.run.join(LOCK);
    let _one = FileLock::take(&lock, CHECK).map_err(|why| format!("{}: {why}", lock.display()))?;
    let mut config = config.clone();
    config.gate.deadline =
        config.gate.deadline.min(CHECK).min(until.saturating_duration_since(Instant::now()));
    let check_run = check_node(&config, places, node, &Purpose::whole_node(Phase::Periodic));
    check_run.log(None);
    let cause = check_run.verdict.cause();
    let why = cause.map(|cause| format!("{}: {}", cause.subject(), cause.what)).unwrap_or_default();
    // The job need not wait for slurmctld.
    let check = StepCheck::new(start, Some(check_run.verdict.fitness), why);
    let kept = check.write(&run).map_err(|why| format!("the result is not written: {why}"));
    drain_at(desk(&config, places, env).until(until), &config, places, &check_run, &[]);
    kept.map(|()| check)
}

fn until_next(run: &RunDir) -> Duration {
    let age = |time: SystemTime| time.elapsed().unwrap_or_default();
    StepCheck::written(run).map_or(Duration::ZERO, |time| INTERVAL.saturating_sub(age(time)))
}

#[cfg(test)]
mod tests {
    use railgate_rundir::Run;

    use super::*;

    #[test]
    fn a_job_waits_for_its_next_check() {
        let place = tempfile::tempdir().unwrap();
        let run = Root::new(place.path()).job(7).create(&Run::new(7, 0, 1_800_000_000)).unwrap();
        assert_eq!(until_next(&run), Duration::ZERO);
        StepCheck::new(0, None, String::new()).write(&run).unwrap();
        let wait = until_next(&run);
        assert!(!wait.is_zero() && wait <= INTERVAL, "{wait:?}");
        let old = SystemTime::now() - INTERVAL;
        std::fs::File::options()
            .write(true)
            .open(run.file("step-check.json"))
            .unwrap()
            .set_modified(old)
            .unwrap();
        assert_eq!(until_next(&run), Duration::ZERO);
    }
}

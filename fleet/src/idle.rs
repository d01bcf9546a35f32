//! Watches for jobs that hold GPUs and do not use them (`[fleet] idle_gpus`).

use std::collections::BTreeMap;
use std::time::Duration;

use railgate_alerts::{Condition, Priority};
use railgate_model::UnixMillis;
use railgate_report::{IdleJob, IdleJobs, IdleQuery, IdleState, idle_jobs};
use railgate_runner::Config;
use railgate_slurm::hostlist;

use crate::reading::{Reading, hours, listed};

/// Interval of the readings: each one reads the reports of all jobs that run.
const EVERY: Duration = Duration::from_secs(1800);
/// Time for one reading: it delays that of the other sources.
const TIME: Duration = Duration::from_secs(30);
/// Most jobs that are read.
const MOST_JOBS: usize = 1000;
/// Jobs whose nodes have written nothing for this long do not count as running.
const SINCE: UnixMillis = 24 * 3_600_000;

/// Jobs with idle GPUs as of the last reading.
#[derive(Debug, Default)]
pub(crate) struct IdleGpus(Reading);

impl IdleGpus {
    /// Reads the reports of running jobs if that is due. Returns one condition, P2, of all jobs whose GPUs have all been idle for longer than
    /// the site wants. It rests on files of the jobs' users: it drains nothing and is no fault of a node.
    pub(crate) fn conditions(
        &mut self,
        config: &Config,
        cluster: impl FnOnce() -> Result<Option<String>, String>,
        now: UnixMillis,
    ) -> &[Condition] {
        let most = config.fleet.idle_gpus;
        if most.is_zero() {
            return &[];
        }
        self.0.conditions(EVERY, "reports: could not tell which jobs hold idle GPUs", || {
            let Some(cluster) = cluster()? else { return Ok(Vec::new()) };
            let query = IdleQuery {
                given: &[],
                local: false,
                cluster: Some(&cluster),
                since: now.saturating_sub(SINCE),
                uid: None,
                most: MOST_JOBS,
                time: TIME,
            };
            let found = idle_jobs(&config.report, &query, now, &|nodes| hostlist::expand(nodes).ok());
            if !found.readable {
                return Err(found
                    .problems
                    .first()
                    .cloned()
                    .unwrap_or_else(|| "no report directory".to_owned()));
            }
            Ok(condition(&found, most, now).into_iter().collect())
        })
    }

    pub(crate) fn is_known(&self) -> bool {
        self.0.is_known()
    }
}

fn condition(found: &IdleJobs, most: Duration, now: UnixMillis) -> Option<Condition> {
    let idle = |job: &IdleJob| {
        let since = job.idle_since.filter(|_| job.state == IdleState::Running)?;
        Some(Duration::from_millis(now.saturating_sub(since))).filter(|idle| *idle >= most)
    };
    let mut jobs: Vec<(&IdleJob, Duration)> =
        found.jobs.iter().filter_map(|job| Some((job, idle(job)?))).collect();
    // The most GPU-hours first.
    jobs.sort_by_key(|(job, idle)| std::cmp::Reverse(u128::from(job.gpus) * idle.as_millis()));
    let longest = jobs.iter().map(|(_, idle)| *idle).max()?;
    let one = |(job, idle): &(&IdleJob, Duration)| {
        let gpus = if job.gpus == 1 { "GPU" } else { "GPUs" };
        format!("{} ({} {gpus}, {})", job.job, job.gpus, hours(*idle))
    };
    let left_out = match found.left_out {
        0 => String::new(),
        count => format!(" The reports of {count} jobs were not read."),
    };
    Some(Condition {
        key: "idle-gpus".to_owned(),
        priority: Priority::P2,
        title: format!("jobs hold GPUs that have been idle for longer than {}", hours(most)),
        details: format!(
            "{} `railgate report --idle` as root has all, with their users.{left_out}",
            listed(&jobs, one)
        ),
        check: None,
        nodes: BTreeMap::new(),
        since: Some(now.saturating_sub(u64::try_from((longest - most).as_millis()).unwrap_or(0))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: UnixMillis = 3_600_000;
    const NOW: UnixMillis = 1_800_000_000_000;

    fn job(job: u32, gpus: u64, state: IdleState, idle_h: Option<u64>) -> IdleJob {
        IdleJob {
            cluster: "alpha".to_owned(),
            job,
            uid: Some(1000),
            partition: "gpu".to_owned(),
            state,
            start: None,
            gpus,
            held_gpu_hours: 100.0,
            spare_gpu_hours: 0.0,
            sampled_gpu_hours: 100.0,
            idle_gpu_hours: Some(50.0),
            idle_percent: Some(50.0),
            busy_percent: Some(50.0),
            idle_since: idle_h.map(|hours| NOW - hours * HOUR),
            unsampled_nodes: 0,
        }
    }

    fn of(jobs: Vec<IdleJob>, left_out: usize) -> Option<Condition> {
        let found = IdleJobs { jobs, left_out, readable: true, ..IdleJobs::default() };
        condition(&found, Duration::from_secs(4 * 3600), NOW)
    }

    #[test]
    fn running_jobs_whose_gpus_are_idle_for_too_long_are_one_condition() {
        let jobs = vec![
            job(7, 1, IdleState::Running, Some(5)),
            job(8, 64, IdleState::Running, Some(9)),
            job(9, 8, IdleState::Running, Some(3)),
            job(10, 8, IdleState::Running, None),
            job(11, 8, IdleState::Ended, Some(20)),
            job(12, 8, IdleState::Unknown, Some(20)),
        ];
        let found = of(jobs.clone(), 0).unwrap();
        assert_eq!((found.key.as_str(), found.priority), ("idle-gpus", Priority::P2));
        assert_eq!(found.title, "jobs hold GPUs that have been idle for longer than 4 h");
        assert!(
            found.details.starts_with("Jobs: 8 (64 GPUs, 9 h), 7 (1 GPU, 5 h). `railgate report"),
            "{found:?}"
        );
        assert_eq!(found.since, Some(NOW - 5 * HOUR));
        assert!(found.nodes.is_empty(), "it is no fault of a node");
        let found = of(vec![jobs[0].clone(); 7], 3).unwrap();
        assert!(found.details.contains(", 2 more. "), "{found:?}");
        assert!(found.details.ends_with(" The reports of 3 jobs were not read."), "{found:?}");
        assert_eq!(of(jobs[2..].to_vec(), 0), None);
        // A clock that is behind is no long time.
        let mut ahead = jobs[0].clone();
        ahead.idle_since = Some(NOW + HOUR);
        assert_eq!(of(vec![ahead], 0), None);
    }
}

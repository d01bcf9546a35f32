//! Watches how long jobs wait for nodes (`[fleet] queue_wait`).

use std::collections::BTreeMap;
use std::time::Duration;

use railgate_alerts::{Condition, Priority};
use railgate_model::UnixMillis;
use railgate_runner::FleetConfig;
use railgate_slurm::{Client, WaitingJob};

use crate::reading::{Reading, hours, listed};

/// Interval of the readings: the list of a long queue is work for slurmctld.
const EVERY: Duration = Duration::from_secs(600);

/// The queue as of the last reading.
#[derive(Debug, Default)]
pub(crate) struct Queue(Reading);

impl Queue {
    /// Reads the queue if that is due. Returns one condition, P2, of each partition in which a job waits longer than the site wants.
    pub(crate) fn conditions(
        &mut self,
        config: &FleetConfig,
        client: &Client,
        now: UnixMillis,
    ) -> &[Condition] {
        if config.queue_wait.is_zero() {
            return &[];
        }
        self.0.conditions(EVERY, "queue: could not tell how long jobs wait", || {
            let jobs = client.waiting_jobs().map_err(|why| why.to_string())?;
            Ok(conditions(&jobs, config.queue_wait, now))
        })
    }

    pub(crate) fn is_known(&self) -> bool {
        self.0.is_known()
    }
}

fn conditions(jobs: &[WaitingJob], most: Duration, now: UnixMillis) -> Vec<Condition> {
    let waited = |job: &WaitingJob| Duration::from_secs((now / 1000).saturating_sub(job.eligible));
    let mut late: BTreeMap<&str, Vec<&WaitingJob>> = BTreeMap::new();
    for job in jobs.iter().filter(|job| waited(job) >= most) {
        late.entry(&job.partition).or_default().push(job);
    }
    let condition = |(partition, mut jobs): (&str, Vec<&WaitingJob>)| {
        jobs.sort_by_key(|job| (job.eligible, job.id));
        let one = |job: &&WaitingJob| {
            let nodes = if job.nodes == 1 { "node" } else { "nodes" };
            format!("{} ({} {nodes}, {})", job.id, job.nodes, hours(waited(job)))
        };
        let first = jobs.first().map_or(0, |job| job.eligible);
        Condition {
            key: format!("queue/{partition}"),
            priority: Priority::P2,
            title: format!("jobs in partition {partition} have waited longer than {} for nodes", hours(most)),
            details: listed(&jobs, one),
            check: None,
            nodes: BTreeMap::new(),
            since: Some(first.saturating_add(most.as_secs()).saturating_mul(1000)),
        }
    };
    late.into_iter().map(condition).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    fn job(id: u32, nodes: u32, hours: u64, partition: &str) -> WaitingJob {
        WaitingJob { id, nodes, eligible: NOW_S - hours * 3600, partition: partition.to_owned() }
    }

    #[test]
    fn partitions_whose_jobs_wait_too_long_are_conditions() {
        let day = Duration::from_secs(86_400);
        let mut jobs = vec![job(7, 64, 26, "gpu"), job(8, 1, 23, "gpu"), job(9, 1, 23, "debug")];
        let found = conditions(&jobs, day, NOW_S * 1000);
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((one.key.as_str(), one.priority), ("queue/gpu", Priority::P2));
        assert_eq!(one.title, "jobs in partition gpu have waited longer than 24 h for nodes");
        assert_eq!(one.details, "Jobs: 7 (64 nodes, 26 h).");
        assert_eq!(one.since, Some((NOW_S - 2 * 3600) * 1000));
        jobs.extend((10..20).map(|id| job(id, 1, 30, "gpu")));
        let found = conditions(&jobs, day, NOW_S * 1000);
        assert!(found[0].details.starts_with("Jobs: 10 (1 node, 30 h), 11"), "{found:?}");
        assert!(found[0].details.ends_with(", 14 (1 node, 30 h), 6 more."), "{found:?}");
        // A clock that is behind is no long wait.
        assert_eq!(conditions(&[job(7, 1, 0, "gpu")], day, (NOW_S - 7200) * 1000), []);
    }
}

//! Whose a fault of the whole node is, where the job held no GPUs: all GPUs in one hand tell it of other jobs.

use std::time::{Duration, Instant};

use railgate_model::{Allocation, Job, PciAddress};
use railgate_runner::Hook;
use railgate_slurm::{Client, cpus_of_node};
use railgate_stats::EvidenceItem;

/// slurmctld's answer is worth no more waiting: without it the fault does not count as the job's.
const PATIENCE: Duration = Duration::from_secs(5);

/// Faults of which it could not be told so far whether the job held the part are its own where it had all processors of
/// the node, so that no other job was there. Slurm is asked only where there is such a fault.
pub(crate) fn claim(hook: &Hook, job: &Job, evidence: &mut [EvidenceItem]) {
    if job.allocation != Allocation::NoGpus || !evidence.iter().any(open) {
        return;
    }
    let Some(own) = cpus_of_node(&hook.env, &job.nodelist, &hook.node) else { return };
    let client = Client::new(&hook.config.slurm, &hook.env).until(Instant::now() + PATIENCE);
    match client.node(&hook.node) {
        Ok(node) if node.cpus.is_some_and(|all| own >= all) => {
            evidence.iter_mut().filter(|item| open(item)).for_each(|item| item.own = Some(true));
        }
        Ok(_) => {}
        Err(why) => tracing::warn!(job = job.id, "whether the job had the whole node is not known: {why}"),
    }
}

/// A GPU is nobody's who holds none, whoever has the processors.
fn open(item: &EvidenceItem) -> bool {
    let part = item.finding.part.as_str();
    item.own.is_none() && part.parse::<u32>().is_err() && part.parse::<PciAddress>().is_err()
}

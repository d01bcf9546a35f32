//! Attributes faults of the whole node to a job without GPUs. For jobs with GPUs, holding all of them decides.

use std::time::{Duration, Instant};

use railgate_model::{Allocation, Job, PciAddress};
use railgate_node_report::EvidenceItem;
use railgate_runner::Hook;
use railgate_slurm::{Client, cpus_of_node};

/// Longest wait for slurmctld's answer; without it the fault is not attributed to the job.
const PATIENCE: Duration = Duration::from_secs(5);

/// Marks faults as the job's own, if it was unknown so far whether the job held the part and the job had all CPUs of
/// the node, so that no other job ran there. Slurm is queried only if there is such a fault.
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
        Err(why) => tracing::warn!(job = job.id, "unknown whether the job had the whole node: {why}"),
    }
}

/// Whether the owner of a fault is open. A GPU is never attributed to a job that holds none, even with all CPUs.
fn open(item: &EvidenceItem) -> bool {
    let part = item.finding.part.as_str();
    item.own.is_none() && part.parse::<u32>().is_err() && part.parse::<PciAddress>().is_err()
}

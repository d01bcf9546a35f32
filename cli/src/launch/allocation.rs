//! The nodes of the calling job, and how many tasks each has.

use anyhow::{Context as _, bail};
use railgate_launch::{Place, slurm_orders_itself, topology_lines};
use railgate_slurm::{Client, hostlist};

use crate::output::complain;

/// The allocation of the calling job.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// The job's own id, also of a member of an array.
    pub(crate) job: u32,
    /// `SLURM_RESTART_COUNT`.
    pub(crate) attempt: u32,
    /// In Slurm's order.
    pub(crate) nodes: Vec<String>,
    /// Where each node is in the topology.
    pub(crate) places: Vec<Place>,
    /// Slurm itself lays out the tasks of a step by the topology.
    pub(crate) is_ordered_by_slurm: bool,
    /// Tasks on each node.
    pub(crate) tasks: u32,
    /// What Slurm has, if nodes have different numbers of tasks; then only the whole allocation can be started.
    pub(crate) uneven: Option<String>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Allocation {
    /// Reads the environment of the job, and asks slurmctld once for the topology.
    pub(crate) fn of_this_job(client: &Client) -> anyhow::Result<Self> {
        let Some(job) = variable("SLURM_JOB_ID") else {
            bail!(
                "not inside a job: SLURM_JOB_ID is not set (use it in a script for sbatch, or after salloc)"
            );
        };
        let job = job.parse().with_context(|| format!("SLURM_JOB_ID '{job}'"))?;
        let list = variable("SLURM_JOB_NODELIST").context("SLURM_JOB_NODELIST is not set")?;
        let nodes = hostlist::expand(&list).context("SLURM_JOB_NODELIST")?;
        let (tasks, uneven) = match variable("SLURM_HET_SIZE") {
            Some(parts) => (1, Some(format!("{parts} heterogeneous components"))),
            None => tasks(variable),
        };
        let attempt = variable("SLURM_RESTART_COUNT").and_then(|count| count.parse().ok()).unwrap_or(0);
        let (places, is_ordered_by_slurm) = places(client, &nodes);
        Ok(Allocation { job, attempt, nodes, places, is_ordered_by_slurm, tasks, uneven })
    }
}

/// The places of the nodes, and whether Slurm places tasks by them. Without a topology the ranks are in Slurm's order.
fn places(client: &Client, nodes: &[String]) -> (Vec<Place>, bool) {
    let unknown = (vec![Place::Unknown; nodes.len()], false);
    if nodes.len() < 2 {
        return unknown;
    }
    let topology = client.topology().map_err(|why| why.to_string()).and_then(|text| {
        topology_lines(&text, &|list| hostlist::expand(list).ok())
            .map_err(|why| format!("scontrol show topology: {why}"))
    });
    let topology = match topology {
        Ok(topology) => topology,
        Err(why) => {
            complain!("launch: the ranks are in Slurm's order: {why}");
            return unknown;
        }
    };
    let Some(shape) = topology.shape() else { return unknown };
    let ordered = client.config().is_ok_and(|config| {
        let value = |key: &str| config.get(key).map(String::as_str).unwrap_or_default();
        let (select, parameters) = (value("SelectType"), value("SelectTypeParameters"));
        slurm_orders_itself(value("SLURM_VERSION"), select, parameters, Some(shape))
    });
    (topology.places(nodes), ordered)
}

/// Tasks on each node as the job's options have it, and what Slurm has if nodes differ. Slurm sets `SLURM_TASKS_PER_NODE` from processors where
/// the job has asked for no number of tasks; srun then starts one on each node.
fn tasks(variable: impl Fn(&str) -> Option<String>) -> (u32, Option<String>) {
    if let Some(each) = variable("SLURM_NTASKS_PER_NODE").and_then(|count| count.parse().ok()) {
        return (each, None);
    }
    let Some(list) = variable("SLURM_NTASKS").and_then(|_| variable("SLURM_TASKS_PER_NODE")) else {
        return (1, None);
    };
    let each = list.split_once('(').map_or(list.as_str(), |(each, _)| each);
    match each.parse() {
        Ok(each) if !list.contains(',') => (each, None),
        _ => (1, Some(format!("{list} (SLURM_TASKS_PER_NODE)"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_those_that_the_job_asked_for() {
        let of = |set: &[(&str, &str)]| {
            tasks(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[]), (1, None));
        assert_eq!(of(&[("SLURM_TASKS_PER_NODE", "128(x4)")]), (1, None), "processors, not tasks");
        assert_eq!(of(&[("SLURM_NTASKS_PER_NODE", "8"), ("SLURM_TASKS_PER_NODE", "8(x4)")]), (8, None));
        assert_eq!(of(&[("SLURM_NTASKS", "8"), ("SLURM_TASKS_PER_NODE", "2(x4)")]), (2, None));
        assert_eq!(of(&[("SLURM_NTASKS", "2"), ("SLURM_TASKS_PER_NODE", "2")]), (2, None));
        let (each, uneven) = of(&[("SLURM_NTASKS", "5"), ("SLURM_TASKS_PER_NODE", "2,1(x3)")]);
        assert_eq!((each, uneven.as_deref()), (1, Some("2,1(x3) (SLURM_TASKS_PER_NODE)")));
    }
}

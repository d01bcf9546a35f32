//! The nodes of the calling job, and how many tasks each has.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::RangeInclusive;

use anyhow::{Context as _, bail};
use railgate_launch::{Place, slurm_orders_itself, topology_lines};
use railgate_slurm::{Client, hostlist};

use crate::output::complain;

/// Nodes of the allocation that Slurm has under one job id: all of them, or those of one component of a heterogeneous job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Component {
    /// Its own job id.
    pub(crate) job: u32,
    /// Its number in a heterogeneous job.
    pub(crate) group: Option<u32>,
    /// In Slurm's order.
    pub(crate) nodes: Vec<String>,
}

/// The allocation of the calling job.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// The job's own id, also of a member of an array.
    pub(crate) job: u32,
    /// `SLURM_RESTART_COUNT`.
    pub(crate) attempt: u32,
    /// In Slurm's order; of a heterogeneous job those of the components that run the program.
    pub(crate) nodes: Vec<String>,
    /// The same nodes by job id.
    pub(crate) components: Vec<Component>,
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
    /// Reads the environment of the job, and asks slurmctld once for the topology. `program`: what is started.
    pub(crate) fn of_this_job(client: &Client, program: &[OsString]) -> anyhow::Result<Self> {
        let Some(job) = variable("SLURM_JOB_ID") else {
            bail!(
                "not inside a job: SLURM_JOB_ID is not set (use it in a script for sbatch, or after salloc)"
            );
        };
        let job = job.parse().with_context(|| format!("SLURM_JOB_ID '{job}'"))?;
        let (components, (tasks, uneven)) = match variable("SLURM_HET_SIZE") {
            Some(size) => {
                let groups = het_groups(program, size.parse().context("SLURM_HET_SIZE")?);
                let components = groups.into_iter().map(|group| component(job, Some(group)));
                let uneven = Some(format!("{size} heterogeneous components"));
                (components.collect::<anyhow::Result<_>>()?, (1, uneven))
            }
            None => (vec![component(job, None)?], tasks(variable)),
        };
        let nodes: Vec<String> = components.iter().flat_map(|one| one.nodes.clone()).collect();
        let attempt = variable("SLURM_RESTART_COUNT").and_then(|count| count.parse().ok()).unwrap_or(0);
        let (places, is_ordered_by_slurm) = places(client, &nodes);
        // Such a start is left to Slurm as it is.
        let is_ordered_by_slurm = is_ordered_by_slurm || uneven.is_some();
        Ok(Allocation { job, attempt, nodes, components, places, is_ordered_by_slurm, tasks, uneven })
    }

    /// The ids under which Slurm has its nodes.
    pub(crate) fn jobs(&self) -> Vec<u32> {
        self.components.iter().map(|component| component.job).collect()
    }
}

/// The nodes of the job, or of one component of a heterogeneous one.
fn component(job: u32, group: Option<u32>) -> anyhow::Result<Component> {
    let of_group = group.map(|number| format!("_HET_GROUP_{number}")).unwrap_or_default();
    let list = format!("SLURM_JOB_NODELIST{of_group}");
    let nodes = hostlist::expand(&variable(&list).with_context(|| format!("{list} is not set"))?);
    let nodes = nodes.with_context(|| list.clone())?;
    let own = format!("SLURM_JOB_ID{of_group}");
    let own = group.and_then(|_| variable(&own)).and_then(|id| id.parse().ok());
    Ok(Component { job: own.unwrap_or(job), group, nodes })
}

/// The components of a heterogeneous job on which a command of srun runs: those of `--het-group`, else one for each of its parts.
fn het_groups(words: &[OsString], size: u32) -> BTreeSet<u32> {
    let words: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let parts = words.split(|word| *word == ":");
    let of = |(part, own): (&[&str], u32)| match het_group(part) {
        Some(list) => (0..size).filter(|group| list.iter().any(|range| range.contains(group))).collect(),
        None => vec![own],
    };
    let all: BTreeSet<u32> = parts.zip(0..size).flat_map(of).collect();
    // srun itself refuses a command for none of them.
    if all.is_empty() { BTreeSet::from([0]) } else { all }
}

/// `--het-group=0,2-3` or `--het-group 1` of one part of a command.
fn het_group(words: &[&str]) -> Option<Vec<RangeInclusive<u32>>> {
    let at = words.iter().position(|word| word.starts_with("--het-group"))?;
    let list = match words[at].split_once('=') {
        Some((_, list)) => list,
        None => *words.get(at + 1)?,
    };
    let range = |part: &str| -> Option<RangeInclusive<u32>> {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.parse().ok()?..=to.parse().ok()?)
    };
    Some(list.split(',').filter_map(range).collect())
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
    fn the_components_are_those_of_the_command() {
        let of = |words: &str| -> Vec<u32> {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            het_groups(&words, 4).into_iter().collect()
        };
        assert_eq!(of("srun python train.py"), [0]);
        assert_eq!(of("srun -n1 a : -n8 b"), [0, 1]);
        assert_eq!(of("srun --het-group=0,2-3 a"), [0, 2, 3]);
        assert_eq!(of("srun --het-group 1 a : --het-group=3 b"), [1, 3]);
        assert_eq!(of("srun --het-group=0-4294967295 a"), [0, 1, 2, 3], "there are four");
        assert_eq!(of("srun --het-group=9 a"), [0]);
    }

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

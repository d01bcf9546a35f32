//! Whether the ranks of a job wait for each other.

use std::collections::{BTreeMap, BTreeSet};

use railgate_node_report::comm::Communicator;

use super::facts::{Unit, mean_of};

/// Bytes per second that a GPU sends over NVLink, from which it is known to work with another one.
const EXCHANGED: f64 = 10e6;

/// Whether the ranks are known to wait for each other: NCCL connects them, they report to be one world, or GPUs exchange data over
/// NVLink. A job of several programs, as a sweep or a set of servers, does not wait for the slowest one.
pub(super) fn ranks_depend(units: &[Unit<'_>], communicators: &[(&str, &Communicator)]) -> bool {
    match groups(communicators) {
        0 => one_world(units) || exchange(units),
        groups => groups == 1,
    }
}

/// Number of groups of processes that no communicator connects; 0 if NCCL's plugin saw no communicator of several ranks.
fn groups(communicators: &[(&str, &Communicator)]) -> usize {
    let mut of: BTreeMap<(&str, u32, u64), usize> = BTreeMap::new();
    let mut first_of: BTreeMap<(u32, &str), usize> = BTreeMap::new();
    let mut parents: Vec<usize> = Vec::new();
    for (node, one) in communicators.iter().filter(|(_, one)| one.size > 1) {
        let process = *of.entry((node, one.start_number, one.pid)).or_insert_with(|| {
            parents.push(parents.len());
            parents.len() - 1
        });
        let other = *first_of.entry((one.start_number, one.hash.as_str())).or_insert(process);
        let (root, other) = (root(&parents, process), root(&parents, other));
        if let Some(parent) = parents.get_mut(root) {
            *parent = other;
        }
    }
    // A launcher that starts the step again makes new groups.
    let newest = of.keys().map(|(_, start, _)| *start).max();
    let roots = of.iter().filter(|((_, start, _), _)| Some(*start) == newest);
    roots.map(|(_, process)| root(&parents, *process)).collect::<BTreeSet<_>>().len()
}

fn root(parents: &[usize], of: usize) -> usize {
    let mut at = of;
    while let Some(parent) = parents.get(at).filter(|parent| **parent != at) {
        at = *parent;
    }
    at
}

/// Whether each rank reports another number, in a world of several.
fn one_world(units: &[Unit<'_>]) -> bool {
    let told = || units.iter().filter_map(|unit| unit.app);
    let numbers: BTreeSet<_> = told().filter_map(|rank| rank.rank).collect();
    told().any(|rank| rank.world.is_some_and(|world| world > 1)) && numbers.len() == told().count()
}

fn exchange(units: &[Unit<'_>]) -> bool {
    let sends = |unit: &&Unit<'_>| {
        let sent = unit.gpu.and_then(|gpu| mean_of(&gpu.counters.nvlink_tx_bytes_s).known().copied());
        sent.is_some_and(|bytes| bytes >= EXCHANGED)
    };
    units.iter().filter(sends).count() > 1
}

#[cfg(test)]
mod tests {
    use railgate_model::Reading;
    use railgate_node_report::NodeReport;
    use railgate_node_report::usage::Spread;

    use super::*;
    use crate::facts::{Facts, Outcome};
    use crate::simulator::{Plant, parts_with};

    fn depend(nodes: &[NodeReport]) -> bool {
        Facts::new(nodes, nodes[0].end, Outcome::Good, None).ranks_depend
    }

    #[test]
    fn ranks_that_nccl_does_not_connect_are_several_programs() {
        let mut nodes = parts_with(&[Plant::Healthy]);
        assert!(depend(&nodes));
        // Two programs of four ranks each; the program's own word does not count then.
        for (one, node) in nodes.iter_mut().enumerate() {
            for comm in &mut node.communication.as_mut().unwrap().communicators {
                comm.hash = format!("{one}");
            }
        }
        assert!(nodes.len() > 1 && !depend(&nodes));
        // Another communicator of one rank of each program.
        let mut across = nodes.clone();
        for node in &mut across {
            let communicators = &mut node.communication.as_mut().unwrap().communicators;
            let first = communicators[0].clone();
            communicators.push(Communicator { hash: "both".to_owned(), ..first });
        }
        assert!(depend(&across));
        // Those that a launcher started again have no group in common with the earlier ones, which have ended.
        let mut again = parts_with(&[Plant::Healthy]);
        for node in &mut again {
            let communicators = &mut node.communication.as_mut().unwrap().communicators;
            let later: Vec<_> =
                communicators.iter().map(|one| Communicator { start_number: 1, ..one.clone() }).collect();
            communicators.extend(later);
        }
        assert!(depend(&again));
    }

    #[test]
    fn without_nccl_reports_of_ranks_or_data_between_gpus_show_it() {
        let mut nodes = parts_with(&[Plant::Healthy]);
        let exchange = |nodes: &mut [NodeReport], mean| {
            for gpu in nodes.iter_mut().flat_map(|node| &mut node.usage.as_mut().unwrap().gpus) {
                let sent = Spread { mean, min: 0.0, max: mean, over_s: 600.0 };
                gpu.counters.nvlink_tx_bytes_s = Reading::Known(sent);
            }
        };
        nodes.iter_mut().for_each(|node| node.communication = None);
        exchange(&mut nodes, 0.0);
        assert!(depend(&nodes));
        let ranks = |nodes: &mut [NodeReport], world, number: Option<u32>| {
            let told = nodes.iter_mut().flat_map(|node| &mut node.application.as_mut().unwrap().ranks);
            told.for_each(|rank| (rank.world, rank.rank) = (Some(world), number.or(rank.rank)));
        };
        // Each program has one rank, or two of which each is number 0 or 1.
        let mut alone = nodes.clone();
        ranks(&mut alone, 1, None);
        assert!(!depend(&alone));
        let mut pairs = nodes.clone();
        ranks(&mut pairs, 2, Some(0));
        assert!(!depend(&pairs));
        nodes.iter_mut().for_each(|node| node.application = None);
        assert!(!depend(&nodes));
        exchange(&mut nodes, 2e9);
        assert!(depend(&nodes));
    }
}

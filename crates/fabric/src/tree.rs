//! Converts the fabric to a tree for Slurm: each node and each switch is below exactly one switch.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::discover::Fabric;

/// A switch of the tree. With rail-optimised wiring, all leaf switches of a unit are one switch: Slurm counts the
/// switches that a job spans, and nodes of a unit reach each other through one leaf switch on any rail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Branch {
    /// Name in Slurm.
    pub name: String,
    /// The physical switches that it represents.
    pub switches: Vec<String>,
    /// Names of the branches below it.
    pub children: Vec<String>,
    /// Nodes, if it has no children.
    pub nodes: Vec<String>,
}

struct Open {
    branch: usize,
    switches: BTreeSet<usize>,
}

/// `units` are name, leaf switches, nodes.
pub(crate) fn tree(
    fabric: &Fabric,
    tiers: &BTreeMap<usize, usize>,
    names: &BTreeMap<usize, String>,
    units: &[(String, BTreeSet<usize>, Vec<String>)],
) -> Vec<Branch> {
    let listed =
        |switches: &BTreeSet<usize>| switches.iter().filter_map(|at| names.get(at).cloned()).collect();
    let mut beside: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for link in &fabric.links {
        let [one, other] = link.ends.map(|end| end.device);
        if tiers.contains_key(&one) && tiers.contains_key(&other) {
            beside.entry(one).or_default().insert(other);
            beside.entry(other).or_default().insert(one);
        }
    }
    let mut branches: Vec<Branch> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for (name, leafs, nodes) in units {
        open.push(Open { branch: branches.len(), switches: leafs.clone() });
        let (name, nodes) = (name.clone(), nodes.clone());
        branches.push(Branch { name, switches: listed(leafs), children: Vec::new(), nodes });
    }
    let mut taken: BTreeSet<String> = branches.iter().map(|branch| branch.name.clone()).collect();
    let last = tiers.values().max().copied().unwrap_or_default();
    for tier in 2..=last + 1 {
        if open.len() < 2 {
            break;
        }
        // What a branch can reach: the switches above it and those at its level.
        let reach = |from: &Open| -> BTreeSet<usize> {
            let near = from.switches.iter().filter_map(|at| beside.get(at)).flatten().copied();
            near.filter(|at| tiers.get(at).is_some_and(|of| *of >= tier - 1))
                .chain(from.switches.clone())
                .collect()
        };
        let joined = join(open.iter().map(reach).collect());
        let merged = joined.len() < open.len();
        let mut next = Vec::new();
        for (number, (members, switches)) in joined.into_iter().enumerate() {
            let above: BTreeSet<usize> =
                switches.iter().copied().filter(|at| tiers.get(at) == Some(&tier)).collect();
            let below: Vec<usize> = members.iter().filter_map(|at| Some(open.get(*at)?.branch)).collect();
            let switches = if above.is_empty() { switches } else { above };
            let branch = match below[..] {
                // A level that joins no branches would only make the tree deeper.
                [only] if !merged => only,
                _ => {
                    let children =
                        below.iter().filter_map(|at| Some(branches.get(*at)?.name.clone())).collect();
                    let mut name = format!("tier{tier}-{}", number + 1);
                    while !taken.insert(name.clone()) {
                        name.push('x');
                    }
                    branches.push(Branch { name, switches: listed(&switches), children, nodes: Vec::new() });
                    branches.len() - 1
                }
            };
            next.push(Open { branch, switches });
        }
        open = next;
    }
    branches
}

/// Merges sets that share a member, directly or through other sets. Returns the indices of the merged sets and their
/// members.
fn join(sets: Vec<BTreeSet<usize>>) -> Vec<(Vec<usize>, BTreeSet<usize>)> {
    let mut holders: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, set) in sets.iter().enumerate() {
        for member in set {
            holders.entry(*member).or_default().push(at);
        }
    }
    let mut seen = BTreeSet::new();
    let mut joined = Vec::new();
    for start in 0..sets.len() {
        let (mut who, mut members, mut next) = (Vec::new(), BTreeSet::new(), vec![start]);
        while let Some(at) = next.pop() {
            if !seen.insert(at) {
                continue;
            }
            who.push(at);
            for member in sets.get(at).into_iter().flatten() {
                if members.insert(*member) {
                    next.extend(holders.get(member).into_iter().flatten());
                }
            }
        }
        if !who.is_empty() {
            who.sort_unstable();
            joined.push((who, members));
        }
    }
    joined
}

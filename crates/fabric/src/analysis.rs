//! The analysis of a fabric.

use std::collections::{BTreeMap, BTreeSet};

use railgate_text::natural;
use serde::Serialize;

use crate::discover::{Device, Fabric, Kind};
use crate::name;
use crate::tiers::{self, Tier};
use crate::tree::{self, Branch};
use crate::units::{self, Fault, Gaps, Group, Key, LeafPort, Nodes, Seat, Unit};
use crate::wiring::Wiring;

/// Options of the analysis.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The site's wiring.
    pub wiring: Wiring,
    /// Only these nodes; `None`: all nodes with a name.
    pub nodes: Option<BTreeSet<String>>,
}

/// The result of the analysis. In JSON, it is the output of `railgate fabric --format json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// Schema version: 1.
    pub schema: u32,
    /// Every switch, leaf switches first.
    pub switches: Vec<Switch>,
    /// Tiers, from the leaf switches up.
    pub tiers: Vec<Tier>,
    /// Groups of nodes that share their leaf switches.
    pub units: Vec<Unit>,
    /// Every HCA port of a node that is linked to a switch.
    pub ports: Vec<PortPlace>,
    /// Wiring faults, and ports that cannot be judged.
    pub faults: Vec<Fault>,
    /// HCAs without a node name in their node description: description and GUID.
    pub unnamed: Vec<String>,
    /// Host names that several hosts use.
    pub shared: Vec<SharedName>,
    /// Devices that only appear in lines of their neighbours: the text is truncated or filtered, and lacks cables.
    pub unrecorded: Vec<String>,
    /// Number of errors that `ibnetdiscover` reported; devices that did not respond are missing.
    pub errors: usize,
    /// Requested nodes without a link in this fabric.
    pub absent: Vec<String>,
    /// The tree for Slurm, from the nodes up. It has several roots if the fabric is partitioned.
    pub tree: Vec<Branch>,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Switch {
    /// Name; `S-<GUID>` if it has no plain name.
    pub name: String,
    /// Node GUID.
    pub guid: String,
    /// Tier, 1 for a leaf switch; `None` if no leaf switch is reachable.
    pub tier: Option<usize>,
    /// Number of its ports that are linked to nodes.
    pub node_ports: usize,
    /// Rails that should be on this switch, sorted.
    pub rails: Vec<usize>,
}

/// The position of an HCA port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortPlace {
    /// The node.
    pub node: String,
    /// Its HCA.
    pub hca: String,
    /// Port of the HCA.
    pub port: u8,
    /// Rail from 0; `None` if most nodes of the unit lack this port.
    pub rail: Option<usize>,
    /// Leaf switch.
    pub leaf: String,
    /// Port of the leaf switch.
    pub leaf_port: LeafPort,
}

/// A host name that several hosts use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharedName {
    /// The host name.
    pub name: String,
    /// GUIDs of the HCAs that have it.
    pub guids: Vec<String>,
    /// How that was detected, in one line.
    pub text: String,
}

impl Analysis {
    /// Returns the number of roots of the tree.
    pub fn roots(&self) -> usize {
        let below: BTreeSet<&String> = self.tree.iter().flat_map(|branch| &branch.children).collect();
        self.tree.iter().filter(|branch| !below.contains(&branch.name)).count()
    }
}

/// Analyses a fabric: tiers, units, rails, wiring faults, and the tree for Slurm.
pub fn analyse(fabric: &Fabric, options: &Options) -> Analysis {
    let names = switch_names(fabric);
    let Seats { nodes, leafs, below, unnamed, shared, unnamed_on } = seats(fabric, options);
    let tiers = tiers::tiers(fabric, &leafs);
    let unrecorded: Vec<String> = fabric
        .unrecorded()
        .map(|(at, device)| names.get(&at).cloned().unwrap_or_else(|| format!("H-{:016x}", device.guid)))
        .collect();
    let gaps = Gaps { unnamed: unnamed_on, unrecorded: unrecorded.len() };
    let (groups, mut analysis) = judged(&nodes, &names, options, &gaps);
    for (at, name) in &names {
        if let Some(switch) = analysis.switches.iter_mut().find(|switch| switch.name == *name) {
            let device = fabric.devices.get(*at);
            switch.guid = device.map(|device| format!("{:#018x}", device.guid)).unwrap_or_default();
            switch.tier = tiers.get(at).copied();
        }
    }
    analysis.switches.sort_by_key(|switch| (switch.tier.unwrap_or(usize::MAX), natural(&switch.name)));
    analysis.tree = tree::tree(fabric, &tiers, &names, &twigs(&nodes, &groups, &analysis.units));
    analysis.tiers = tiers::sums(fabric, &tiers, &below, &names);
    analysis.unnamed = unnamed;
    analysis.shared = shared;
    analysis.unrecorded = unrecorded;
    analysis.errors = fabric.errors;
    analysis
}

/// The part of the analysis that only needs the seats, without tiers and tree. `names` maps the indices of switches.
pub(crate) fn judged(
    nodes: &Nodes,
    names: &BTreeMap<usize, String>,
    options: &Options,
    gaps: &Gaps,
) -> (Vec<Group>, Analysis) {
    let groups = units::groups(nodes);
    let (units, faults) = units::judge(nodes, &groups, names, &options.wiring, gaps);
    let mut rails: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut ports = Vec::new();
    for group in &groups {
        let numbers = group.rails();
        for (key, leaf) in &group.leafs {
            if let (Some(leaf), Some(rail)) = (leaf, numbers.get(key)) {
                rails.entry(*leaf).or_default().insert(*rail);
            }
        }
        for node in &group.nodes {
            for (key, seat) in nodes.get(node).into_iter().flatten() {
                ports.push(PortPlace {
                    node: node.clone(),
                    hca: seat.hca.clone(),
                    port: seat.port,
                    rail: numbers.get(key).copied(),
                    leaf: names.get(&seat.leaf).cloned().unwrap_or_default(),
                    leaf_port: seat.leaf_port.clone(),
                });
            }
        }
    }
    let mut node_ports: BTreeMap<usize, usize> = BTreeMap::new();
    for seat in nodes.values().flat_map(BTreeMap::values) {
        *node_ports.entry(seat.leaf).or_default() += 1;
    }
    let switches = names
        .iter()
        .map(|(at, name)| Switch {
            name: name.clone(),
            guid: String::new(),
            tier: None,
            node_ports: node_ports.get(at).copied().unwrap_or_default(),
            rails: rails.get(at).into_iter().flatten().copied().collect(),
        })
        .collect();
    let wanted = options.nodes.iter().flatten();
    let analysis = Analysis {
        schema: 1,
        switches,
        tiers: Vec::new(),
        units,
        ports,
        faults,
        unnamed: Vec::new(),
        shared: Vec::new(),
        unrecorded: Vec::new(),
        errors: 0,
        absent: wanted.filter(|node| !nodes.contains_key(*node)).cloned().collect(),
        tree: Vec::new(),
    };
    (groups, analysis)
}

/// The lowest switches of the tree. Units with the same leaf switches, such as machine types with different HCAs, are
/// merged.
fn twigs(nodes: &Nodes, groups: &[Group], units: &[Unit]) -> Vec<(String, BTreeSet<usize>, Vec<String>)> {
    let mut twigs: Vec<(String, BTreeSet<usize>, Vec<String>)> = Vec::new();
    let mut at: BTreeMap<BTreeSet<usize>, usize> = BTreeMap::new();
    for (group, unit) in groups.iter().zip(units) {
        let mut leafs: BTreeSet<usize> = group.leafs.values().flatten().copied().collect();
        if leafs.is_empty() {
            let seats = group.nodes.iter().filter_map(|node| nodes.get(node)).flatten();
            leafs = seats.map(|(_, seat)| seat.leaf).collect();
        }
        let twig = *at.entry(leafs.clone()).or_insert(twigs.len());
        match twigs.get_mut(twig) {
            Some((_, _, nodes)) => {
                nodes.extend(unit.nodes.iter().cloned());
                nodes.sort_by_key(|node| natural(node));
            }
            None => twigs.push((unit.name.clone(), leafs, unit.nodes.clone())),
        }
    }
    twigs
}

/// A unique name for each switch, by index.
fn switch_names(fabric: &Fabric) -> BTreeMap<usize, String> {
    let switches = || fabric.devices.iter().enumerate().filter(|(_, device)| device.kind == Kind::Switch);
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for (_, device) in switches() {
        let names = [name::switch(&device.name).map(str::to_owned), name::switch_and_slot(&device.name)];
        for name in names.into_iter().flatten() {
            *count.entry(name).or_default() += 1;
        }
    }
    let only = |name: &String| count.get(name) == Some(&1);
    switches()
        .map(|(at, device)| {
            let own = name::switch(&device.name).map(str::to_owned).filter(only);
            let own = own.or_else(|| name::switch_and_slot(&device.name).filter(only));
            (at, own.unwrap_or_else(|| format!("S-{:016x}", device.guid)))
        })
        .collect()
}

struct Seats {
    nodes: Nodes,
    leafs: BTreeSet<usize>,
    below: BTreeSet<usize>,
    unnamed: Vec<String>,
    shared: Vec<SharedName>,
    /// HCAs without a node name, by leaf switch.
    unnamed_on: BTreeMap<usize, usize>,
}

/// HCAs without aggregation nodes, with host and HCA from their descriptions.
fn hcas(fabric: &Fabric) -> impl Iterator<Item = (usize, &Device, Option<(&str, &str)>)> {
    let all = fabric.devices.iter().enumerate();
    all.filter(|(_, device)| device.kind == Kind::Hca && !name::aggregation(&device.name))
        .map(|(at, device)| (at, device, name::node_and_hca(&device.name)))
}

/// Host names that occur on several HCAs in a way that is impossible for a single host.
fn shared_names(fabric: &Fabric) -> Vec<SharedName> {
    let mut by_node: BTreeMap<&str, Vec<(&str, &Device)>> = BTreeMap::new();
    for (_, device, names) in hcas(fabric) {
        if let Some((node, hca)) = names {
            by_node.entry(node).or_default().push((hca, device));
        }
    }
    let shared = |(node, hcas): (&str, Vec<(&str, &Device)>)| {
        let mut count: BTreeMap<&str, usize> = BTreeMap::new();
        for (hca, _) in &hcas {
            *count.entry(hca).or_default() += 1;
        }
        let twice = count.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 1);
        let text = match twice {
            Some((hca, count)) => {
                format!(
                    "{count} HCAs are called '{}', so several hosts are called {node}",
                    format!("{node} {hca}").trim()
                )
            }
            None if name::no_host_name(node) => {
                format!("{node} is the name of any host without one of its own")
            }
            None => return None,
        };
        let guids = hcas.iter().map(|(_, device)| format!("H-{:016x}", device.guid)).collect();
        Some(SharedName { name: node.to_owned(), guids, text })
    };
    by_node.into_iter().filter_map(shared).collect()
}

/// The switch of each port of each node.
fn seats(fabric: &Fabric, options: &Options) -> Seats {
    let mut found = Seats {
        nodes: Nodes::new(),
        leafs: BTreeSet::new(),
        below: BTreeSet::new(),
        unnamed: Vec::new(),
        shared: shared_names(fabric),
        unnamed_on: BTreeMap::new(),
    };
    let shared: BTreeSet<&str> = found.shared.iter().map(|shared| shared.name.as_str()).collect();
    let mut told: BTreeMap<usize, Option<(&str, &str)>> = BTreeMap::new();
    for (at, device, names) in hcas(fabric) {
        if names.is_none() {
            found.unnamed.push(format!("{} (H-{:016x})", device.name, device.guid));
        }
        told.insert(at, names.filter(|(node, _)| !shared.contains(node)));
    }
    for link in &fabric.links {
        let [one, other] = link.ends;
        for (own, peer) in [(one, other), (other, one)] {
            let switch = fabric.devices.get(peer.device).filter(|device| device.kind == Kind::Switch);
            let (Some(told), Some(_)) = (told.get(&own.device).copied(), switch) else { continue };
            if told.is_none() {
                *found.unnamed_on.entry(peer.device).or_default() += 1;
            }
            let wanted = match (&options.nodes, told) {
                (None, _) => true,
                (Some(nodes), Some((node, _))) => nodes.contains(node),
                (Some(_), None) => false,
            };
            if !wanted {
                continue;
            }
            found.leafs.insert(peer.device);
            found.below.insert(own.device);
            let Some((node, hca)) = told else { continue };
            if let Some(key) = Key::of(hca, own.port, &options.wiring) {
                let seat = Seat {
                    hca: hca.to_owned(),
                    port: own.port,
                    leaf: peer.device,
                    leaf_port: LeafPort::Number(peer.port),
                };
                found.nodes.entry(node.to_owned()).or_default().insert(key, seat);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::discover::parse;
    use crate::testing::made;
    use crate::units::FaultKind;

    fn look(text: &str) -> Analysis {
        analyse(&parse(text).unwrap(), &Options::default())
    }

    fn texts(analysis: &Analysis) -> Vec<&str> {
        analysis.faults.iter().map(|fault| fault.text.as_str()).collect()
    }

    #[test]
    fn units_rails_and_tiers_are_found() {
        let analysis = look(&made(2, 4, 8, 2).text());
        assert!(analysis.faults.is_empty(), "{:?}", texts(&analysis));
        let units: Vec<_> = analysis.units.iter().map(|unit| (unit.nodes.join(","), unit.by_rail)).collect();
        assert_eq!(units, [("gn1,gn2,gn3,gn4".to_owned(), true), ("gn5,gn6,gn7,gn8".to_owned(), true)]);
        let last = &analysis.units[1].rails[7];
        assert_eq!((last.rail, last.hca.as_str(), last.leaf.as_deref()), (7, "mlx5_7", Some("leaf-1-7")));
        assert_eq!(analysis.ports.len(), 64);
        let tiers: Vec<_> = analysis
            .tiers
            .iter()
            .map(|tier| (tier.switches, tier.down_links, tier.up_links, tier.oversubscription))
            .collect();
        assert_eq!(tiers, [(16, 64, 32, Some(2.0)), (2, 32, 0, None)]);
        assert_eq!(analysis.tiers[0].down_gbps, Some(25_600.0));
        let tree: Vec<_> =
            analysis.tree.iter().map(|branch| (branch.name.as_str(), branch.children.len())).collect();
        assert_eq!(tree, [("unit-1", 0), ("unit-2", 0), ("tier2-1", 2)]);
        assert_eq!(analysis.roots(), 1);
    }

    #[test]
    fn a_swapped_cable_is_named_with_both_ends() {
        let mut fabric = made(1, 4, 8, 1);
        fabric.swap((2, 2), (2, 5));
        assert_eq!(
            texts(&look(&fabric.text())),
            [
                "gn3 mlx5_2 port 1 is on leaf-0-5 port 3, should be on leaf-0-2 (rail 2); gn3 mlx5_5 port 1 is in its place",
                "gn3 mlx5_5 port 1 is on leaf-0-2 port 3, should be on leaf-0-5 (rail 5); gn3 mlx5_2 port 1 is in its place",
            ]
        );
    }

    #[test]
    fn a_port_without_a_link_is_named_and_shifts_no_rail() {
        let mut fabric = made(1, 4, 8, 1);
        fabric.seats.remove(&(1, 3));
        let analysis = look(&fabric.text());
        assert_eq!(texts(&analysis), ["gn2 mlx5_3 port 1 has no link, should be on leaf-0-3 (rail 3)"]);
    }

    #[test]
    fn two_disagreeing_nodes_are_undecided_unless_a_table_decides() {
        let mut fabric = made(1, 2, 8, 1);
        fabric.swap((0, 0), (0, 1));
        let text = fabric.text();
        let analysis = look(&text);
        assert!(
            analysis.faults.iter().all(|fault| fault.kind == FaultKind::Undecided && fault.node.is_empty())
        );
        assert_eq!(
            texts(&analysis)[0],
            "rail 0 (mlx5_0 port 1): the nodes disagree, and no leaf has more than half: gn1 on leaf-0-1, gn2 on leaf-0-0"
        );
        let rails: String = (0..8)
            .map(|rail| format!("[[rail]]\nhcas = ['mlx5_{rail}']\nleafs = ['leaf-0-{rail}']\n"))
            .collect();
        let options = Options { wiring: toml::from_str(&rails).unwrap(), nodes: None };
        let analysis = analyse(&parse(&text).unwrap(), &options);
        let at: Vec<_> = analysis.faults.iter().map(|fault| (fault.node.as_str(), fault.rail)).collect();
        assert_eq!(at, [("gn1", 0), ("gn1", 1)]);
    }

    #[test]
    fn only_requested_nodes_are_analysed() {
        let nodes = ["gn1", "gn2", "gn9"].map(str::to_owned).into();
        let options = Options { nodes: Some(nodes), ..Options::default() };
        let analysis = analyse(&parse(&made(2, 2, 2, 1).text()).unwrap(), &options);
        assert_eq!(analysis.units.iter().flat_map(|unit| &unit.nodes).count(), 2);
        assert_eq!(analysis.absent, ["gn9"]);
    }

    #[test]
    fn aggregation_nodes_and_unnamed_hcas_do_not_count_as_nodes() {
        let text = made(1, 2, 2, 1).text().replace(
            "Switch 254 \"S-2\"  # \"spine-0\" base port 0 lid 0 lmc 0\n",
            "Switch 254 \"S-2\"  # \"spine-0\" base port 0 lid 0 lmc 0\n\
             [200] \"H-aa\"[1](0) # \"Mellanox Technologies Aggregation Node\" lid 0 4xNDR\n",
        );
        let text = text.replace("gn2 mlx5_1", "MT4129 ConnectX7   Mellanox Technologies");
        let analysis = look(&text);
        let spine = analysis.switches.iter().find(|switch| switch.name == "spine-0").unwrap();
        assert_eq!(spine.tier, Some(2));
        assert_eq!(analysis.unnamed.len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Swaps within and across units, few enough that the majority stays right, must be found exactly.
        #[test]
        fn exactly_the_planted_swaps_are_found(
            units in 1..4usize,
            spines in 1..3usize,
            swaps in proptest::collection::vec((0..24usize, 0..8usize, 0..24usize, 0..8usize), 0..3),
        ) {
            let (nodes, rails) = (8, 8);
            let right = made(units, nodes, rails, spines);
            let mut fabric = right.clone();
            for (a, rail_a, b, rail_b) in swaps {
                fabric.swap((a % (units * nodes), rail_a), (b % (units * nodes), rail_b));
            }
            let planted: Vec<_> = fabric.seats.iter()
                .filter(|(seat, (leaf, _))| right.seats[*seat].0 != *leaf)
                .map(|((node, rail), (leaf, port))| {
                    let should = right.seats[&(*node, *rail)].0.clone();
                    (format!("gn{}", node + 1), *rail, Some(leaf.clone()), u8::try_from(*port).ok().map(LeafPort::Number), vec![should])
                })
                .collect();
            let analysis = look(&fabric.text());
            let mut found: Vec<_> = analysis.faults.iter()
                .map(|fault| (fault.node.clone(), fault.rail, fault.leaf.clone(), fault.leaf_port.clone(), fault.should.clone()))
                .collect();
            found.sort_by_key(|(node, rail, ..)| (natural(node), *rail));
            prop_assert_eq!(planted, found);
        }
    }
}

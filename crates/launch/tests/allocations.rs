//! Random allocations of a fabric with three tiers: crossings of the order, of Slurm's own, and of what is chosen with spares.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeSet;

use proptest::prelude::*;
use railgate_launch::{
    Allocated, Place, SwitchPath, choose, crossings, hostfile, order, replace, topology_lines,
};

/// Pods below one core layer, leafs of a pod, nodes of a leaf.
const PODS: usize = 8;
const LEAFS: usize = 8;
const NODES: usize = 16;

/// The same numbers on each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

/// The place of a node of the fabric.
fn place(node: usize) -> Place {
    let (leaf, pod) = (node / NODES, node / NODES / LEAFS);
    let path = ["core".to_owned(), format!("spine{pod}"), format!("leaf{leaf}")];
    Place::Known(SwitchPath::new(path.into()).unwrap())
}

/// How the names of the nodes follow the switches: Slurm's own order is that of the names.
#[derive(Clone, Copy)]
enum Names {
    /// Along the leafs, as in a cluster that was numbered after its cables.
    Cabled,
    /// One node of each leaf of a pod after the other: the racks are numbered across the leafs.
    Across,
    /// Without any relation, as after years of replacements.
    Mixed,
}

fn numbering(names: Names) -> Vec<usize> {
    let all = PODS * LEAFS * NODES;
    let mut nodes: Vec<usize> = (0..all).collect();
    match names {
        Names::Cabled => {}
        Names::Across => nodes.sort_by_key(|node| {
            let pod = node / (LEAFS * NODES);
            (pod, node % NODES, node / NODES)
        }),
        Names::Mixed => {
            let mut random = Random(7);
            for at in (1..all).rev() {
                nodes.swap(at, random.below(at + 1));
            }
        }
    }
    nodes
}

/// An allocation as a scheduler leaves it on a busy cluster: runs of free nodes, with gaps, in Slurm's order.
fn allocation(random: &mut Random, names: &[usize], size: usize) -> Vec<Place> {
    let mut taken = BTreeSet::new();
    while taken.len() < size {
        let (start, run) = (random.below(names.len()), 1 + random.below(12));
        taken.extend((start..start + run).filter(|at| *at < names.len()).take(size - taken.len()));
    }
    taken.into_iter().map(|at| place(names[at])).collect()
}

fn own(places: &[Place]) -> Vec<usize> {
    (0..places.len()).collect()
}

/// Distinct switches of each tier, the leafs first: in a ring, each is left once.
fn switches(places: &[Place]) -> Vec<usize> {
    let tier = |from_top: usize| {
        let prefix = |place: &Place| match place {
            Place::Known(path) => path.switches()[..from_top].to_vec(),
            Place::Unknown => panic!("no place"),
        };
        let found = places.iter().map(prefix).collect::<BTreeSet<_>>().len();
        if found > 1 { found } else { 0 }
    };
    (1..=3).rev().map(tier).collect()
}

/// Prints the table of docs/performance.md: means over the allocations of a size.
#[test]
#[expect(clippy::disallowed_methods, reason = "the test reads a page, the crate does not")]
fn crossings_of_1000_allocations() {
    let sizes = [2, 8, 16, 64, 128, 256];
    let mut table = "| nodes are numbered | nodes | allocations | leaf crossings: Slurm | railgate | spine crossings: Slurm | railgate |\n\
                     |---|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for (names, how) in [
        (Names::Cabled, "along the leafs"),
        (Names::Across, "across the leafs of a pod"),
        (Names::Mixed, "at random"),
    ] {
        let numbered = numbering(names);
        let mut counts = [0_u32; 6];
        let mut sums = [[0_u32; 4]; 6];
        for case in 0..1_000 {
            let mut random = Random(case);
            let at = random.below(sizes.len());
            let places = allocation(&mut random, &numbered, sizes[at]);
            let (slurm, ours) = (crossings(&places, &own(&places)), crossings(&places, &order(&places)));
            assert_eq!(ours.tiers, switches(&places), "no order crosses less");
            assert!(slurm.tiers.iter().zip(&ours.tiers).all(|(slurm, ours)| ours <= slurm), "{case}");
            counts[at] += 1;
            let found = [slurm.tiers[0], ours.tiers[0], slurm.tiers[1], ours.tiers[1]];
            for (sum, add) in sums[at].iter_mut().zip(found) {
                *sum += u32::try_from(add).unwrap();
            }
        }
        for ((size, count), sum) in sizes.iter().zip(counts).zip(sums) {
            let mean = sum.map(|sum| format!("{:.1}", f64::from(sum) / f64::from(count)));
            table.push_str(&format!("| {how} | {size} | {count} | {} |\n", mean.join(" | ")));
        }
    }
    println!("{table}");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/performance.md");
    let page = std::fs::read_to_string(page).unwrap_or_default();
    assert!(page.contains(&table), "docs/performance.md: the table is now\n{table}");
}

/// What `scontrol show topology` prints of the whole fabric.
fn topology_text() -> String {
    let mut text = String::new();
    let nodes = |first: usize, count: usize| format!("gn[{first:04}-{:04}]", first + count - 1);
    for leaf in 0..PODS * LEAFS {
        let nodes = nodes(leaf * NODES, NODES);
        text.push_str(&format!("SwitchName=leaf{leaf} Level=0 LinkSpeed=1 Nodes={nodes}\n"));
    }
    for pod in 0..PODS {
        let (first, nodes) = (pod * LEAFS, nodes(pod * LEAFS * NODES, LEAFS * NODES));
        let leafs = format!("leaf[{first}-{}]", first + LEAFS - 1);
        text.push_str(&format!("SwitchName=spine{pod} Level=1 LinkSpeed=1 Nodes={nodes} Switches={leafs}\n"));
    }
    let all = nodes(0, PODS * LEAFS * NODES);
    text.push_str(&format!(
        "SwitchName=core Level=2 LinkSpeed=1 Nodes={all} Switches=spine[0-{}]\n",
        PODS - 1
    ));
    text
}

#[test]
#[expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "a measurement")]
#[ignore = "a measurement: cargo test --release -p railgate-launch --test allocations -- --ignored --nocapture"]
fn time_of_1024_nodes() {
    let numbered = numbering(Names::Mixed);
    let places: Vec<Place> = numbered.iter().map(|node| place(*node)).collect();
    let names: Vec<String> = numbered.iter().map(|node| format!("gn{node:04}")).collect();
    let text = topology_text();
    let hostlist = |list: &str| railgate_slurm::hostlist::expand(list).ok();
    let start = std::time::Instant::now();
    let read = topology_lines(&text, &hostlist).unwrap();
    println!("topology of {} bytes read in {:?}", text.len(), start.elapsed());
    assert_eq!(read.places(&names), places);
    for spares in [0, 16, 256] {
        let start = std::time::Instant::now();
        let chosen = choose(&places, places.len() - spares).unwrap();
        let tasks: Vec<_> =
            chosen.ranks.iter().map(|node| Allocated { name: &names[*node], tasks: 8 }).collect();
        let text = hostfile(&tasks).unwrap();
        println!(
            "{} nodes, {spares} spares: {} lines in {:?}",
            places.len(),
            text.lines().count(),
            start.elapsed()
        );
        if spares > 0 {
            let start = std::time::Instant::now();
            let lost: Vec<usize> = chosen.ranks.iter().copied().take(spares).collect();
            replace(&places, &chosen.ranks, &lost, &chosen.spares).unwrap();
            println!("{spares} nodes replaced in {:?}", start.elapsed());
        }
    }
}

/// Places of trees of any form: paths of different lengths, unknown ones among them.
fn any_places() -> impl Strategy<Value = Vec<Place>> {
    let path = prop::collection::vec(0_u8..3, 0..4);
    prop::collection::vec(path, 0..40).prop_map(|paths| {
        let place = |path: Vec<u8>| {
            SwitchPath::new(path.iter().map(|name| format!("s{name}")).collect())
                .map_or(Place::Unknown, Place::Known)
        };
        paths.into_iter().map(place).collect()
    })
}

/// Places of a tree with the same number of tiers everywhere.
fn few_places() -> impl Strategy<Value = Vec<Place>> {
    prop::collection::vec((0_u8..2, 0_u8..3), 1..9).prop_map(|nodes| {
        let place = |(spine, leaf): (u8, u8)| {
            let path = vec!["core".to_owned(), format!("s{spine}"), format!("l{spine}-{leaf}")];
            Place::Known(SwitchPath::new(path).unwrap())
        };
        nodes.into_iter().map(place).collect()
    })
}

fn sum(places: &[Place], ranks: &[usize]) -> usize {
    crossings(places, ranks).tiers.iter().sum()
}

proptest! {
    #[test]
    fn an_order_has_each_node_once_and_never_crosses_more(places in any_places()) {
        let ordered = order(&places);
        let mut sorted = ordered.clone();
        sorted.sort_unstable();
        prop_assert_eq!(&sorted, &own(&places));
        let (slurm, ours) = (crossings(&places, &sorted), crossings(&places, &ordered));
        prop_assert!(slurm.tiers.iter().zip(&ours.tiers).all(|(slurm, ours)| ours <= slurm));
        prop_assert_eq!(slurm.unknown, ours.unknown);
        for (at, place) in places.iter().enumerate().filter(|(_, place)| **place == Place::Unknown) {
            prop_assert_eq!(ordered[at], at, "{:?}", place);
        }
        // The order of what is in order already does not change.
        let again: Vec<Place> = ordered.iter().map(|node| places[*node].clone()).collect();
        prop_assert_eq!(order(&again), own(&places));
    }

    #[test]
    fn no_choice_of_spares_crosses_less(places in few_places(), running in 1_usize..9) {
        prop_assume!(running <= places.len());
        let chosen = choose(&places, running).unwrap();
        prop_assert_eq!(chosen.ranks.len(), running);
        let all: BTreeSet<usize> = chosen.ranks.iter().chain(&chosen.spares).copied().collect();
        prop_assert_eq!(all.len(), places.len());
        let best = (0_u32..1 << places.len()).filter(|set| set.count_ones() as usize == running).map(|set| {
            let some: Vec<Place> =
                places.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1).map(|(_, place)| place.clone()).collect();
            sum(&some, &order(&some))
        });
        prop_assert_eq!(Some(sum(&places, &chosen.ranks)), best.min());
    }

    #[test]
    fn a_replacement_moves_no_other_rank(places in any_places(), running in 1_usize..30, lost in prop::collection::vec(0_usize..40, 0..4)) {
        prop_assume!(running <= places.len());
        let chosen = choose(&places, running).unwrap();
        let gone: Vec<usize> = chosen.ranks.iter().copied().filter(|node| lost.contains(node)).collect();
        let fit = chosen.spares.iter().filter(|node| !lost.contains(node)).count();
        let now = replace(&places, &chosen.ranks, &lost, &chosen.spares);
        prop_assert_eq!(now.is_some(), gone.len() <= fit);
        let Some(now) = now else { return Ok(()) };
        for (before, after) in chosen.ranks.iter().zip(&now.ranks) {
            if gone.contains(before) {
                prop_assert!(chosen.spares.contains(after) && !lost.contains(after));
            } else {
                prop_assert_eq!(before, after);
            }
        }
        let all: BTreeSet<usize> = now.ranks.iter().chain(&now.spares).copied().collect();
        prop_assert_eq!(all.len(), running + fit - gone.len());
    }
}

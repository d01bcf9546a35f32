//! The order of an allocation's nodes, so that neighbours in rank share switches.
//!
//! Collectives send most data between neighbours in rank, as in a ring. A pair of neighbours under two leaf switches loads the links
//! between switches, which are often oversubscribed. If the nodes of each leaf, of each spine and so on follow one another, the ring
//! leaves each switch once, and no order leaves it less often.
//!
//! All functions refer to nodes by their index in Slurm's own order, that of `SLURM_JOB_NODELIST`. Where nothing is known of the
//! places, this order is kept: nothing is derived from the names of nodes.

mod hostfile;
mod itself;
mod place;
mod spares;
#[cfg(test)]
mod testing;
mod topology;
mod yaml;

use std::collections::HashMap;

pub use hostfile::{Allocated, BadHostfile, hostfile};
pub use itself::slurm_orders_itself;
pub use place::{BadAddress, MAX_ADDRESS, Place, SwitchPath, place_of_address};
pub use spares::{Chosen, choose, replace};
pub use topology::{BadTopology, Hostlist, MAX_TOPOLOGY, Shape, Topology, topology_lines};
pub use yaml::topology_yaml;

/// Returns the order of the ranks, as indices into `places`.
///
/// Nodes under the same leaf follow one another, and so do those under the same spine and every tier above. Switches come in the order
/// of their first node, so the first node keeps rank 0. Nodes of a leaf keep Slurm's order. A node whose place is unknown keeps its
/// position; if nodes in such positions make the result worse in any tier than Slurm's order, Slurm's order is returned.
pub fn order(places: &[Place]) -> Vec<usize> {
    let own: Vec<usize> = (0..places.len()).collect();
    let mut first: HashMap<&[String], usize> = HashMap::new();
    let mut known: Vec<(Vec<usize>, usize)> = Vec::new();
    for (node, place) in places.iter().enumerate() {
        let Place::Known(path) = place else { continue };
        let switches = path.switches();
        // The first node below each switch of the path, from the top. A prefix of the path stands for the switch.
        let firsts = (1..=switches.len()).filter_map(|depth| switches.get(..depth));
        known.push((firsts.map(|prefix| *first.entry(prefix).or_insert(node)).collect(), node));
    }
    let mut positions: Vec<usize> = known.iter().map(|(_, node)| *node).collect();
    known.sort();
    let mut ordered = own.clone();
    for (position, (_, node)) in positions.drain(..).zip(known) {
        if let Some(at) = ordered.get_mut(position) {
            *at = node;
        }
    }
    if crossings(places, &ordered).above(&crossings(places, &own)) { own } else { ordered }
}

/// How many neighbours in rank are under different switches. The last rank and the first are neighbours, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crossings {
    /// Neighbours whose shared switch, if any, is above this tier; one element for each tier, the leafs first.
    pub tiers: Vec<usize>,
    /// Neighbours of which one or both have no known place. They are in no tier.
    pub unknown: usize,
    /// All neighbours: as many as there are nodes, or 0 for one node.
    pub neighbours: usize,
}

impl Crossings {
    /// Returns whether any tier has more crossings than in `other`.
    fn above(&self, other: &Crossings) -> bool {
        let tiers = self.tiers.len().max(other.tiers.len());
        (0..tiers).any(|tier| self.tier(tier) > other.tier(tier))
    }

    fn tier(&self, tier: usize) -> usize {
        self.tiers.get(tier).copied().unwrap_or_default()
    }

    /// Returns the sum over the tiers. A neighbour that is not known counts as one that shares no switch.
    fn total(&self) -> usize {
        self.tiers.iter().sum::<usize>() + self.unknown * self.tiers.len().max(1)
    }
}

/// Counts the crossings of an order, for example of the one that [`order`] returned or of Slurm's own.
pub fn crossings(places: &[Place], order: &[usize]) -> Crossings {
    let depth = places.iter().map(Place::depth).max().unwrap_or_default();
    let mut found = Crossings { tiers: vec![0; depth], unknown: 0, neighbours: 0 };
    if order.len() < 2 {
        return found;
    }
    for (node, next) in order.iter().zip(order.iter().cycle().skip(1)) {
        found.neighbours += 1;
        let places = (places.get(*node), places.get(*next));
        let (Some(Place::Known(node)), Some(Place::Known(next))) = places else {
            found.unknown += 1;
            continue;
        };
        for tier in found.tiers.iter_mut().take(node.climb(next)) {
            *tier += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::testing::{known, unknown};
    use super::*;

    fn tiers(places: &[Place], order: &[usize]) -> Vec<usize> {
        crossings(places, order).tiers
    }

    #[test]
    fn nodes_of_a_leaf_follow_one_another() {
        let places = known(&["c.s1.l1", "c.s2.l3", "c.s1.l2", "c.s1.l1", "c.s2.l3", "c.s1.l2"]);
        let ordered = order(&places);
        assert_eq!(ordered, [0, 3, 2, 5, 1, 4]);
        assert_eq!(tiers(&places, &ordered), [3, 2, 0]);
        assert_eq!(tiers(&places, &[0, 1, 2, 3, 4, 5]), [6, 4, 0]);
    }

    #[test]
    fn an_order_that_is_good_already_is_kept() {
        let places = known(&["c.s2.l9", "c.s2.l9", "c.s2.l1", "c.s1.l5", "c.s1.l5"]);
        assert_eq!(order(&places), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn one_leaf_and_one_node_have_no_crossings() {
        assert_eq!(crossings(&known(&["s.l1"]), &[0]), Crossings { tiers: vec![0, 0], ..Default::default() });
        assert_eq!(tiers(&known(&["s.l1", "s.l1", "s.l1"]), &[0, 1, 2]), [0, 0]);
        // Both directions between two nodes count.
        assert_eq!(tiers(&known(&["s.l1", "s.l2"]), &[0, 1]), [2, 0]);
        assert_eq!(order(&[]), [0_usize; 0]);
    }

    #[test]
    fn without_places_the_order_is_slurms() {
        let places = vec![unknown(); 5];
        assert_eq!(order(&places), [0, 1, 2, 3, 4]);
        assert_eq!(
            crossings(&places, &order(&places)),
            Crossings { tiers: Vec::new(), unknown: 5, neighbours: 5 }
        );
    }

    #[test]
    fn a_node_of_unknown_place_keeps_its_position() {
        let mut places = known(&["s.l1", "s.l2", "s.l1", "s.l2", "s.l1", "s.l2"]);
        places.insert(2, unknown());
        assert_eq!(order(&places), [0, 3, 2, 5, 1, 4, 6]);
    }

    #[test]
    fn unknown_places_never_make_it_worse_than_slurm() {
        // Slurm's order has each leaf between two nodes of unknown place; four nodes of l1 in a row would put l1 beside l2.
        let mut places = known(&["s.l1", "s.l1", "s.l2", "s.l2", "s.l1", "s.l1"]);
        places.insert(4, unknown());
        places.insert(2, unknown());
        assert_eq!(tiers(&places, &[0, 1, 2, 3, 4, 5, 6, 7]), [0, 0]);
        assert_eq!(order(&places), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn paths_of_different_length_share_what_they_have() {
        // A leaf that is directly below the core.
        let places = known(&["core.s1.l1", "core.l9", "core.s1.l1", "core.l9"]);
        let ordered = order(&places);
        assert_eq!(ordered, [0, 2, 1, 3]);
        assert_eq!(tiers(&places, &ordered), [2, 2, 0]);
    }

    #[test]
    fn separate_fabrics_cross_every_tier() {
        let places = known(&["a.l1", "b.l1", "a.l1", "b.l1"]);
        assert_eq!(order(&places), [0, 2, 1, 3]);
        assert_eq!(tiers(&places, &order(&places)), [2, 2]);
    }
}

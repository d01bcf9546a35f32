//! Which nodes of an allocation run, which stay spare, and which spare takes the place of a node that is lost.

use std::cmp::Reverse;

use super::{Place, SwitchPath, crossings, order};

/// The nodes of an allocation, as indices in Slurm's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The nodes that run, in the order of the ranks.
    pub ranks: Vec<usize>,
    /// The others, in Slurm's order.
    pub spares: Vec<usize>,
}

/// Chooses the nodes that run, so that their order crosses the fewest tiers. `places` are those of all nodes, in Slurm's order.
///
/// Of choices that cross equally often, that with the fewest crossings in the upper tiers is taken, then that which takes the spares out
/// of the smallest leafs, then from the end of Slurm's order. So whole leafs are left out, and at most one leaf in part. Nodes of unknown place become spares
/// first, since they may cross anything; without any known place, the spares are the last nodes.
///
/// Returns `None` if `running` is 0 or more than there are nodes.
pub fn choose(places: &[Place], running: usize) -> Option<Chosen> {
    let mut spare = places.len().checked_sub(running).filter(|_| running > 0)?;
    let mut runs = vec![true; places.len()];
    for (place, runs) in places.iter().zip(&mut runs).rev() {
        if spare > 0 && *place == Place::Unknown {
            *runs = false;
            spare -= 1;
        }
    }
    for node in Tree::of(places).without(spare) {
        if let Some(runs) = runs.get_mut(node) {
            *runs = false;
        }
    }
    let (run, spares): (Vec<usize>, Vec<usize>) =
        (0..places.len()).partition(|node| runs.get(*node).copied().unwrap_or_default());
    let of_run: Vec<Place> = run.iter().filter_map(|node| places.get(*node)).cloned().collect();
    let ranks = order(&of_run).into_iter().filter_map(|at| run.get(at).copied()).collect();
    Some(Chosen { ranks, spares })
}

/// Puts a spare in the place of each node of `lost`. All other nodes keep their ranks.
///
/// A spare under the leaf of the lost node is taken first; otherwise that with which the order crosses the fewest tiers, then the first in
/// `spares`. Spares that are unfit must not be in `spares`. Nodes of `lost` that are not in `ranks` need no spare.
///
/// Returns the new ranks and the spares that are left; `None` if there are too few.
pub fn replace(places: &[Place], ranks: &[usize], lost: &[usize], spares: &[usize]) -> Option<Chosen> {
    let mut ranks = ranks.to_vec();
    let mut spares: Vec<usize> = spares.iter().copied().filter(|node| !lost.contains(node)).collect();
    let mut open: Vec<usize> =
        (0..ranks.len()).filter(|rank| ranks.get(*rank).is_some_and(|node| lost.contains(node))).collect();
    if open.len() > spares.len() {
        return None;
    }
    let same_leaf = |node: usize, spare: usize| match (places.get(node), places.get(spare)) {
        (Some(Place::Known(node)), Some(Place::Known(spare))) => node == spare,
        _ => false,
    };
    // First the leafs that have a spare of their own, so that no other rank takes it.
    open.retain(|rank| {
        let Some(at) = ranks.get_mut(*rank) else { return false };
        let Some(found) = spares.iter().position(|spare| same_leaf(*at, *spare)) else { return true };
        *at = spares.remove(found);
        false
    });
    for rank in open {
        let total = |spare: &usize| {
            let mut tried = ranks.clone();
            if let Some(at) = tried.get_mut(rank) {
                *at = *spare;
            }
            crossings(places, &tried).total()
        };
        let best = (0..spares.len()).min_by_key(|at| spares.get(*at).map(total))?;
        if let Some(at) = ranks.get_mut(rank) {
            *at = spares.remove(best);
        }
    }
    Some(Chosen { ranks, spares })
}

/// What it costs to keep some nodes of a switch; the smaller the better, from the first field to the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Switches with nodes that run. In a ring, each is left once.
    switches: usize,
    /// The sum of their tiers, leafs 1: a crossing of an upper tier costs more.
    height: usize,
    /// The sizes of the leafs that have spares. With the least of it, at most one leaf has both spares and nodes that run: if two
    /// have, either the smaller one can be left out as a whole, or all these spares come out of it alone.
    touched: usize,
}

impl Cost {
    fn and(self, other: Cost) -> Cost {
        Cost {
            switches: self.switches + other.switches,
            height: self.height + other.height,
            touched: self.touched + other.touched,
        }
    }
}

/// A switch with known nodes below it. Element 0 of the tree is above all others and stands for no switch.
#[derive(Debug, Default)]
struct Switch {
    children: Vec<usize>,
    /// The nodes directly below it, in Slurm's order.
    nodes: Vec<usize>,
    size: usize,
    tier: usize,
    /// Element k: the lowest cost with k spares below this switch, without the switch itself.
    costs: Vec<Cost>,
    /// For each child, element k: how many of k spares, below this child and those before it, are below this child.
    taken: Vec<Vec<usize>>,
}

#[derive(Debug)]
struct Tree(Vec<Switch>);

impl Tree {
    fn of(places: &[Place]) -> Self {
        let depth = places.iter().map(Place::depth).max().unwrap_or_default();
        let mut all = vec![Switch { tier: depth + 1, ..Switch::default() }];
        let mut found = std::collections::HashMap::new();
        for (node, place) in places.iter().enumerate() {
            let Place::Known(path) = place else { continue };
            for switch in above(path, depth, &mut all, &mut found) {
                if let Some(switch) = all.get_mut(switch) {
                    switch.size += 1;
                    if switch.tier == depth + 1 - path.switches().len() {
                        switch.nodes.push(node);
                    }
                }
            }
        }
        Tree(all)
    }

    /// Returns the best nodes to leave out.
    fn without(mut self, spare: usize) -> Vec<usize> {
        let total = self.0.first().map_or(0, |root| root.size);
        let Some(running) = total.checked_sub(spare).filter(|_| spare > 0) else { return Vec::new() };
        // A switch follows the one above it.
        for at in (0..self.0.len()).rev() {
            self.fill(at, spare);
        }
        // Switches that all running nodes share are not left: only those below count.
        let holds = |(at, switch): (usize, &Switch)| {
            let inside = switch.size.checked_sub(running)?;
            let outside = Cost { touched: total - switch.size, ..Cost::default() };
            Some((switch.costs.get(inside)?.and(outside), Reverse(switch.tier), at, inside))
        };
        let mut left = Vec::new();
        if let Some((_, _, top, inside)) = self.0.iter().enumerate().filter_map(holds).min() {
            let mut kept = vec![true; self.0.len()];
            self.mark_outside(0, top, &mut kept);
            for (switch, _) in self.0.iter().zip(kept).filter(|(_, kept)| !kept) {
                left.extend(&switch.nodes);
            }
            self.take(top, inside, &mut left);
        }
        left
    }

    fn fill(&mut self, at: usize, spare: usize) {
        let Some(switch) = self.0.get(at) else { return };
        let own = switch.nodes.len();
        let mut costs: Vec<Cost> = (0..=own.min(spare))
            .map(|taken| Cost { touched: if taken > 0 { own } else { 0 }, ..Cost::default() })
            .collect();
        let mut taken = Vec::new();
        for child in switch.children.iter().filter_map(|child| self.0.get(*child)) {
            let of_child = |taken: usize| {
                let runs = usize::from(taken < child.size);
                let own = Cost { switches: runs, height: runs * child.tier, ..Cost::default() };
                child.costs.get(taken).map(|cost| cost.and(own))
            };
            let most = (costs.len() + child.costs.len() - 2).min(spare);
            let mut next = Vec::with_capacity(most + 1);
            let mut choice = Vec::with_capacity(most + 1);
            for all in 0..=most {
                // Of equal costs the last one counts, with the most spares in the later child.
                let split = |here: usize| {
                    Some((costs.get(all.checked_sub(here)?)?.and(of_child(here)?), Reverse(here)))
                };
                let best = (0..=all.min(child.size)).filter_map(split).min();
                let (cost, Reverse(here)) = best.unwrap_or_default();
                next.push(cost);
                choice.push(here);
            }
            costs = next;
            taken.push(choice);
        }
        if let Some(switch) = self.0.get_mut(at) {
            (switch.costs, switch.taken) = (costs, taken);
        }
    }

    /// Adds `spares` nodes below a switch.
    fn take(&self, at: usize, mut spares: usize, left: &mut Vec<usize>) {
        let Some(switch) = self.0.get(at) else { return };
        for (child, taken) in switch.children.iter().zip(&switch.taken).rev() {
            let here = taken.get(spares).copied().unwrap_or_default();
            self.take(*child, here, left);
            spares -= here.min(spares);
        }
        left.extend(switch.nodes.iter().rev().take(spares));
    }

    /// Marks the switches that are neither `top` nor below it.
    fn mark_outside(&self, at: usize, top: usize, kept: &mut [bool]) {
        if at == top {
            return;
        }
        if let Some(kept) = kept.get_mut(at) {
            *kept = false;
        }
        for child in self.0.get(at).into_iter().flat_map(|switch| &switch.children) {
            self.mark_outside(*child, top, kept);
        }
    }
}

/// Returns the switches above a node, from element 0 to the leaf, and adds those that are new.
fn above<'a>(
    path: &'a SwitchPath,
    depth: usize,
    all: &mut Vec<Switch>,
    found: &mut std::collections::HashMap<&'a [String], usize>,
) -> Vec<usize> {
    let mut above = vec![0];
    let switches = path.switches();
    for (tier, prefix) in (1..=switches.len()).filter_map(|length| Some((length, switches.get(..length)?))) {
        let parent = above.last().copied().unwrap_or_default();
        let at = *found.entry(prefix).or_insert_with(|| {
            all.push(Switch { tier: depth + 1 - tier, ..Switch::default() });
            let at = all.len() - 1;
            if let Some(parent) = all.get_mut(parent) {
                parent.children.push(at);
            }
            at
        });
        above.push(at);
    }
    above
}

#[cfg(test)]
mod tests {
    use super::super::testing::{known, unknown};
    use super::*;

    fn spares(paths: &[&str], running: usize) -> Vec<usize> {
        choose(&known(paths), running).unwrap().spares
    }

    #[test]
    fn spares_come_out_of_the_smallest_leaf() {
        let paths = ["s.a", "s.a", "s.a", "s.b", "s.c", "s.c"];
        assert_eq!(spares(&paths, 5), [3]);
        // The whole leaf of two rather than a part of that of three.
        assert_eq!(spares(&paths, 3), [3, 4, 5]);
        assert_eq!(spares(&paths, 6), [0_usize; 0]);
        let chosen = choose(&known(&["s.a", "s.b", "s.a", "s.b", "s.c"]), 4).unwrap();
        assert_eq!(chosen, Chosen { ranks: vec![0, 2, 1, 3], spares: vec![4] });
    }

    #[test]
    fn whole_leafs_are_kept() {
        // One spare of two leafs of three: one leaf stays whole.
        assert_eq!(spares(&["s.a", "s.a", "s.a", "s.b", "s.b", "s.b"], 4), [4, 5]);
    }

    #[test]
    fn a_spine_of_its_own_goes_before_a_leaf_of_the_same_size() {
        assert_eq!(spares(&["c.s2.a", "c.s1.b", "c.s1.d", "c.s2.a", "c.s1.b", "c.s1.d"], 4), [0, 3]);
    }

    #[test]
    fn one_spine_is_taken_where_it_crosses_less_in_sum() {
        // Without spine 2: 5 leafs and no crossing of spines. Without the four single nodes: 4 leafs, 2 spines.
        let paths = [
            "c.s1.a", "c.s1.b", "c.s1.c", "c.s1.d", "c.s1.e", "c.s1.e", "c.s2.f", "c.s2.f", "c.s2.g",
            "c.s2.h",
        ];
        assert_eq!(spares(&paths, 6), [6, 7, 8, 9]);
    }

    #[test]
    fn of_equal_sums_the_one_without_spines_is_taken() {
        // Without spine 2: 5 leafs. Without the four single nodes: 3 leafs and 2 spines.
        let paths = [
            "c.s1.a", "c.s1.b", "c.s1.c", "c.s1.d", "c.s1.e", "c.s1.e", "c.s2.f", "c.s2.f", "c.s2.g",
            "c.s2.g",
        ];
        assert_eq!(spares(&paths, 6), [6, 7, 8, 9]);
    }

    #[test]
    fn a_leaf_that_loses_a_part_is_the_smallest() {
        assert_eq!(spares(&["s.b", "s.b", "s.a", "s.a", "s.a"], 4), [1]);
        assert_eq!(spares(&["s.b", "s.b", "s.b", "s.a", "s.a", "s.a"], 5), [5], "the later one of two");
    }

    #[test]
    fn nodes_of_unknown_place_are_the_first_spares() {
        let mut places = known(&["s.a", "s.a", "s.b"]);
        places.insert(1, unknown());
        assert_eq!(choose(&places, 3).unwrap().spares, [1]);
        assert_eq!(choose(&places, 2).unwrap().spares, [1, 3]);
        assert_eq!(choose(&vec![unknown(); 5], 3), Some(Chosen { ranks: vec![0, 1, 2], spares: vec![3, 4] }));
    }

    #[test]
    fn a_number_that_cannot_run_gives_nothing() {
        assert_eq!(choose(&known(&["a", "a"]), 0), None);
        assert_eq!(choose(&known(&["a", "a"]), 3), None);
        assert_eq!(choose(&[], 0), None);
    }

    #[test]
    fn a_spare_of_the_same_leaf_takes_the_place() {
        let places = known(&["s.a", "s.a", "s.b", "s.b", "s.c", "s.b", "s.a"]);
        let now = replace(&places, &[0, 1, 2, 3], &[3], &[4, 5, 6]).unwrap();
        assert_eq!(now, Chosen { ranks: vec![0, 1, 2, 5], spares: vec![4, 6] });
        // The leaf's own spare is left to it, although another rank is replaced first.
        let now = replace(&places, &[4, 1, 2, 3], &[4, 1], &[6, 5]).unwrap();
        assert_eq!(now, Chosen { ranks: vec![5, 6, 2, 3], spares: vec![] });
    }

    #[test]
    fn without_one_the_spare_that_crosses_least_is_taken() {
        let places = known(&["c.s1.a", "c.s1.b", "c.s2.d", "c.s1.e", "c.s2.f"]);
        assert_eq!(replace(&places, &[0, 1], &[1], &[2, 3]).unwrap().ranks, [0, 3]);
        let mut places = known(&["s.a", "s.a", "s.b"]);
        places.push(unknown());
        assert_eq!(replace(&places, &[0, 1], &[1], &[3, 2]).unwrap().ranks, [0, 2]);
        assert_eq!(replace(&vec![unknown(); 4], &[1, 0], &[0], &[3, 2]).unwrap().ranks, [1, 3]);
    }

    #[test]
    fn too_few_spares_and_lost_spares() {
        let places = known(&["s.a", "s.a", "s.b", "s.b"]);
        assert_eq!(replace(&places, &[0, 1], &[0, 1], &[2]), None);
        assert_eq!(replace(&places, &[0, 1], &[1, 2], &[2]), None);
        let now = replace(&places, &[0, 1], &[2], &[2, 3]).unwrap();
        assert_eq!(now, Chosen { ranks: vec![0, 1], spares: vec![3] });
    }
}

//! Which nodes of the allocation run the program, in the order of the ranks, and which are spare.

use railgate_launch::{Chosen, choose, replace};

use super::allocation::Allocation;

/// The nodes that run and the spares, as indices into the allocation.
pub(crate) struct Nodes<'a> {
    pub(crate) allocation: &'a Allocation,
    /// As few nodes as the program may run on.
    pub(crate) least: usize,
    chosen: Chosen,
}

impl<'a> Nodes<'a> {
    /// Chooses `running` nodes, so that neighbours in rank share switches; `None` if the allocation has too few.
    pub(crate) fn new(allocation: &'a Allocation, running: usize, least: usize) -> Option<Self> {
        let all = allocation.nodes.len();
        let chosen = if running == all && allocation.is_ordered_by_slurm {
            Chosen { ranks: (0..all).collect(), spares: Vec::new() }
        } else {
            choose(&allocation.places, running)?
        };
        Some(Nodes { allocation, least, chosen })
    }

    /// The nodes that run, in the order of the ranks.
    pub(crate) fn running(&self) -> Vec<String> {
        self.names(&self.chosen.ranks)
    }

    /// The others.
    pub(crate) fn spares(&self) -> Vec<String> {
        self.names(&self.chosen.spares)
    }

    /// Puts spares that are `usable` in the places of `lost` nodes. Without enough of them the ranks close up, down to [`Nodes::least`]
    /// nodes. Returns whether enough are left; otherwise nothing is changed.
    pub(crate) fn leave_out(&mut self, lost: &[String], usable: Vec<String>) -> bool {
        let (lost, mut spares) = (self.indices(lost), self.indices(&usable));
        spares.retain(|node| !lost.contains(node));
        let Chosen { ranks, .. } = &self.chosen;
        let open: Vec<usize> = ranks.iter().copied().filter(|node| lost.contains(node)).collect();
        let filled = open.get(..spares.len()).unwrap_or(&open);
        let Some(moved) = replace(&self.allocation.places, ranks, filled, &spares) else { return false };
        let ranks: Vec<usize> = moved.ranks.into_iter().filter(|node| !lost.contains(node)).collect();
        if ranks.len() < self.least {
            return false;
        }
        self.chosen = Chosen { ranks, spares: moved.spares };
        true
    }

    fn names(&self, of: &[usize]) -> Vec<String> {
        of.iter().filter_map(|at| self.allocation.nodes.get(*at).cloned()).collect()
    }

    fn indices(&self, names: &[String]) -> Vec<usize> {
        let at = |name: &String| self.allocation.nodes.iter().position(|node| node == name);
        names.iter().filter_map(at).collect()
    }
}

#[cfg(test)]
mod tests {
    use railgate_launch::Place;

    use super::*;

    fn names(numbers: &[usize]) -> Vec<String> {
        numbers.iter().map(|number| format!("gn{number}")).collect()
    }

    fn allocation(nodes: usize) -> Allocation {
        Allocation {
            job: 7,
            attempt: 0,
            nodes: (1..=nodes).map(|number| format!("gn{number}")).collect(),
            components: Vec::new(),
            places: vec![Place::Unknown; nodes],
            is_ordered_by_slurm: false,
            tasks: 1,
            uneven: None,
        }
    }

    #[test]
    fn a_spare_takes_the_place_of_a_lost_node() {
        let all = allocation(4);
        let mut nodes = Nodes::new(&all, 3, 3).unwrap();
        assert_eq!((nodes.running(), nodes.spares()), (names(&[1, 2, 3]), names(&[4])));
        assert!(nodes.leave_out(&names(&[2]), names(&[4])));
        assert_eq!((nodes.running(), nodes.spares()), (names(&[1, 4, 3]), names(&[])));
        assert!(!nodes.leave_out(&names(&[1]), names(&[])), "no spare is left");
        assert_eq!(nodes.running(), names(&[1, 4, 3]));
    }

    #[test]
    fn a_lost_spare_is_not_used() {
        let all = allocation(4);
        let mut nodes = Nodes::new(&all, 2, 2).unwrap();
        assert!(nodes.leave_out(&names(&[2, 3]), names(&[3, 4])));
        assert_eq!((nodes.running(), nodes.spares()), (names(&[1, 4]), names(&[])));
    }

    #[test]
    fn ranks_close_up_to_the_least_number() {
        let all = allocation(5);
        let mut nodes = Nodes::new(&all, 4, 3).unwrap();
        assert!(nodes.leave_out(&names(&[1, 2]), names(&[5])));
        assert_eq!(nodes.running(), names(&[5, 3, 4]));
        assert!(!nodes.leave_out(&names(&[5]), names(&[])));
    }
}

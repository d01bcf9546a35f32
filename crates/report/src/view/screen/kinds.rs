//! Collective signatures over all nodes.

use railgate_node_report::Communication;

/// One collective signature over all nodes of an attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Kind {
    pub(super) op: String,
    pub(super) from_bytes: u64,
    pub(super) size: u32,
    pub(super) calls: u64,
    pub(super) ranks: u64,
    pub(super) gpu_s: f64,
    /// Mean over the nodes, weighted by time.
    pub(super) busbw_gb_s: Option<f64>,
    pub(super) reference_gb_s: Option<f64>,
    /// On some node the bandwidth cannot be compared with the reference.
    pub(super) apart: bool,
}

impl Kind {
    pub(super) fn calls_per_rank(&self) -> u64 {
        self.calls / self.ranks.max(1)
    }

    /// `None` without a reference, or if the two cannot be compared.
    pub(super) fn percent(&self) -> Option<f64> {
        let (reached, possible) = self.busbw_gb_s.zip(self.reference_gb_s)?;
        (possible > 0.0 && !self.apart).then(|| 100.0 * reached / possible)
    }
}

/// Signatures by operation, size and ranks over all nodes, sorted by time in descending order.
pub(super) fn kinds<'a>(all: impl Iterator<Item = &'a Communication>) -> Vec<Kind> {
    let mut kinds: Vec<(Kind, f64, f64)> = Vec::new();
    for row in all.flat_map(|comm| &comm.collectives) {
        let same = |(kind, ..): &(Kind, f64, f64)| {
            kind.op == row.op && kind.from_bytes == row.from_bytes && kind.size == row.size
        };
        let place = kinds.iter().position(same).unwrap_or_else(|| {
            let kind =
                Kind { op: row.op.clone(), from_bytes: row.from_bytes, size: row.size, ..Kind::default() };
            kinds.push((kind, 0.0, 0.0));
            kinds.len() - 1
        });
        let Some((kind, weight, sum)) = kinds.get_mut(place) else { continue };
        kind.calls += row.calls;
        kind.ranks += u64::from(row.ranks);
        kind.gpu_s += row.gpu_s;
        kind.reference_gb_s = kind.reference_gb_s.or(row.reference_gb_s);
        let comparable = row.comparable_gb_s();
        if let Some(reached) = comparable.or(row.busbw_gb_s) {
            kind.apart |= comparable.is_none();
            *weight += row.gpu_s.max(1e-9);
            *sum += reached * row.gpu_s.max(1e-9);
        }
    }
    let mut kinds: Vec<Kind> = kinds
        .into_iter()
        .map(|(kind, weight, sum)| Kind { busbw_gb_s: (weight > 0.0).then(|| sum / weight), ..kind })
        .collect();
    kinds.sort_by(|a, b| b.gpu_s.total_cmp(&a.gpu_s));
    kinds
}

#[cfg(test)]
mod tests {
    use railgate_node_report::comm::{Collective, Reference, refer};
    use railgate_node_report::testing::collective as row;

    use super::*;

    #[test]
    fn signatures_of_all_nodes_are_summed_and_compared() {
        let measured =
            Reference { op: "AllReduce".to_owned(), ranks: 16, nodes: 2, bytes: 1 << 30, busbw_gb_s: 400.0 };
        let rows = vec![
            row("AllReduce", 1 << 30, Some(300.0)),
            row("AllReduce", 1 << 29, Some(300.0)),
            row("AllGather", 1 << 30, Some(300.0)),
            row("AllReduce", 1 << 30, None),
        ];
        let mut told = Communication { collectives: rows, ..Communication::default() };
        refer(&mut told, &[measured]);
        let kinds = kinds([&told].into_iter());
        assert_eq!((kinds.len(), kinds[0].calls_per_rank(), kinds[0].percent()), (3, 100, Some(75.0)));
        assert_eq!((kinds[1].percent(), kinds[1].reference_gb_s), (None, None));
    }

    #[test]
    fn back_to_back_calls_without_a_bandwidth_are_not_compared() {
        let held_up = Collective {
            timed: 100,
            back_to_back: 87,
            reference_gb_s: Some(400.0),
            ..row("AllGather", 1 << 20, Some(50.0))
        };
        let told = Communication { collectives: vec![held_up], ..Communication::default() };
        let kinds = kinds([&told].into_iter());
        assert_eq!((kinds[0].busbw_gb_s, kinds[0].percent()), (Some(50.0), None));
    }
}

//! Reference bandwidth of collectives. It comes from measurements of the site, or is unknown.

use serde::{Deserialize, Serialize};

use super::{Collective, Communication};

/// A bus bandwidth that the site measured on its machines, by the formula of nccl-tests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// NCCL's name of the operation, `AllReduce`.
    pub op: String,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Nodes of the communicator.
    pub nodes: u64,
    /// Message size of the measurement, bytes.
    pub bytes: u64,
    /// Bus bandwidth, GB/s (1e9).
    pub busbw_gb_s: f64,
}

impl Reference {
    fn is_of(&self, row: &Collective) -> bool {
        let in_class = row.from_bytes <= self.bytes && self.bytes / 2 < row.from_bytes.max(1);
        self.op == row.op && self.ranks == row.size && self.nodes == row.nodes && in_class
    }
}

impl Collective {
    /// Bandwidth to compare with a reference, GB/s: that of back-to-back calls, as nccl-tests measures, if they
    /// are half of the timed calls. A few of them between calls with computation are not representative.
    pub fn comparable_gb_s(&self) -> Option<f64> {
        let in_a_row = self.timed > 0 && self.back_to_back.saturating_mul(2) >= self.timed;
        if in_a_row { self.busbw_back_to_back_gb_s } else { self.busbw_gb_s }
    }
}

/// Adds to each row the site's reference for the same operation, ranks, nodes and size class.
pub fn refer(told: &mut Communication, references: &[Reference]) {
    for row in &mut told.collectives {
        let found = references.iter().find(|reference| reference.is_of(row));
        row.reference_gb_s = found.map(|reference| reference.busbw_gb_s);
        row.of_reference_percent = row
            .reference_gb_s
            .zip(row.comparable_gb_s())
            .filter(|(reference, _)| *reference > 0.0)
            .map(|(reference, reached)| 100.0 * reached / reference);
    }
}

/// One collective signature over all nodes of an attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Kind {
    pub(crate) op: String,
    pub(crate) from_bytes: u64,
    pub(crate) size: u32,
    pub(crate) calls: u64,
    pub(crate) ranks: u64,
    pub(crate) gpu_s: f64,
    /// Mean over the nodes, weighted by time.
    pub(crate) busbw_gb_s: Option<f64>,
    pub(crate) reference_gb_s: Option<f64>,
    /// On some node the bandwidth cannot be compared with the reference.
    pub(crate) apart: bool,
}

impl Kind {
    pub(crate) fn calls_per_rank(&self) -> u64 {
        self.calls / self.ranks.max(1)
    }

    /// `None` without a reference, or if the two cannot be compared.
    pub(crate) fn percent(&self) -> Option<f64> {
        let (reached, possible) = self.busbw_gb_s.zip(self.reference_gb_s)?;
        (possible > 0.0 && !self.apart).then(|| 100.0 * reached / possible)
    }
}

/// Signatures by operation, size and ranks over all nodes, sorted by time in descending order.
pub(crate) fn kinds<'a>(all: impl Iterator<Item = &'a Communication>) -> Vec<Kind> {
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
    use super::*;

    fn row(op: &str, from_bytes: u64, busbw: Option<f64>) -> Collective {
        Collective {
            op: op.to_owned(),
            from_bytes,
            size: 16,
            nodes: 2,
            ranks: 8,
            calls: 800,
            gpu_s: 2.0,
            busbw_gb_s: busbw,
            ..Collective::default()
        }
    }

    #[test]
    fn without_a_reference_the_percentage_is_unknown() {
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
        let said: Vec<_> =
            told.collectives.iter().map(|row| (row.reference_gb_s, row.of_reference_percent)).collect();
        assert_eq!(said, [(Some(400.0), Some(75.0)), (None, None), (None, None), (Some(400.0), None)]);
        // Two of 100 calls were back to back; the kernels of the others waited for peers that computed.
        let rare = Collective {
            busbw_back_to_back_gb_s: Some(36.0),
            back_to_back: 2,
            timed: 100,
            ..row("AllReduce", 1 << 26, Some(120.0))
        };
        assert_eq!(rare.comparable_gb_s(), Some(120.0));
        assert_eq!(Collective { back_to_back: 87, ..rare }.comparable_gb_s(), Some(36.0));
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

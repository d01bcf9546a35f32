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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::collective as row;

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
    }
}

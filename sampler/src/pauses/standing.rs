//! Whether the ranks of the node make progress, for the guard.

use std::collections::BTreeMap;

use railgate_guard::{Counts as Told, CountsOf, RankOps};
use railgate_model::UnixMillis;
use railgate_rankfile::OPERATIONS;

use super::detector::Counts;

/// Standing still for so long is reported, milliseconds; shorter pauses are normal.
const LONG: UnixMillis = 10_000;
/// Most communicators, and most ranks of one, in a report.
const MOST_COMMS: usize = 16;
const MOST_RANKS: usize = 64;

/// The latest counts, and when they last changed.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// Operations of each process, by the number of its file.
    ops: BTreeMap<u64, u64>,
    moved: UnixMillis,
    stands: bool,
}

impl Standing {
    /// Adds a reading. Returns whether the ranks began to stand still, or to move again.
    pub(super) fn add(&mut self, now: UnixMillis, counts: &[Counts]) -> bool {
        let sum = |one: &Counts| one.comms.iter().fold(0_u64, |sum, count| sum.saturating_add(count.ops));
        let ops: BTreeMap<u64, u64> = counts.iter().map(|one| (one.file, sum(one))).collect();
        if ops != self.ops {
            (self.ops, self.moved) = (ops, now);
        }
        let stands = now.saturating_sub(self.moved) >= LONG;
        std::mem::replace(&mut self.stands, stands) != stands
    }

    /// What the guard is told: nothing if the counts of a process do not show who waits.
    pub(super) fn told(&self, counts: &[Counts]) -> Option<Told> {
        if counts.is_empty() || counts.iter().any(|one| one.left_out) {
            return None;
        }
        let mut all: BTreeMap<u64, CountsOf> = BTreeMap::new();
        let mut most: BTreeMap<u64, u64> = BTreeMap::new();
        for (pid, count) in counts.iter().flat_map(|one| one.comms.iter().map(|count| (one.pid, count))) {
            let of = all.entry(count.hash).or_insert_with(|| CountsOf {
                communicator: super::detector::hash_text(count.hash),
                size: count.ranks,
                ..CountsOf::default()
            });
            let op = OPERATIONS.get(usize::from(count.op)).copied().unwrap_or_default();
            if of.ranks.len() < MOST_RANKS {
                of.ranks.push(RankOps { rank: count.rank, pid, ops: count.ops, op: op.to_owned() });
            }
            let most = most.entry(count.hash).or_default();
            if count.ops >= *most {
                *most = count.ops;
                of.op = op.to_owned();
                of.seq = (count.seq > 0).then_some(count.seq);
            }
        }
        let mut communicators: Vec<CountsOf> = all.into_values().collect();
        communicators.sort_by_key(|one| std::cmp::Reverse(one.size));
        communicators.truncate(MOST_COMMS);
        Some(Told { moved: self.moved, communicators })
    }
}

#[cfg(test)]
mod tests {
    use super::super::detector::Count;
    use super::*;

    fn counts(file: u64, ops: u64) -> Counts {
        let rank = u32::try_from(file).unwrap();
        let count = Count { hash: 7, ranks: 2, rank, ops, op: 0, seq: ops };
        Counts { file, pid: 100 + rank, comms: vec![count], left_out: false }
    }

    #[test]
    fn standing_still_and_moving_again_are_reported_once() {
        let mut standing = Standing::default();
        let stood = [counts(0, 5), counts(1, 4)];
        let news: Vec<u64> = (0..300).filter(|at| standing.add(50_000 + at * 100, &stood)).collect();
        assert_eq!(news, [100]);
        let told = standing.told(&stood).unwrap();
        assert_eq!((told.moved, told.communicators.len()), (50_000, 1));
        let of = &told.communicators[0];
        let ranks: Vec<(u32, u32, u64)> = of.ranks.iter().map(|one| (one.rank, one.pid, one.ops)).collect();
        assert_eq!((of.size, &ranks[..], of.seq), (2, &[(0, 100, 5), (1, 101, 4)][..], Some(5)));
        assert_eq!(of.ranks[0].op, OPERATIONS[0]);
        assert!(standing.add(90_000, &[counts(0, 5), counts(1, 5)]));
        assert!(!standing.add(90_100, &[counts(0, 6), counts(1, 5)]));
    }

    #[test]
    fn counts_that_hide_waits_are_not_told() {
        let standing = Standing::default();
        assert_eq!(standing.told(&[]), None);
        let hides = Counts { left_out: true, ..counts(1, 4) };
        assert_eq!(standing.told(&[counts(0, 5), hides]), None);
    }
}

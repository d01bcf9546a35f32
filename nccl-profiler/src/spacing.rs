//! How far apart operations begin that follow one another at once.
//!
//! An operation's own time on the GPU leaves out what lies between two: the end of one kernel and the beginning of the
//! next. A benchmark that launches many and divides the time has that in it. So where an operation of a
//! communicator begins as soon as the one before it has ended, the time from begin to begin is kept, too.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use railgate_rankfile::{CELLS, COMMS, Key, P2P_GROUP, cell};

use crate::store::Store;

/// After more than this the GPU had nothing of this communicator's to do: what came between is not the operation's.
const AT_ONCE_NS: u64 = 50_000;
/// The same between launches of messages, which take longer to launch: in a loop of them 20 to 65 µs (measured).
const MESSAGES_AT_ONCE_NS: u64 = 100_000;
/// A distance that is so many times the one before it in its cell is not counted: somebody was waited for. Only the first of
/// several is left out, so that what stays slower counts.
const STANDS_OUT: u64 = 3;
/// A communicator's operations follow one another on the GPU; how exactly its channels' clocks are read.
const OVERLAP_NS: u64 = 2_000;

/// An operation's times on the GPU's clock, and where it is counted.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    /// Which of the communicator's operations, from 1.
    pub(crate) number: u64,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) bytes: u64,
    /// Its cell's index; beyond [`CELLS`]: the file is full.
    pub(crate) cell: usize,
}

/// The one that finished last.
struct Last {
    busy: AtomicBool,
    number: AtomicU64,
    begin: AtomicU64,
    end: AtomicU64,
    bytes: AtomicU64,
    cell: AtomicU64,
}

static LAST: [Last; COMMS] = [const {
    Last {
        busy: AtomicBool::new(false),
        number: AtomicU64::new(0),
        begin: AtomicU64::new(0),
        end: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        cell: AtomicU64::new(0),
    }
}; COMMS];

/// By cell, the last distance.
static BEFORE: [AtomicU64; CELLS] = [const { AtomicU64::new(0) }; CELLS];

/// An operation has finished: whether its times can be its own. NCCL may give an earlier one's where it lags behind the GPU.
/// Where two threads finish at the same time, one of them is not compared: nobody waits.
pub(crate) fn finished(store: &Store, key: Key, seen: Seen) -> bool {
    let Some(last) = LAST.get(usize::from(key.comm)) else { return true };
    if last.busy.swap(true, Acquire) {
        return true;
    }
    let before = Seen {
        number: last.number.load(Relaxed),
        begin: last.begin.load(Relaxed),
        end: last.end.load(Relaxed),
        bytes: last.bytes.load(Relaxed),
        cell: usize::try_from(last.cell.load(Relaxed)).unwrap_or(usize::MAX),
    };
    let own = before.number >= seen.number || seen.begin.saturating_add(OVERLAP_NS) >= before.end;
    let at_once_ns = if key.op == P2P_GROUP { MESSAGES_AT_ONCE_NS } else { AT_ONCE_NS };
    if let Some(apart) =
        apart(before, seen, at_once_ns).filter(|apart| own && !stands_out(before.cell, *apart))
    {
        store.cell(before.cell, cell::SPACED_SUM).fetch_add(apart, Relaxed);
        store.cell(before.cell, cell::SPACED_BYTES).fetch_add(before.bytes, Relaxed);
        store.cell(before.cell, cell::SPACED).fetch_add(1, Relaxed);
    }
    if seen.number > before.number {
        for (word, value) in [
            (&last.number, seen.number),
            // Not known: nothing lies that far behind.
            (&last.begin, if own { seen.begin } else { u64::MAX }),
            (&last.end, seen.end),
            (&last.bytes, seen.bytes),
            (&last.cell, seen.cell as u64),
        ] {
            word.store(value, Relaxed);
        }
    }
    last.busy.store(false, Release);
    own
}

/// From begin to begin, if the second came at once.
fn apart(before: Seen, seen: Seen, at_once_ns: u64) -> Option<u64> {
    let next = before.number > 0 && before.number.checked_add(1) == Some(seen.number);
    let at_once = before.cell < CELLS && seen.begin.saturating_sub(before.end) <= at_once_ns;
    (next && at_once).then(|| seen.begin.checked_sub(before.begin)).flatten().filter(|apart| *apart > 0)
}

/// Whether a distance is far longer than the last one in its cell, which it is from now on.
fn stands_out(cell: usize, apart: u64) -> bool {
    let before = BEFORE.get(cell).map_or(0, |before| before.swap(apart, Relaxed));
    before > 0 && apart > before.saturating_mul(STANDS_OUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_follows_at_once_has_a_distance() {
        let of = |number, begin, end| Seen { number, begin, end, bytes: 8, cell: 0 };
        let before = of(7, 100_000, 130_000);
        assert_eq!(apart(before, of(8, 134_000, 170_000), AT_ONCE_NS), Some(34_000));
        for other in [of(9, 134_000, 170_000), of(7, 134_000, 1), of(8, 180_001, 1), of(8, 99_000, 1)] {
            assert_eq!(apart(before, other, AT_ONCE_NS), None);
        }
        assert_eq!(apart(of(0, 0, 0), of(1, 5, 6), AT_ONCE_NS), None);
        assert_eq!(apart(before, of(8, 230_000, 1), MESSAGES_AT_ONCE_NS), Some(130_000));
        assert_eq!(apart(before, of(8, 230_001, 1), MESSAGES_AT_ONCE_NS), None);
    }

    #[test]
    fn one_long_distance_is_a_wait_and_several_are_the_rule() {
        let out =
            |cell, apart: &[u64]| apart.iter().map(|apart| stands_out(cell, *apart)).collect::<Vec<_>>();
        assert_eq!(out(0, &[90, 30, 35, 1000, 30, 91, 88]), [false, false, false, true, false, true, false]);
        // Kinds that take turns are not compared with one another.
        assert!(
            [(1, 20), (2, 200), (1, 20), (2, 200)].iter().all(|(cell, apart)| !stands_out(*cell, *apart))
        );
        assert!(!stands_out(CELLS, 7));
    }
}

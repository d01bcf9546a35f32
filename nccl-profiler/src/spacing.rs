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
/// A distance is not counted that is so many times the one before it in its cell: somebody was waited for. Nor is one where the GPU
/// stood still for so many times as long as before it and this much longer: the program waited for the GPU, as nccl-tests does between
/// its loops (30 µs, measured; launches of messages vary as much by themselves). Only the first of several is left out, so that what
/// stays slower counts.
const STANDS_OUT: u64 = 3;
const PAUSES: u64 = 2;
const PAUSES_NS: u64 = 10_000;
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

/// By cell, the last distance, and what of it the GPU stood still.
static BEFORE: [(AtomicU64, AtomicU64); CELLS] = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; CELLS];

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
    let (at_once_ns, pause) = match key.op {
        P2P_GROUP => (MESSAGES_AT_ONCE_NS, 0),
        _ => (AT_ONCE_NS, idle(before, seen)),
    };
    if let Some(apart) =
        apart(before, seen, at_once_ns).filter(|apart| own && !stands_out(before.cell, *apart, pause))
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

fn idle(before: Seen, seen: Seen) -> u64 {
    seen.begin.saturating_sub(before.end)
}

/// From begin to begin, if the second came at once.
fn apart(before: Seen, seen: Seen, at_once_ns: u64) -> Option<u64> {
    let next = before.number > 0 && before.number.checked_add(1) == Some(seen.number);
    let at_once = before.cell < CELLS && idle(before, seen) <= at_once_ns;
    (next && at_once).then(|| seen.begin.checked_sub(before.begin)).flatten().filter(|apart| *apart > 0)
}

/// Whether a distance is far longer than the last one in its cell, which it is from now on.
fn stands_out(cell: usize, apart: u64, idle: u64) -> bool {
    let Some((last_apart, last_idle)) = BEFORE.get(cell) else { return false };
    let (last_apart, last_idle) = (last_apart.swap(apart, Relaxed), last_idle.swap(idle, Relaxed));
    let pause = last_idle.saturating_mul(PAUSES).saturating_add(PAUSES_NS);
    last_apart > 0 && (apart > last_apart.saturating_mul(STANDS_OUT) || idle > pause)
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
            |cell, apart: &[u64]| apart.iter().map(|apart| stands_out(cell, *apart, 0)).collect::<Vec<_>>();
        assert_eq!(out(0, &[90, 30, 35, 1000, 30, 91, 88]), [false, false, false, true, false, true, false]);
        // Kinds that take turns are not compared with one another.
        assert!(
            [(1, 20), (2, 200), (1, 20), (2, 200)].iter().all(|(cell, apart)| !stands_out(*cell, *apart, 0))
        );
        assert!(!stands_out(CELLS, 7, 0));
    }

    /// all_gather of 1 MiB on two H200s: kernels of 10 µs, launched every 17 µs, and 43 µs between two loops.
    #[test]
    fn a_pause_of_the_program_is_no_part_of_what_comes_before_it() {
        let out = |pauses: &[u64]| {
            pauses.iter().map(|idle| stands_out(3, 10_000 + idle, *idle)).collect::<Vec<_>>()
        };
        assert_eq!(
            out(&[7_000, 8_000, 12_000, 33_000, 7_000, 25_000, 26_000]),
            [false, false, false, false, false, true, false]
        );
        assert_eq!(out(&[0, 10_000, 0, 10_001]), [false, false, false, true]);
    }
}

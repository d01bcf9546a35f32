//! Launch intervals: the time between the starts of successive operations.
//!
//! An operation's GPU time leaves out the gap between two operations, from the end of one kernel to the start of the
//! next. The result of a benchmark that launches many operations and divides the total time includes that gap. So if
//! an operation of a communicator starts immediately after the previous one has ended, the time from start to start
//! is recorded, too.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use railgate_rankfile::{CELLS, COMMS, Key, cell};

use crate::count::add;
use crate::slots::Writers;
use crate::store::Store;

/// Longest gap. In a longer one the GPU had no work of this communicator, and the gap does not belong to the
/// operation.
const AT_ONCE_NS: u64 = 50_000;
/// The same between launches of messages, which take longer: 20 to 65 µs in a loop (measured).
const MESSAGES_AT_ONCE_NS: u64 = 100_000;
/// An interval of more than this many times the previous one in its cell is not counted: some rank was waited for.
/// Only the first of several is left out, so that a persistent slowdown counts.
const STANDS_OUT: u64 = 3;
/// Between collectives, an interval is also left out if its gap is longer than this multiple of the last regular gap
/// plus [`PAUSES_NS`]: the program waited for the GPU, as nccl-tests does between its loops (30 µs, measured;
/// launches of messages vary as much by themselves). At most one in [`RARELY`] intervals of a cell is left out for
/// this reason: more frequent pauses are the program's normal behaviour.
const PAUSES: u64 = 2;
const PAUSES_NS: u64 = 10_000;
const RARELY: u64 = 16;
/// Most intervals that may be left out in a row.
const IN_A_ROW: u64 = 4;
/// Precision of the channels' clocks: operations of a communicator do not overlap on the GPU by more than this.
const OVERLAP_NS: u64 = 2_000;

/// An operation's times on the GPU's clock, and its cell.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    /// Number of the operation in the communicator, from 1.
    pub(crate) number: u64,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) bytes: u64,
    /// Whether it stands for all messages of one launch.
    pub(crate) messages: bool,
    /// Index of its cell; [`CELLS`] or more: the file is full.
    pub(crate) cell: usize,
}

/// The last finished operation, written by [`Writers`].
#[repr(align(64))]
struct Last {
    busy: AtomicBool,
    number: AtomicU64,
    begin: AtomicU64,
    end: AtomicU64,
    bytes: AtomicU64,
    messages: AtomicBool,
    cell: AtomicU64,
}

static LAST: [Last; COMMS] = [const {
    Last {
        busy: AtomicBool::new(false),
        number: AtomicU64::new(0),
        begin: AtomicU64::new(0),
        end: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        messages: AtomicBool::new(false),
        cell: AtomicU64::new(0),
    }
}; COMMS];

/// State of a cell.
struct Before {
    /// The last interval.
    apart: AtomicU64,
    /// The gap in the last interval that was not a pause; the maximum if there was none.
    idle: AtomicU64,
    /// Credit for leaving out intervals: each regular one adds one, up to a limit, and each that is left out costs
    /// [`RARELY`].
    saved: AtomicU64,
}

static BEFORE: [Before; CELLS] = [const {
    Before { apart: AtomicU64::new(0), idle: AtomicU64::new(u64::MAX), saved: AtomicU64::new(RARELY * 2) }
}; CELLS];

/// Records a finished operation. Returns whether its times can be its own: NCCL may report those of an earlier one if
/// it lags behind the GPU. If two threads finish at the same time, one operation is not compared, so that neither
/// waits.
pub(crate) fn finished(store: &Store, key: Key, seen: Seen, writers: Writers) -> bool {
    let Some(last) = LAST.get(usize::from(key.comm)) else { return true };
    let two = writers == Writers::Two;
    if two && last.busy.swap(true, Acquire) {
        return true;
    }
    let own = follows(store, last, seen);
    if two {
        last.busy.store(false, Release);
    }
    own
}

/// As [`finished`], for one thread at a time.
fn follows(store: &Store, last: &Last, seen: Seen) -> bool {
    let before = Seen {
        number: last.number.load(Relaxed),
        begin: last.begin.load(Relaxed),
        end: last.end.load(Relaxed),
        bytes: last.bytes.load(Relaxed),
        messages: last.messages.load(Relaxed),
        cell: usize::try_from(last.cell.load(Relaxed)).unwrap_or(usize::MAX),
    };
    let own = before.number >= seen.number || seen.begin.saturating_add(OVERLAP_NS) >= before.end;
    let at_once_ns = if seen.messages { MESSAGES_AT_ONCE_NS } else { AT_ONCE_NS };
    let pauses = !before.messages && !seen.messages;
    if let Some(apart) = apart(before, seen, at_once_ns).filter(|apart| {
        own && !stands_out(before.cell, *apart) && !(pauses && is_pause(before.cell, idle(before, seen)))
    }) {
        for (word, by) in [(cell::SPACED_SUM, apart), (cell::SPACED_BYTES, before.bytes), (cell::SPACED, 1)] {
            add(store.cell(before.cell, word), by);
        }
    }
    if seen.number > before.number {
        for (word, value) in [
            (&last.number, seen.number),
            // Its times are unknown, so the next interval is not counted.
            (&last.begin, if own { seen.begin } else { u64::MAX }),
            (&last.end, seen.end),
            (&last.bytes, seen.bytes),
            (&last.cell, seen.cell as u64),
        ] {
            word.store(value, Relaxed);
        }
        last.messages.store(seen.messages, Relaxed);
    }
    own
}

fn idle(before: Seen, seen: Seen) -> u64 {
    seen.begin.saturating_sub(before.end)
}

/// The launch interval, if the second operation started immediately.
fn apart(before: Seen, seen: Seen, at_once_ns: u64) -> Option<u64> {
    let next = before.number > 0 && before.number.checked_add(1) == Some(seen.number);
    let at_once = before.cell < CELLS && idle(before, seen) <= at_once_ns;
    (next && at_once).then(|| seen.begin.checked_sub(before.begin)).flatten().filter(|apart| *apart > 0)
}

/// Whether an interval is far longer than the previous one in its cell. Stores it for the next comparison.
fn stands_out(cell: usize, apart: u64) -> bool {
    let Some(before) = BEFORE.get(cell) else { return false };
    let last = before.apart.load(Relaxed);
    before.apart.store(apart, Relaxed);
    last > 0 && apart > last.saturating_mul(STANDS_OUT)
}

/// Whether the gap is far longer than usual in the cell, and rare.
fn is_pause(cell: usize, idle: u64) -> bool {
    let Some(before) = BEFORE.get(cell) else { return false };
    let (usual, saved) = (before.idle.load(Relaxed), before.saved.load(Relaxed));
    if saved >= RARELY && idle > usual.saturating_mul(PAUSES).saturating_add(PAUSES_NS) {
        before.saved.store(saved - RARELY, Relaxed);
        return true;
    }
    before.idle.store(idle, Relaxed);
    before.saved.store((saved + 1).min(RARELY * IN_A_ROW), Relaxed);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_immediate_successors_give_a_launch_interval() {
        let of = |number, begin, end| Seen { number, begin, end, bytes: 8, messages: false, cell: 0 };
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
    fn one_long_interval_is_left_out_and_several_count() {
        let out =
            |cell, apart: &[u64]| apart.iter().map(|apart| stands_out(cell, *apart)).collect::<Vec<_>>();
        assert_eq!(out(0, &[90, 30, 35, 1000, 30, 91, 88]), [false, false, false, true, false, true, false]);
        // Alternating kinds of operations are not compared with one another.
        assert!(
            [(1, 20), (2, 200), (1, 20), (2, 200)].iter().all(|(cell, apart)| !stands_out(*cell, *apart))
        );
        assert!(!stands_out(CELLS, 7));
    }

    /// nccl-tests, all_gather of 1 MiB on two H200s: five warm-up calls, then twice one and a hundred; kernels of 10
    /// µs are launched every 17 µs, and between the loops the GPU is idle for 33 µs.
    #[test]
    fn a_pause_of_the_program_is_left_out() {
        let loops = [5, 1, 100, 1, 100];
        let left_out: Vec<usize> = loops
            .iter()
            .map(|calls| pauses(3, (1..=*calls).map(|n| if n == *calls { 33_000 } else { 7_000 })))
            .collect();
        assert_eq!(left_out, [1, 1, 1, 1, 1]);
    }

    #[test]
    fn frequent_pauses_count() {
        assert!(pauses(4, (0..1000).map(|n| 2_000 + n % 2 * 18_000)) <= 1000 / 16);
        assert!(pauses(5, (0..1000).map(|n| if n < 100 { 2_000 } else { 40_000 })) <= 4);
        assert_eq!(pauses(6, (0..1000).map(|n| 5_000 + n % 7 * 2_000)), 0);
        assert!(!is_pause(CELLS, u64::MAX));
    }

    /// Number of intervals that are left out.
    fn pauses(cell: usize, idle: impl Iterator<Item = u64>) -> usize {
        idle.filter(|idle| is_pause(cell, *idle)).count()
    }
}

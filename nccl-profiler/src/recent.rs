//! Where operations of the latest kinds are counted.
//!
//! A program repeats the same few operations. Telling by its names which cell an operation belongs to takes longer than
//! everything else that is done with it, so each communicator remembers the latest ones by where the names stand.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};

use railgate_rankfile::COMMS;

use crate::abi::Coll;

/// Kinds that a communicator remembers, a power of two.
const KINDS: usize = 8;
/// Places of the four names, and the count.
const MARKS: usize = 5;

/// What an operation was found to be.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    /// [`railgate_rankfile::Key::word`].
    pub(crate) key: u64,
    pub(crate) bytes: u64,
    /// Its cell's index.
    pub(crate) cell: usize,
}

/// Written and read by whoever launches; the turn is odd while somebody writes. One cache line.
#[repr(align(64))]
struct Entry {
    turn: AtomicU64,
    marks: [AtomicU64; MARKS],
    key: AtomicU64,
    /// Bytes, and the cell's index from bit [`CELL_AT`] on.
    bytes_cell: AtomicU64,
}

/// Larger operations are not remembered.
const CELL_AT: u32 = 48;

static ENTRY: [[Entry; KINDS]; COMMS] = [const {
    [const {
        Entry {
            turn: AtomicU64::new(0),
            marks: [const { AtomicU64::new(0) }; MARKS],
            key: AtomicU64::new(0),
            bytes_cell: AtomicU64::new(0),
        }
    }; KINDS]
}; COMMS];

fn marks(coll: &Coll<'_>) -> [u64; MARKS] {
    [coll.func.place(), coll.datatype.place(), coll.algorithm.place(), coll.protocol.place(), coll.count]
}

fn entry(comm: usize, marks: &[u64; MARKS]) -> Option<&'static Entry> {
    let mixed = marks.iter().fold(0_u64, |sum, mark| (sum ^ mark).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    ENTRY.get(comm)?.get(usize::try_from(mixed >> 61).unwrap_or(0) % KINDS)
}

/// What this operation was found to be the last time.
pub(crate) fn find(comm: usize, coll: &Coll<'_>) -> Option<Known> {
    let marks = marks(coll);
    let entry = entry(comm, &marks)?;
    let turn = entry.turn.load(Acquire);
    let same = entry.marks.iter().zip(&marks).all(|(have, mark)| have.load(Relaxed) == *mark);
    let (key, bytes_cell) = (entry.key.load(Relaxed), entry.bytes_cell.load(Relaxed));
    fence(Acquire);
    let whole = turn > 0 && turn & 1 == 0 && entry.turn.load(Relaxed) == turn;
    if !same || !whole {
        return None;
    }
    let cell = usize::try_from(bytes_cell >> CELL_AT).ok()?;
    Some(Known { key, bytes: bytes_cell & ((1 << CELL_AT) - 1), cell })
}

/// Remembers it. Whoever comes second while somebody writes leaves it be.
pub(crate) fn keep(comm: usize, coll: &Coll<'_>, known: Known) {
    let marks = marks(coll);
    let Some(entry) = entry(comm, &marks).filter(|_| known.bytes >> CELL_AT == 0) else { return };
    let turn = entry.turn.load(Relaxed);
    if turn & 1 == 1 || entry.turn.compare_exchange(turn, turn + 1, Acquire, Relaxed).is_err() {
        return;
    }
    fence(Release);
    for (have, mark) in entry.marks.iter().zip(marks) {
        have.store(mark, Relaxed);
    }
    entry.key.store(known.key, Relaxed);
    entry.bytes_cell.store(known.bytes | (known.cell as u64) << CELL_AT, Relaxed);
    entry.turn.store(turn + 2, Release);
}

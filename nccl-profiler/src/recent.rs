//! Where operations of the latest kinds are counted, and the quick way of counting one more of them.
//!
//! A program repeats the same few operations. Telling by its names which cell an operation belongs to takes longer than
//! everything else that is done with it, so each communicator remembers the latest kinds by where the names stand.
//!
//! NCCL's own work pushes all of this out of the caches between two operations, so what costs time is how many lines are
//! touched. The quick way touches four: [`state`]'s, one here, and two of the file, the communicator's and the cell's. It
//! neither reads the host's clock nor decides what is timed: the processor's own clock says when the former is due again,
//! [`comm::LOOK`] when the latter is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use railgate_rankfile::{COMMS, comm, count};

use crate::abi::{Marks, RawColl};
use crate::count::Op;
use crate::{state, steer};

/// Kinds that a communicator remembers, a power of two.
const KINDS: usize = 16;
/// Between the bits of a key: the cell's index.
const CELL_AT: u32 = 32;
const CELL_MASK: u64 = 0x7fff_ffff << CELL_AT;
/// The host's clock is read again after so many of the processor's ticks: one to two milliseconds.
const FRESH_TICKS: u64 = 1 << 22;

/// Written and read by whoever launches, one thread at a time. One cache line.
#[repr(align(64))]
struct Entry {
    /// [`Marks`].
    marks: [AtomicU64; 5],
    bytes: AtomicU64,
    /// The key, and the cell's index from bit [`CELL_AT`] on; 0: free.
    key_cell: AtomicU64,
    /// The processor's ticks when it last went the long way, which reads the host's clock.
    ticks: AtomicU64,
}

static ENTRY: [[Entry; KINDS]; COMMS] = [const {
    [const {
        Entry {
            marks: [const { AtomicU64::new(0) }; 5],
            bytes: AtomicU64::new(0),
            key_cell: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
        }
    }; KINDS]
}; COMMS];

impl Entry {
    #[inline]
    fn is_of(&self, marks: Marks) -> bool {
        self.marks.iter().zip(marks).all(|(have, mark)| have.load(Relaxed) == mark)
    }
}

/// Where a kind is remembered, if it is.
#[inline]
fn entry(comm: usize, [func, _, _, _, count]: Marks) -> Option<&'static Entry> {
    let mixed = (func ^ count).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ENTRY.get(comm)?.get(usize::try_from(mixed >> 60).unwrap_or(0) % KINDS)
}

/// Counts an operation like one before it, if that is all there is to do; if not, nothing was done. Nothing here can panic.
#[inline(always)]
pub(crate) fn again(comm: usize, coll: &RawColl) -> bool {
    let (Some(file), Some(entry)) = (state::usual_file(), entry(comm, coll.marks())) else { return false };
    let key_cell = entry.key_cell.load(Relaxed);
    let cell = usize::try_from((key_cell & CELL_MASK) >> CELL_AT).unwrap_or(usize::MAX);
    let (Some(words), Some(counts)) = (file.comms.get(comm), file.counts.get(cell)) else { return false };
    let number = words[comm::OPS].load(Relaxed).wrapping_add(1);
    let call = counts[count::CALLS].load(Relaxed).wrapping_add(1);
    let usual = key_cell != 0
        && entry.is_of(coll.marks())
        && ticks().wrapping_sub(entry.ticks.load(Relaxed)) < FRESH_TICKS
        && number < words[comm::LOOK].load(Relaxed)
        && !steer::begins_window(call);
    if !usual {
        return false;
    }
    let bytes = entry.bytes.load(Relaxed);
    counts[count::BYTES].store(counts[count::BYTES].load(Relaxed).wrapping_add(bytes), Relaxed);
    counts[count::CALLS].store(call, Relaxed);
    words[comm::OPS].store(number, Relaxed);
    words[comm::LAST_KEY].store(key_cell & !CELL_MASK, Relaxed);
    words[comm::LAST_SEQ].store(coll.seq, Relaxed);
    words[comm::LAST_BYTES].store(bytes, Relaxed);
    let price = words[comm::PRICE].load(Relaxed).wrapping_add(steer::cost(coll.channels()));
    words[comm::PRICE].store(price, Relaxed);
    true
}

/// What such an operation was found to be the last time, or is found to be now. Whoever asks reads the host's clock next.
pub(crate) fn known(comm: usize, marks: Marks, found: impl FnOnce() -> Op) -> Op {
    let Some(entry) = entry(comm, marks) else { return found() };
    let key_cell = entry.key_cell.load(Relaxed);
    if key_cell != 0 && entry.is_of(marks) {
        entry.ticks.store(ticks(), Relaxed);
        let cell = usize::try_from((key_cell & CELL_MASK) >> CELL_AT).ok();
        return Op { key: key_cell & !CELL_MASK, bytes: entry.bytes.load(Relaxed), cell };
    }
    let op = found();
    if let Some(cell) = op.cell {
        for (have, mark) in entry.marks.iter().zip(marks) {
            have.store(mark, Relaxed);
        }
        entry.bytes.store(op.bytes, Relaxed);
        entry.key_cell.store(op.key | ((cell as u64) << CELL_AT & CELL_MASK), Relaxed);
        entry.ticks.store(ticks(), Relaxed);
    }
    op
}

/// The processor's own clock, of no known unit and no known beginning. On another processor it may be another one: what
/// follows is at worst that the host's clock is read once more.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86-64 has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Never fresh.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    TICKS.fetch_add(FRESH_TICKS, Relaxed)
}

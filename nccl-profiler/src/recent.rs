//! Where operations of the latest kinds are counted, and the quick way of counting one more of them.
//!
//! A program repeats the same few operations. Telling by its names which cell an operation belongs to takes longer than
//! everything else that is done with it, so each communicator remembers the latest kinds by where the names stand.
//!
//! NCCL's own work pushes all of this out of the caches between two operations, so what costs time is how many lines are
//! touched, and the clocks. The quick way touches four lines: [`state`]'s, one here, and two of the file, the communicator's and the
//! cell's. It neither reads a clock nor decides what is timed: [`comm::LOOK`] says when either is due. The host's clock is
//! read once in some two milliseconds, and the processor's own one says when ([`goes_on`]). That one is asked for each operation,
//! or, in a loop of very many, for each [`AHEAD`]th: it takes as long as half of the quick way. Where each operation is timed the
//! way is as quick, with two lines more: [`Clock`]'s and a slot's.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use railgate_rankfile::{CELLS, COMM_WORDS, COMMS, comm, count};

use crate::abi::{Marks, RawColl};
use crate::count::Op;
use crate::slots::Reserve;
use crate::state;
use crate::steer::{self, Handed};
use crate::store::{File, Store};

/// Kinds that a communicator remembers, a power of two.
const KINDS: usize = 16;
/// Between the bits of a key: the cell's index.
const CELL_AT: u32 = 32;
const CELL_MASK: u64 = 0x7fff_ffff << CELL_AT;
/// The host's clock is read again after so many of the processor's ticks: one to two milliseconds.
const FRESH_TICKS: u64 = 1 << 22;
/// So many operations in less than twice that time follow one another closely: then the processor's clock is asked once in
/// [`AHEAD`]. After a rest, up to `AHEAD - 1` may have the time of one before it, which [`comm::CLOCKED`] tells.
const MANY: u64 = 64;
const AHEAD: u64 = 8;

/// Written and read by whoever launches, one thread at a time. One cache line.
#[repr(align(64))]
struct Entry {
    /// [`Marks`].
    names: [AtomicU32; 4],
    count: AtomicU64,
    bytes: AtomicU64,
    /// The key, and the cell's index from bit [`CELL_AT`] on; 0: free.
    key_cell: AtomicU64,
    /// Calls of its cell below this one may go the quick way; none before it went the long way once.
    until: AtomicU64,
    /// [`steer::cost`] of the last one that went the long way.
    price: AtomicU64,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// A communicator's clock, and its slots to come, written and read by whoever launches there. One cache line.
#[repr(align(64))]
struct Clock {
    /// The processor's ticks when the host's clock was last read.
    ticks: AtomicU64,
    /// At this operation it is decided again what is timed.
    decided: AtomicU64,
    /// How many operations further the processor's clock is asked again.
    ahead: AtomicU64,
    /// Ticks when that was found, and the number of the operation then.
    since: AtomicU64,
    number: AtomicU64,
    /// What the host's coarse monotonic clock said.
    host: AtomicU64,
    /// For what is timed.
    slots: Reserve,
}

const _: () = assert!(size_of::<Clock>() == 64);

static CLOCK: [Clock; COMMS] = [const {
    Clock {
        ticks: AtomicU64::new(0),
        decided: AtomicU64::new(0),
        ahead: AtomicU64::new(1),
        since: AtomicU64::new(0),
        number: AtomicU64::new(0),
        host: AtomicU64::new(0),
        slots: Reserve::none(),
    }
}; COMMS];

static ENTRY: [[Entry; KINDS]; COMMS] = [const {
    [const {
        Entry {
            names: [const { AtomicU32::new(0) }; 4],
            count: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            key_cell: AtomicU64::new(0),
            until: AtomicU64::new(0),
            price: AtomicU64::new(0),
        }
    }; KINDS]
}; COMMS];

impl Entry {
    fn knows(&self, marks: Marks) -> bool {
        self.key_cell.load(Relaxed) != 0 && self.is_of(marks)
    }

    #[inline]
    fn is_of(&self, marks: Marks) -> bool {
        self.count.load(Relaxed) == marks.count
            && self.names.iter().zip(marks.names).all(|(have, name)| have.load(Relaxed) == name)
    }
}

/// Where a kind is remembered, if it is.
#[inline]
fn entry(comm: usize, marks: Marks) -> Option<&'static Entry> {
    let [func, ..] = marks.names;
    let mixed = (u64::from(func) ^ marks.count).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ENTRY.get(comm)?.get(usize::try_from(mixed >> 60).unwrap_or(0) % KINDS)
}

#[inline]
fn cell(key_cell: u64) -> usize {
    usize::try_from((key_cell & CELL_MASK) >> CELL_AT).unwrap_or(0) % CELLS
}

/// Counts an operation like one before it, if that is all there is to do; if not, nothing was done. Nothing here can panic.
#[inline(always)]
pub(crate) fn again(comm: usize, coll: &RawColl) -> bool {
    state::usual_file().is_some_and(|file| counted(file, comm, coll).is_some())
}

/// The same where each operation is timed: its handle. It was handed over later than its slot says, by as much as may pass between two
/// looks at the host's clock; after a loop of very many and a rest, by all of the rest.
#[inline]
pub(crate) fn again_timed(comm: usize, coll: &RawColl) -> Option<u64> {
    let file = state::timed_file().filter(|_| coll.channels > 0)?;
    let clock = CLOCK.get(comm)?;
    let (op, number) = counted(file, comm, coll)?;
    let (slot, handle) = clock.slots.fresh();
    let handed = Handed { number, now: clock.host.load(Relaxed), ..Handed::default() };
    slot.is_of(op, handed, u64::from(coll.channels));
    Some(handle)
}

/// One more of a kind, and its number, if nothing is due that takes longer.
#[inline(always)]
fn counted(file: &File, comm: usize, coll: &RawColl) -> Option<(Op, u64)> {
    let entry = entry(comm, coll.marks())?;
    let key_cell = entry.key_cell.load(Relaxed);
    let cell = cell(key_cell);
    let (words, counts) = (file.comms.get(comm)?, file.counts.get(cell)?);
    let number = words[comm::OPS].load(Relaxed).wrapping_add(1);
    let call = counts[count::CALLS].load(Relaxed).wrapping_add(1);
    let quick = entry.is_of(coll.marks())
        && call < entry.until.load(Relaxed)
        && (number < words[comm::LOOK].load(Relaxed) || goes_on(comm, number, words));
    if !quick {
        return None;
    }
    let (key, bytes) = (key_cell & !CELL_MASK, entry.bytes.load(Relaxed));
    counts[count::BYTES].store(counts[count::BYTES].load(Relaxed).wrapping_add(bytes), Relaxed);
    counts[count::CALLS].store(call, Relaxed);
    words[comm::OPS].store(number, Relaxed);
    words[comm::LAST_KEY].store(key, Relaxed);
    words[comm::LAST_SEQ].store(coll.seq, Relaxed);
    words[comm::LAST_BYTES].store(bytes, Relaxed);
    let price = words[comm::PRICE].load(Relaxed).wrapping_add(entry.price.load(Relaxed));
    words[comm::PRICE].store(price, Relaxed);
    Some((Op { key, bytes, cell: Some(cell) }, number))
}

/// What such an operation was found to be the last time, or is found to be now.
pub(crate) fn known(comm: usize, marks: Marks, found: impl FnOnce() -> Op) -> Op {
    let Some(entry) = entry(comm, marks) else { return found() };
    if entry.knows(marks) {
        let key_cell = entry.key_cell.load(Relaxed);
        let cell = Some(cell(key_cell));
        return Op { key: key_cell & !CELL_MASK, bytes: entry.bytes.load(Relaxed), cell };
    }
    let op = found();
    if let Some(cell) = op.cell {
        entry.until.store(0, Relaxed);
        for (have, name) in entry.names.iter().zip(marks.names) {
            have.store(name, Relaxed);
        }
        entry.count.store(marks.count, Relaxed);
        entry.bytes.store(op.bytes, Relaxed);
        entry.key_cell.store(op.key | ((cell as u64) << CELL_AT & CELL_MASK), Relaxed);
    }
    op
}

/// One went the long way: those like it may go the quick one.
pub(crate) fn went(comm: usize, marks: Marks, handed: Handed) {
    let Some(entry) = entry(comm, marks).filter(|entry| entry.knows(marks)) else { return };
    entry.until.store(steer::next_window(handed.call), Relaxed);
    entry.price.store(steer::cost(handed.channels), Relaxed);
}

/// The host's clock was read for this operation, and at that one it is decided again what is timed.
pub(crate) fn looked(store: &Store, comm: usize, handed: Handed, decided: u64) {
    let Some(clock) = CLOCK.get(comm) else { return };
    let number = handed.number;
    clock.host.store(handed.now, Relaxed);
    let now = ticks();
    clock.ticks.store(now, Relaxed);
    clock.decided.store(decided, Relaxed);
    let elapsed = now.wrapping_sub(clock.since.load(Relaxed));
    if elapsed >= FRESH_TICKS {
        let many = number.wrapping_sub(clock.number.load(Relaxed)) >= MANY && elapsed < 2 * FRESH_TICKS;
        clock.ahead.store(if many { AHEAD } else { 1 }, Relaxed);
        clock.since.store(now, Relaxed);
        clock.number.store(number, Relaxed);
    }
    clock.next(number, store.comm(comm, comm::LOOK));
}

/// Asks the processor's clock whether the host's was read a moment ago. If so, and nothing else is due, this operation and some more
/// go the quick way.
#[inline(never)]
fn goes_on(comm: usize, number: u64, words: &[AtomicU64; COMM_WORDS]) -> bool {
    let Some(clock) = CLOCK.get(comm) else { return false };
    if number >= clock.decided.load(Relaxed) || ticks().wrapping_sub(clock.ticks.load(Relaxed)) >= FRESH_TICKS
    {
        return false;
    }
    words[comm::CLOCKED].store(number, Relaxed);
    clock.next(number, &words[comm::LOOK]);
    true
}

impl Clock {
    fn next(&self, number: u64, look: &AtomicU64) {
        let ahead = number.saturating_add(self.ahead.load(Relaxed));
        look.store(ahead.min(self.decided.load(Relaxed)), Relaxed);
    }
}

/// The processor's own clock, of no known unit and no known beginning. Where another processor's is behind it, a time may be too
/// early by as much.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86-64 has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Never fresh, and never a loop.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    TICKS.fetch_add(2 * FRESH_TICKS, Relaxed)
}

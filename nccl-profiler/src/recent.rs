//! The fast path: counts an operation that equals a recent one of its communicator.
//!
//! A program repeats a few operations. Finding an operation's cell by its names takes longer than the rest of the
//! work, so each communicator caches its recent operations, identified by the addresses of the names.
//!
//! NCCL's own work evicts all of this from the caches between two operations, so the cost is the number of cache
//! lines touched, and clock readings. The fast path touches four lines: that of [`state`], one here, and two of the
//! file (the communicator's and the cell's). It neither reads a clock nor decides which operations are timed:
//! [`comm::DECIDE_AT`] is the number at which either is due. The host's clock is read about once per two milliseconds,
//! when the processor's time-stamp counter indicates it ([`goes_on`]). That counter is read for each operation or, in
//! a fast loop, for each [`AHEAD`]th: a reading takes half as long as the fast path. If every operation is timed the
//! path is as fast, with two more lines: [`Clock`] and a slot.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use railgate_rankfile::{CELLS, COMM_WORDS, COMMS, comm, count};

use crate::abi::{Marks, RawColl};
use crate::count::Op;
use crate::sampling::{self, Handed};
use crate::slots::Reserve;
use crate::state;
use crate::store::{File, Store};

/// Cached operations per communicator, a power of two.
const KINDS: usize = 16;
/// Position of the cell's index between the bits of a key.
const CELL_AT: u32 = 32;
const CELL_MASK: u64 = 0x7fff_ffff << CELL_AT;
/// Ticks of the time-stamp counter after which the host's clock is read again: one to two milliseconds.
const FRESH_TICKS: u64 = 1 << 22;
/// With at least this many operations in less than twice that time, a communicator is in a fast loop: the counter is
/// then read once per [`AHEAD`] operations. After a pause, up to `AHEAD - 1` operations may have the time of an
/// earlier one, which [`comm::CLOCKED`] shows.
const MANY: u64 = 64;
const AHEAD: u64 = 8;

/// Used by the launching thread, one at a time. One cache line.
#[repr(align(64))]
struct Entry {
    /// The names in [`Marks`].
    names: [AtomicU32; 4],
    count: AtomicU64,
    bytes: AtomicU64,
    /// The key, with the cell's index from bit [`CELL_AT`] on; 0: free.
    key_cell: AtomicU64,
    /// Calls of its cell below this number may take the fast path; 0 until one has taken the slow path.
    until: AtomicU64,
    /// [`sampling::cost`] of the last operation on the slow path.
    price: AtomicU64,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// Clock and reserved slots of a communicator, used by its launching thread. One cache line.
#[repr(align(64))]
struct Clock {
    /// Time-stamp counter when the host's clock was last read.
    ticks: AtomicU64,
    /// Number of the operation at which it is decided again which ones are timed.
    decided: AtomicU64,
    /// Number of operations until the counter is read again.
    ahead: AtomicU64,
    /// Counter when that number was determined, and the number of the operation then.
    since: AtomicU64,
    number: AtomicU64,
    /// Last reading of the host's coarse monotonic clock.
    host: AtomicU64,
    /// Slots for timed operations.
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

/// The cache entry for an operation; it may contain another one.
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

/// Counts an operation on the fast path. Returns false, and changes nothing, if more is to be done. Nothing here can
/// panic.
#[inline(always)]
pub(crate) fn again(comm: usize, coll: &RawColl) -> bool {
    state::usual_file().is_some_and(|file| counted(file, comm, coll).is_some())
}

/// The same where every operation is timed: returns its handle. The launch time in its slot is too early by up to the
/// interval between two readings of the host's clock; after a fast loop and a pause, by up to the whole pause.
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

/// Counts one more operation of a cached kind and returns its number, unless work for the slow path is due.
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
        && (number < words[comm::DECIDE_AT].load(Relaxed) || goes_on(comm, number, words));
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

/// The cached operation, or the result of `found`, which is then cached.
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

/// Called after the slow path: later equal operations may take the fast one.
pub(crate) fn went(comm: usize, marks: Marks, handed: Handed) {
    let Some(entry) = entry(comm, marks).filter(|entry| entry.knows(marks)) else { return };
    entry.until.store(sampling::next_window(handed.call), Relaxed);
    entry.price.store(sampling::cost(handed.channels), Relaxed);
}

/// Records the host's clock reading for this operation, and the number at which it is decided again which ones are
/// timed.
pub(crate) fn clock_was_read(store: &Store, comm: usize, handed: Handed, decided: u64) {
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
    clock.next(number, store.comm(comm, comm::DECIDE_AT));
}

/// Tests by the time-stamp counter whether the host's clock was read recently. If so, and if nothing else is due,
/// this operation and some more may take the fast path.
#[inline(never)]
fn goes_on(comm: usize, number: u64, words: &[AtomicU64; COMM_WORDS]) -> bool {
    let Some(clock) = CLOCK.get(comm) else { return false };
    if number >= clock.decided.load(Relaxed) || ticks().wrapping_sub(clock.ticks.load(Relaxed)) >= FRESH_TICKS
    {
        return false;
    }
    words[comm::CLOCKED].store(number, Relaxed);
    clock.next(number, &words[comm::DECIDE_AT]);
    true
}

impl Clock {
    fn next(&self, number: u64, decide_at: &AtomicU64) {
        let ahead = number.saturating_add(self.ahead.load(Relaxed));
        decide_at.store(ahead.min(self.decided.load(Relaxed)), Relaxed);
    }
}

/// The processor's time-stamp counter, of unknown unit and origin. If the counter of another processor lags behind, a
/// time may be too early by the difference.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has this instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Substitute with which a reading never counts as recent, and never as in a fast loop.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    TICKS.fetch_add(2 * FRESH_TICKS, Relaxed)
}

//! Timed operations. Each has a slot of a fixed pool; the starts and ends of its channels arrive later, on NCCL's
//! proxy thread, and the last of them adds the time to the operation's cell.

use std::sync::atomic::{
    AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
    fence,
};

use railgate_rankfile::{CELLS, Key, P2P_GROUP, cell, comm, head};

use crate::count::{self, Op};
use crate::handle::{GENERATIONS, Handle, Use};
use crate::launch_interval::{self, Seen};
use crate::sampling::{self, Handed};
use crate::state;
use crate::store::{Store, now};

/// Most timed operations in flight; further ones replace the oldest.
const SLOTS: usize = 4096;
/// Resolution of the host's clock, plus its drift against the GPU's clock during an operation.
const COARSE_NS: u64 = 20_000_000;

/// An operation in flight. The launching thread writes the first cache line, NCCL's proxy thread the second, so that
/// neither waits for the other. Aligned to 128 bytes, since processors prefetch pairs of lines.
#[repr(C, align(128))]
pub(crate) struct Slot {
    generation: AtomicU64,
    /// 1: in flight, 2: only ends of channels are missing.
    state: AtomicU64,
    key: AtomicU64,
    bytes: AtomicU64,
    number: AtomicU64,
    channels: AtomicU64,
    /// Launch time, on the host's coarse monotonic clock.
    launched: AtomicU64,
    /// Index of its cell; [`CELLS`] or more: the file is full.
    cell: AtomicU64,
    /// The generation of the fields below; set by the first channel that starts.
    heard: AtomicU64,
    /// 1: its time was added.
    done: AtomicU64,
    ended: AtomicU64,
    /// 0: no time yet. The start is stored as its complement, so that both are maxima.
    begin: AtomicU64,
    end: AtomicU64,
}

impl Slot {
    /// Fills in everything except the channels' ends.
    pub(crate) fn is_of(&self, op: Op, handed: Handed, channels: u64) {
        for (word, value) in [
            (&self.key, op.key),
            (&self.bytes, op.bytes),
            (&self.number, handed.number),
            (&self.channels, channels),
            (&self.launched, handed.now),
            (&self.cell, op.cell.unwrap_or(CELLS) as u64),
        ] {
            word.store(value, Relaxed);
        }
        self.state.store(2, Release);
    }
}

static SLOT: [Slot; SLOTS] = [const {
    Slot {
        generation: AtomicU64::new(0),
        state: AtomicU64::new(0),
        key: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        number: AtomicU64::new(0),
        channels: AtomicU64::new(0),
        launched: AtomicU64::new(0),
        cell: AtomicU64::new(0),
        heard: AtomicU64::new(0),
        done: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        begin: AtomicU64::new(0),
        end: AtomicU64::new(0),
    }
}; SLOTS];

static NEXT_SLOT: AtomicU64 = AtomicU64::new(0);

/// The slot of an operation or a channel, unless it was reused.
pub(crate) fn of(handle: u64) -> Option<(&'static Slot, Use)> {
    let (Handle::Op(found) | Handle::Channel(found)) = Handle::of(handle)? else { return None };
    let slot = SLOT.get(found.slot)?;
    (slot.generation.load(Acquire) == found.generation).then_some((slot, found))
}

/// Handles the end of a channel's work on the GPU.
pub(crate) fn channel_ends(store: &Store, handle: u64, timer: u64) {
    let heard = |(slot, found): &(&Slot, Use)| slot.heard.load(Relaxed) == found.generation;
    let Some((slot, Use { generation, .. })) = of(handle).filter(heard) else {
        store.at(head::STRAY).fetch_add(1, Relaxed);
        return;
    };
    raise(&slot.end, timer);
    slot.ended.store(slot.ended.load(Relaxed) + 1, Release);
    if slot.state.load(Relaxed) != 2 {
        // The launch may complete at the same time: with the fences, the thread that tests last sees the other one's
        // write.
        fence(SeqCst);
    }
    finish(store, slot, generation);
}

/// Takes a slot and returns it with its handle. Its previous operation then gets no time.
pub(crate) fn fresh() -> (&'static Slot, u64) {
    slot(NEXT_SLOT.fetch_add(1, Relaxed))
}

/// Slots that a communicator reserves in advance, for one thread at a time: the atomic instruction waits until all
/// earlier stores have completed.
pub(crate) struct Reserve {
    next: AtomicU64,
    end: AtomicU64,
}

/// Number of slots reserved at once.
const RESERVED: u64 = 16;
/// A reservation is dropped once others have taken this many slots since: its slots would soon be reused.
const STALE: u64 = SLOTS as u64 / 4;
/// Distance between the slots of successive tickets, by the golden ratio, so that the next hundreds are far apart.
/// With adjacent slots, the core of the proxy thread, which walks along them, would prefetch the next ones from the
/// core that is about to write them.
const APART: u64 = 2531;

const _: () = assert!(APART % 2 == 1 && SLOTS.is_power_of_two() && size_of::<Slot>() == 128);

impl Reserve {
    pub(crate) const fn none() -> Self {
        Reserve { next: AtomicU64::new(0), end: AtomicU64::new(0) }
    }

    /// As [`fresh`].
    #[inline]
    pub(crate) fn fresh(&self) -> (&'static Slot, u64) {
        let (mut next, mut end) = (self.next.load(Relaxed), self.end.load(Relaxed));
        if next == end || NEXT_SLOT.load(Relaxed).wrapping_sub(next) > STALE {
            next = NEXT_SLOT.fetch_add(RESERVED, Relaxed);
            end = next.wrapping_add(RESERVED);
            self.end.store(end, Relaxed);
        }
        let after = next.wrapping_add(1);
        self.next.store(after, Relaxed);
        if after < end {
            // Prefetch, since the proxy thread has read it since it was last written.
            fetch(&SLOT[place(after)]);
        }
        slot(next)
    }
}

/// Prefetches a slot for writing, which invalidates the copies of other cores.
#[cfg(target_arch = "x86_64")]
fn fetch(slot: &Slot) {
    // SAFETY: every x86-64 processor executes it or ignores it; it changes no state.
    unsafe { std::arch::asm!("prefetchw [{}]", in(reg) slot, options(readonly, nostack, preserves_flags)) };
}

#[cfg(not(target_arch = "x86_64"))]
fn fetch(_: &Slot) {}

fn place(ticket: u64) -> usize {
    usize::try_from(ticket.wrapping_mul(APART)).unwrap_or(0) % SLOTS
}

#[inline]
fn slot(ticket: u64) -> (&'static Slot, u64) {
    let index = place(ticket);
    let slot = &SLOT[index];
    let generation = (ticket / SLOTS as u64 + 1) % GENERATIONS;
    slot.state.store(1, Release);
    slot.generation.store(generation, Release);
    (slot, Handle::Op(Use { generation, slot: index }).word())
}

/// Raises a maximum that has a single writer. The proxy thread alone reports a communicator's channels, some tens per
/// operation; an atomic instruction would take as long as all other work.
fn raise(word: &AtomicU64, to: u64) {
    if word.load(Relaxed) < to {
        word.store(to, Relaxed);
    }
}

/// The threads that record the times of a communicator's operations: only the proxy thread or, once the process has
/// had messages, also the thread that launches them. At the moment of the first message of a process, one update may
/// be lost, or one wrong launch interval recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writers {
    One,
    Two,
}

impl Writers {
    fn now() -> Self {
        if state::has_messages() { Writers::Two } else { Writers::One }
    }

    fn add(self, word: &AtomicU64, by: u64) {
        match self {
            Writers::One => {
                count::add(word, by);
            }
            Writers::Two => {
                word.fetch_add(by, Relaxed);
            }
        }
    }

    fn raise(self, word: &AtomicU64, to: u64) {
        match self {
            Writers::One => raise(word, to),
            Writers::Two => {
                word.fetch_max(to, Relaxed);
            }
        }
    }
}

/// Handles the start of a channel's work on the GPU. Returns the handle for its end.
pub(crate) fn channel_begins(store: &Store, comm: usize, parent: u64, timer: u64) -> u64 {
    let Some((slot, found @ Use { generation, .. })) = of(parent) else {
        // For operations that are not timed, NCCL sends no parent.
        if parent != 0 {
            store.at(head::STRAY).fetch_add(1, Relaxed);
        }
        return 0;
    };
    if slot.heard.load(Relaxed) != generation {
        if slot.begin.load(Relaxed) > 0 && slot.done.load(Relaxed) == 0 {
            store.at(head::EXPIRED).fetch_add(1, Relaxed);
        }
        for field in [&slot.done, &slot.ended, &slot.begin, &slot.end] {
            field.store(0, Relaxed);
        }
        slot.heard.store(generation, Release);
    } else if slot.done.load(Relaxed) == 1 {
        store.at(head::STRAY).fetch_add(1, Relaxed);
        return 0;
    }
    if slot.begin.load(Relaxed) == 0 {
        count::add(store.comm(comm, comm::BEGUN), 1);
    }
    raise(&slot.begin, u64::MAX - timer);
    Handle::Channel(found).word()
}

/// Records the operation's time if every channel has ended. The first thread to get here does it.
pub(crate) fn finish(store: &Store, slot: &Slot, generation: u64) {
    let whole = slot.state.load(Acquire) == 2
        && slot.heard.load(Acquire) == generation
        && slot.ended.load(Acquire) >= slot.channels.load(Relaxed);
    if !whole || slot.done.compare_exchange(0, 1, AcqRel, Relaxed).is_err() {
        return;
    }
    let (begin, end) = (u64::MAX - slot.begin.load(Relaxed), slot.end.load(Relaxed));
    let Some(key) = Key::of(slot.key.load(Relaxed)) else { return };
    let took = end.saturating_sub(begin);
    let now = now(libc::CLOCK_MONOTONIC_COARSE);
    let since = now.saturating_sub(slot.launched.load(Relaxed));
    let (number, bytes) = (slot.number.load(Relaxed), slot.bytes.load(Relaxed));
    let cell = usize::try_from(slot.cell.load(Relaxed)).unwrap_or(CELLS);
    let seen = Seen { number, begin, end, bytes, messages: key.op == P2P_GROUP, cell };
    // The time must not exceed the age of the operation, and must not overlap with the previous one: otherwise NCCL
    // has mixed up two operations.
    let writers = Writers::now();
    let own = launch_interval::finished(store, key, seen, writers);
    if took == 0 || took > since.saturating_add(COARSE_NS) || !own {
        store.at(head::STRAY).fetch_add(1, Relaxed);
    } else if cell < CELLS {
        writers.add(store.cell(cell, cell::SUM), took);
        writers.raise(store.cell(cell, cell::MIN), u64::MAX - took);
        writers.raise(store.cell(cell, cell::MAX), took);
        writers.add(store.cell(cell, cell::SQUARES), (took / 100).saturating_mul(took / 100));
        writers.add(store.cell(cell, cell::TIMED_BYTES), bytes);
        writers.add(store.cell(cell, cell::TIMED), 1);
    }
    let comm = usize::from(key.comm);
    writers.add(store.comm(comm, comm::DONE), 1);
    writers.raise(store.comm(comm, comm::DONE_OP), number);
    store.comm(comm, comm::DONE_TIME).store(sampling::wall(now), Relaxed);
}

//! What becomes of an event.
//!
//! Operations are counted when they are handed to the GPU. One that is timed gets a slot of a fixed pool; its
//! channels' begins and ends arrive later, on NCCL's proxy thread, and the last of them adds the time to the
//! operation's cell. A handle names a slot and its generation and is never an address, so that what arrives late,
//! twice, or never does no harm. Nothing here allocates, waits or takes a lock.

use std::sync::atomic::{
    AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use railgate_rankfile::{
    ALGORITHMS, COMMS, DATATYPES, Key, Mode, OPERATIONS, P2P_GROUP, PROTOCOLS, cell, comm, count, head,
    position, type_size,
};

use crate::abi::{Coll, Descriptor, P2p, Text, event};
use crate::recent::{self, Known};
use crate::spacing::{self, Seen};
use crate::steer;
use crate::store::{Store, now};

/// Timed operations under way; older ones make room.
const SLOTS: usize = 4096;
/// Launches of a communicator between their begin and end.
const GROUPS: usize = 8;

/// An operation under way. The launching thread writes the first cache line, NCCL's proxy thread the second, so that
/// neither waits for the other's.
#[repr(C, align(64))]
struct Slot {
    generation: AtomicU64,
    /// 1 under way, 2 everything is known but the channels' ends.
    state: AtomicU64,
    key: AtomicU64,
    bytes: AtomicU64,
    number: AtomicU64,
    channels: AtomicU64,
    /// When it was handed over, on the host's coarse monotonic clock.
    launched: AtomicU64,
    unused: u64,
    /// The generation that what follows is of; the first channel to begin makes it so.
    heard: AtomicU64,
    /// 1: its time was written down.
    done: AtomicU64,
    ended: AtomicU64,
    /// Times of 0 are none yet; the begin is kept as its complement, so that both are maxima.
    begin: AtomicU64,
    end: AtomicU64,
}

/// A launch on its way: what its messages add up to.
struct Group {
    generation: AtomicU64,
    open: AtomicU64,
    comm: AtomicU64,
    messages: AtomicU64,
    channels: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    datatype: AtomicU64,
    /// Handle of the slot that times it; 0: none.
    slot: AtomicU64,
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
        unused: 0,
        heard: AtomicU64::new(0),
        done: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        begin: AtomicU64::new(0),
        end: AtomicU64::new(0),
    }
}; SLOTS];
static GROUP: [Group; COMMS * GROUPS] = [const {
    Group {
        generation: AtomicU64::new(0),
        open: AtomicU64::new(0),
        comm: AtomicU64::new(0),
        messages: AtomicU64::new(0),
        channels: AtomicU64::new(0),
        sent: AtomicU64::new(0),
        received: AtomicU64::new(0),
        datatype: AtomicU64::new(0),
        slot: AtomicU64::new(0),
    }
}; COMMS * GROUPS];
static NEXT_SLOT: AtomicU64 = AtomicU64::new(0);
static NEXT_GROUP: [AtomicU64; COMMS] = [const { AtomicU64::new(0) }; COMMS];

/// What a handle is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Op,
    Channel,
    Group,
}

/// Tag, kind, generation, index.
fn handle(kind: Kind, generation: u64, index: usize) -> u64 {
    let kind: u64 = match kind {
        Kind::Op => 1,
        Kind::Channel => 2,
        Kind::Group => 3,
    };
    TAG << 56 | kind << 52 | (generation & GENERATIONS) << 12 | (index as u64 & 0xfff)
}

const TAG: u64 = 0x5a;
const GENERATIONS: u64 = (1 << 40) - 1;

fn of_handle(handle: u64) -> Option<(Kind, u64, usize)> {
    let kind = match (handle >> 56, handle >> 52 & 0xf) {
        (TAG, 1) => Kind::Op,
        (TAG, 2) => Kind::Channel,
        (TAG, 3) => Kind::Group,
        _ => return None,
    };
    Some((kind, handle >> 12 & GENERATIONS, usize::try_from(handle & 0xfff).ok()?))
}

/// The slot of a handle, unless others have it by now.
fn slot_of(handle: u64) -> Option<(&'static Slot, u64, usize)> {
    let (kind, generation, index) = of_handle(handle)?;
    let slot = SLOT.get(index).filter(|_| kind != Kind::Group)?;
    (slot.generation.load(Acquire) == generation).then_some((slot, generation, index))
}

fn group_of(handle: u64) -> Option<&'static Group> {
    let (kind, generation, index) = of_handle(handle)?;
    let group = GROUP.get(index).filter(|_| kind == Kind::Group)?;
    (group.generation.load(Acquire) == generation).then_some(group)
}

/// An event begins: its handle, or 0 where nothing further is to be told of it.
pub(crate) fn start(store: &Store, comm: usize, hides_broadcasts: bool, described: Descriptor<'_>) -> u64 {
    if store.at(head::WANTED).load(Relaxed) == Mode::Off.word() {
        // Only to learn that somebody wishes for something else.
        if described.kind() & (event::COLL | event::P2P) != 0 {
            steer::after(store, comm, steer::Handed::default(), now(libc::CLOCK_MONOTONIC_COARSE));
        }
        return 0;
    }
    match described.kind() {
        event::GROUP => group_begins(comm),
        event::COLL => described.coll().map_or(0, |coll| collective(store, comm, &coll)),
        event::P2P => described.p2p().map_or(0, |message| message_of(store, comm, &message)),
        event::KERNEL => {
            described.kernel().map_or(0, |(parent, timer)| channel_begins(store, comm, parent, timer))
        }
        event::COLL_API | event::P2P_API => {
            if described.captured() {
                store.at(head::CAPTURED).fetch_add(1, Relaxed);
            }
            if hides_broadcasts {
                hidden(store, comm, described);
            }
            0
        }
        event::CE_COLL => {
            if let Some(coll) = described.copy_engines() {
                known(store, comm, &coll).hand_over(store, comm, coll.seq, 0);
            }
            0
        }
        _ => 0,
    }
}

/// A broadcast of a release that shows it at its interface alone.
fn hidden(store: &Store, comm: usize, described: Descriptor<'_>) {
    let Some(call) = described.coll_api().filter(|call| call.func.bytes() == b"Broadcast") else { return };
    let datatype = name_of(call.datatype);
    let bytes = call.count.saturating_mul(type_size(datatype));
    let op = position(OPERATIONS, call.func.bytes());
    Op::of(store, key(comm, op, datatype, 0, 0, bytes), bytes).hand_over(store, comm, 0, 0);
    store.at(head::API_ONLY).fetch_add(1, Relaxed);
}

/// An event ends: of all that have handles only a launch's end says anything.
pub(crate) fn stop(store: &Store, handle: u64) {
    let Some(group) = group_of(handle) else { return };
    // NCCL may end it twice.
    if group.open.swap(0, AcqRel) == 0 || group.messages.load(Relaxed) == 0 {
        return;
    }
    let bytes = group.sent.load(Relaxed).max(group.received.load(Relaxed));
    let comm = usize::try_from(group.comm.load(Relaxed)).unwrap_or(0);
    let datatype = u8::try_from(group.datatype.load(Relaxed)).unwrap_or(0);
    let key = key(comm, P2P_GROUP, datatype, 0, 0, bytes);
    let number = Op::of(store, key, bytes).hand_over(store, comm, 0, group.channels.load(Relaxed));
    let handle = group.slot.load(Relaxed);
    if let Some((slot, generation, _)) = slot_of(handle) {
        slot.key.store(key.word(), Relaxed);
        slot.bytes.store(bytes, Relaxed);
        slot.number.store(number, Relaxed);
        slot.state.store(2, Release);
        steer::pay(store, comm, group.channels.load(Relaxed));
        finish(store, slot, generation);
    }
}

/// A channel's work ended on the GPU.
pub(crate) fn channel_ends(store: &Store, handle: u64, timer: u64) {
    let heard = |(slot, generation, _): &(&Slot, u64, usize)| slot.heard.load(Relaxed) == *generation;
    let Some((slot, generation, _)) = slot_of(handle).filter(heard) else {
        store.at(head::STRAY).fetch_add(1, Relaxed);
        return;
    };
    raise(&slot.end, timer);
    slot.ended.store(slot.ended.load(Relaxed) + 1, Release);
    finish(store, slot, generation);
}

/// `Unknown` and every other name that is not in the table is `other`.
fn name_of(datatype: Text<'_>) -> u8 {
    datatype.bytes().strip_prefix(b"nccl").map_or(0, |name| position(DATATYPES, name))
}

fn key(comm: usize, op: u8, datatype: u8, algorithm: u8, protocol: u8, bytes: u64) -> Key {
    Key {
        comm: u8::try_from(comm).unwrap_or(u8::MAX),
        op,
        datatype,
        algorithm,
        protocol,
        class: Key::class_of(bytes),
    }
}

/// Bytes as nccl-tests has them: all ranks' parts of what is gathered or scattered.
fn sized(store: &Store, comm: usize, coll: &Coll<'_>) -> (Key, u64) {
    let op = position(OPERATIONS, coll.func.bytes());
    let datatype = name_of(coll.datatype);
    let parts = match coll.func.bytes() {
        b"AllGather" | b"ReduceScatter" | b"AlltoAll" | b"Gather" | b"Scatter" => {
            store.comm(comm, comm::RANKS).load(Relaxed) >> 32
        }
        _ => 1,
    };
    let bytes = coll.count.saturating_mul(type_size(datatype)).saturating_mul(parts);
    let (algorithm, protocol) =
        (position(ALGORITHMS, coll.algorithm.bytes()), position(PROTOCOLS, coll.protocol.bytes()));
    (key(comm, op, datatype, algorithm, protocol, bytes), bytes)
}

/// An operation that is to be counted.
#[derive(Clone, Copy)]
struct Op {
    /// [`Key::word`].
    key: u64,
    bytes: u64,
    /// Its cell's index; `None`: the file is full.
    cell: Option<usize>,
}

/// What it is, from memory where it was seen before.
fn known(store: &Store, comm: usize, coll: &Coll<'_>) -> Op {
    if let Some(Known { key, bytes, cell }) = recent::find(comm, coll) {
        return Op { key, bytes, cell: Some(cell) };
    }
    let (key, bytes) = sized(store, comm, coll);
    let op = Op::of(store, key, bytes);
    if let Some(cell) = op.cell {
        recent::keep(comm, coll, Known { key: op.key, bytes, cell });
    }
    op
}

impl Op {
    fn of(store: &Store, key: Key, bytes: u64) -> Self {
        Op { key: key.word(), bytes, cell: store.find(key) }
    }

    /// Which call of its kind it was, from 1; 0: the file is full.
    fn count(self, store: &Store) -> u64 {
        let Some(at) = self.cell else { return 0 };
        add(store.counted(at, count::BYTES), self.bytes);
        add(store.counted(at, count::CALLS), 1)
    }

    /// Counts it and says which of the communicator's it is, from 1.
    fn hand_over(self, store: &Store, comm: usize, seq: u64, channels: u64) -> u64 {
        let call = self.count(store);
        let number = add(store.comm(comm, comm::OPS), 1);
        store.comm(comm, comm::LAST_KEY).store(self.key, Relaxed);
        store.comm(comm, comm::LAST_SEQ).store(seq, Relaxed);
        store.comm(comm, comm::LAST_BYTES).store(self.bytes, Relaxed);
        let now = now(libc::CLOCK_MONOTONIC_COARSE);
        store.comm(comm, comm::LAST_TIME).store(steer::wall(now), Relaxed);
        steer::after(store, comm, steer::Handed { number, call, channels }, now);
        number
    }
}

/// Whether NCCL still knows which of the communicator's kernels a time belongs to: the GPU counts a rank's messages to
/// itself, NCCL does not (`src/enqueue.cc` and `src/device/common.h` of 2.28.9 and 2.30.7).
fn in_count(store: &Store, comm: usize) -> bool {
    store.comm(comm, comm::TO_ITSELF).load(Relaxed) == 0
}

fn collective(store: &Store, comm: usize, coll: &Coll<'_>) -> u64 {
    let op = known(store, comm, coll);
    // Without channels no times follow.
    let timed = steer::timing() && coll.channels > 0 && in_count(store, comm);
    let number = op.hand_over(store, comm, coll.seq, coll.channels);
    if !timed {
        return 0;
    }
    steer::pay(store, comm, coll.channels);
    let (slot, handle) = fresh();
    slot.key.store(op.key, Relaxed);
    slot.bytes.store(op.bytes, Relaxed);
    slot.number.store(number, Relaxed);
    slot.channels.store(coll.channels, Relaxed);
    slot.state.store(2, Release);
    handle
}

fn message_of(store: &Store, comm: usize, message: &P2p<'_>) -> u64 {
    let (op, datatype) = (position(OPERATIONS, message.func.bytes()), name_of(message.datatype));
    let bytes = message.count.saturating_mul(type_size(datatype));
    Op::of(store, key(comm, op, datatype, 0, 0, bytes), bytes).count(store);
    let Some(group) = claimed(comm, message.group) else { return 0 };
    group.messages.fetch_add(1, Relaxed);
    group.channels.fetch_add(message.channels, Relaxed);
    group.datatype.store(u64::from(datatype), Relaxed);
    let own = i64::try_from(store.comm(comm, comm::RANKS).load(Relaxed) & 0xffff_ffff).unwrap_or(-1);
    // What a rank sends itself is a copy, and no wire sees it.
    if message.peer == own {
        store.comm(comm, comm::TO_ITSELF).fetch_add(1, Relaxed);
        return 0;
    }
    let to = if message.func.bytes() == b"Send" { &group.sent } else { &group.received };
    to.fetch_add(bytes, Relaxed);
    if !steer::timing() || message.channels == 0 || !in_count(store, comm) {
        return 0;
    }
    let handle = match group.slot.load(Relaxed) {
        0 => {
            let (_, handle) = fresh();
            group.slot.store(handle, Relaxed);
            handle
        }
        handle => handle,
    };
    if let Some((slot, ..)) = slot_of(handle) {
        slot.channels.store(slot.channels.load(Relaxed) + message.channels, Relaxed);
    }
    handle
}

/// A launch's handle is its number: most hold no messages, and nothing is written for those. NCCL lets one thread at
/// a time launch on a communicator, so no locked instruction is needed, each of which costs as much as all the rest.
fn group_begins(comm: usize) -> u64 {
    let Some(next) = NEXT_GROUP.get(comm) else { return 0 };
    let ticket = next.load(Relaxed);
    next.store(ticket.wrapping_add(1), Relaxed);
    let index = comm * GROUPS + usize::try_from(ticket).unwrap_or(0) % GROUPS;
    handle(Kind::Group, (ticket / GROUPS as u64 + 1) & GENERATIONS, index)
}

/// The launch's entry, made with its first message. One thread hands over all of a launch.
fn claimed(comm: usize, handle: u64) -> Option<&'static Group> {
    let (kind, generation, index) = of_handle(handle)?;
    let group = GROUP.get(index).filter(|_| kind == Kind::Group)?;
    if group.generation.load(Acquire) == generation {
        return (group.open.load(Relaxed) == 1).then_some(group);
    }
    for field in
        [&group.messages, &group.channels, &group.sent, &group.received, &group.datatype, &group.slot]
    {
        field.store(0, Relaxed);
    }
    group.comm.store(comm as u64, Relaxed);
    group.open.store(1, Relaxed);
    group.generation.store(generation, Release);
    Some(group)
}

/// A slot and its handle. Who had it before gets no time any more.
fn fresh() -> (&'static Slot, u64) {
    let ticket = NEXT_SLOT.fetch_add(1, Relaxed);
    let index = usize::try_from(ticket).unwrap_or(0) % SLOTS;
    let slot = &SLOT[index];
    let generation = (ticket / SLOTS as u64 + 1) & GENERATIONS;
    slot.state.store(1, Release);
    slot.generation.store(generation, Release);
    slot.channels.store(0, Relaxed);
    slot.launched.store(now(libc::CLOCK_MONOTONIC_COARSE), Relaxed);
    (slot, handle(Kind::Op, generation, index))
}

/// A counter of what a communicator launches, and what it is then: NCCL lets one thread at a time launch there. (A callback of
/// CUDA's that does it for a graph has all others wait behind it: `src/enqueue.cc`.)
fn add(word: &AtomicU64, by: u64) -> u64 {
    let sum = word.load(Relaxed).wrapping_add(by);
    word.store(sum, Relaxed);
    sum
}

/// A maximum. One thread alone, the proxy's, tells of a communicator's channels, some tens for each operation: the locked
/// instruction for two that meet would take as long as all the rest.
fn raise(word: &AtomicU64, to: u64) {
    if word.load(Relaxed) < to {
        word.store(to, Relaxed);
    }
}

fn channel_begins(store: &Store, comm: usize, parent: u64, timer: u64) -> u64 {
    let Some((slot, generation, index)) = slot_of(parent) else {
        // Of an operation that was not to be timed, NCCL tells without a parent.
        store.at(head::STRAY).fetch_add(u64::from(parent != 0), Relaxed);
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
        store.comm(comm, comm::BEGUN).fetch_add(1, Relaxed);
    }
    raise(&slot.begin, u64::MAX - timer);
    handle(Kind::Channel, generation, index)
}

/// If every channel has ended, the operation's time is known; whoever comes first writes it down.
fn finish(store: &Store, slot: &Slot, generation: u64) {
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
    let cell = store.find(key);
    let seen = Seen { number, begin, end, bytes, cell: cell.unwrap_or(usize::MAX) };
    // No longer than it has been there at all, and not while another one ran: else it is a mix-up of two.
    let own = spacing::finished(store, usize::from(key.comm), seen);
    if took == 0 || took > since.saturating_add(COARSE_NS) || !own {
        store.at(head::STRAY).fetch_add(1, Relaxed);
    } else if let Some(at) = cell {
        store.cell(at, cell::SUM).fetch_add(took, Relaxed);
        store.cell(at, cell::MIN).fetch_max(u64::MAX - took, Relaxed);
        store.cell(at, cell::MAX).fetch_max(took, Relaxed);
        store.cell(at, cell::SQUARES).fetch_add((took / 100).saturating_mul(took / 100), Relaxed);
        store.cell(at, cell::TIMED_BYTES).fetch_add(bytes, Relaxed);
        store.cell(at, cell::TIMED).fetch_add(1, Relaxed);
    }
    let comm = usize::from(key.comm);
    store.comm(comm, comm::DONE).fetch_add(1, Relaxed);
    store.comm(comm, comm::DONE_OP).fetch_max(slot.number.load(Relaxed), Relaxed);
    store.comm(comm, comm::DONE_TIME).store(steer::wall(now), Relaxed);
}

/// How coarse the host's clock may be, and how far the GPU's may run from it meanwhile.
const COARSE_NS: u64 = 20_000_000;

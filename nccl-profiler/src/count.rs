//! Handles events.
//!
//! Operations are counted when they are launched on the GPU. Nothing here allocates, blocks or takes a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use railgate_rankfile::{
    ALGORITHMS, DATATYPES, Key, Limit, Mode, OPERATIONS, PROTOCOLS, comm, count, head, position, type_size,
};

use crate::abi::{Coll, Descriptor, Text, event};
use crate::sampling::Handed;
use crate::store::{Store, now};
use crate::{launch, recent, sampling, slots};

/// Handles the start of an event. Returns its handle, or 0 if NCCL need not send anything further about it.
pub(crate) fn start(store: &Store, comm: usize, hides_broadcasts: bool, described: Descriptor<'_>) -> u64 {
    if store.at(head::WANTED).load(Relaxed) == Mode::Off.word() {
        // Record this even if it is not timed now: another mode may be requested later, and its times would be wrong.
        if described.captured() {
            sampling::captured(store);
        }
        if described.p2p().is_some_and(|message| launch::is_to_itself(store, comm, &message)) {
            sampling::part(store, Limit::OwnMessages);
        }
        if described.kind() & (event::COLL | event::P2P) != 0 {
            let number = store.comm(comm, comm::OPS).load(Relaxed);
            let now = now(libc::CLOCK_MONOTONIC_COARSE);
            sampling::after(store, comm, Handed { number, now, ..Handed::default() });
        }
        return 0;
    }
    match described.kind() {
        event::COLL => described.coll().map_or(0, |coll| collective(store, comm, &coll)),
        event::P2P => described.p2p().map_or(0, |message| launch::message(store, comm, &message)),
        event::COLL_API | event::P2P_API => {
            if described.captured() {
                store.at(head::CAPTURED).fetch_add(1, Relaxed);
                sampling::captured(store);
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

/// Counts a broadcast of a release that shows broadcasts only at its API.
fn hidden(store: &Store, comm: usize, described: Descriptor<'_>) {
    let Some(call) = described.coll_api().filter(|call| call.func.bytes() == b"Broadcast") else { return };
    let datatype = name_of(call.datatype);
    let bytes = call.count.saturating_mul(type_size(datatype));
    let op = position(OPERATIONS, call.func.bytes());
    Op::of(store, key(comm, op, datatype, 0, 0, bytes), bytes).hand_over(store, comm, 0, 0);
    store.at(head::API_ONLY).fetch_add(1, Relaxed);
}

/// Index of a data type; `Unknown` and every name that is not in the table is `other`.
pub(crate) fn name_of(datatype: Text<'_>) -> u8 {
    datatype.bytes().strip_prefix(b"nccl").map_or(0, |name| position(DATATYPES, name))
}

pub(crate) fn key(comm: usize, op: u8, datatype: u8, algorithm: u8, protocol: u8, bytes: u64) -> Key {
    Key {
        comm: u8::try_from(comm).unwrap_or(u8::MAX),
        op,
        datatype,
        algorithm,
        protocol,
        class: Key::class_of(bytes),
    }
}

/// Key and size of a collective, with sizes as in nccl-tests: for gathers and scatters the parts of all ranks
/// together.
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

/// An operation to be counted.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    /// [`Key::word`].
    pub(crate) key: u64,
    pub(crate) bytes: u64,
    /// Index of its cell; `None`: the file is full.
    pub(crate) cell: Option<usize>,
}

fn known(store: &Store, comm: usize, coll: &Coll<'_>) -> Op {
    recent::known(comm, coll.marks(), || {
        let (key, bytes) = sized(store, comm, coll);
        Op::of(store, key, bytes)
    })
}

impl Op {
    pub(crate) fn of(store: &Store, key: Key, bytes: u64) -> Self {
        Op { key: key.word(), bytes, cell: store.find(key) }
    }

    /// Adds it to its cell. Returns the number of the call within its cell, from 1; 0: the file is full.
    pub(crate) fn count(self, store: &Store) -> u64 {
        let Some(at) = self.cell else { return 0 };
        add(store.counted(at, count::BYTES), self.bytes);
        add(store.counted(at, count::CALLS), 1)
    }

    /// Counts it in its communicator.
    pub(crate) fn hand_over(self, store: &Store, comm: usize, seq: u64, channels: u64) -> Handed {
        let call = self.count(store);
        let number = add(store.comm(comm, comm::OPS), 1);
        store.comm(comm, comm::LAST_KEY).store(self.key, Relaxed);
        store.comm(comm, comm::LAST_SEQ).store(seq, Relaxed);
        store.comm(comm, comm::LAST_BYTES).store(self.bytes, Relaxed);
        let now = now(libc::CLOCK_MONOTONIC_COARSE);
        store.comm(comm, comm::LAST_TIME).store(sampling::wall(now), Relaxed);
        store.comm(comm, comm::CLOCKED).store(number, Relaxed);
        let handed = Handed { number, call, channels, now };
        sampling::after(store, comm, handed);
        handed
    }
}

/// Whether NCCL still attributes kernel times to the right operations of the communicator: see [`crate::hold`].
pub(crate) fn in_count(store: &Store, comm: usize) -> bool {
    store.comm(comm, comm::TO_ITSELF).load(Relaxed) == 0 && store.at(head::CAPTURED).load(Relaxed) == 0
}

fn collective(store: &Store, comm: usize, coll: &Coll<'_>) -> u64 {
    let op = known(store, comm, coll);
    // Without channels no times will arrive.
    let timed = sampling::timing() && coll.channels > 0 && in_count(store, comm);
    let handed = op.hand_over(store, comm, coll.seq, coll.channels);
    recent::went(comm, coll.marks(), handed);
    // The first operation of a communicator makes its connections.
    if !timed || handed.number <= 1 {
        return 0;
    }
    sampling::pay(store, comm, coll.channels);
    let (slot, handle) = slots::fresh();
    slot.is_of(op, handed, coll.channels);
    handle
}

/// Adds to a counter with a single writer, and returns the sum. NCCL lets one thread at a time launch for a
/// communicator. (If a CUDA callback does it for a graph, all other launches wait for it: `src/enqueue.cc`.) One
/// thread reports its kernels.
pub(crate) fn add(word: &AtomicU64, by: u64) -> u64 {
    let sum = word.load(Relaxed).wrapping_add(by);
    word.store(sum, Relaxed);
    sum
}

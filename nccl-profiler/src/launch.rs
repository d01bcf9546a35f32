//! Messages between ranks: each one is counted, and all messages of one launch together as one operation.
//!
//! For each communicator in turn, NCCL sends a launch's start, its messages and its end without interruption.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

use railgate_rankfile::{COMMS, Limit, OPERATIONS, P2P_GROUP, comm, position, type_size};

use crate::abi::P2p;
use crate::count::{Op, add, in_count, key, name_of};
use crate::handle::Handle;
use crate::store::Store;
use crate::{recent, sampling, slots, state};

/// Sums over the messages of a communicator's launch. Most launches have none, and are not recorded.
#[repr(align(64))]
struct Launch {
    /// Whether there are messages.
    open: AtomicBool,
    channels: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    datatype: AtomicU64,
    /// Handle of the slot that times it; 0: not timed.
    timed: AtomicU64,
    /// Channels of its timed messages.
    timed_channels: AtomicU64,
}

static LAUNCH: [Launch; COMMS] = [const {
    Launch {
        open: AtomicBool::new(false),
        channels: AtomicU64::new(0),
        sent: AtomicU64::new(0),
        received: AtomicU64::new(0),
        datatype: AtomicU64::new(0),
        timed: AtomicU64::new(0),
        timed_channels: AtomicU64::new(0),
    }
}; COMMS];

/// Starts a launch, and returns its handle. It is needed regardless of the content: NCCL of version 4 sends
/// operations only if their launch has a handle.
pub(crate) fn begins(comm: usize) -> u64 {
    // Discard the messages of an earlier launch that never ended.
    if let Some(launch) = LAUNCH.get(comm) {
        launch.open.store(false, Relaxed);
    }
    Handle::Launch(comm).word()
}

/// Counts a message. Returns its handle if it is timed, else 0.
pub(crate) fn message(store: &Store, comm: usize, message: &P2p<'_>) -> u64 {
    let op = known(store, comm, message);
    op.count(store);
    let Some(launch) = LAUNCH.get(comm).filter(|_| Handle::of(message.group) == Some(Handle::Launch(comm)))
    else {
        return 0;
    };
    if !launch.open.load(Relaxed) {
        launch.open.store(true, Relaxed);
        for field in [&launch.channels, &launch.sent, &launch.received, &launch.timed, &launch.timed_channels]
        {
            field.store(0, Relaxed);
        }
        state::messages_begin();
    }
    add(&launch.channels, message.channels);
    launch.datatype.store(u64::from(name_of(message.datatype)), Relaxed);
    // It is copied locally, and not sent over the network.
    if is_to_itself(store, comm, message) {
        add(store.comm(comm, comm::TO_ITSELF), 1);
        sampling::part(store, Limit::OwnMessages);
        return 0;
    }
    add(if message.func.bytes() == b"Send" { &launch.sent } else { &launch.received }, op.bytes);
    // The first operation of a communicator makes its connections.
    let first = store.comm(comm, comm::OPS).load(Relaxed) == 0;
    if first || !sampling::timing() || message.channels == 0 || !in_count(store, comm) {
        return 0;
    }
    let handle = match launch.timed.load(Relaxed) {
        0 => {
            let (_, handle) = slots::fresh();
            launch.timed.store(handle, Relaxed);
            handle
        }
        handle => handle,
    };
    add(&launch.timed_channels, message.channels);
    handle
}

/// Whether a rank sends the message to itself, or receives it from itself.
pub(crate) fn is_to_itself(store: &Store, comm: usize, message: &P2p<'_>) -> bool {
    let own = store.comm(comm, comm::RANKS).load(Relaxed) & 0xffff_ffff;
    i64::try_from(own).is_ok_and(|own| own == message.peer)
}

fn known(store: &Store, comm: usize, message: &P2p<'_>) -> Op {
    recent::known(comm, message.marks(), || {
        let (op, datatype) = (position(OPERATIONS, message.func.bytes()), name_of(message.datatype));
        let bytes = message.count.saturating_mul(type_size(datatype));
        Op::of(store, key(comm, op, datatype, 0, 0, bytes), bytes)
    })
}

/// Ends the launch. NCCL may report this twice.
pub(crate) fn ends(store: &Store, comm: usize) {
    let Some(launch) = LAUNCH.get(comm).filter(|launch| launch.open.load(Relaxed)) else { return };
    launch.open.store(false, Relaxed);
    let bytes = launch.sent.load(Relaxed).max(launch.received.load(Relaxed));
    let datatype = u8::try_from(launch.datatype.load(Relaxed)).unwrap_or(0);
    let channels = launch.channels.load(Relaxed);
    let op = Op::of(store, key(comm, P2P_GROUP, datatype, 0, 0, bytes), bytes);
    let handed = op.hand_over(store, comm, 0, channels);
    if let Some((slot, found)) = slots::of(launch.timed.load(Relaxed)).filter(|_| in_count(store, comm)) {
        slot.is_of(op, handed, launch.timed_channels.load(Relaxed));
        sampling::pay(store, comm, channels);
        // The GPU may have finished already; pairs with the fence in `slots`, where the proxy thread tests whether
        // this was written.
        fence(SeqCst);
        slots::finish(store, slot, found.generation);
    }
}

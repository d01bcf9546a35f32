//! When the activation mask may not change any more.
//!
//! A timed kernel's times reach NCCL through a ring of 64 entries for each channel. The GPU counts all of its work and writes down, at
//! its number, what was to be timed; NCCL counts what it launches, and for each that was to be timed waits for an entry of
//! at least that number (`src/device/common.h`, `src/proxy.cc`, `src/transport/profiler.cc` of 2.27 to 2.30). Where the two
//! counts part, NCCL waits for an entry that only later timed work overwrites; if none comes, the end of the communicator waits
//! forever. They part where a rank sends a message to itself and where a captured graph is replayed: the GPU alone counts
//! those. And a send and a receive that are launched as one are timed on one side only, where the mask changed between them.
//!
//! All of that is harmless while all work is timed, or none is. So once counts part the mask stays: set where all has been timed or
//! what parts them already is, else clear.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What the mask stays at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// It may change.
    Not,
    /// Nothing is timed.
    Clear,
    /// Everything is.
    Set,
}

static HELD: AtomicU64 = AtomicU64::new(0);
/// The thread that is between the begin and the end of a group at NCCL's interface; 0: none. What it has appended
/// already has the mask of then. Looked at only in processes that have had messages.
static GROUP_OF: AtomicU64 = AtomicU64::new(0);

pub(crate) fn held() -> Held {
    match HELD.load(Relaxed) {
        0 => Held::Not,
        1 => Held::Clear,
        _ => Held::Set,
    }
}

/// The mask stays like this, unless it already stays; whether it does from now on.
pub(crate) fn hold(set: bool) -> bool {
    HELD.compare_exchange(0, if set { 2 } else { 1 }, Relaxed, Relaxed).is_ok()
}

/// A group of this thread's begins: whether another thread is in the middle of one.
pub(crate) fn group_begins() -> bool {
    let own = thread();
    let before = GROUP_OF.swap(own, Relaxed);
    before != 0 && before != own
}

pub(crate) fn group_ends() {
    GROUP_OF.store(0, Relaxed);
}

/// Whether another thread is in the middle of a group.
pub(crate) fn others_group() -> bool {
    let of = GROUP_OF.load(Relaxed);
    of != 0 && of != thread()
}

/// Never 0.
fn thread() -> u64 {
    // SAFETY: it only reads a register.
    unsafe { libc::pthread_self() as u64 }
}

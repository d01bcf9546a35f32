//! Decides when the activation mask must no longer change.
//!
//! Times of a kernel reach NCCL through a ring of 64 entries per channel. The GPU counts all of its kernels, and
//! writes the timed ones at their number. NCCL counts the kernels that it launches, and for each timed one waits for
//! an entry of at least its number (`src/device/common.h`, `src/proxy.cc`, `src/transport/profiler.cc` of 2.27 to
//! 2.30). If the two counts diverge, NCCL waits for an entry that only later timed work overwrites; if none follows,
//! the destruction of the communicator hangs. They diverge if a rank sends a message to itself, and if a captured
//! graph is replayed: only the GPU counts those. Moreover, if the mask changes between a send and a receive that are
//! launched together, only one of them is timed.
//!
//! All of this is harmless while all work or none is timed. So once the counts diverge the mask is frozen: set if all
//! work has been timed, or the diverging work already is, else clear.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The frozen state of the mask.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// The mask may change.
    Not,
    /// Nothing is timed.
    Clear,
    /// Everything is timed.
    Set,
}

static HELD: AtomicU64 = AtomicU64::new(0);
/// The thread between the start and the end of a group at NCCL's API; 0: none. Operations that it has already
/// appended have the current mask. Used only in processes that have had messages.
static GROUP_OF: AtomicU64 = AtomicU64::new(0);

pub(crate) fn held() -> Held {
    match HELD.load(Relaxed) {
        0 => Held::Not,
        1 => Held::Clear,
        _ => Held::Set,
    }
}

/// Freezes the mask, unless it is frozen. Returns whether this call froze it.
pub(crate) fn hold(set: bool) -> bool {
    HELD.compare_exchange(0, if set { 2 } else { 1 }, Relaxed, Relaxed).is_ok()
}

/// Records that this thread starts a group. Returns whether another thread is inside one.
pub(crate) fn group_begins() -> bool {
    let own = thread();
    let before = GROUP_OF.swap(own, Relaxed);
    before != 0 && before != own
}

pub(crate) fn group_ends() {
    GROUP_OF.store(0, Relaxed);
}

/// Whether another thread is inside a group.
pub(crate) fn others_group() -> bool {
    let of = GROUP_OF.load(Relaxed);
    of != 0 && of != thread()
}

/// Id of this thread; never 0.
fn thread() -> u64 {
    // SAFETY: it only reads a register.
    unsafe { libc::pthread_self() as u64 }
}

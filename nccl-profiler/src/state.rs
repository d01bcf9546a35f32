//! What every operation looks at first, on one cache line: whether anything is out of the ordinary.

use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use crate::store::File;

/// A child of this process shares the file; its counts would be the parent's.
pub(crate) const FORKED: u64 = 1;
/// Nothing is counted.
pub(crate) const OFF: u64 = 1 << 1;
/// NCCL was asked to time what is handed over.
pub(crate) const TIMING: u64 = 1 << 2;

/// Hardly ever written.
#[repr(align(64))]
struct State {
    /// The bits above.
    unusual: AtomicU64,
    /// Some communicator of this process has had messages.
    messages: AtomicBool,
    /// Null: there is none.
    file: AtomicPtr<File>,
}

static STATE: State = State {
    unusual: AtomicU64::new(0),
    messages: AtomicBool::new(false),
    file: AtomicPtr::new(ptr::null_mut()),
};

/// Whether one of these holds.
#[inline]
pub(crate) fn is(bits: u64) -> bool {
    STATE.unusual.load(Relaxed) & bits != 0
}

/// Sets or clears one, and says whether it held before.
pub(crate) fn set(bit: u64, on: bool) -> bool {
    if is(bit) == on {
        return on;
    }
    let before =
        if on { STATE.unusual.fetch_or(bit, Relaxed) } else { STATE.unusual.fetch_and(!bit, Relaxed) };
    before & bit != 0
}

/// Whether any communicator of this process has had messages.
#[inline]
pub(crate) fn has_messages() -> bool {
    STATE.messages.load(Relaxed)
}

pub(crate) fn messages_begin() {
    if !has_messages() {
        STATE.messages.store(true, Relaxed);
    }
}

/// The process's file, once there is one.
pub(crate) fn set_file(file: &'static File) {
    STATE.file.store(ptr::from_ref(file).cast_mut(), Release);
}

/// The process's file, if operations are counted into it as usual.
#[inline]
pub(crate) fn usual_file() -> Option<&'static File> {
    if STATE.unusual.load(Relaxed) != 0 {
        return None;
    }
    // SAFETY: null, or what `set_file` was given.
    unsafe { STATE.file.load(Acquire).as_ref() }
}

//! Flags that every operation tests first, on one cache line: whether the fast path applies.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::store::File;

/// This is a forked child, which shares the file; its counts would be added to the parent's.
pub(crate) const FORKED: usize = 1;
/// Nothing is counted.
pub(crate) const OFF: usize = 1 << 1;
/// NCCL was asked to time the operations that are launched now.
pub(crate) const TIMING: usize = 1 << 2;
/// All operations are to be timed, and there is no obstacle.
pub(crate) const ALL: usize = 1 << 3;
const NO_FILE: usize = 1 << 4;
const UNUSUAL: usize = FORKED | OFF | TIMING | ALL | NO_FILE;

/// Rarely written.
#[repr(align(64))]
struct State {
    /// Pointer to the process's file, with flags in the low bits, which are free in a page's address.
    file: AtomicPtr<File>,
    /// Whether any communicator of this process has had messages.
    messages: AtomicBool,
}

static STATE: State =
    State { file: AtomicPtr::new(ptr::without_provenance_mut(NO_FILE)), messages: AtomicBool::new(false) };

/// Whether any of these flags is set.
#[inline]
pub(crate) fn is(bits: usize) -> bool {
    STATE.file.load(Relaxed).addr() & bits != 0
}

/// Sets or clears a flag. Returns its previous value.
pub(crate) fn set(bit: usize, on: bool) -> bool {
    if is(bit) == on {
        return on;
    }
    let before = if on { STATE.file.fetch_or(bit, Relaxed) } else { STATE.file.fetch_and(!bit, Relaxed) };
    before.addr() & bit != 0
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

/// Sets the process's file. No flag can be set before this.
pub(crate) fn set_file(file: &'static File) {
    STATE.file.store(ptr::from_ref(file).cast_mut(), Release);
}

/// The process's file, if no flag prevents the fast path without timing.
#[inline]
pub(crate) fn usual_file() -> Option<&'static File> {
    file_where(0)
}

/// The process's file, if every operation is counted and timed.
#[inline]
pub(crate) fn timed_file() -> Option<&'static File> {
    file_where(TIMING | ALL)
}

#[inline]
fn file_where(bits: usize) -> Option<&'static File> {
    let file = STATE.file.load(Acquire);
    // SAFETY: without the flag bits it is the pointer that `set_file` received.
    (file.addr() & UNUSUAL == bits).then(|| unsafe { &*file.map_addr(|at| at & !UNUSUAL) })
}

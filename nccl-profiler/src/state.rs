//! What every operation looks at first, on one cache line: whether anything is out of the ordinary.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::store::File;

/// A child of this process shares the file; its counts would be the parent's.
pub(crate) const FORKED: usize = 1;
/// Nothing is counted.
pub(crate) const OFF: usize = 1 << 1;
/// NCCL was asked to time what is handed over.
pub(crate) const TIMING: usize = 1 << 2;
/// All of it is wished to be timed, and nothing stands against it.
pub(crate) const ALL: usize = 1 << 3;
const NO_FILE: usize = 1 << 4;
const UNUSUAL: usize = FORKED | OFF | TIMING | ALL | NO_FILE;

/// Hardly ever written.
#[repr(align(64))]
struct State {
    /// The process's file, and in the low bits, which a page's address leaves free, what is out of the ordinary.
    file: AtomicPtr<File>,
    /// Some communicator of this process has had messages.
    messages: AtomicBool,
}

static STATE: State =
    State { file: AtomicPtr::new(ptr::without_provenance_mut(NO_FILE)), messages: AtomicBool::new(false) };

/// Whether one of these holds.
#[inline]
pub(crate) fn is(bits: usize) -> bool {
    STATE.file.load(Relaxed).addr() & bits != 0
}

/// Sets or clears one, and says whether it held before.
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

/// The process's file, once there is one. Before that nothing can be out of the ordinary.
pub(crate) fn set_file(file: &'static File) {
    STATE.file.store(ptr::from_ref(file).cast_mut(), Release);
}

/// The process's file, if operations are counted into it as usual.
#[inline]
pub(crate) fn usual_file() -> Option<&'static File> {
    file_where(0)
}

/// The process's file, if each operation is counted into it and timed.
#[inline]
pub(crate) fn timed_file() -> Option<&'static File> {
    file_where(TIMING | ALL)
}

#[inline]
fn file_where(bits: usize) -> Option<&'static File> {
    let file = STATE.file.load(Acquire);
    // SAFETY: without the bits, of which there are no others, it is what `set_file` was given.
    (file.addr() & UNUSUAL == bits).then(|| unsafe { &*file.map_addr(|at| at & !UNUSUAL) })
}

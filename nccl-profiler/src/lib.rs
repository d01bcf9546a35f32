//! `libnccl-profiler-railgate.so`: a profiler plugin for NCCL 2.27 and later that counts a job's collectives.
//!
//! Each process counts into one small file in the run's directory on the node, which the epilog includes in the node
//! report; `railgate-rankfile` defines the format. The library runs in the user's process: it starts no threads, and
//! after a communicator is created it does not allocate, block or panic. If anything is missing (no run directory, no
//! room, a release of NCCL that is known to crash) it does nothing, and always returns success.
#![allow(unsafe_code, reason = "NCCL's plugin interface is C")]

mod abi;
mod count;
mod handle;
mod hold;
mod launch;
mod launch_interval;
mod recent;
mod release;
mod sampling;
mod slots;
mod state;
mod store;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::Release};

use railgate_rankfile::{COMMS, Limit, comm, head};

use abi::{Descriptor, INFO, KERNEL_STOP, Logger, NCCL_INIT, ProfilerV4, ProfilerV5, SUCCESS, event};
use handle::Handle;
use hold::Held;
use store::{Store, now};

/// Loaded by NCCL 2.27.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks the symbol up by this name")]
pub static ncclProfiler_v4: ProfilerV4 = ProfilerV4 {
    name: NAME.as_ptr(),
    init: init_v4,
    start: start_v4,
    stop: stop_event,
    record: record_state,
    finalize,
};

/// Loaded by NCCL 2.28.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks the symbol up by this name")]
pub static ncclProfiler_v5: ProfilerV5 = ProfilerV5 {
    name: NAME.as_ptr(),
    init: init_since_v5::<5>,
    start: start_since_v5,
    stop: stop_event,
    record: record_state,
    finalize,
};

/// Loaded by NCCL 2.31 and later.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks the symbol up by this name")]
pub static ncclProfiler_v7: ProfilerV5 = ProfilerV5 {
    name: NAME.as_ptr(),
    init: init_since_v5::<7>,
    start: start_since_v5,
    stop: stop_event,
    record: record_state,
    finalize,
};

/// Loaded by NCCL 2.29.2 to 2.30.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks the symbol up by this name")]
pub static ncclProfiler_v6: ProfilerV5 = ProfilerV5 {
    name: NAME.as_ptr(),
    init: init_since_v5::<6>,
    start: start_since_v5,
    stop: stop_event,
    record: record_state,
    finalize,
};

unsafe extern "C" {
    /// Called by `pthread_atfork`. In glibc 2.34 and later that function is linked into each program; this one is
    /// exported by all releases.
    fn __register_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
        library: *mut c_void,
    ) -> c_int;
}

const NAME: &CStr = c"railgate";
/// Tag of a context, which consists of this and an index, never an address.
const CONTEXT: u64 = 0x5247 << CONTEXT_AT;
const CONTEXT_AT: u32 = 17;
/// Set if the communicator's NCCL hides broadcasts.
const HIDES: u64 = 1 << 16;

static STORE: OnceLock<Option<Store>> = OnceLock::new();
static NEXT_COMM: AtomicU64 = AtomicU64::new(0);
static SAID: AtomicBool = AtomicBool::new(false);

struct New<'a> {
    api: u8,
    hash: u64,
    name: Option<&'a CStr>,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    log: Option<Logger>,
}

unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    hash: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    log: Option<Logger>,
) -> c_int {
    // SAFETY: as NCCL calls it.
    unsafe { init(context, mask, name, New { api: 4, hash, name: None, nodes, ranks, rank, log }) }
}

unsafe extern "C" fn init_since_v5<const API: u8>(
    context: *mut *mut c_void,
    hash: u64,
    mask: *mut c_int,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    log: Option<Logger>,
) -> c_int {
    // SAFETY: as NCCL calls it.
    unsafe { init(context, mask, name, New { api: API, hash, name: None, nodes, ranks, rank, log }) }
}

/// # Safety
/// `context` and `mask` are writable or null; `name` is a C string or null.
unsafe fn init(context: *mut *mut c_void, mask: *mut c_int, name: *const c_char, mut new: New<'_>) -> c_int {
    if context.is_null() {
        return SUCCESS;
    }
    // SAFETY: the caller's promise. With a null context no event of this communicator is counted.
    unsafe { *context = ptr::null_mut() };
    if !name.is_null() {
        // SAFETY: a C string that is valid during the call.
        new.name = Some(unsafe { CStr::from_ptr(name) });
    }
    let made = guarded(0, || begin(mask, &new));
    // SAFETY: as above.
    unsafe { *context = opaque(made) };
    SUCCESS
}

/// Registers a communicator. Returns its context; 0: it is not counted.
fn begin(mask: *mut c_int, new: &New<'_>) -> u64 {
    let release = release::release(new.log);
    let limit = release::limit(release);
    let opened = STORE.get_or_init(|| {
        // The library has its own copy of the standard library, so panics of other code are still printed.
        panic::set_hook(Box::new(|_| {}));
        let made = Store::create();
        // SAFETY: a function of this library, which is never unloaded, so the registration stays valid.
        unsafe { __register_atfork(None, None, Some(forked), ptr::null_mut()) };
        made.map_err(|why| say(new.log, &format!("counts nothing: {why}"))).ok()
    });
    let Some(store) = opened.as_ref().filter(|_| !state::is(state::FORKED)) else { return 0 };
    store.at(head::API).store(u64::from(new.api), Relaxed);
    store.at(head::NCCL).store(release.unwrap_or(0), Relaxed);
    if limit == Limit::Release {
        store.at(head::LIMIT).store(limit.word(), Relaxed);
        say(new.log, &format!("counts nothing: {}", limit.as_str()));
        return 0;
    }
    let small = release::shm_is_small();
    if let Some(limit) =
        [limit, if small { Limit::Shm } else { Limit::None }].into_iter().find(|l| *l != Limit::None)
    {
        sampling::restrict(limit);
    }
    let index = NEXT_COMM.fetch_add(1, Relaxed);
    let Some(at) = usize::try_from(index).ok().filter(|at| *at < COMMS) else {
        store.at(head::COMMS_LOST).fetch_add(1, Relaxed);
        return 0;
    };
    let number = |value: c_int| u64::try_from(value).unwrap_or(0);
    store.comm(at, comm::HASH).store(new.hash, Relaxed);
    store.comm(at, comm::RANKS).store(number(new.ranks) << 32 | number(new.rank), Relaxed);
    store.comm(at, comm::NODES).store(number(new.nodes), Relaxed);
    store.comm(at, comm::CREATED).store(now(libc::CLOCK_REALTIME), Relaxed);
    store.name(at, new.name.unwrap_or_default().to_bytes());
    store.comm(at, comm::STATE).store(1, Release);
    let base = event::COLL | event::P2P | if new.api >= 6 { event::CE_COLL } else { 0 };
    if new.api < 5 {
        // Captures of this release are not visible to the plugin.
        sampling::part(store, Limit::HiddenCaptures);
    }
    sampling::register(store, mask, base);
    CONTEXT | if release::hides_broadcasts(release) { HIDES } else { 0 } | index
}

/// Version 4, whose descriptors have a different layout.
unsafe extern "C" fn start_v4(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descriptor: *const c_void,
) -> c_int {
    // SAFETY: as NCCL calls it.
    unsafe { start::<4>(context, handle, descriptor) }
}

unsafe extern "C" fn start_since_v5(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descriptor: *const c_void,
) -> c_int {
    // SAFETY: as NCCL calls it.
    unsafe { start::<5>(context, handle, descriptor) }
}

/// Kept as short as possible, because NCCL's own work evicts it from the caches between two operations: rare and long
/// cases are in other functions. Nothing here or in [`recent::again`] and [`recent::again_timed`] can panic. Types
/// are tested bit by bit: with a jump table the processor would have to predict four different targets per operation.
///
/// # Safety
/// A place for the handle, and a descriptor of that version of the interface, or null.
#[inline(always)]
unsafe fn start<const API: u8>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descriptor: *const c_void,
) -> c_int {
    if handle.is_null() {
        return SUCCESS;
    }
    // NCCL may pass a place that still contains the handle of another event.
    // SAFETY: the caller's promise.
    unsafe { *handle = ptr::null_mut() };
    if descriptor.is_null() {
        return SUCCESS;
    }
    // SAFETY: the caller's promise.
    let described = unsafe { Descriptor::of(API, descriptor) };
    let kind = described.kind();
    let done = if kind & event::COLL != 0 {
        // SAFETY: as above.
        return unsafe { collective::<API>(context, handle, descriptor) };
    } else if kind & event::GROUP != 0 {
        communicator(context).filter(|_| !state::has_messages()).is_some_and(|(comm, _)| {
            // SAFETY: as above. It is a number, which NCCL only returns.
            unsafe { *handle = opaque(Handle::Launch(comm).word()) };
            true
        })
    } else if kind & (event::COLL_API | event::P2P_API) != 0 {
        // Most API calls need no handling: their operation is counted by its own event.
        context as u64 & HIDES == 0 && !described.captured()
    } else {
        kind & event::GROUP_API != 0 && !state::has_messages()
    };
    // SAFETY: as above.
    if done { SUCCESS } else { unsafe { start_at_length::<API>(context, handle, descriptor) } }
}

/// A separate function, so that the others need not save registers.
///
/// # Safety
/// A place for the handle, and a descriptor of that version of the interface, of [`event::COLL`].
#[inline(never)]
unsafe extern "C" fn collective<const API: u8>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descriptor: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let coll = unsafe { Descriptor::of(API, descriptor).raw_coll() };
    let done = communicator(context).is_some_and(|(comm, _)| recent::again(comm, coll));
    // SAFETY: as above.
    if done { SUCCESS } else { unsafe { timed_collective::<API>(context, handle, descriptor) } }
}

/// # Safety
/// As [`collective`].
#[inline(never)]
unsafe extern "C" fn timed_collective<const API: u8>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descriptor: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let coll = unsafe { Descriptor::of(API, descriptor).raw_coll() };
    let timed = communicator(context).and_then(|(comm, _)| recent::again_timed(comm, coll));
    let Some(timed) = timed else {
        // SAFETY: as above.
        return unsafe { start_at_length::<API>(context, handle, descriptor) };
    };
    // SAFETY: as above.
    unsafe { *handle = opaque(timed) };
    SUCCESS
}

/// Handles all events that take more than a few instructions.
///
/// # Safety
/// A place for the handle, and a descriptor of that version of the interface.
#[cold]
#[inline(never)]
unsafe extern "C" fn start_at_length<const API: u8>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descriptor: *const c_void,
) -> c_int {
    let (Some(store), Some((comm, hides))) = (store(), communicator(context)) else { return SUCCESS };
    // SAFETY: the caller's promise.
    let described = unsafe { Descriptor::of(API, descriptor) };
    let made = guarded(0, || match described.kind() {
        event::GROUP => launch::begins(comm),
        event::GROUP_API => group_begins(store),
        event::KERNEL => {
            described.kernel().map_or(0, |(parent, timer)| slots::channel_begins(store, comm, parent, timer))
        }
        _ => count::start(store, comm, hides, described),
    });
    // SAFETY: as above.
    unsafe { *handle = opaque(made) };
    SUCCESS
}

/// Starts a group: operations that this thread appends until its end belong together.
fn group_begins(store: &Store) -> u64 {
    if hold::held() != Held::Not {
        return 0;
    }
    if hold::group_begins() {
        sampling::part(store, Limit::Threads);
    }
    Handle::Group.word()
}

/// Converts a handle to the pointer that NCCL stores.
#[inline]
fn opaque(handle: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(usize::try_from(handle).unwrap_or(0))
}

/// Of all events with handles, only the end of a launch and of a group need handling, and only if there were
/// messages.
unsafe extern "C" fn stop_event(handle: *mut c_void) -> c_int {
    if state::has_messages() { something_ends(handle) } else { SUCCESS }
}

#[cold]
#[inline(never)]
extern "C" fn something_ends(handle: *mut c_void) -> c_int {
    match (Handle::of(handle as u64), store()) {
        (Some(Handle::Launch(comm)), Some(store)) => guarded((), || launch::ends(store, comm)),
        (Some(Handle::Group), _) => hold::group_ends(),
        _ => {}
    }
    SUCCESS
}

unsafe extern "C" fn record_state(handle: *mut c_void, state: c_int, arguments: *const u64) -> c_int {
    if state == KERNEL_STOP
        && !arguments.is_null()
        && let Some(store) = store()
    {
        // SAFETY: for this state it is a union that contains the timer.
        let timer = unsafe { *arguments };
        guarded((), || slots::channel_ends(store, handle as u64, timer));
    }
    SUCCESS
}

unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    if let (Some(store), Some((at, _))) = (store(), communicator(context)) {
        guarded((), || {
            store.comm(at, comm::STATE).store(2, Release);
            sampling::forget(store, at);
        });
    }
    SUCCESS
}

unsafe extern "C" fn forked() {
    state::set(state::FORKED, true);
}

fn store() -> Option<&'static Store> {
    STORE.get()?.as_ref().filter(|_| !state::is(state::FORKED))
}

/// Index of a context of this plugin, and whether its NCCL hides broadcasts. With PXN a proxy may pass a context of
/// another process: the tag is the same, but such events have types that are never requested.
#[inline]
fn communicator(context: *mut c_void) -> Option<(usize, bool)> {
    let context = context as u64;
    let ours = context >> CONTEXT_AT == CONTEXT >> CONTEXT_AT;
    ours.then(|| (usize::try_from(context).unwrap_or(0) % COMMS, context & HIDES != 0))
}

/// Logs a line, once per process.
fn say(log: Option<Logger>, what: &str) {
    let (Some(log), Ok(text)) = (log, CString::new(format!("PROFILER/Plugin: railgate: {what}"))) else {
        return;
    };
    if SAID.swap(true, Relaxed) {
        return;
    }
    let file = c"nccl-profiler";
    // SAFETY: NCCL's own logger, with the arguments that its format requires; it copies the text.
    unsafe { log(INFO, NCCL_INIT, file.as_ptr(), 0, c"%s".as_ptr(), text.as_ptr()) };
}

/// Runs the work; a panic ends here without a message, and the fallback is returned.
fn guarded<T>(fallback: T, work: impl FnOnce() -> T) -> T {
    match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => value,
        Err(panic) => {
            // Dropping the payload could panic in turn.
            std::mem::forget(panic);
            if let Some(store) = store() {
                store.at(head::PANICS).fetch_add(1, Relaxed);
            }
            fallback
        }
    }
}

//! Which operations are timed by the GPU.
//!
//! Timing costs about a microsecond per operation inside NCCL, whatever a plugin does with it. So mode `sample`
//! times windows of eight consecutive operations of a communicator, one window in `duty`. Which ones depends on
//! nothing but the operation's number there: all ranks count alike, so all time the same ones, and their times can be
//! compared. `duty` is a power of two and windows are drawn by a hash of their number, so that a rank with a
//! sparser duty times a subset of what the others time, and no period of the job's own hides an operation for good.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering::Relaxed};

use railgate_rankfile::{COMMS, Limit, Mode, head};

use crate::abi::event;
use crate::count;
use crate::store::{self, Store};

/// Operations of a window, a power of two.
const WINDOW: u64 = 8;
/// What timing one operation costs, nanoseconds (measured: 0.6 to 1.4 microseconds, and more where NCCL's proxy is the bottleneck).
const COST_NS: u64 = 2000;
const SPARSEST: u64 = 4096;
/// Before anything is known about the rate.
const FIRST_DUTY: u64 = 32;
const TICK_NS: u64 = 250_000_000;

/// The activation masks of the NCCLs in this process.
static MASKS: [Mask; 8] =
    [const { Mask { at: AtomicPtr::new(ptr::null_mut()), base: AtomicU64::new(0) } }; 8];
/// Communicators whose next operation is to be timed.
static OPEN: AtomicU64 = AtomicU64::new(0);
static IN_WINDOW: [AtomicBool; COMMS] = [const { AtomicBool::new(false) }; COMMS];
static TIMING: AtomicBool = AtomicBool::new(false);
/// Why nothing is timed at all.
static LIMIT: AtomicU64 = AtomicU64::new(0);
static NEXT_TICK: AtomicU64 = AtomicU64::new(0);
static LAST_TICK: AtomicU64 = AtomicU64::new(0);
/// What the monotonic clock lacks to the wall clock, nanoseconds.
static WALL: AtomicU64 = AtomicU64::new(0);
/// At the last tick: operations of all communicators, and those to be timed.
static OPS: AtomicU64 = AtomicU64::new(0);
static TIMED: AtomicU64 = AtomicU64::new(0);

struct Mask {
    at: AtomicPtr<c_int>,
    base: AtomicU64,
}

/// Takes in one more NCCL's mask (each communicator of one NCCL brings the same), and sets it.
pub(crate) fn register(store: &Store, mask: *mut c_int, base: u64) {
    if mask.is_null() {
        return;
    }
    for slot in &MASKS {
        let have = slot.at.compare_exchange(ptr::null_mut(), mask, Relaxed, Relaxed);
        if have.is_ok() || have == Err(mask) {
            slot.base.store(base, Relaxed);
            break;
        }
    }
    if store.at(head::DUTY).load(Relaxed) == 0 {
        store.at(head::DUTY).store(FIRST_DUTY, Relaxed);
    }
    apply(store);
}

/// Less than was wished for, from now on.
pub(crate) fn restrict(limit: Limit) {
    LIMIT.store(limit.word(), Relaxed);
}

/// Whether operations that are handed over now are timed, as far as can be told.
pub(crate) fn timing() -> bool {
    TIMING.load(Relaxed)
}

/// The wall clock at this time of the monotonic one; one clock is enough for each operation.
pub(crate) fn wall(now: u64) -> u64 {
    let beyond = WALL.load(Relaxed);
    if beyond > 0 { now.wrapping_add(beyond) } else { store::now(libc::CLOCK_REALTIME_COARSE) }
}

/// Operation `number` (from 1) of this communicator was handed over: decides about the next one.
pub(crate) fn after(store: &Store, comm: usize, number: u64, now: u64) {
    if now >= NEXT_TICK.load(Relaxed) {
        tick(store, now);
    }
    // What is in force follows from what is wished for, at each tick.
    let mode = store.at(head::MODE).load(Relaxed);
    let open = mode == Mode::Full.word()
        || mode == Mode::Sample.word() && chosen(number, store.at(head::DUTY).load(Relaxed));
    set(store, comm, open);
}

/// A communicator that is gone has no next operation.
pub(crate) fn forget(store: &Store, comm: usize) {
    set(store, comm, false);
}

fn set(store: &Store, comm: usize, open: bool) {
    let Some(flag) = IN_WINDOW.get(comm) else { return };
    if flag.load(Relaxed) == open || flag.swap(open, Relaxed) == open {
        return;
    }
    if open {
        OPEN.fetch_add(1, Relaxed);
    } else {
        OPEN.fetch_sub(1, Relaxed);
    }
    apply(store);
}

/// Whether the operation after this number is in a window that is timed. The first one never is (connections are
/// made then), the second always.
fn chosen(number: u64, duty: u64) -> bool {
    let window = number / WINDOW;
    let drawn = mixed(window) & (duty.clamp(1, SPARSEST).next_power_of_two() - 1) == 0;
    window == 1 || (window > 0 && drawn)
}

/// The finaliser of SplitMix64: its low bits depend on all of the number's.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

fn in_force(store: &Store) -> Mode {
    let wanted = Mode::of(store.at(head::WANTED).load(Relaxed)).unwrap_or(Mode::Count);
    let limited = LIMIT.load(Relaxed) != 0 && matches!(wanted, Mode::Sample | Mode::Full);
    if limited { Mode::Count } else { wanted }
}

/// Writes the masks.
fn apply(store: &Store) {
    let mode = in_force(store);
    let timing = OPEN.load(Relaxed) > 0 && matches!(mode, Mode::Sample | Mode::Full);
    if timing && !TIMING.swap(true, Relaxed) {
        store.at(head::SWITCHES).fetch_add(1, Relaxed);
    }
    if !timing {
        TIMING.store(false, Relaxed);
    }
    store.at(head::MODE).store(mode.word(), Relaxed);
    let limit = if mode.word() == store.at(head::WANTED).load(Relaxed) { 0 } else { LIMIT.load(Relaxed) };
    store.at(head::LIMIT).store(limit, Relaxed);
    for slot in &MASKS {
        let at = slot.at.load(Relaxed);
        if at.is_null() {
            break;
        }
        // Not zero in mode `off`: without events nobody would ever look for another wish.
        let mask = slot.base.load(Relaxed) | if timing { event::KERNEL } else { 0 };
        // SAFETY: an aligned int of NCCL's that lives as long as its library, which nobody unloads before the
        // process ends; NCCL, too, reads it atomically.
        unsafe { AtomicI32::from_ptr(at) }.store(i32::try_from(mask).unwrap_or(0), Relaxed);
    }
}

/// Four times a second: what the rate means for the duty, and whether somebody wishes for another mode.
fn tick(store: &Store, now: u64) {
    let due = NEXT_TICK.load(Relaxed);
    if NEXT_TICK.compare_exchange(due, now + TICK_NS, Relaxed, Relaxed).is_err() {
        return;
    }
    WALL.store(store::now(libc::CLOCK_REALTIME_COARSE).wrapping_sub(now), Relaxed);
    // One thread may launch for all communicators: what the budget is for is their sum.
    let (ops, timed) = (store.operations(), count::timed());
    let ops = ops.saturating_sub(OPS.swap(ops, Relaxed));
    let timed = timed.saturating_sub(TIMED.swap(timed, Relaxed));
    let elapsed = now.saturating_sub(LAST_TICK.swap(now, Relaxed));
    if due > 0 && elapsed < 60_000_000_000 {
        let budget = store.at(head::BUDGET).load(Relaxed);
        store
            .at(head::DUTY)
            .store(duty(ops, timed, elapsed, budget, store.at(head::DUTY).load(Relaxed)), Relaxed);
    }
    if let Some(mode) = store.wish() {
        store.at(head::WANTED).store(mode.word(), Relaxed);
    }
    apply(store);
}

/// One window in so many, so that timing costs at most `budget` millionths of the time.
fn duty(ops: u64, timed: u64, elapsed_ns: u64, budget: u64, last: u64) -> u64 {
    let ppm = |ops: u64| ops.saturating_mul(COST_NS).saturating_mul(1_000_000) / elapsed_ns.max(1);
    let fits = ppm(ops).div_ceil(budget.max(1)).clamp(1, SPARSEST).next_power_of_two();
    // Windows that stay open, as nothing further happens on their communicator, cost the others.
    let too_much = ppm(timed) > budget.saturating_mul(4);
    let duty = if too_much { fits.max(last.saturating_mul(2)) } else { fits };
    duty.clamp(1, SPARSEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparser_duty_takes_a_subset() {
        let all = |duty| (0..100_000).filter(|n| chosen(*n, duty)).collect::<Vec<u64>>();
        let (dense, sparse) = (all(4), all(64));
        assert!(sparse.iter().all(|n| dense.contains(n)));
        for (have, duty) in [(dense.len(), 4), (sparse.len(), 64)] {
            assert!((100_000 / duty / 2..100_000 / duty * 2).contains(&have), "{have} {duty}");
        }
        assert!(!chosen(0, 1) && !chosen(7, 1) && chosen(8, 4096) && chosen(15, 4096));
    }

    #[test]
    fn a_jobs_own_period_hides_nothing() {
        // 64 operations in a step, eight windows: each is timed sooner or later.
        let timed: std::collections::BTreeSet<u64> =
            (0..200_000).filter(|n| chosen(*n, 64)).map(|n| n % 64).collect();
        assert_eq!(timed.len(), 64);
    }

    #[test]
    fn the_duty_follows_the_rate() {
        let second = 1_000_000_000;
        assert_eq!(duty(0, 0, second, 2000, 32), 1);
        assert_eq!(duty(1000, 0, second, 2000, 32), 1);
        assert_eq!(duty(80_000, 0, second, 2000, 32), 128);
        assert_eq!(duty(80_000, 80_000, second, 2000, 128), 256);
        assert_eq!(duty(u64::MAX, u64::MAX, 0, 0, u64::MAX), SPARSEST);
    }
}

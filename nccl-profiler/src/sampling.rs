//! The sampling policy: which operations the GPU times.
//!
//! Timing costs a microsecond or more per operation inside NCCL, regardless of the plugin. So mode `sample` times
//! windows of eight consecutive operations of a communicator, one window in `duty`. The choice depends only on the
//! operation's number in the communicator: all ranks count alike, so all time the same operations, and their times
//! can be compared. `duty` is a power of two and windows are chosen by a hash of their number. So a rank with a
//! larger duty times a subset of the other ranks' windows, and a period in the job cannot hide an operation
//! permanently. In addition, a window starts at each 32nd call of a kind of operation up to its 512th, and then at
//! every doubling: each kind in a loop is timed soon, and often enough that one delayed call does not dominate its
//! average. This too is the same on all ranks.
//!
//! The process has one budget, since its launching thread may serve several communicators. It is an account: time
//! adds to it, and every timed operation subtracts its cost, which depends on its channels. Four times a second the
//! duty is computed from the launched operations; it rises at once and falls by halves. A window that starts while
//! the account is overdrawn raises the duty immediately, so that bursts after an idle time cost no more. If an idle
//! communicator leaves a window open, another one that pays for it closes the window.
//!
//! All of this ends when the kernel counts of NCCL and of the GPU may diverge: see [`hold`].

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU64, Ordering::Relaxed};

use railgate_rankfile::{COMMS, Limit, Mode, comm, head};

use crate::abi::event;
use crate::hold::{self, Held};
use crate::store::{self, Store};
use crate::{recent, state};

/// Operations per window, a power of two.
const WINDOW: u64 = 8;
/// A window starts at each multiple of this many calls of a kind up to [`FEW_CALLS`], then at every doubling. The
/// first windows are about 130 timed calls, half a millisecond of the launching thread in total, independent of the
/// budget, but charged to it.
const EACH_CALLS: u64 = 32;
const FEW_CALLS: u64 = 512;
/// Cost of timing one operation for the launching thread, nanoseconds (measured: 1.1 to 1.8 µs with one channel, 3.7
/// µs with about twenty), and the additional cost per channel.
const COST_NS: u64 = 1200;
const COST_CHANNEL_NS: u64 = 200;
const SPARSEST: u64 = 4096;
/// Initial duty, before the rate is known: practically only the mandatory windows.
const FIRST_DUTY: u64 = 1024;
const TICK_NS: u64 = 250_000_000;
/// Most windows that are searched for the next chosen one, so that most operations need no decision.
const AHEAD: u64 = 64;
/// Initial balance of the account, and its smallest upper limit, nanoseconds.
const ADVANCE_NS: i64 = 500_000;
const SAVED_NS: u64 = 2_500_000_000;

/// The activation masks of the NCCLs in this process.
static MASKS: [Mask; 8] =
    [const { Mask { at: AtomicPtr::new(ptr::null_mut()), base: AtomicU64::new(0) } }; 8];
/// Number of communicators whose next operation is to be timed.
static OPEN: AtomicU64 = AtomicU64::new(0);
static FLOW: [Flow; COMMS] =
    [const { Flow { open: AtomicBool::new(false), until: AtomicU64::new(0) } }; COMMS];
/// Balance of the account, nanoseconds; may be negative.
static ACCOUNT: AtomicI64 = AtomicI64::new(ADVANCE_NS);
/// Why no operation is timed.
static LIMIT: AtomicU64 = AtomicU64::new(0);
static NEXT_TICK: AtomicU64 = AtomicU64::new(0);
static LAST_TICK: AtomicU64 = AtomicU64::new(0);
/// Offset from the monotonic to the wall clock, nanoseconds.
static WALL: AtomicU64 = AtomicU64::new(0);
/// At the last tick: the cost of timing all operations so far.
static PRICE: AtomicU64 = AtomicU64::new(0);

/// State of a communicator, written by its launching thread; one cache line.
#[repr(align(64))]
struct Flow {
    /// Whether its next operation is to be timed.
    open: AtomicBool,
    /// Operations up to this number are timed, too.
    until: AtomicU64,
}

/// A launched operation.
#[derive(Clone, Copy, Default)]
pub(crate) struct Handed {
    /// Its number in the communicator, from 1.
    pub(crate) number: u64,
    /// Its number within its kind, from 1.
    pub(crate) call: u64,
    pub(crate) channels: u64,
    /// Launch time, on the host's coarse monotonic clock.
    pub(crate) now: u64,
}

struct Mask {
    at: AtomicPtr<c_int>,
    base: AtomicU64,
}

/// Registers the mask of one NCCL (all communicators of one NCCL pass the same), and sets it.
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

/// Restricts the mode in force from now on.
pub(crate) fn restrict(limit: Limit) {
    LIMIT.store(limit.word(), Relaxed);
}

/// The kernel counts of NCCL and of the GPU diverge, or may: from now on everything is timed if it already is, else
/// nothing.
pub(crate) fn part(store: &Store, why: Limit) {
    hold_mask(store, why, || in_force(store) == Mode::Full);
}

/// An operation is being captured. If it is timed, every replay is, so everything is timed from now on.
pub(crate) fn captured(store: &Store) {
    hold_mask(store, Limit::Captures, timing);
}

fn hold_mask(store: &Store, why: Limit, everything: impl FnOnce() -> bool) {
    if hold::held() != Held::Not {
        return;
    }
    let everything = everything();
    if !hold::hold(everything) {
        return;
    }
    if !everything && LIMIT.load(Relaxed) == 0 {
        restrict(why);
    }
    apply(store);
}

/// Whether operations that are launched now are timed.
pub(crate) fn timing() -> bool {
    state::is(state::TIMING)
}

/// Whether this call of a kind starts a window.
fn begins_window(call: u64) -> bool {
    call > 0 && if call <= FEW_CALLS { call.is_multiple_of(EACH_CALLS) } else { call.is_power_of_two() }
}

/// The next call of a kind that starts a window.
pub(crate) fn next_window(call: u64) -> u64 {
    let next = call.saturating_add(1);
    if next <= FEW_CALLS {
        next.next_multiple_of(EACH_CALLS)
    } else {
        next.checked_next_power_of_two().unwrap_or(u64::MAX)
    }
}

/// Converts a monotonic time to wall clock time, which saves a second clock reading per operation.
pub(crate) fn wall(now: u64) -> u64 {
    let beyond = WALL.load(Relaxed);
    if beyond > 0 { now.wrapping_add(beyond) } else { store::now(libc::CLOCK_REALTIME_COARSE) }
}

/// Called after an operation was launched: decides whether the next one is timed.
pub(crate) fn after(store: &Store, comm: usize, op: Handed) {
    let Some(flow) = FLOW.get(comm) else { return };
    let price = store.comm(comm, comm::PRICE);
    price.store(price.load(Relaxed).wrapping_add(cost(op.channels)), Relaxed);
    if op.now >= NEXT_TICK.load(Relaxed) {
        tick(store, op.now);
    }
    // The mode in force is derived from the requested one at each tick.
    let mode = Mode::of(store.at(head::MODE).load(Relaxed)).unwrap_or(Mode::Count);
    let opens = begins_window(op.call);
    if opens {
        flow.until.store(op.number.saturating_add(WINDOW), Relaxed);
    }
    let until = flow.until.load(Relaxed);
    // Within a window the decision does not change.
    if op.number <= 1 || opens || op.number.is_multiple_of(WINDOW) || op.number == until {
        set(store, comm, mode == Mode::Sample && (op.number < until || drawn(store, op.number)));
    }
    // While only some operations are timed, or the counts have diverged, all take the slow path.
    if !timing() || state::is(state::ALL) {
        let decided = if flow.open.load(Relaxed) {
            // Another thread switched this window off while closing its own; this communicator still has to end it.
            op.number.saturating_add(1)
        } else {
            next_decision(mode, op.number, store.at(head::DUTY).load(Relaxed))
        };
        recent::clock_was_read(store, comm, op, decided);
    }
}

/// Number of the operation after which the next decision is due. (A rank whose duty falls meanwhile times its next
/// windows with the old one.)
fn next_decision(mode: Mode, number: u64, duty: u64) -> u64 {
    if mode != Mode::Sample {
        return u64::MAX;
    }
    let next = (number / WINDOW).saturating_add(1).saturating_mul(WINDOW);
    let mut ahead = (0..AHEAD).map(|window| next.saturating_add(window * WINDOW));
    ahead.find(|at| chosen(*at, duty)).unwrap_or(next.saturating_add(AHEAD * WINDOW))
}

/// Whether the operation after this number is in a window, and the account permits it.
fn drawn(store: &Store, number: u64) -> bool {
    let last = store.at(head::DUTY).load(Relaxed);
    if !chosen(number, last) {
        return false;
    }
    let duty = sparser(number, last, ACCOUNT.load(Relaxed));
    if duty != last {
        store.at(head::DUTY).store(duty, Relaxed);
    }
    chosen(number, duty)
}

/// The duty at the start of a window: raised if the account is overdrawn.
fn sparser(number: u64, duty: u64, account: i64) -> u64 {
    if number.is_multiple_of(WINDOW) && account < 0 {
        duty.saturating_mul(2).clamp(1, SPARSEST)
    } else {
        duty
    }
}

/// Charges a timed operation to the account. In mode `full` there is no budget.
pub(crate) fn pay(store: &Store, comm: usize, channels: u64) {
    if store.at(head::MODE).load(Relaxed) != Mode::Sample.word() {
        return;
    }
    let cost = i64::try_from(cost(channels)).unwrap_or(0);
    let left = ACCOUNT.fetch_sub(cost, Relaxed).saturating_sub(cost);
    // All communicators share the mask: an idle one with an open window causes the operations of all others to be
    // timed.
    if left < 0 && FLOW.get(comm).is_some_and(|flow| !flow.open.load(Relaxed)) {
        (0..COMMS).for_each(|other| set(store, other, false));
    }
}

/// Cost of timing an operation, nanoseconds. Without channels it is not timed.
pub(crate) fn cost(channels: u64) -> u64 {
    if channels == 0 { 0 } else { channels.saturating_mul(COST_CHANNEL_NS).saturating_add(COST_NS) }
}

/// A destroyed communicator has no next operation.
pub(crate) fn forget(store: &Store, comm: usize) {
    set(store, comm, false);
}

fn set(store: &Store, comm: usize, open: bool) {
    let Some(Flow { open: flag, .. }) = FLOW.get(comm) else { return };
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

/// Whether the operation after this number is in a timed window. The first window never is (it contains the making of
/// connections), the second always.
fn chosen(number: u64, duty: u64) -> bool {
    let window = number / WINDOW;
    let drawn = mixed(window) & (duty.clamp(1, SPARSEST).next_power_of_two() - 1) == 0;
    window == 1 || (window > 0 && drawn)
}

/// The finalizer of SplitMix64: its low bits depend on all bits of the number.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

fn in_force(store: &Store) -> Mode {
    let wanted = Mode::of(store.at(head::WANTED).load(Relaxed)).unwrap_or(Mode::Count);
    let limited = LIMIT.load(Relaxed) != 0 && matches!(wanted, Mode::Sample | Mode::Full);
    match (wanted, hold::held()) {
        (Mode::Count | Mode::Sample, Held::Set) => Mode::Full,
        _ if limited => Mode::Count,
        _ => wanted,
    }
}

/// Writes the masks.
fn apply(store: &Store) {
    let mode = in_force(store);
    let timing = match hold::held() {
        // Operations of a group that another thread is appending belong together: the mask changes later.
        _ if state::has_messages() && hold::others_group() => timing(),
        Held::Not => mode == Mode::Full || mode == Mode::Sample && OPEN.load(Relaxed) > 0,
        Held::Clear => false,
        Held::Set => true,
    };
    if !state::set(state::TIMING, timing) && timing {
        store.at(head::SWITCHES).fetch_add(1, Relaxed);
    }
    state::set(state::OFF, mode == Mode::Off);
    state::set(state::ALL, mode == Mode::Full && hold::held() == Held::Not);
    if hold::held() != Held::Not {
        // Another thread may have frozen the mask meanwhile.
        state::set(state::ALL, false);
    }
    store.at(head::MODE).store(mode.word(), Relaxed);
    let limit = if mode.word() == store.at(head::WANTED).load(Relaxed) { 0 } else { LIMIT.load(Relaxed) };
    store.at(head::LIMIT).store(limit, Relaxed);
    for slot in &MASKS {
        let at = slot.at.load(Relaxed);
        if at.is_null() {
            break;
        }
        // Not zero in mode `off`: without events the plugin could not notice a request for another mode.
        let mask = slot.base.load(Relaxed) | if timing { event::KERNEL } else { 0 };
        // SAFETY: an aligned int of NCCL, valid as long as its library, which is not unloaded before the process
        // ends; NCCL also accesses it atomically.
        unsafe { AtomicI32::from_ptr(at) }.store(i32::try_from(mask).unwrap_or(0), Relaxed);
    }
}

/// Four times a second: computes the duty from the launch rate, and reads whether another mode is requested.
fn tick(store: &Store, now: u64) {
    let due = NEXT_TICK.load(Relaxed);
    if NEXT_TICK.compare_exchange(due, now + TICK_NS, Relaxed, Relaxed).is_err() {
        return;
    }
    WALL.store(store::now(libc::CLOCK_REALTIME_COARSE).wrapping_sub(now), Relaxed);
    let price = (0..COMMS).map(|at| store.comm(at, comm::PRICE).load(Relaxed)).fold(0, u64::wrapping_add);
    let price = price.wrapping_sub(PRICE.swap(price, Relaxed));
    let elapsed = now.saturating_sub(LAST_TICK.swap(now, Relaxed));
    if due > 0 && elapsed < 60_000_000_000 {
        let budget = store.at(head::BUDGET).load(Relaxed);
        let account = saved(ACCOUNT.load(Relaxed), elapsed, budget);
        ACCOUNT.store(account, Relaxed);
        let last = store.at(head::DUTY).load(Relaxed);
        store.at(head::DUTY).store(duty(price, elapsed, budget, last, account), Relaxed);
    }
    if let Some(mode) = store.wish() {
        store.at(head::WANTED).store(mode.word(), Relaxed);
    }
    apply(store);
}

/// The balance of the account after this time; savings are limited.
fn saved(account: i64, elapsed_ns: u64, budget: u64) -> i64 {
    let of = |ns: u64| i64::try_from(ns.saturating_mul(budget) / 1_000_000).unwrap_or(i64::MAX);
    account.saturating_add(of(elapsed_ns)).min(of(SAVED_NS).max(ADVANCE_NS))
}

/// The duty with which timing costs at most `budget` millionths of the time. `price_ns`: the cost of timing all
/// operations of that time.
fn duty(price_ns: u64, elapsed_ns: u64, budget: u64, last: u64, account: i64) -> u64 {
    let ppm = price_ns.saturating_mul(1_000_000) / elapsed_ns.max(1);
    let fits = ppm.div_ceil(budget.max(1)).clamp(1, SPARSEST).next_power_of_two();
    let least = if account < 0 { last } else { last / 2 };
    fits.max(least).clamp(1, SPARSEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_duty_selects_a_subset() {
        let all = |duty| (0..100_000).filter(|n| chosen(*n, duty)).collect::<Vec<u64>>();
        let (dense, sparse) = (all(4), all(64));
        assert!(sparse.iter().all(|n| dense.contains(n)));
        for (have, duty) in [(dense.len(), 4), (sparse.len(), 64)] {
            assert!((100_000 / duty / 2..100_000 / duty * 2).contains(&have), "{have} {duty}");
        }
        assert!(!chosen(0, 1) && !chosen(7, 1) && chosen(8, 4096) && chosen(15, 4096));
    }

    #[test]
    fn no_window_is_missed_between_two_decisions() {
        for duty in [1, 2, 32, 1024, SPARSEST] {
            for number in 0..3000 {
                let at = next_decision(Mode::Sample, number, duty);
                assert!(at > number && at.is_multiple_of(WINDOW), "{number} {duty} {at}");
                let missed = (number + 1..at).find(|n| n.is_multiple_of(WINDOW) && chosen(*n, duty));
                assert_eq!(missed, None, "{number} {duty} {at}");
            }
        }
        for mode in [Mode::Full, Mode::Count, Mode::Off] {
            assert_eq!(next_decision(mode, 8, 1), u64::MAX);
        }
        assert_eq!(next_decision(Mode::Sample, u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn the_next_window_of_a_kind_starts_at_the_next_matching_call() {
        for call in 0..5000 {
            assert_eq!(
                Some(next_window(call)),
                (call + 1..10_000).find(|call| begins_window(*call)),
                "{call}"
            );
        }
        assert_eq!(next_window(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_period_in_the_job_hides_no_operation() {
        // 64 operations in a step, eight windows: each is timed sooner or later.
        let timed: std::collections::BTreeSet<u64> =
            (0..200_000).filter(|n| chosen(*n, 64)).map(|n| n % 64).collect();
        assert_eq!(timed.len(), 64);
    }

    #[test]
    fn the_duty_follows_the_rate() {
        let second = 1_000_000_000;
        // It rises at once, falls by halves, and does not fall while the account is overdrawn.
        assert_eq!(duty(0, second, 2000, 32, 1), 16);
        assert_eq!(duty(0, second, 2000, 32, -1), 32);
        assert_eq!(duty(0, second, 2000, 1, 1), 1);
        assert_eq!(duty(second / 4, second, 2000, 32, 1), 128);
        assert_eq!(duty(u64::MAX, 0, 0, u64::MAX, i64::MIN), SPARSEST);
    }

    #[test]
    fn the_budget_of_the_process_holds_at_every_rate() {
        // Communicators of a process, channels, time between two operations, operations per burst, pause after a
        // burst; 40 s of each.
        for (comms, channels, every_ns, burst, rest_ns) in [
            (1, 1, 6_000, u64::MAX, 0),
            (2, 1, 4_700, u64::MAX, 0),
            (8, 1, 4_700, u64::MAX, 0),
            (8, 24, 6_000, u64::MAX, 0),
            (1, 24, 30_000, u64::MAX, 0),
            (2, 24, 3_000_000, u64::MAX, 0),
            (2, 2, 5_000, 40_000, 800_000_000),
            (2, 24, 8_000, 2_000, 1_500_000_000),
            (2, 2, 5_000, 200_000, 15_000_000_000),
        ] {
            let (mut duty_now, mut account, mut now, mut tick) = (FIRST_DUTY, ADVANCE_NS, 0_u64, 0);
            let (mut price, mut spent, mut number, mut before) = (0, 0, 0_u64, 0);
            let budget = 2000;
            while now < 40_000_000_000 {
                number += 1;
                now += every_ns * comms + if number % burst == 0 { rest_ns } else { 0 };
                for _ in 0..comms {
                    price += cost(channels);
                    if chosen(number, duty_now) {
                        duty_now = sparser(number, duty_now, account);
                    }
                    if chosen(number, duty_now) {
                        spent += cost(channels);
                        account -= i64::try_from(cost(channels)).unwrap();
                    }
                }
                if now - tick >= TICK_NS {
                    account = saved(account, now - tick, budget);
                    duty_now = duty(price, now - tick, budget, duty_now, account);
                    // After a pause, at most the savings and the windows until the overdraft is noticed.
                    let at_once = SAVED_NS / 1_000_000 * budget + 100 * comms * cost(channels);
                    assert!(
                        spent - before <= at_once,
                        "{} ns: {comms} {channels} {every_ns} {burst}",
                        spent - before
                    );
                    (tick, price, before) = (now, 0, spent);
                }
            }
            let ppm = spent * 1_000_000 / now;
            assert!(ppm <= budget + budget / 5, "{ppm} of {budget}: {comms} {channels} {every_ns} {burst}");
            assert!(ppm > budget / 20, "{ppm}: next to nothing: {comms} {channels} {every_ns} {burst}");
        }
    }
}

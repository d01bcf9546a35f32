//! The registers of a thread.
//!
//! For a blocked thread, the kernel shows the stack pointer and the program counter without a pause. For a running thread it shows
//! no registers, so the thread is stopped briefly. A blocked thread is stopped as well if unwinding needs other registers.

use std::fs;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Event};
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::Pid;

use super::memory::Memory;

/// Time limit for the stop. A thread that needs longer has no processor, or is in a call that cannot be interrupted.
const STOPS: Duration = Duration::from_millis(100);
/// Time limit for the whole pause. After it the kernel kills this process, which resumes the thread.
const LONGEST_PAUSE: Duration = Duration::from_millis(150);
/// Maximum size of the copy of a stopped thread's stack, bytes. The rest is read after the thread has resumed.
const MOST_STACK: u64 = 512 << 10;
/// System calls that the kernel restarts after a pause, with the remaining time.
const CONTINUE: &[i64] = &[
    libc::SYS_futex,
    libc::SYS_nanosleep,
    // One of these calls with a time limit, restarted after an earlier pause.
    libc::SYS_restart_syscall,
    libc::SYS_clock_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_wait4,
    libc::SYS_waitid,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
];

#[cfg(target_arch = "x86_64")]
mod arch {
    pub(super) const COUNT: usize = 17;
    pub(super) const STACK: usize = 7;
    pub(super) const COUNTER: usize = 16;
    /// rbx, rbp, r12 to r15.
    pub(super) const KEPT: [usize; 6] = [3, 6, 12, 13, 14, 15];

    pub(super) fn all(pid: super::Pid) -> nix::Result<[u64; COUNT]> {
        let r = nix::sys::ptrace::getregs(pid)?;
        Ok([
            r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
            r.r14, r.r15, r.rip,
        ])
    }

    pub(super) const fn code(address: u64) -> u64 {
        address
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    pub(super) const COUNT: usize = 33;
    pub(super) const STACK: usize = 31;
    pub(super) const COUNTER: usize = 32;
    /// x19 to x29.
    pub(super) const KEPT: [usize; 11] = [19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29];

    pub(super) fn all(pid: super::Pid) -> nix::Result<[u64; COUNT]> {
        let set = nix::sys::ptrace::getregset::<nix::sys::ptrace::regset::NT_PRSTATUS>(pid)?;
        let mut all = [0; COUNT];
        all[..31].copy_from_slice(&set.regs);
        (all[STACK], all[COUNTER]) = (set.sp, set.pc);
        Ok(all)
    }

    /// Removes the signature from the upper bits.
    pub(super) const fn code(address: u64) -> u64 {
        address & 0x0000_ffff_ffff_ffff
    }
}

/// Registers by their numbers in DWARF; `None` is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registers([Option<u64>; arch::COUNT]);

impl Registers {
    /// Number of registers.
    pub(super) const COUNT: usize = arch::COUNT;

    /// Sets only the stack pointer and the program counter.
    pub(super) fn new(stack: u64, counter: u64) -> Self {
        let mut all = [None; arch::COUNT];
        (all[arch::STACK], all[arch::COUNTER]) = (Some(stack), Some(counter));
        Registers(all)
    }

    pub(super) fn get(&self, number: usize) -> Option<u64> {
        self.0.get(number).copied().flatten()
    }

    /// Sets a register. The stack pointer and the program counter are not changed.
    pub(super) fn set(&mut self, number: usize, value: Option<u64>) {
        if let Some(register) =
            self.0.get_mut(number).filter(|_| ![arch::STACK, arch::COUNTER].contains(&number))
        {
            *register = value;
        }
    }

    pub(super) fn stack(&self) -> Option<u64> {
        self.get(arch::STACK)
    }

    pub(super) fn counter(&self) -> Option<u64> {
        self.get(arch::COUNTER).map(arch::code)
    }

    /// Whether functions preserve this register for their callers.
    pub(super) fn is_kept(number: usize) -> bool {
        arch::KEPT.contains(&number)
    }
}

/// A thread that is blocked in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocked {
    /// The stack pointer and the program counter.
    pub(super) registers: Registers,
    /// Number of its system call; -1 if it is in none.
    call: i64,
}

impl Blocked {
    /// Whether the kernel restarts its system call after a pause. Other calls, such as `epoll_wait`, return `EINTR`.
    pub(super) fn continues(&self) -> bool {
        CONTINUE.contains(&self.call)
    }
}

/// Returns the state of a main thread that is blocked in the kernel; `None` if it runs.
pub(super) fn blocked(pid: Pid) -> Result<Option<Blocked>, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/syscall"))
        .map_err(|why| format!("its registers: {why}"))?;
    Ok(parse(&text))
}

/// `7 0x7ffd… 0x1 … 0xSP 0xPC`, or `-1 0xSP 0xPC` outside a system call, or `running`.
fn parse(text: &str) -> Option<Blocked> {
    let call = text.split_ascii_whitespace().next()?.parse().ok()?;
    let mut last = text.split_ascii_whitespace().rev();
    let mut number = || u64::from_str_radix(last.next()?.strip_prefix("0x")?, 16).ok();
    let (counter, stack) = (number()?, number()?);
    Some(Blocked { registers: Registers::new(stack, counter), call })
}

/// Stops a main thread for at most 150 ms and returns all its registers. Copies its stack into `memory`.
///
/// After an error, this process must end at once, because its end resumes the thread.
pub(super) fn paused(pid: Pid, memory: &mut Memory) -> Result<Registers, String> {
    let event = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGKILL, si_value: 0 });
    let mut limit =
        Timer::new(ClockId::CLOCK_MONOTONIC, event).map_err(|why| format!("timer_create: {why}"))?;
    let after = Expiration::OneShot(TimeSpec::from_duration(LONGEST_PAUSE));
    limit.set(after, TimerSetTimeFlags::empty()).map_err(|why| format!("timer_settime: {why}"))?;
    ptrace::seize(pid, ptrace::Options::empty()).map_err(failed)?;
    let found = stop_and_read(pid, memory);
    if found.is_err() {
        // The thread may still be stopped, or stop later.
        std::mem::forget(limit);
    }
    found
}

fn failed(why: Errno) -> String {
    format!("ptrace: {why}")
}

fn stop_and_read(pid: Pid, memory: &mut Memory) -> Result<Registers, String> {
    if blocked(pid)?.is_some_and(|now| !now.continues()) {
        return Err("it entered a system call that a pause would end".to_owned());
    }
    ptrace::interrupt(pid).map_err(failed)?;
    wait_for_stop(pid)?;
    let registers = Registers(arch::all(pid).map_err(failed)?.map(Some));
    if let Some(stack) = registers.stack() {
        memory.keep(stack, MOST_STACK);
    }
    ptrace::detach(pid, None).map_err(failed)?;
    Ok(registers)
}

/// Waits until the thread has stopped on request. Returns an error if it stopped for a signal: when this process ends, the kernel
/// delivers that signal, unless `waitpid` has consumed the stop. So `waitpid` is not used.
fn wait_for_stop(pid: Pid) -> Result<(), String> {
    const POLL: Duration = Duration::from_micros(200);
    let begun = Instant::now();
    while begun.elapsed() < STOPS {
        match ptrace::getsiginfo(pid) {
            Ok(info)
                if info.si_signo == libc::SIGTRAP && info.si_code >> 8 == Event::PTRACE_EVENT_STOP as i32 =>
            {
                return Ok(());
            }
            Ok(_) => return Err("a signal arrived".to_owned()),
            // It is stopped by SIGSTOP.
            Err(Errno::EINVAL) => return Ok(()),
            Err(Errno::ESRCH) => std::thread::sleep(POLL),
            Err(why) => return Err(failed(why)),
        }
    }
    Err(format!("its main thread did not stop within {} ms", STOPS.as_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_thread_shows_two_registers() {
        let text = "230 0x1 0x0 0x7ffe 0x0 0x0 0x0 0x7ffe12345678 0x7f00abcdef01\n";
        let found = parse(text).unwrap();
        let Registers(all) = &found.registers;
        assert_eq!(all.iter().flatten().count(), 2, "no other one is known");
        let counter = found.registers.counter();
        assert_eq!((found.registers.stack(), counter), (Some(0x7ffe_1234_5678), Some(0x7f00_abcd_ef01)));
        let outside = parse("-1 0x10 0x20\n").unwrap();
        assert_eq!((outside.registers.stack(), outside.continues()), (Some(0x10), false));
        assert!(parse("219 0x0 0x10 0x20").unwrap().continues() || !cfg!(target_arch = "x86_64"));
        assert!(!parse("232 0x3 0x10 0x20").unwrap().continues(), "epoll_wait");
        for other in ["running\n", "", "0x10\n", "-1 10 20\n", "0 0x1 0xx 0x2"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}

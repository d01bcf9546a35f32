#![allow(unsafe_code, reason = "capabilities and the priority of a process have no safe form")]

use std::io;

use nix::sys::prctl::set_no_new_privs;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::unistd::setsid;

use super::inside::{close_inherited, reset_signals};

/// Capabilities that are kept: to switch a child to a job's user, and to kill such a child.
const KEPT: [u32; 3] = [CAP_KILL, CAP_SETGID, CAP_SETUID];
/// Capabilities that are kept at first: also to give a socket to the job's user.
const KEPT_AT_FIRST: [u32; 4] = [CAP_CHOWN, CAP_KILL, CAP_SETGID, CAP_SETUID];
const CAP_CHOWN: u32 = 0;
const CAP_KILL: u32 = 5;
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SYS_PTRACE: u32 = 19;
const VERSION_3: u32 = 0x2008_0522;

/// A lower priority than the job's processes, but not so low that a busy node starves this process.
const NICE: i32 = 10;
/// On a lack of memory, the kernel kills this process before one of the job's.
const OOM_SCORE: &str = "500";

/// Detaches this process, so that it outlives the one that started it: own session, no descriptors but the standard
/// ones, default signals, low priority, preferred by the OOM killer, and only those of root's capabilities that
/// [`become_user`](super::become_user) and `chown` need. [`keep_no_chown`] drops the latter. `CAP_SYS_PTRACE` remains
/// permitted and is not effective.
///
/// Call this first, before anything is opened or a thread is started. Returns one line for each step that failed; the
/// process is still usable then.
pub fn detach() -> Vec<String> {
    reset_signals();
    close_inherited();
    umask(Mode::from_bits_truncate(0o022));
    let mut problems = Vec::new();
    let mut note = |what: &str, done: io::Result<()>| {
        if let Err(why) = done {
            problems.push(format!("{what}: {why}"));
        }
    };
    note("core files", setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(Into::into));
    // Fails if the process is already a group leader, which is sufficient.
    let _ = setsid();
    note("working directory", std::env::set_current_dir("/"));
    note("/proc/self/oom_score_adj", std::fs::write("/proc/self/oom_score_adj", OOM_SCORE));
    // SAFETY: takes and returns numbers.
    let nice = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    note("priority", if nice == 0 { Ok(()) } else { Err(io::Error::last_os_error()) });
    note("no_new_privs", set_no_new_privs().map_err(Into::into));
    note("capabilities", keep_few(&KEPT_AT_FIRST));
    problems
}

/// Drops the capability to `chown`. Call it before any thread is started, since capabilities are per thread.
///
/// # Errors
/// Returns the error of the system call.
pub fn keep_no_chown() -> io::Result<()> {
    keep_few(&KEPT)
}

/// In a child of a process that called [`detach()`]: drops `CAP_SYS_PTRACE`. Other processes keep their capabilities.
pub(super) fn drop_tracing() -> io::Result<()> {
    let traces = 1 << CAP_SYS_PTRACE;
    let have = permitted()?;
    let others = have & !traces;
    if have & traces == 0 || others & !sum(&KEPT_AT_FIRST) != 0 {
        return Ok(());
    }
    set_capabilities(others, others)
}

/// Drops all capabilities but the one to trace, which remains permitted. `traces`: whether it is in effect.
pub(super) fn keep_only_tracing(traces: bool) -> io::Result<()> {
    let kept = permitted()? & (1 << CAP_SYS_PTRACE);
    if traces && kept == 0 {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    set_capabilities(kept, if traces { kept } else { 0 })
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Keeps these capabilities, and the one to trace as permitted only: for a child that is a [`Task::tracing`](super::Task::tracing).
fn keep_few(kept: &[u32]) -> io::Result<()> {
    let have = permitted()?;
    let few = have & sum(kept);
    set_capabilities(few | have & 1 << CAP_SYS_PTRACE, few)
}

fn sum(capabilities: &[u32]) -> u32 {
    capabilities.iter().map(|cap| 1 << cap).sum()
}

/// The permitted capabilities below 32.
fn permitted() -> io::Result<u32> {
    let header = Header { version: VERSION_3, pid: 0 };
    let mut have = [Data::default(); 2];
    // SAFETY: both live through the call, and have the layout of this version: two records.
    if unsafe { libc::syscall(libc::SYS_capget, &raw const header, have.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(have[0].permitted)
}

/// Without inheritable ones, which also ends ambient ones.
fn set_capabilities(permitted: u32, effective: u32) -> io::Result<()> {
    let header = Header { version: VERSION_3, pid: 0 };
    let want = [Data { effective, permitted, inheritable: 0 }, Data::default()];
    // SAFETY: both live through the call, and have the layout of this version; the kernel only reads.
    if unsafe { libc::syscall(libc::SYS_capset, &raw const header, want.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

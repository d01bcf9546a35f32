//! How a child may read the memory of a process, and when what it read counts.

use std::io::IoSliceMut;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use railgate_child::trace_any;
use railgate_probe::JobMember;

/// A running process changes its stack while it is read.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(30);

const DENIED: &str = "the kernel denies access to the process (ptrace)";
const MAYBE_ANOTHER_PROGRAM: &str =
    "it was too busy to exclude that it became another program while it was read";
/// An address that no process has: the kernel checks the access first.
const NOWHERE: usize = 16;

/// How much the kernel lets this process read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Without the capability: the kernel checks at each read that the job's user may read the process.
    Own,
    /// With `CAP_SYS_PTRACE`: the kernel allows every read, so this program checks the process before and after.
    Any,
}

/// Reads from a process, up to three times. Returns why it could not be read, at once if `is_final` says that another try would
/// not help.
pub(crate) fn read<T>(
    member: &mut JobMember,
    pid: u32,
    is_final: impl Fn(&str) -> bool,
    mut read: impl FnMut(&JobMember, Access) -> Result<T, String>,
) -> Result<T, String> {
    let access = if is_readable(pid) {
        Access::Own
    } else if trace_any(true).is_ok() && is_readable(pid) {
        Access::Any
    } else {
        member.check().map_err(|why| why.to_string())?;
        return Err(DENIED.to_owned());
    };
    let mut result = once(member, access, &mut read);
    for _ in 1..TRIES {
        match &result {
            Err(why) if !is_final(why) => {}
            _ => break,
        }
        member.check().map_err(|why| why.to_string())?;
        std::thread::sleep(PAUSE);
        result = once(member, access, &mut read);
    }
    result
}

/// With the capability, reading by process id is safe only while the process keeps its program: one that has the set-user-ID bit,
/// for a moment, would show that program's memory.
fn once<T>(
    member: &mut JobMember,
    access: Access,
    read: &mut impl FnMut(&JobMember, Access) -> Result<T, String>,
) -> Result<T, String> {
    let before = member.work();
    member.check().map_err(|why| why.to_string())?;
    let found = read(member, access);
    member.check().map_err(|why| why.to_string())?;
    if access == Access::Any && !member.work().is_same_program(before) {
        return Err(MAYBE_ANOTHER_PROGRAM.to_owned());
    }
    found
}

/// Whether the kernel allows reading its memory: the same check as for each read. The file `mem` would not do, since for a process
/// that is not dumpable it is root's.
fn is_readable(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    let mut byte = [0];
    let from = [RemoteIoVec { base: NOWHERE, len: 1 }];
    let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(&mut byte)], &from);
    matches!(read, Ok(_) | Err(Errno::EFAULT))
}

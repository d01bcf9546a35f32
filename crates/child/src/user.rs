use std::io;

use nix::errno::Errno;
use nix::sys::prctl::{set_keepcaps, set_no_new_privs};
use nix::unistd::{Gid, Uid, getresgid, getresuid};

use super::detach::keep_only_tracing;

/// The process still has parts of its old identity and must not continue.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// The target user is root.
    #[error("uid {0}: refused: must not be root")]
    Root(u32),
    /// One of the calls failed.
    #[error("{call} to uid {uid}, gid {gid}: {errno}")]
    Call {
        /// `setgroups`, `setresgid`, `setresuid`, `prctl` or `capset`.
        call: &'static str,
        /// Target user.
        uid: u32,
        /// Target group.
        gid: u32,
        /// The error.
        errno: Errno,
    },
    /// The calls succeeded, but the process could become root again.
    #[error("uid {0}: root privileges could be regained")]
    NotDropped(u32),
}

/// Drops root permanently: supplementary groups, then gid, then uid (real, effective, saved).
///
/// Call this first in a task. After an error the identity is undefined and the task must end.
pub fn become_user(uid: u32, gid: u32, groups: &[u32]) -> Result<(), UserError> {
    if uid == 0 {
        return Err(UserError::Root(uid));
    }
    switch(uid, gid, groups)?;
    not_root_again(uid)
}

/// As [`become_user`] without supplementary groups, and permanently without any capability but `CAP_SYS_PTRACE`. It remains
/// permitted if this process has it, and is not in effect before [`trace_any`]: until then the kernel lets this process read
/// only what its user may read.
///
/// Call this first in a task. After an error the identity is undefined and the task must end.
///
/// # Errors
/// [`UserError`], also if the user is root.
pub fn become_user_who_traces(uid: u32, gid: u32) -> Result<(), UserError> {
    if uid == 0 {
        return Err(UserError::Root(uid));
    }
    let failed = |call| move |errno| UserError::Call { call, uid, gid, errno };
    set_no_new_privs().map_err(failed("prctl"))?;
    // A program of the user's own has nothing to drop, and may not set its groups.
    if !is_already(uid, gid) {
        set_keepcaps(true).map_err(failed("prctl"))?;
        switch(uid, gid, &[])?;
        set_keepcaps(false).map_err(failed("prctl"))?;
    }
    let errno = |why: io::Error| Errno::from_raw(why.raw_os_error().unwrap_or(0));
    keep_only_tracing(false).map_err(errno).map_err(failed("capset"))?;
    not_root_again(uid)
}

/// Puts `CAP_SYS_PTRACE` into effect, or takes it out of effect. For a process after [`become_user_who_traces`].
///
/// # Errors
/// Returns an error if the capability is not permitted.
pub fn trace_any(traces: bool) -> io::Result<()> {
    keep_only_tracing(traces)
}

fn is_already(uid: u32, gid: u32) -> bool {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    getresuid().is_ok_and(|ids| [ids.real, ids.effective, ids.saved] == [user; 3])
        && getresgid().is_ok_and(|ids| [ids.real, ids.effective, ids.saved] == [group; 3])
}

fn switch(uid: u32, gid: u32, groups: &[u32]) -> Result<(), UserError> {
    let failed = |call| move |errno| UserError::Call { call, uid, gid, errno };
    let groups: Vec<Gid> = groups.iter().map(|&group| Gid::from_raw(group)).collect();
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    nix::unistd::setgroups(&groups).map_err(failed("setgroups"))?;
    nix::unistd::setresgid(group, group, group).map_err(failed("setresgid"))?;
    nix::unistd::setresuid(user, user, user).map_err(failed("setresuid"))?;
    Ok(())
}

fn not_root_again(uid: u32) -> Result<(), UserError> {
    if nix::unistd::setuid(Uid::from_raw(0)).is_ok() || !Uid::effective().eq(&Uid::from_raw(uid)) {
        return Err(UserError::NotDropped(uid));
    }
    Ok(())
}

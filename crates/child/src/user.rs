use nix::errno::Errno;
use nix::unistd::{Gid, Uid};

/// The process still has parts of its old identity and must not continue.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// The target user is root.
    #[error("uid {0}: refused: must not be root")]
    Root(u32),
    /// One of the calls failed.
    #[error("{call} to uid {uid}, gid {gid}: {errno}")]
    Call {
        /// `setgroups`, `setresgid` or `setresuid`.
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
    let failed = |call| move |errno| UserError::Call { call, uid, gid, errno };
    let groups: Vec<Gid> = groups.iter().map(|&group| Gid::from_raw(group)).collect();
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    nix::unistd::setgroups(&groups).map_err(failed("setgroups"))?;
    nix::unistd::setresgid(group, group, group).map_err(failed("setresgid"))?;
    nix::unistd::setresuid(user, user, user).map_err(failed("setresuid"))?;
    if nix::unistd::setuid(Uid::from_raw(0)).is_ok() || !Uid::effective().eq(&user) {
        return Err(UserError::NotDropped(uid));
    }
    Ok(())
}

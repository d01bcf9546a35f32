use nix::errno::Errno;
use nix::unistd::{Gid, Uid};

/// The process still has (some of) its old identity and must not go on.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// Root is no user to become.
    #[error("uid {0}: refused: must not be root")]
    Root(u32),
    /// One of the calls failed.
    #[error("{call} to uid {uid}, gid {gid}: {errno}")]
    Call {
        /// `setgroups`, `setresgid` or `setresuid`.
        call: &'static str,
        /// Whom to become.
        uid: u32,
        /// Their group.
        gid: u32,
        /// Why not.
        errno: Errno,
    },
    /// The calls succeeded and the way back is still open.
    #[error("uid {0}: root privileges could be regained")]
    NotDropped(u32),
}

/// Gives up root for good: supplementary groups, then gid, then uid (real, effective, saved).
///
/// Meant as the first act of a task. On an error the identity is undefined and the task must end.
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

//! Creates job directories in a report directory that belongs to SlurmUser and that no other account can write
//! to.
//!
//! If a file server squashes root, another account must create the directories. In a world-writable directory
//! (1777) any user can create those of future jobs first, and the reports of these jobs then stay on their
//! nodes. In a directory of SlurmUser (0755) users cannot. SlurmUser cannot create a directory for another
//! user, but can move one: the job's owner creates it under an unguessable name, in a directory of SlurmUser
//! where users can add entries but not list them, and SlurmUser moves it to its final name.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, getegid, setegid, seteuid, setgroups, unlinkat};

use super::NOBODY;
use super::dirs::{below, mode_of};

/// Staging directory of SlurmUser, mode 1733.
const STAGING: &str = ".new";
const OPEN: Mode = Mode::S_IWGRP.union(Mode::S_IWOTH);

/// Owner and path of the directory to create.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) cluster: &'a str,
    pub(super) job: &'a str,
    pub(super) attempt: &'a str,
    pub(super) uid: u32,
    /// Group of the directory at its final name.
    pub(super) group: Gid,
    /// SlurmUser's group, which has access while the directory is moved. `None`: group of the report directory.
    pub(super) movers: Option<Gid>,
}

/// Whether the report directory belongs to an account of the site that alone creates directories in it.
pub(super) fn is_accounts(top: &FileStat) -> bool {
    !matches!(top.st_uid, 0 | NOBODY) && !mode_of(top).intersects(OPEN)
}

/// Creates the directories of cluster, job and attempt, in the child while it is still root.
pub(super) fn place(dir: BorrowedFd<'_>, wanted: Wanted<'_>) -> Result<(), Errno> {
    let top = fstat(dir)?;
    let account = (Uid::from_raw(top.st_uid), wanted.movers.unwrap_or(Gid::from_raw(top.st_gid)));
    let owner = (Uid::from_raw(wanted.uid), account.1);
    setgroups(&[])?;
    let Some((cluster, staging)) = acting_as(account, || prepared(dir, wanted.cluster, account.0))? else {
        return Ok(());
    };
    match fstatat(&cluster, wanted.job, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) if stat.st_uid == wanted.uid || stat.st_uid == 0 => return Ok(()),
        // Left from when the directory was world-writable, or of another job with the same number.
        Ok(_) => acting_as(account, || aside(&cluster, wanted.job))?,
        Err(Errno::ENOENT) => {}
        Err(why) => return Err(why),
    }
    let name = unguessable()?;
    let made = acting_as(owner, || {
        // Not empty, so that no later directory can be moved over it.
        let job = made(&staging, &name, Mode::S_IRWXU | Mode::S_IRWXG)?;
        let attempt = made(&job, wanted.attempt, Mode::S_IRWXU)?;
        Ok([job, attempt])
    });
    let moved = made
        .as_ref()
        .map_err(|why| *why)
        .and_then(|_| acting_as(account, || renameat(&staging, name.as_str(), &cluster, wanted.job)));
    match (moved, made) {
        (Ok(()), Ok(made)) => acting_as((owner.0, wanted.group), || {
            made.iter().try_for_each(|dir| fchown(dir, None, Some(wanted.group)))
        }),
        (moved, _) => {
            let _ = acting_as(owner, || {
                if let Ok(job) = below(staging.as_fd(), &name) {
                    let _ = unlinkat(&job, wanted.attempt, UnlinkatFlags::RemoveDir);
                }
                unlinkat(&staging, name.as_str(), UnlinkatFlags::RemoveDir)
            });
            match moved {
                // Another node of the job was faster.
                Err(Errno::EEXIST | Errno::ENOTEMPTY) => Ok(()),
                other => other,
            }
        }
    }
}

/// Opens the cluster's directory and the staging directory, both owned by the account and with the required
/// modes. `None` if the cluster's directory belongs to another user.
fn prepared(dir: BorrowedFd<'_>, cluster: &str, account: Uid) -> Result<Option<(OwnedFd, OwnedFd)>, Errno> {
    let cluster = dir_with(dir, cluster, Mode::from_bits_truncate(0o755))?;
    let stat = fstat(&cluster)?;
    if stat.st_uid != account.as_raw() {
        return Ok(None);
    }
    if mode_of(&stat).intersects(OPEN) {
        fchmod(&cluster, Mode::from_bits_truncate(0o755))?;
    }
    let open = Mode::from_bits_truncate(0o1733);
    match fstatat(&cluster, STAGING, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) if stat.st_uid != account.as_raw() => aside(&cluster, STAGING)?,
        _ => {}
    }
    let staging = dir_with(cluster.as_fd(), STAGING, open)?;
    Ok(Some((cluster, staging)))
}

fn dir_with(parent: BorrowedFd<'_>, name: &str, mode: Mode) -> Result<OwnedFd, Errno> {
    match mkdirat(parent, name, mode) {
        Ok(()) => {
            let dir = below(parent, name)?;
            fchmod(&dir, mode)?;
            Ok(dir)
        }
        Err(Errno::EEXIST) => below(parent, name),
        Err(why) => below(parent, name).map_err(|_| why),
    }
}

fn made(parent: &OwnedFd, name: &str, mode: Mode) -> Result<OwnedFd, Errno> {
    mkdirat(parent, name, mode)?;
    // Below a directory of mode 1733 its creator may enter by name.
    let dir = below(parent.as_fd(), name)?;
    fchmod(&dir, mode)?;
    Ok(dir)
}

/// Renames a foreign entry. The sweep does not remove it, so its owner loses nothing.
fn aside(cluster: &OwnedFd, name: &str) -> Result<(), Errno> {
    let aside = format!("{}.foreign.{}", name.trim_start_matches('.'), unguessable()?);
    renameat(cluster, name, cluster, aside.as_str())
}

fn unguessable() -> Result<String, Errno> {
    let mut bytes = [0_u8; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|why| why.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Runs a few calls as another user. Real and saved ids stay those of root, so that the user can neither signal
/// nor trace the process.
pub(super) fn acting_as<T>(
    (uid, gid): (Uid, Gid),
    work: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let own = getegid();
    setegid(gid)?;
    let done = seteuid(uid).and_then(|()| work());
    seteuid(Uid::from_raw(0))?;
    setegid(own)?;
    done
}

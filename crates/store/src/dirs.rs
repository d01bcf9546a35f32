//! Directory access by descriptor, without following links.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{Whence, geteuid, lseek};
use railgate_child::become_user;
use railgate_fsutil::nofollow;

const DIR: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK);

/// Opens the configured directory. A link is followed here, since only an admin can have created it.
pub(super) fn top(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, DIR, Mode::empty())
}

/// Opens a directory below another one.
pub(super) fn below(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    nofollow::dir_at(parent, name)
}

/// Opens a directory below another one, and creates it with `mode` if it does not exist; the umask is ignored.
pub(super) fn made_below(parent: BorrowedFd<'_>, name: &str, mode: Mode) -> Result<OwnedFd, Errno> {
    match mkdirat(parent, name, mode) {
        Ok(()) => {
            let dir = below(parent, name)?;
            // The umask removes bits, and NFS may remove the sticky bit.
            fchmod(dir.as_fd(), mode)?;
            Ok(dir)
        }
        Err(Errno::EEXIST) => below(parent, name),
        // If it exists, a read-only or foreign parent is no obstacle.
        Err(why @ (Errno::EACCES | Errno::EPERM | Errno::EROFS)) => below(parent, name).map_err(|_| why),
        Err(why) => Err(why),
    }
}

pub(super) fn mode_of(stat: &FileStat) -> Mode {
    Mode::from_bits_truncate(stat.st_mode & 0o7777)
}

/// Whether other users could replace entries of this directory.
pub(super) fn open_to_all(stat: &FileStat) -> bool {
    let mode = mode_of(stat);
    mode.contains(Mode::S_IWOTH) && !mode.contains(Mode::S_ISVTX)
}

/// Opens the directory of a job, as its owner if the caller is root: the file server may squash root, and the
/// owner may read the files. Also returns the owner's uid. `None` if there is no such directory.
pub(super) fn job_below(
    cluster: BorrowedFd<'_>,
    job: u32,
    uid: Option<u32>,
) -> Result<Option<(OwnedFd, u32)>, String> {
    let text = |why: Errno| io::Error::from(why).to_string();
    let number = job.to_string();
    let owner = match fstatat(cluster, number.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => (stat.st_uid, stat.st_gid),
        Err(Errno::ENOENT) => return Ok(None),
        Err(why) => return Err(text(why)),
    };
    if let Some(uid) = uid
        && owner.0 != uid
        && owner.0 != 0
    {
        return Err(format!("refused: it belongs to uid {}, the job to {uid}", owner.0));
    }
    if geteuid().is_root() && owner.0 != 0 {
        become_user(owner.0, owner.1, &[]).map_err(|why| why.to_string())?;
    }
    let dir = below(cluster, &number).map_err(text)?;
    match fstat(dir.as_fd()) {
        Ok(stat) if stat.st_uid == owner.0 => Ok(Some((dir, owner.0))),
        _ => Err("refused: it changed its owner".to_owned()),
    }
}

/// Opens a regular file of at most `max` bytes, with one link and without holes, without following a symbolic
/// link or blocking. `None` if there is no such file.
fn found_below(parent: BorrowedFd<'_>, name: &str, max: u64) -> Result<Option<(File, FileStat)>, String> {
    let file = match nofollow::file_at(parent, name) {
        Ok(file) => file,
        Err(Errno::ENOENT) => return Ok(None),
        Err(Errno::ELOOP) => return Err("refused: a symbolic link".to_owned()),
        Err(why) => return Err(io::Error::from(why).to_string()),
    };
    let stat = fstat(file.as_fd()).map_err(|why| io::Error::from(why).to_string())?;
    if SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) != SFlag::S_IFREG {
        return Err("refused: not a regular file".to_owned());
    }
    if stat.st_nlink != 1 {
        return Err(format!("refused: it has {} names", stat.st_nlink));
    }
    if u64::try_from(stat.st_size).map_or(true, |size| size > max) {
        return Err(format!("refused: {} bytes (at most {max})", stat.st_size));
    }
    // A sparse file costs its writer nothing and its reader as much as a full one. A file system without
    // support for holes reports the end of the file. The number of blocks is no criterion, since it is low on
    // compressing file systems.
    if lseek(&file, 0, Whence::SeekHole).is_ok_and(|hole| hole < stat.st_size) {
        return Err("refused: it has holes".to_owned());
    }
    lseek(&file, 0, Whence::SeekSet).map_err(|why| io::Error::from(why).to_string())?;
    Ok(Some((file, stat)))
}

/// As [`found_below`], but the file must exist.
pub(super) fn file_below(parent: BorrowedFd<'_>, name: &str, max: u64) -> Result<(File, FileStat), String> {
    found_below(parent, name, max)?.ok_or_else(|| io::Error::from(Errno::ENOENT).to_string())
}

/// Content of a file and its owner's uid. `left` is the budget for this and all further files; a larger file
/// ends the reading.
pub(super) fn content_below(
    parent: BorrowedFd<'_>,
    name: &str,
    max: u64,
    left: &mut u64,
) -> Result<Option<(Vec<u8>, u32)>, String> {
    let Some((file, stat)) = found_below(parent, name, max)? else { return Ok(None) };
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if size > *left {
        *left = 0;
        return Err("not read: the reports of the job are larger than allowed together".to_owned());
    }
    let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or(0).saturating_add(1));
    // The file may have grown since it was opened.
    file.take(size.saturating_add(1)).read_to_end(&mut content).map_err(|why| why.to_string())?;
    let read = u64::try_from(content.len()).unwrap_or(u64::MAX);
    *left = left.saturating_sub(read);
    if read > size {
        return Err("refused: it grew while it was read".to_owned());
    }
    Ok(Some((content, stat.st_uid)))
}

/// Names in a directory except hidden ones, at most `most`; the flag reports that there are more.
pub(super) fn names(dir: &OwnedFd, most: usize) -> Result<(Vec<String>, bool), Errno> {
    // A separate descriptor, since listing moves its offset and closes it.
    let mut listing = Dir::openat(dir, ".", DIR, Mode::empty())?;
    let mut names = Vec::new();
    for entry in listing.iter() {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name.starts_with('.') {
            continue;
        }
        if names.len() == most {
            return Ok((names, true));
        }
        names.push(name.to_owned());
    }
    names.sort();
    Ok((names, false))
}

/// All names in a directory except `.` and `..`, at most `most`.
pub(super) fn all_names(dir: &OwnedFd, most: usize) -> Result<Vec<String>, Errno> {
    let mut listing = Dir::openat(dir, ".", DIR, Mode::empty())?;
    let mut names = Vec::new();
    for entry in listing.iter().take(most) {
        let entry = entry?;
        if let Ok(name) = entry.file_name().to_str()
            && !matches!(name, "." | "..")
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

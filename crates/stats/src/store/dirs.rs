//! Directories by descriptor, no link followed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, mkdirat};

const DIR: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK);

/// The directory that configuration names. A link there is the admin's own.
pub(super) fn top(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, DIR, Mode::empty())
}

/// A directory in another.
pub(super) fn below(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    openat(parent, name, DIR | OFlag::O_NOFOLLOW, Mode::empty())
}

/// A directory in another, made with `mode` (whatever the umask) where there is none.
pub(super) fn made_below(parent: BorrowedFd<'_>, name: &str, mode: Mode) -> Result<OwnedFd, Errno> {
    match mkdirat(parent, name, mode) {
        Ok(()) => {
            let dir = below(parent, name)?;
            // The umask took bits away, and NFS may have taken the sticky bit.
            fchmod(dir.as_fd(), mode)?;
            Ok(dir)
        }
        Err(Errno::EEXIST) => below(parent, name),
        // Where it stands already, a read-only or foreign parent is no obstacle.
        Err(why @ (Errno::EACCES | Errno::EPERM | Errno::EROFS)) => below(parent, name).map_err(|_| why),
        Err(why) => Err(why),
    }
}

pub(super) fn mode_of(stat: &FileStat) -> Mode {
    Mode::from_bits_truncate(stat.st_mode & 0o7777)
}

/// Others could put something else in place of what stands in this directory.
pub(super) fn open_to_all(stat: &FileStat) -> bool {
    let mode = mode_of(stat);
    mode.contains(Mode::S_IWOTH) && !mode.contains(Mode::S_ISVTX)
}

/// A regular file of at most `max` bytes with one name, opened without following a link or waiting.
pub(super) fn file_below(parent: BorrowedFd<'_>, name: &str, max: u64) -> Result<(File, FileStat), String> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = openat(parent, name, flags, Mode::empty()).map_err(|why| match why {
        Errno::ELOOP => "refused: a symbolic link".to_owned(),
        why => io::Error::from(why).to_string(),
    })?;
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
    Ok((File::from(file), stat))
}

/// Names in a directory, at most `most`, without those that begin with a dot; the flag says that there are more.
pub(super) fn names(dir: &OwnedFd, most: usize) -> Result<(Vec<String>, bool), Errno> {
    // Its own descriptor: reading moves the place, and closing it must not close ours.
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

/// All names in a directory but the two that every one has, at most `most`.
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

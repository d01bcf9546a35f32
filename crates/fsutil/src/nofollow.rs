//! Opens that refuse a symbolic link as the last component of a path, and never block (a FIFO gives an error or no
//! data).
//!
//! The caller is responsible for the directories above that component: either only root can change them, or they are
//! held open and the functions with `_at` are used.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::NixPath;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Options with these flags; the caller adds the access mode.
pub(crate) fn options() -> OpenOptions {
    let mut options = File::options();
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

/// Opens a file for reading.
///
/// # Errors
/// As `open(2)`; `ELOOP` for a link.
pub fn read(path: &Path) -> io::Result<File> {
    options().read(true).open(path)
}

/// Opens a file for appending. A new one gets `mode`, less the umask.
///
/// # Errors
/// As [`read`].
pub fn append(path: &Path, mode: u32) -> io::Result<File> {
    options().append(true).create(true).mode(mode).open(path)
}

/// Opens a file for reading and appending. A new one gets `mode`, less the umask.
///
/// # Errors
/// As [`read`].
pub fn read_append(path: &Path, mode: u32) -> io::Result<File> {
    options().read(true).append(true).create(true).mode(mode).open(path)
}

/// Opens a directory as a location only (`O_PATH`), which does not need the right to list it.
///
/// # Errors
/// As [`read`]; `ENOTDIR` for anything but a directory.
pub fn place(path: &Path) -> nix::Result<OwnedFd> {
    nix::fcntl::open(path, DIRECTORY | OFlag::O_PATH, Mode::empty())
}

/// Opens a directory in an open one.
///
/// # Errors
/// As [`place`].
pub fn dir_at(dir: impl AsFd, name: &(impl NixPath + ?Sized)) -> nix::Result<OwnedFd> {
    openat(dir, name, DIRECTORY | OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty())
}

/// Opens a file in an open directory for reading. The caller has to check its type.
///
/// # Errors
/// As [`read`].
pub fn file_at(dir: impl AsFd, name: &(impl NixPath + ?Sized)) -> nix::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    openat(dir, name, flags, Mode::empty()).map(File::from)
}

/// Creates a new file in an open directory, for writing. It gets `mode`, less the umask.
///
/// # Errors
/// As `open(2)`; `EEXIST` if the name is taken, even by a link.
pub fn create_at(dir: impl AsFd, name: &(impl NixPath + ?Sized), mode: Mode) -> nix::Result<File> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(dir, name, flags, mode).map(File::from)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::errno::Errno;

    use super::*;

    #[test]
    fn a_link_is_refused_and_a_fifo_does_not_block() {
        let place_of_test = tempfile::tempdir().unwrap();
        let at = |name: &str| place_of_test.path().join(name);
        fs::write(at("file"), "text").unwrap();
        fs::create_dir(at("dir")).unwrap();
        symlink("file", at("link")).unwrap();
        symlink("dir", at("dirlink")).unwrap();
        symlink("absent", at("dangling")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let dir = place(place_of_test.path()).unwrap();

        assert!(read(&at("file")).is_ok() && file_at(&dir, "file").is_ok() && dir_at(&dir, "dir").is_ok());
        let looped = |error: io::Error| assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        looped(read(&at("link")).unwrap_err());
        for name in ["link", "dangling"] {
            looped(append(&at(name), 0o600).unwrap_err());
            looped(read_append(&at(name), 0o600).unwrap_err());
            assert_eq!(create_at(&dir, name, Mode::S_IRUSR).unwrap_err(), Errno::EEXIST);
        }
        assert_eq!(file_at(&dir, "link").unwrap_err(), Errno::ELOOP);
        assert_eq!(dir_at(&dir, "dirlink").unwrap_err(), Errno::ENOTDIR);
        assert_eq!(place(&at("dirlink")).unwrap_err(), Errno::ENOTDIR);
        assert!(!at("absent").exists());

        // Without a writing process, each call returns at once.
        assert!(read(&at("fifo")).is_ok() && file_at(&dir, "fifo").is_ok());
        assert_eq!(append(&at("fifo"), 0o600).unwrap_err().raw_os_error(), Some(libc::ENXIO));
    }
}

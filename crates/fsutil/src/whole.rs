//! Reads and writes of whole files.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use crate::nofollow;

/// Maximum size of a file that root writes and that root or a task reads.
const MAX_FILE: u64 = 32 << 20;

/// Writes a file atomically: a reader sees either the old or the new content. A new file gets `mode`, less the umask.
///
/// # Errors
/// Returns the error of the file system.
pub fn write_whole(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let fresh = path.with_extension(format!("tmp{}", std::process::id()));
    let result = (|| {
        let mut file = nofollow::options().write(true).create(true).truncate(true).mode(mode).open(&fresh)?;
        file.write_all(content)?;
        fs::rename(&fresh, path)
    })();
    if result.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    result
}

/// Reads a file that root wrote, without following a link.
///
/// # Errors
/// Returns the error of the file system, or `InvalidData` for a file over 32 MiB.
pub fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    read_at_most(nofollow::read(path)?, MAX_FILE)
}

/// Judges what was read: a file may grow after its size was read, and the first part of one is not the file.
fn read_at_most(file: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(most + 1).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "larger than 32 MiB"));
    }
    Ok(content)
}

/// How [`put_at`] writes a file.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// Mode of the file; the umask is ignored.
    pub mode: Mode,
    /// Whether to wait until the content is stored. A full or failing file server only reports an error then.
    pub sync: bool,
    /// Whether to replace an existing file. Otherwise it is an error, `EEXIST`.
    pub replace: bool,
}

/// Writes a file atomically in an open directory to which other users may write as well. The content goes to a new file
/// `.NAME.PID`, which is then renamed.
///
/// # Errors
/// Returns the error of the file system. In that case no file is left behind.
pub fn put_at(dir: BorrowedFd<'_>, name: &str, content: &[u8], put: Put) -> io::Result<()> {
    let fresh = format!(".{name}.{}", std::process::id());
    let mut file = match nofollow::create_at(dir, fresh.as_str(), put.mode) {
        Err(Errno::EEXIST) => {
            unlinkat(dir, fresh.as_str(), UnlinkatFlags::NoRemoveDir)?;
            nofollow::create_at(dir, fresh.as_str(), put.mode)?
        }
        other => other?,
    };
    let written = fchmod(file.as_fd(), put.mode)
        .map_err(io::Error::from)
        .and_then(|()| file.write_all(content))
        .and_then(|()| if put.sync { file.sync_all() } else { Ok(()) })
        .and_then(|()| match put.replace {
            true => Ok(renameat(dir, fresh.as_str(), dir, name)?),
            false => Ok(linkat(dir, fresh.as_str(), dir, name, AtFlags::empty())?),
        });
    if written.is_err() || !put.replace {
        let _ = unlinkat(dir, fresh.as_str(), UnlinkatFlags::NoRemoveDir);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_that_is_too_long_is_refused_not_cut() {
        assert_eq!(read_at_most(&b"1234"[..], 4).unwrap(), b"1234");
        assert_eq!(read_at_most(&b"12345"[..], 4).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_file_is_replaced_or_kept_without_leftovers() {
        let dir = tempfile::tempdir().unwrap();
        let open = nofollow::dir_at(nofollow::place(dir.path()).unwrap(), ".").unwrap();
        let put = |content: &[u8], replace| {
            let mode = Mode::from_bits_truncate(0o666);
            put_at(open.as_fd(), "a", content, Put { mode, sync: true, replace })
        };
        // A link in place of the temporary file is replaced, not followed.
        symlink("elsewhere", dir.path().join(format!(".a.{}", std::process::id()))).unwrap();
        let count = || fs::read_dir(dir.path()).unwrap().count();
        put(b"one", false).unwrap();
        assert_eq!(count(), 1);
        assert_eq!(put(b"two", false).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"one");
        put(b"two", true).unwrap();
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"two");
        assert_eq!(fs::metadata(dir.path().join("a")).unwrap().permissions().mode() & 0o777, 0o666);
        assert_eq!(count(), 1);
    }
}

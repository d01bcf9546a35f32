use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc::O_NOFOLLOW;

/// A file lock that ends with the process that holds it.
pub(crate) type Held = Flock<File>;

/// Opens a file of ours for appending and reading; a link in its place is refused.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).append(true).create(true).mode(0o644).custom_flags(O_NOFOLLOW).open(path)
}

/// Takes the lock if it is free.
pub(crate) fn try_lock(path: &Path) -> io::Result<Option<Held>> {
    match Flock::lock(open(path)?, FlockArg::LockExclusiveNonblock) {
        Ok(held) => Ok(Some(held)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, why)) => Err(why.into()),
    }
}

/// Waits for the lock, not longer than `timeout`.
pub(crate) fn lock(path: &Path, timeout: Duration) -> io::Result<Held> {
    let begun = Instant::now();
    loop {
        if let Some(held) = try_lock(path)? {
            return Ok(held);
        }
        if begun.elapsed() >= timeout {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "somebody else keeps it locked"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use crate::nofollow;

/// With any of these bits another user can open the file, and an open file is enough for `flock`.
const OTHERS: u32 = 0o077;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Pause between two attempts in [`lock_data`]; its lock is held for one write.
const DATA_PAUSE: Duration = Duration::from_millis(5);

/// Number of attempts in [`FileLock::try_take`] if the lock file is replaced in between.
const TRIES: u32 = 5;

/// An exclusive lock between railgate's processes. It ends when it is dropped or its process ends.
///
/// The lock file has mode 0600, so no other user can open it and hold the lock. A lock file that other users can open
/// (version 0.1.0 made them with 0644) is replaced by a new file: changing its mode would not help, a user may have it
/// open already. The file is empty and may be replaced at any time, so never lock a file that carries data.
#[derive(Debug)]
pub struct FileLock(#[expect(dead_code, reason = "held, never read")] Flock<File>);

impl FileLock {
    /// Takes the lock if it is free; returns `None` if another process holds it.
    ///
    /// # Errors
    /// Returns an error if the lock file cannot be opened, is a link, is not a regular file, or belongs to another user.
    pub fn try_take(path: &Path) -> io::Result<Option<FileLock>> {
        for _ in 0..TRIES {
            let (file, meta) = open(path)?;
            if meta.mode() & OTHERS != 0 {
                if let Some(lock) = replace(path)? {
                    return Ok(Some(lock));
                }
            } else {
                match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                    Ok(lock) if is_at(&meta, path) => return Ok(Some(FileLock(lock))),
                    // The file was replaced between opening and locking.
                    Ok(_) => {}
                    Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
                    Err((_, why)) => return Err(why.into()),
                }
            }
        }
        Ok(None)
    }

    /// Waits at most `wait` for the lock. Tries once even if `wait` is zero.
    ///
    /// # Errors
    /// As [`FileLock::try_take`]; `TimedOut` if another process does not release it in time.
    pub fn take(path: &Path, wait: Duration) -> io::Result<FileLock> {
        poll(wait, PAUSE, || FileLock::try_take(path))?.ok_or_else(|| {
            let why = format!("another process did not release the lock within {} ms", wait.as_millis());
            io::Error::new(io::ErrorKind::TimedOut, why)
        })
    }
}

/// What a lock on a file allows others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Other shared locks.
    Shared,
    /// None.
    Exclusive,
}

/// Locks a file that carries data, for which [`FileLock`] must not be used. Returns `None` if it does not become free
/// within `wait`. Tries once even if `wait` is zero.
///
/// # Errors
/// Returns an error if the file system cannot lock it.
pub fn lock_data(file: File, share: Share, wait: Duration) -> io::Result<Option<Flock<File>>> {
    // Waiting in the kernel has no deadline.
    let how = match share {
        Share::Shared => FlockArg::LockSharedNonblock,
        Share::Exclusive => FlockArg::LockExclusiveNonblock,
    };
    let mut file = Some(file);
    poll(wait, DATA_PAUSE, || match file.take().map(|file| Flock::lock(file, how)) {
        Some(Ok(held)) => Ok(Some(held)),
        Some(Err((back, Errno::EWOULDBLOCK))) => {
            file = Some(back);
            Ok(None)
        }
        Some(Err((_, why))) => Err(why.into()),
        None => Ok(None),
    })
}

/// Tries until it succeeds or `wait` has passed, at least once.
fn poll<T>(
    wait: Duration,
    pause: Duration,
    mut attempt: impl FnMut() -> io::Result<Option<T>>,
) -> io::Result<Option<T>> {
    let begun = Instant::now();
    loop {
        if let Some(done) = attempt()? {
            return Ok(Some(done));
        }
        let left = wait.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        std::thread::sleep(pause.min(left));
    }
}

fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let file =
        nofollow::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let meta = file.metadata()?;
    let refused = |what: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    if !meta.is_file() {
        return refused("not a regular file".to_owned());
    }
    if meta.uid() != geteuid().as_raw() {
        return refused(format!("the lock file belongs to uid {}", meta.uid()));
    }
    Ok((file, meta))
}

fn is_at(meta: &Metadata, path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (meta.dev(), meta.ino()))
}

/// Replaces a lock file that other users can open with a new one, and locks it; `None` if another process holds the
/// lock.
///
/// Only the process that holds the lock on `PATH.new` may rename it to `PATH`. Otherwise two processes that both find
/// the old file would replace each other's new ones, and both would hold the lock.
fn replace(path: &Path) -> io::Result<Option<FileLock>> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let fresh = PathBuf::from(name);
    let (file, meta) = open(&fresh)?;
    if meta.mode() & OTHERS != 0 {
        return Err(io::Error::other(format!("{}: other users can open it", fresh.display())));
    }
    let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return Ok(None) };
    if !is_at(&meta, &fresh) {
        return Ok(None);
    }
    if !fs::symlink_metadata(path).is_ok_and(|now| now.is_file() && now.mode() & OTHERS != 0) {
        fs::remove_file(&fresh)?;
        return Ok(None);
    }
    fs::rename(&fresh, path)?;
    tracing::info!("{}: other users could open this lock file, it is replaced", path.display());
    Ok(Some(FileLock(lock)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Mutex;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn one_process_holds_it_and_no_other_user_can_open_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.lock");
        let held = FileLock::try_take(&path).unwrap();
        assert!(held.is_some());
        assert_eq!(mode(&path), 0o600);
        assert!(FileLock::try_take(&path).unwrap().is_none());
        let late = FileLock::take(&path, Duration::from_millis(30)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        drop(held);
        assert!(FileLock::take(&path, Duration::ZERO).is_ok());
    }

    #[test]
    fn a_users_lock_on_an_old_file_has_no_effect() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.lock");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let users = Flock::lock(File::open(&path).unwrap(), FlockArg::LockExclusive).unwrap();
        let ours = FileLock::try_take(&path).unwrap();
        assert!(ours.is_some());
        assert_eq!(mode(&path), 0o600);
        assert!(FileLock::try_take(&path).unwrap().is_none(), "ours holds");
        drop((users, ours));
        assert!(FileLock::try_take(&path).unwrap().is_some());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "PATH.new is gone");
    }

    #[test]
    fn processes_that_replace_an_old_file_concurrently_exclude_each_other() {
        let place = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let path = place.path().join(format!("{round}.lock"));
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            let inside = Mutex::new(BTreeSet::new());
            std::thread::scope(|scope| {
                for n in 0..4 {
                    let (path, inside) = (&path, &inside);
                    scope.spawn(move || {
                        let lock = FileLock::take(path, Duration::from_secs(30)).unwrap();
                        assert!(inside.try_lock().unwrap().insert(n));
                        drop(lock);
                    });
                }
            });
            assert_eq!(inside.into_inner().unwrap().len(), 4);
        }
    }

    #[test]
    fn a_lock_on_data_ends_its_wait() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notes");
        fs::write(&path, "x").unwrap();
        let lock = |share| lock_data(File::open(&path).unwrap(), share, Duration::from_millis(10)).unwrap();
        let shared = (lock(Share::Shared), lock(Share::Shared));
        assert!(shared.0.is_some() && shared.1.is_some());
        assert!(lock(Share::Exclusive).is_none());
        drop(shared);
        let held = lock(Share::Exclusive);
        assert!(held.is_some() && lock(Share::Shared).is_none());
    }

    #[test]
    fn a_link_or_a_directory_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.lock");
        std::os::unix::fs::symlink(place.path().join("elsewhere"), &path).unwrap();
        assert!(FileLock::try_take(&path).is_err());
        assert!(!place.path().join("elsewhere").exists());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(FileLock::try_take(&path).is_err());
    }
}

use std::error::Error;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use nix::unistd::fsync;
use railgate_alerts::State;
use railgate_fsutil::{FileLock, Put, Untrusted, nofollow, put_at, read_small, trusted};
use railgate_text::Printable;

use crate::delivery::Keep;

/// The state in one file, which is replaced as a whole. One process at a time has it.
///
/// ```text
/// NAME             the state, JSON, 0600
/// NAME.lock        lock between processes of this machine
/// NAME.damaged     a state that could not be read, if there was one
/// ```
#[derive(Debug)]
pub struct StateFile {
    dir: OwnedFd,
    name: String,
    _lock: FileLock,
}

/// A state file that was opened.
#[derive(Debug)]
pub struct Opened {
    /// The file.
    pub file: StateFile,
    /// Its content; empty for a new file.
    pub state: State,
    /// The file was damaged and was moved away. All open conditions are sent again as new ones.
    pub damaged: Option<String>,
}

/// Why the state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// Others can change the directory.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// Another process has it.
    #[error("{}: another process sends alerts", Printable(path.display()))]
    Held {
        /// The file.
        path: PathBuf,
    },
    /// An error of the file system.
    #[error("{}: {source}", Printable(path.display()))]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl StateFile {
    /// Opens the state, or begins an empty one. The directory must exist, and only root or the calling user may change it.
    ///
    /// # Errors
    /// Others can change the directory, another process has the state, or it cannot be read.
    pub fn open(path: &Path) -> Result<Opened, StateFileError> {
        let at = |source| StateFileError::Io { path: path.to_owned(), source };
        let no_name = || at(io::Error::new(io::ErrorKind::InvalidInput, "is not the path of a file"));
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(no_name)?.to_owned();
        let dir = trusted(path.parent().ok_or_else(no_name)?)?;
        let held = || StateFileError::Held { path: path.to_owned() };
        let lock = FileLock::try_take(&dir.join(format!("{name}.lock"))).map_err(at)?.ok_or_else(held)?;
        remove_leftovers(&dir, &name);
        let real = dir.join(&name);
        let (state, damaged) = match read_small(&real) {
            Ok(content) => match serde_json::from_slice(&content) {
                Ok(state) => (state, None),
                Err(why) => {
                    let aside = dir.join(format!("{name}.damaged"));
                    fs::rename(&real, &aside).map_err(at)?;
                    (
                        State::default(),
                        Some(format!("{}: {why}; moved to {}", path.display(), aside.display())),
                    )
                }
            },
            Err(why) if why.kind() == io::ErrorKind::NotFound => (State::default(), None),
            Err(why) => return Err(at(why)),
        };
        let dir = nofollow::place(&dir).map_err(|why| at(why.into()))?;
        // A descriptor of its own that can be synchronised.
        let dir = nofollow::dir_at(dir, ".").map_err(|why| at(why.into()))?;
        Ok(Opened { file: StateFile { dir, name, _lock: lock }, state, damaged })
    }
}

impl Keep for StateFile {
    fn commit(&mut self, state: &State) -> Result<(), Box<dyn Error + Send + Sync>> {
        let content = serde_json::to_vec(state)?;
        let put = Put { mode: Mode::S_IRUSR | Mode::S_IWUSR, sync: true, replace: true };
        put_at(self.dir.as_fd(), &self.name, &content, put)?;
        // Otherwise a power failure could bring the earlier file back.
        fsync(self.dir.as_fd())?;
        Ok(())
    }
}

/// Removes files of processes that were killed while they wrote: `.NAME.PID`. The lock is held.
fn remove_leftovers(dir: &Path, name: &str) {
    let prefix = format!(".{name}.");
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let pid = found.to_str().and_then(|found| found.strip_prefix(&prefix));
        if pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit())) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

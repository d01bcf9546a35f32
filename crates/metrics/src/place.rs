//! The collector's directory. It may belong to another user, so nothing in it is trusted: links are not
//! followed, files are created and then renamed into place, and only files with railgate's names are removed.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use railgate_fsutil::{Put, put_at};

/// File of the gate and of GPU and HCA health.
pub const NODE_FILE: &str = "railgate.prom";
/// File of the RDMA ports.
pub const RAILS_FILE: &str = "railgate-rails.prom";

/// File of the controller.
pub const CONTROLLER_FILE: &str = "railgate-controller.prom";

/// File of the fleet, on the controller.
pub const FLEET_FILE: &str = "railgate-fleet.prom";

const JOB_FILE: (&str, &str) = ("railgate-job-", ".prom");

/// File name of a job.
pub fn job_file(job: u32) -> String {
    format!("{}{job}{}", JOB_FILE.0, JOB_FILE.1)
}

/// Job id in a file name; `None` for other names.
fn job_of(name: &str) -> Option<u32> {
    let number = name.strip_prefix(JOB_FILE.0)?.strip_suffix(JOB_FILE.1)?;
    number.parse().ok().filter(|job: &u32| job.to_string() == number)
}

/// Open directory of the textfile collector.
#[derive(Debug)]
pub struct TextfileDir {
    dir: OwnedFd,
}

impl TextfileDir {
    /// Opens the directory, which the site has created.
    ///
    /// # Errors
    /// It does not exist, is not a directory, or cannot be entered.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        Ok(TextfileDir { dir: open(path, flags, Mode::empty())? })
    }

    /// Replaces a file atomically: the collector reads the old one or the new one.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn put(&self, name: &str, content: &str) -> io::Result<()> {
        // The collector does not run as root, so the file must be readable regardless of the umask. It reads
        // names that end in .prom, which the temporary name does not.
        let how = Put { mode: Mode::from_bits_truncate(0o644), sync: false, replace: true };
        put_at(self.dir.as_fd(), name, content.as_bytes(), how)
    }

    /// Removes a file; a file that does not exist is not an error.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.dir, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }

    /// Removes job files last written before `before` (Unix seconds), and temporary files of writers that were
    /// killed. Returns the number of removed files.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn remove_stale(&self, before: i64) -> io::Result<usize> {
        const MOST: usize = 10_000;
        let mut listing =
            nix::dir::Dir::openat(&self.dir, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?;
        let names: Vec<String> = listing
            .iter()
            .take(MOST)
            .filter_map(|entry| Some(entry.ok()?.file_name().to_str().ok()?.to_owned()))
            .filter(|name| job_of(name).is_some() || is_unfinished(name))
            .collect();
        let mut removed = 0;
        for name in names {
            let stat = fstatat(&self.dir, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
            if stat.is_ok_and(|stat| stat.st_mtime < before) && self.remove(&name).is_ok() {
                removed += 1;
            }
        }
        Ok(removed)
    }
}

/// Whether this is a temporary name, `.railgate-job-7.prom.4711`.
fn is_unfinished(name: &str) -> bool {
    let Some((file, writer)) = name.strip_prefix('.').and_then(|name| name.rsplit_once('.')) else {
        return false;
    };
    let ours = [NODE_FILE, RAILS_FILE, CONTROLLER_FILE, FLEET_FILE].contains(&file) || job_of(file).is_some();
    ours && !writer.is_empty() && writer.bytes().all(|byte| byte.is_ascii_digit())
}

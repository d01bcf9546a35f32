//! The collector's directory. It may belong to a user of its own, so nothing in it is trusted: no link is followed,
//! files are made anew and renamed into place, and only names of ours are ever removed.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use railgate_fsutil::{Put, put_at};

/// The gate and the cards' health.
pub const NODE_FILE: &str = "railgate.prom";
/// The RDMA ports.
pub const RAILS_FILE: &str = "railgate-rails.prom";

/// The controller's.
pub const CONTROLLER_FILE: &str = "railgate-controller.prom";

const JOB_FILE: (&str, &str) = ("railgate-job-", ".prom");

/// A job's file.
pub fn job_file(job: u32) -> String {
    format!("{}{job}{}", JOB_FILE.0, JOB_FILE.1)
}

/// The job that a file is of; `None` for every other name.
fn job_of(name: &str) -> Option<u32> {
    let number = name.strip_prefix(JOB_FILE.0)?.strip_suffix(JOB_FILE.1)?;
    number.parse().ok().filter(|job: &u32| job.to_string() == number)
}

/// The open directory.
#[derive(Debug)]
pub struct TextfileDir {
    dir: OwnedFd,
}

impl TextfileDir {
    /// Opens it; the site makes it.
    ///
    /// # Errors
    /// It is not there, is no directory, or cannot be entered.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        Ok(TextfileDir { dir: open(path, flags, Mode::empty())? })
    }

    /// Replaces a file in one step: the collector sees the old one or the new one.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn put(&self, name: &str, content: &str) -> io::Result<()> {
        // The collector is not root, whatever our umask. It reads what ends in .prom, which the temporary name does not.
        let how = Put { mode: Mode::from_bits_truncate(0o644), sync: false, replace: true };
        put_at(self.dir.as_fd(), name, content.as_bytes(), how)
    }

    /// Removes a file; one that is not there is removed already.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.dir, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }

    /// Removes the files of jobs that were not written since `before`, Unix seconds, and what writers that were
    /// killed left half done. Returns how many.
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

/// `.railgate-job-7.prom.4711`
fn is_unfinished(name: &str) -> bool {
    let Some((file, writer)) = name.strip_prefix('.').and_then(|name| name.rsplit_once('.')) else {
        return false;
    };
    let ours = [NODE_FILE, RAILS_FILE, CONTROLLER_FILE].contains(&file) || job_of(file).is_some();
    ours && !writer.is_empty() && writer.bytes().all(|byte| byte.is_ascii_digit())
}

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, fchown, unlinkat};
use railgate_fsutil::nofollow;

/// A run's `user/`, found while it could be seen: a task that has entered a container still writes there.
#[derive(Debug)]
pub struct NoteDir(OwnedFd);

impl NoteDir {
    /// Finds `user/` in a run's directory, without opening it for anything.
    ///
    /// # Errors
    /// It is not there, or is a link.
    pub fn find(run: &Path) -> io::Result<Self> {
        Ok(NoteDir(nofollow::place(&run.join("user"))?))
    }

    /// Writes a new file, as whoever calls: the job's user, when it is a task.
    ///
    /// # Errors
    /// It is there already, or the directory is full or another's.
    pub fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.create(name, Mode::S_IRUSR | Mode::S_IWUSR)?.write_all(content)
    }

    /// Writes a file anew as root, and gives it to a user to read.
    pub(crate) fn write_for(&self, name: &str, content: &[u8], uid: u32) -> io::Result<()> {
        match unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::ENOENT) | Ok(()) => {}
            Err(why) => return Err(why.into()),
        }
        let mut file = self.create(name, Mode::S_IRUSR)?;
        file.write_all(content)?;
        Ok(fchown(&file, Some(uid.into()), None)?)
    }

    fn create(&self, name: &str, mode: Mode) -> io::Result<File> {
        Ok(nofollow::create_at(&self.0, name, mode)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_writes_where_the_directory_was_found() {
        let run = tempfile::tempdir().unwrap();
        assert!(NoteDir::find(run.path()).is_err());
        std::fs::create_dir(run.path().join("user")).unwrap();
        let dir = NoteDir::find(run.path()).unwrap();
        std::fs::rename(run.path().join("user"), run.path().join("elsewhere")).unwrap();
        dir.write("env.0", b"x").unwrap();
        assert_eq!(std::fs::read(run.path().join("elsewhere/env.0")).unwrap(), b"x");
        assert!(dir.write("env.0", b"y").is_err());
        std::os::unix::fs::symlink("elsewhere", run.path().join("user")).unwrap();
        assert!(NoteDir::find(run.path()).is_err());
    }
}

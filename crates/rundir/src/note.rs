use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, fchown, unlinkat};
use railgate_fsutil::nofollow;

/// An open `user/` of a run. It stays usable for a task that has entered a container, where the path is not visible.
#[derive(Debug)]
pub struct NoteDir(OwnedFd);

impl NoteDir {
    /// Opens `user/` in a run's directory as a path only (`O_PATH`).
    ///
    /// # Errors
    /// It does not exist, or is a link.
    pub fn find(run: &Path) -> io::Result<Self> {
        Ok(NoteDir(nofollow::place(&run.join("user"))?))
    }

    /// Writes a new file as the calling user: in a task, the job's user.
    ///
    /// # Errors
    /// The file exists already, or the directory is full or belongs to another user.
    pub fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.create(name, Mode::S_IRUSR | Mode::S_IWUSR)?.write_all(content)
    }

    /// Replaces a file as root, and makes it readable for a user.
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
    fn notes_are_written_to_the_opened_directory() {
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

//! `user/`: the only directory of a run in which the job may write, and how root reads files from it.
//!
//! Its owner may create links, FIFOs, huge files and, with `fusermount`, a whole file system of which they control
//! every response. So no file is opened by its full path, no link is followed, any mount other than railgate's tmpfs
//! makes the directory unreadable, and each read is bounded.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use railgate_fsutil::nofollow;

use crate::RunDir;

/// Device name of railgate's tmpfs, which distinguishes it from other mounts.
const SOURCE: &str = "railgate";
/// Most stacked mounts that are removed in one call: more than `fusermount` lets a user make.
const MOST_STACKED: usize = 4096;

/// Result of [`mount_user`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// The tmpfs was mounted.
    Now,
    /// railgate's tmpfs was mounted already.
    Already,
}

/// Why a file of a job is not read.
#[derive(Debug, thiserror::Error)]
pub enum BadUserFile {
    /// The name leads out of the directory.
    #[error("not a plain file name")]
    Name,
    /// A link, a FIFO, a socket, a directory or a device.
    #[error("not a regular file")]
    Kind,
    /// It belongs to another user.
    #[error("owned by uid {0}")]
    Owner(u32),
    /// It has other hard links.
    #[error("has {0} links")]
    Links(u64),
    /// It is larger than the caller permits.
    #[error("larger than {0} bytes")]
    Size(u64),
    /// An error of the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// An open `user/` of a run.
#[derive(Debug)]
pub struct UserDir {
    dir: OwnedFd,
    uid: u32,
    device: u64,
}

impl UserDir {
    /// Opens the directory without following links. `uid` is the job's.
    ///
    /// # Errors
    /// `NotFound` if the prolog created none; `InvalidData` if the run's directory does not belong to root (or the
    /// caller), `user/` does not belong to the job, or a mount other than railgate's tmpfs is on or below it.
    pub fn open(run: &RunDir, uid: u32) -> io::Result<Self> {
        // A job's user can pass through the run's directory but not list it.
        let above = nofollow::place(run.path())?;
        let owner = nix::sys::stat::fstat(&above)?.st_uid;
        if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
            return Err(invalid(format!("{}: owned by uid {owner}", run.path().display())));
        }
        // Checked before anything is opened: on a file system of the user, open could hang.
        let place = fs::read_link(format!("/proc/self/fd/{}", above.as_raw_fd()))?.join("user");
        if let Some(foreign) = foreign_mount(&place, &fs::read("/proc/self/mountinfo")?) {
            return Err(invalid(format!("{foreign} is mounted there")));
        }
        let dir = nofollow::dir_at(&above, "user")?;
        let stat = nix::sys::stat::fstat(&dir)?;
        if stat.st_uid != uid {
            return Err(invalid(format!("{}: owned by uid {}", place.display(), stat.st_uid)));
        }
        Ok(UserDir { dir, uid, device: stat.st_dev })
    }

    /// Opens a subdirectory that belongs to the job, on the same file system.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` for a name that leads out of the directory, `InvalidData` for anything but such a
    /// directory.
    pub fn below(&self, name: &str) -> io::Result<Self> {
        if name.is_empty() || name == "." || name == ".." || name.contains('/') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let dir = nofollow::dir_at(&self.dir, name)?;
        let stat = nix::sys::stat::fstat(&dir)?;
        if stat.st_uid != self.uid || stat.st_dev != self.device {
            return Err(invalid(format!("user/{name}: owned by uid {}, or of another mount", stat.st_uid)));
        }
        Ok(UserDir { dir, uid: self.uid, device: self.device })
    }

    /// Opens a subdirectory like [`UserDir::below`].
    ///
    /// # Errors
    /// `NotFound`, or the error of the system.
    pub fn sub(&self, name: &str) -> io::Result<Self> {
        if name.is_empty() || name == "." || name == ".." || name.contains('/') {
            return Err(invalid(format!("'{name}' is not a plain name")));
        }
        let dir = nofollow::dir_at(&self.dir, name)?;
        let stat = nix::sys::stat::fstat(&dir)?;
        if stat.st_uid != self.uid || stat.st_dev != self.device {
            return Err(invalid(format!("{name}: not a directory of the job's")));
        }
        Ok(UserDir { dir, uid: self.uid, device: self.device })
    }

    /// Returns at most `most` names, sorted, and whether there are more.
    ///
    /// # Errors
    /// The error of reading the directory.
    pub fn names(&self, most: usize) -> io::Result<(Vec<OsString>, bool)> {
        let mut dir = Dir::openat(&self.dir, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        let mut names = Vec::new();
        for entry in dir.iter() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if names.len() == most {
                return Ok((names, true));
            }
            names.push(OsString::from_vec(name.to_vec()));
        }
        names.sort_unstable();
        Ok((names, false))
    }

    /// Reads a regular file that belongs to the job, of at most `most` bytes.
    ///
    /// # Errors
    /// The reason why the file is not read.
    pub fn read(&self, name: impl AsRef<OsStr>, most: u64) -> Result<Vec<u8>, BadUserFile> {
        let file = self.file(name, most)?;
        // The file may grow while it is read.
        let mut content = Vec::new();
        file.take(most.saturating_add(1)).read_to_end(&mut content)?;
        if content.len() as u64 > most {
            return Err(BadUserFile::Size(most));
        }
        Ok(content)
    }

    /// Opens a regular file that belongs to the job, of at most `most` bytes, for reading. Its content and size may change
    /// at any time.
    ///
    /// # Errors
    /// The reason why the file is not opened.
    pub fn file(&self, name: impl AsRef<OsStr>, most: u64) -> Result<fs::File, BadUserFile> {
        let name = name.as_ref();
        if name.is_empty() || name == "." || name == ".." || name.as_bytes().contains(&b'/') {
            return Err(BadUserFile::Name);
        }
        let file = match nofollow::file_at(&self.dir, name) {
            Ok(file) => file,
            // A link, or a socket or device without a driver.
            Err(Errno::ELOOP | Errno::ENXIO | Errno::ENODEV) => return Err(BadUserFile::Kind),
            Err(why) => return Err(BadUserFile::Io(why.into())),
        };
        let meta = file.metadata()?;
        if !meta.is_file() || meta.dev() != self.device {
            return Err(BadUserFile::Kind);
        }
        if meta.uid() != self.uid {
            return Err(BadUserFile::Owner(meta.uid()));
        }
        if meta.nlink() != 1 {
            return Err(BadUserFile::Links(meta.nlink()));
        }
        if meta.len() > most {
            return Err(BadUserFile::Size(most));
        }
        Ok(file)
    }
}

/// Creates `user/` and mounts a tmpfs there: owned by the job's user, 0700, nodev, nosuid, noexec, at most `size`
/// bytes and `inodes` files.
///
/// # Errors
/// The error of the system; `PermissionDenied` without the right to mount. The directory is then removed: without a
/// limit of its own it would let the job fill the node's `/run`.
pub fn mount_user(run: &RunDir, uid: u32, gid: u32, size: u64, inodes: u64) -> io::Result<Mounted> {
    let place = run.user();
    match fs::DirBuilder::new().mode(0o700).create(&place) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(why),
        _ => {}
    }
    if fs::symlink_metadata(&place)?.file_type().is_symlink() {
        return Err(invalid(format!("{}: a link", place.display())));
    }
    if mounts_on(&fs::canonicalize(&place)?, &fs::read("/proc/self/mountinfo")?)
        .last()
        .is_some_and(Mount::ours)
    {
        return Ok(Mounted::Already);
    }
    let options = format!("mode=0700,uid={uid},gid={gid},size={size},nr_inodes={inodes}");
    let flags = MsFlags::MS_NODEV | MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    match mount(Some(SOURCE), &place, Some("tmpfs"), flags, Some(options.as_str())) {
        Ok(()) => Ok(Mounted::Now),
        Err(why) => {
            let _ = fs::remove_dir(&place);
            Err(why.into())
        }
    }
}

/// Unmounts everything from `user/`, even while processes have files open there. Returns the number of mounts
/// removed; 0 if the directory is missing.
///
/// # Errors
/// The system call failed.
pub fn unmount_user(run: &RunDir) -> io::Result<usize> {
    let place = run.user();
    for taken in 0..MOST_STACKED {
        match umount2(&place, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            // No mount point (any longer), or no directory.
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(taken),
            Err(why) => return Err(why.into()),
        }
    }
    Err(invalid(format!("{}: more than {MOST_STACKED} mounts", place.display())))
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[derive(Debug)]
struct Mount {
    place: PathBuf,
    kind: Vec<u8>,
    source: Vec<u8>,
}

impl Mount {
    fn ours(&self) -> bool {
        self.kind == b"tmpfs" && self.source == SOURCE.as_bytes()
    }
}

/// A mount on or below `place` that is not railgate's. Only the lowest mount on `place` itself may be railgate's.
fn foreign_mount(place: &Path, mountinfo: &[u8]) -> Option<String> {
    mounts_under(place, mountinfo)
        .into_iter()
        .enumerate()
        .find(|(index, mount)| *index > 0 || mount.place != place || !mount.ours())
        .map(|(_, mount)| format!("{} at {}", String::from_utf8_lossy(&mount.kind), mount.place.display()))
}

fn mounts_on(place: &Path, mountinfo: &[u8]) -> Vec<Mount> {
    let mut mounts = mounts_under(place, mountinfo);
    mounts.retain(|mount| mount.place == place);
    mounts
}

fn mounts_under(place: &Path, mountinfo: &[u8]) -> Vec<Mount> {
    mountinfo
        .split(|&byte| byte == b'\n')
        .filter_map(mount_of)
        .filter(|mount| mount.place.starts_with(place))
        .collect()
}

/// Parses a line `36 35 98:0 /in-device /mounted-at options optional… - type source super-options`.
fn mount_of(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let place = PathBuf::from(OsString::from_vec(unescaped(fields.nth(4)?)));
    fields.find(|field| *field == b"-")?;
    Some(Mount { place, kind: fields.next()?.to_vec(), source: unescaped(fields.next()?) })
}

/// Decodes octal escapes: the kernel writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [byte, tail @ ..] = rest {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::{Root, Run};

    fn run(place: &Path) -> RunDir {
        Root::new(place).job(7).create(&Run::new(7, 0, 1)).unwrap()
    }

    fn me() -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    #[test]
    fn only_regular_files_of_the_job_are_read() {
        let place = tempfile::tempdir().unwrap();
        let run = run(place.path());
        assert_eq!(UserDir::open(&run, me()).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::create_dir(run.user()).unwrap();
        let file = |name: &str| run.user().join(name);
        fs::write(file("plain"), "hello").unwrap();
        fs::write(file("large"), vec![b'x'; 1000]).unwrap();
        fs::write(file("twice"), "x").unwrap();
        fs::hard_link(file("twice"), file("again")).unwrap();
        symlink("/etc/passwd", file("link")).unwrap();
        fs::create_dir(file("dir")).unwrap();
        nix::unistd::mkfifo(&file("fifo"), Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(file("socket")).unwrap();

        let user = UserDir::open(&run, me()).unwrap();
        assert_eq!(user.read("plain", 5).unwrap(), b"hello");
        assert!(matches!(user.read("plain", 4), Err(BadUserFile::Size(4))));
        assert!(matches!(user.read("large", 999), Err(BadUserFile::Size(999))));
        assert!(matches!(user.read("twice", 100), Err(BadUserFile::Links(2))));
        for name in ["link", "dir", "fifo", "socket"] {
            assert!(matches!(user.read(name, 100), Err(BadUserFile::Kind)), "{name}");
        }
        for name in ["", ".", "..", "../run.json", "/etc/passwd", "dir/x"] {
            assert!(matches!(user.read(name, 100), Err(BadUserFile::Name)), "{name}");
        }
        let absent = user.read("absent", 100).unwrap_err();
        assert!(matches!(absent, BadUserFile::Io(why) if why.kind() == io::ErrorKind::NotFound));

        let (names, more) = user.names(100).unwrap();
        assert_eq!(names, ["again", "dir", "fifo", "large", "link", "plain", "socket", "twice"]);
        assert!(!more);
        let (some, more) = user.names(3).unwrap();
        assert_eq!((some.len(), more), (3, true));
    }

    #[test]
    fn a_directory_of_another_kind_or_owner_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let run = run(place.path());
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), run.user()).unwrap();
        assert!(UserDir::open(&run, me()).is_err());
        fs::remove_file(run.user()).unwrap();
        fs::create_dir(run.user()).unwrap();
        assert!(UserDir::open(&run, me()).is_ok());
        assert_eq!(UserDir::open(&run, me() + 1).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_foreign_mount_is_detected_before_anything_is_opened() {
        let place = Path::new("/run/rail gate/jobs/7/0-1/user");
        let line = |at: &str, kind: &str, source: &str| {
            format!("36 35 98:0 / {at} rw,nosuid shared:1 - {kind} {source} rw\n")
        };
        let at = "/run/rail\\040gate/jobs/7/0-1/user";
        let ours = line(at, "tmpfs", "railgate");
        let elsewhere = line("/run/rail\\040gate/jobs/7/0-1/user2", "fuse.sshfs", "x");
        assert_eq!(foreign_mount(place, elsewhere.as_bytes()), None);
        assert_eq!(foreign_mount(place, format!("{elsewhere}{ours}").as_bytes()), None);
        for foreign in [
            line(at, "fuse.sshfs", "railgate"),
            line(at, "tmpfs", "tmpfs"),
            format!("{ours}{}", line(at, "fuse.x", "y")),
            format!("{ours}{}", line(&format!("{at}/below"), "fuse.x", "y")),
            format!("{ours}{}", line(&format!("{at}/file"), "tmpfs", "railgate")),
        ] {
            assert!(foreign_mount(place, foreign.as_bytes()).is_some(), "{foreign}");
        }
    }

    /// Unmounts even if the test fails.
    struct Unmount<'a>(&'a RunDir);

    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            let _ = unmount_user(self.0);
        }
    }

    #[test]
    fn the_tmpfs_limits_bytes_and_files_of_a_job() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root to mount");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let run = run(place.path());
        let _unmount = Unmount(&run);
        let mounted = match mount_user(&run, 1234, 1234, 1 << 16, 8) {
            Err(why) if why.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("skipped: root may not mount here");
                assert!(!run.user().exists());
                return;
            }
            mounted => mounted.unwrap(),
        };
        assert_eq!(mounted, Mounted::Now);
        assert_eq!(mount_user(&run, 1234, 1234, 1 << 16, 8).unwrap(), Mounted::Already);
        let meta = fs::metadata(run.user()).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (1234, 1234, 0o700));
        assert!(fs::write(run.user().join("large"), vec![0; 1 << 17]).is_err());
        let files = (0..100).take_while(|n| File::create(run.user().join(n.to_string())).is_ok()).count();
        assert!(files < 10, "{files}");
        let user = UserDir::open(&run, 1234).unwrap();
        assert!(matches!(user.read("0", 1), Err(BadUserFile::Owner(0))));
        // An open file does not keep the mount.
        let open = File::open(run.user().join("0")).unwrap();
        drop(user);
        assert_eq!(unmount_user(&run).unwrap(), 1);
        drop(open);
        assert_eq!(unmount_user(&run).unwrap(), 0);
        assert_eq!(fs::metadata(run.user()).unwrap().uid(), 0);
        fs::remove_dir(run.user()).unwrap();
        assert_eq!(unmount_user(&run).unwrap(), 0);
        // Also for a run that is not the current one.
        mount_user(&run, 1234, 1234, 1 << 16, 8).unwrap();
        Root::new(place.path()).job(7).remove().unwrap();
        assert!(!run.path().exists());
    }
}

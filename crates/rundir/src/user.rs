//! `user/`: the one place of a run where the job may write, and how root reads what it wrote there.
//!
//! Its owner may plant links, FIFOs, devices of their own making, huge files, and, with `fusermount`, a whole
//! file system whose every answer they control. So nothing is opened by path, no link is followed, whatever
//! is mounted there beside our own tmpfs makes the directory unreadable, and each read has an end.

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

/// The tmpfs shows this as its device, so that ours is told from others.
const SOURCE: &str = "railgate";
/// Mounts on top of one another that are taken away in one go: more than `fusermount` lets a user make.
const MOST_STACKED: usize = 4096;

/// What [`mount_user`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// A tmpfs is there now.
    Now,
    /// Ours was there before.
    Already,
}

/// Why a file that a job wrote is not read.
#[derive(Debug, thiserror::Error)]
pub enum BadUserFile {
    /// The name leads out of the directory.
    #[error("not a plain file name")]
    Name,
    /// A link, a FIFO, a socket, a directory or a device.
    #[error("not a regular file")]
    Kind,
    /// Somebody else's.
    #[error("owned by uid {0}")]
    Owner(u32),
    /// Other names lead to it as well.
    #[error("has {0} links")]
    Links(u64),
    /// More than the caller takes.
    #[error("larger than {0} bytes")]
    Size(u64),
    /// The system's own answer.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A run's `user/`, held open.
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
    /// `NotFound` if the prolog made none; `InvalidData` if the run's directory is not root's (or the
    /// caller's own), `user/` is not the job's, or something besides our tmpfs is mounted on or under it.
    pub fn open(run: &RunDir, uid: u32) -> io::Result<Self> {
        // A job's user passes through the run's directory and cannot list it.
        let above = nofollow::place(run.path())?;
        let owner = nix::sys::stat::fstat(&above)?.st_uid;
        if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
            return Err(invalid(format!("{}: owned by uid {owner}", run.path().display())));
        }
        // Before anything is opened: a file system of the user's making could let the open hang.
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

    /// A directory of the job's in it, on the same file system.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` for a name that leads elsewhere, `InvalidData` for anything but such a directory.
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

    /// Opens a directory in it, likewise: the job's own, on the same file system, reached by no link.
    ///
    /// # Errors
    /// `NotFound` if there is none; whatever else the system gave.
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

    /// At most `most` names, in order, and whether there are more.
    ///
    /// # Errors
    /// Whatever reading the directory gave.
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

    /// Reads a regular file of the job's, of at most `most` bytes.
    ///
    /// # Errors
    /// Anything but such a file, by kind.
    pub fn read(&self, name: impl AsRef<OsStr>, most: u64) -> Result<Vec<u8>, BadUserFile> {
        let name = name.as_ref();
        if name.is_empty() || name == "." || name == ".." || name.as_bytes().contains(&b'/') {
            return Err(BadUserFile::Name);
        }
        let file = match nofollow::file_at(&self.dir, name) {
            Ok(file) => file,
            // A link, and a socket or a device without a driver behind it.
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
        // It may grow while it is read.
        let mut content = Vec::new();
        file.take(most.saturating_add(1)).read_to_end(&mut content)?;
        if content.len() as u64 > most {
            return Err(BadUserFile::Size(most));
        }
        Ok(content)
    }
}

/// Makes `user/` and mounts a tmpfs there: the job's, 0700, nodev, nosuid, noexec, at most `size` bytes and
/// `inodes` files.
///
/// # Errors
/// Whatever the system gave; `PermissionDenied` without the right to mount. Nothing is left behind then:
/// without a bound of its own the directory would let the job fill the node's `/run`.
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

/// Takes away whatever is mounted on `user/`, also while processes still have files open there, and says how
/// many mounts that were. An absent directory has none.
///
/// # Errors
/// The system call failed.
pub fn unmount_user(run: &RunDir) -> io::Result<usize> {
    let place = run.user();
    for taken in 0..MOST_STACKED {
        match umount2(&place, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            // Not a mount point (any more), or nothing at all.
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

/// What is mounted on the place or under it and is not ours. Ours may be on the place alone, at the bottom.
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

/// `36 35 98:0 /in-device /mounted-at options optional… - type source super-options`
fn mount_of(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let place = PathBuf::from(OsString::from_vec(unescaped(fields.nth(4)?)));
    fields.find(|field| *field == b"-")?;
    Some(Mount { place, kind: fields.next()?.to_vec(), source: unescaped(fields.next()?) })
}

/// The kernel writes space, tab, newline and backslash as a backslash and three octal digits.
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
    fn only_plain_files_of_the_job_are_read() {
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
    fn a_foreign_mount_is_seen_before_anything_is_opened() {
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

    /// A test that fails leaves no mount either.
    struct Unmount<'a>(&'a RunDir);

    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            let _ = unmount_user(self.0);
        }
    }

    #[test]
    fn the_tmpfs_bounds_what_a_job_can_write() {
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
        // A file that is still open does not hold the mount.
        let open = File::open(run.user().join("0")).unwrap();
        drop(user);
        assert_eq!(unmount_user(&run).unwrap(), 1);
        drop(open);
        assert_eq!(unmount_user(&run).unwrap(), 0);
        assert_eq!(fs::metadata(run.user()).unwrap().uid(), 0);
        fs::remove_dir(run.user()).unwrap();
        assert_eq!(unmount_user(&run).unwrap(), 0);
        // Also below a run that is not the current one.
        mount_user(&run, 1234, 1234, 1 << 16, 8).unwrap();
        Root::new(place.path()).job(7).remove().unwrap();
        assert!(!run.path().exists());
    }
}

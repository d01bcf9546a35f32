//! Hostile content in `user/` and below: root reads only regular files of the job, never blocks, and never reads
//! without a limit. The same code opens `ranks/`, `app/` and the plugin's notes.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside of test functions")]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use railgate_rundir::{BadUserFile, Root, RunDir, UserDir};

struct Place {
    dir: tempfile::TempDir,
    run: RunDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let run = serde_json::from_str(
            r#"{"schema":1,"job":7,"attempt":0,"start":1,"boot_id":"","kernel_seq":null,"profile":null,
                "gate":"quick","requeue":"auto"}"#,
        )
        .unwrap();
        let run = Root::new(dir.path()).job(7).create(&run).unwrap();
        fs::create_dir(run.user()).unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        if me() == 0 {
            // A hard link is detected only while it exists; a wrong owner can always be detected.
            std::os::unix::fs::chown(&secret, Some(4711), None).unwrap();
        }
        Place { dir, run }
    }

    fn user(&self) -> UserDir {
        UserDir::open(&self.run, me()).unwrap()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.run.user().join(name)
    }

    fn secret(&self) -> PathBuf {
        self.dir.path().join("secret")
    }
}

/// Also stops after a failed assertion: the other thread would otherwise run forever.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn me() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// Only root can create devices; the job's file system has none, and would refuse to open one.
fn device(path: &Path) -> bool {
    mknod(path, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5)).is_ok()
}

#[test]
fn only_real_directories_of_the_job_are_opened() {
    let place = Place::new();
    symlink("/etc", place.at("link")).unwrap();
    symlink(".", place.at("self")).unwrap();
    fs::write(place.at("file"), "").unwrap();
    nix::unistd::mkfifo(&place.at("fifo"), Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place.at("socket")).unwrap();
    fs::create_dir(place.at("app")).unwrap();
    let has_device = device(&place.at("device"));
    let user = place.user();
    for name in ["link", "self", "file", "fifo", "socket", "absent", "", ".", "..", "app/..", "../user"] {
        assert!(user.below(name).is_err(), "{name}");
    }
    assert!(!has_device || user.below("device").is_err());
    fs::write(place.at("app/0"), "mine").unwrap();
    let app = user.below("app").unwrap();
    assert_eq!(app.read("0", 100).unwrap(), b"mine");
    for name in ["..", "../file", "", "0/"] {
        assert!(matches!(app.read(name, 100), Err(BadUserFile::Name)), "{name}");
    }
    if me() == 0 {
        std::os::unix::fs::chown(place.at("app"), Some(4711), None).unwrap();
        assert!(user.below("app").is_err(), "another user's");
    }
}

#[test]
fn size_and_number_of_files_are_limited() {
    const MOST: u64 = 4096;
    let place = Place::new();
    fs::create_dir(place.at("ranks")).unwrap();
    File::create(place.at("ranks/sparse")).unwrap().set_len(1 << 42).unwrap();
    if device(&place.at("ranks/zero")) {
        let ranks = place.user().below("ranks").unwrap();
        assert!(matches!(ranks.read("zero", MOST), Err(BadUserFile::Kind)), "an endless device");
        fs::remove_file(place.at("ranks/zero")).unwrap();
    }
    let ranks = place.user().below("ranks").unwrap();
    assert!(matches!(ranks.read("sparse", MOST), Err(BadUserFile::Size(MOST))));
    for name in 0..3000 {
        File::create(place.at(&format!("ranks/{name}"))).unwrap();
    }
    let (names, more) = ranks.names(512).unwrap();
    assert_eq!((names.len(), more), (512, true));

    // A file that grows while it is read.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut file = File::create(place.at("ranks/grows")).unwrap();
                (0..64).for_each(|_| file.write_all(&[b'x'; 256]).unwrap());
            }
        });
        let _stops = Stops(&stop);
        for _ in 0..2000 {
            match ranks.read("grows", MOST) {
                Ok(content) => assert!(content.len() as u64 <= MOST, "{}", content.len()),
                Err(BadUserFile::Size(MOST)) => {}
                Err(BadUserFile::Io(why)) => assert_eq!(why.kind(), std::io::ErrorKind::NotFound),
                Err(why) => panic!("{why}"),
            }
        }
    });
}

#[test]
fn a_file_that_is_replaced_while_it_is_read_leads_nowhere() {
    let place = Place::new();
    fs::create_dir(place.at("app")).unwrap();
    let inode = fs::metadata(place.at("app")).unwrap().ino();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let fresh = place.at("app/.fresh");
                fs::write(&fresh, "mine").unwrap();
                fs::rename(&fresh, place.at("app/0")).unwrap();
                symlink(place.secret(), &fresh).unwrap();
                fs::rename(&fresh, place.at("app/0")).unwrap();
                nix::unistd::mkfifo(&fresh, Mode::S_IRWXU).unwrap();
                fs::rename(&fresh, place.at("app/0")).unwrap();
                if me() == 0 {
                    fs::hard_link(place.secret(), &fresh).unwrap();
                    fs::rename(&fresh, place.at("app/0")).unwrap();
                }
            }
        });
        let _stops = Stops(&stop);
        let app = place.user().below("app").unwrap();
        let (mut read, mut refused) = (0, 0);
        while read < 50 || refused < 50 {
            match app.read("0", 100) {
                // Empty: between creation and writing.
                Ok(content) => {
                    assert!(content == b"mine" || content.is_empty(), "a link or another name was followed");
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
    });
    // The directory itself, after it was opened.
    let app = place.user().below("app").unwrap();
    fs::rename(place.at("app"), place.at("away")).unwrap();
    symlink(place.dir.path(), place.at("app")).unwrap();
    assert!(app.read("secret", 100).is_err() && place.user().below("app").is_err());
    assert_eq!(fs::metadata(place.at("away")).unwrap().ino(), inode);
}

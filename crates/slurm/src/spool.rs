//! A spool of notes: short-lived processes append them, and one process works them off. Its size is bounded, and
//! refused notes are counted.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use nix::fcntl::Flock;
use railgate_fsutil::{Share, lock_data, nofollow, write_whole};
use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

/// Most bytes of notes that are not taken over yet: more than 150,000 notes.
const MOST: u64 = 32 << 20;
/// Longest note, bytes.
const MAX_NOTE: usize = 64 << 10;
/// Most refused notes that are counted; each takes a byte.
const MOST_REFUSED: u64 = 16 << 20;
/// Longest wait for the lock; taking the notes over takes milliseconds.
const WAIT: Duration = Duration::from_secs(5);

/// Spool directory: `new` has the appended notes, `taken` those being taken over, `kept` those that the working
/// process still has to do.
#[derive(Clone, Debug)]
pub struct Spool {
    dir: PathBuf,
    most: u64,
}

/// Notes that were lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// Their number since the files `lost` and `refused` were created.
    pub count: u64,
    /// When the last one was lost.
    pub last: UnixMillis,
    /// Why the last ones were lost.
    pub why: String,
}

impl Spool {
    /// The spool of job ends to be summarized. `controller` is `/var/lib/railgate/controller`.
    pub fn of_job_ends(controller: &Path) -> Self {
        Spool::new(&controller.join("sum-up"))
    }

    /// The spool in `dir`.
    pub fn new(dir: &Path) -> Self {
        Spool { dir: dir.to_owned(), most: MOST }
    }

    /// The same spool with room for `most` bytes, for tests.
    #[must_use]
    pub fn with_room(self, most: u64) -> Self {
        Spool { most, ..self }
    }

    /// The spool's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Appends a note, one line. Returns false, and counts the note as refused, if there is no room.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn leave(&self, note: &str) -> io::Result<bool> {
        // The leading line break ends a truncated line, which a full disk may have left.
        let text = format!("\n{note}\n");
        let path = self.file("new");
        let deadline = Instant::now() + WAIT;
        loop {
            // A shared lock, so that only taking over waits for writers; it renames the file first.
            let mut held = locked(&path, Share::Shared, deadline)?;
            let ours = held.metadata()?;
            let there = fs::symlink_metadata(&path);
            if there.is_ok_and(|there| (there.ino(), there.dev()) == (ours.ino(), ours.dev())) {
                let fits = text.len() <= MAX_NOTE && ours.len() + text.len() as u64 <= self.most;
                if fits {
                    // A single write, so that concurrent notes stay whole.
                    held.write_all(text.as_bytes())?;
                } else {
                    self.refuse()?;
                }
                return Ok(fits);
            }
        }
    }

    /// One byte per refused note, so that counting needs no lock.
    fn refuse(&self) -> io::Result<()> {
        let mut file = open(&self.file("refused"))?;
        if file.metadata()?.len() < MOST_REFUSED { file.write_all(b".") } else { Ok(()) }
    }

    /// Whether there are notes to work off.
    pub fn has_notes(&self) -> bool {
        ["new", "taken", "kept"].iter().any(|name| self.file(name).exists())
    }

    /// Takes over the notes appended since the last call. They stay on disk until [`Spool::keep`].
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn take(&self) -> io::Result<Vec<String>> {
        let taken = self.file("taken");
        if !taken.exists() {
            match fs::rename(self.file("new"), &taken) {
                Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                renamed => renamed?,
            }
        }
        // A process that opened the file before the rename has finished writing once this lock is acquired.
        let _held = locked(&taken, Share::Exclusive, Instant::now() + WAIT)?;
        lines(&taken)
    }

    /// Notes that the last working process kept.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn kept(&self) -> io::Result<Vec<String>> {
        lines(&self.file("kept"))
    }

    /// Replaces the kept notes by `notes`, those that are still to do, including notes just taken over.
    ///
    /// # Errors
    /// The file system returned an error; the notes are unchanged.
    pub fn keep(&self, notes: &[String]) -> io::Result<()> {
        let kept = self.file("kept");
        if notes.is_empty() {
            gone(&kept)?;
        } else {
            write_whole(&kept, notes.join("\n").as_bytes(), 0o600)?;
        }
        gone(&self.file("taken"))
    }

    /// Adds `count` lost notes.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn lose(&self, count: u64, now: UnixMillis, why: &str) -> io::Result<()> {
        let before = self.given_up()?.unwrap_or_default();
        let lost = Lost { count: before.count + count, last: now, why: railgate_text::clip(why, 300) };
        write_whole(&self.file("lost"), &serde_json::to_vec(&lost)?, 0o600)
    }

    fn given_up(&self) -> io::Result<Option<Lost>> {
        match nofollow::read(&self.file("lost")) {
            Ok(file) => Ok(serde_json::from_reader(file.take(MAX_NOTE as u64)).ok()),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Number of notes refused for lack of room, and when the last one was.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn refused(&self) -> io::Result<(u64, UnixMillis)> {
        match fs::symlink_metadata(self.file("refused")) {
            Ok(found) => {
                let since = found.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
                Ok((found.len(), UnixMillis::try_from(since.as_millis()).unwrap_or(UnixMillis::MAX)))
            }
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok((0, 0)),
            Err(why) => Err(why),
        }
    }

    /// All notes that were lost or refused; `None` if there are none.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn lost(&self) -> io::Result<Option<Lost>> {
        let given_up = self.given_up()?;
        let (refused, last) = self.refused()?;
        if refused == 0 {
            return Ok(given_up);
        }
        let mut lost = given_up.unwrap_or_default();
        lost.count += refused;
        if last >= lost.last {
            (lost.last, lost.why) = (last, "more job ends were waiting than there is room for".to_owned());
        }
        Ok(Some(lost))
    }
}

/// Locks the notes file itself. Not a [`railgate_fsutil::FileLock`], whose file has no content and may be replaced.
fn locked(path: &Path, share: Share, until: Instant) -> io::Result<Flock<File>> {
    let wait = until.saturating_duration_since(Instant::now());
    let held = lock_data(open(path)?, share, wait)?;
    held.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "the notes stay locked"))
}

/// Opens a file for appending; refuses a link.
fn open(path: &Path) -> io::Result<File> {
    let open = || nofollow::append(path, 0o600);
    match (open(), path.parent()) {
        (Err(why), Some(dir)) if why.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().mode(0o755).recursive(true).create(dir)?;
            open()
        }
        (opened, _) => opened,
    }
}

/// The lines of a file that are valid text; a missing file has none.
fn lines(path: &Path) -> io::Result<Vec<String>> {
    let mut bytes = Vec::new();
    match nofollow::read(path) {
        Ok(file) => file.take(8 * MOST).read_to_end(&mut bytes)?,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(why) => return Err(why),
    };
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Ok(lines.map(|line| String::from_utf8_lossy(line).into_owned()).collect())
}

fn gone(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spool() -> (tempfile::TempDir, Spool) {
        let place = tempfile::tempdir().unwrap();
        let spool = Spool::new(&place.path().join("controller/sum-up"));
        (place, spool)
    }

    #[test]
    fn notes_are_kept_until_they_are_worked_off() {
        let (_place, spool) = spool();
        assert!(!spool.has_notes() && spool.take().unwrap().is_empty());
        assert!(spool.leave("one").unwrap() && spool.leave("two").unwrap());
        assert_eq!(spool.take().unwrap(), ["one", "two"]);
        // The process was killed before it kept them.
        assert!(spool.leave("three").unwrap() && spool.has_notes());
        assert_eq!(spool.take().unwrap(), ["one", "two"]);
        spool.keep(&["two".to_owned()]).unwrap();
        assert_eq!(spool.kept().unwrap(), ["two"]);
        assert_eq!(spool.take().unwrap(), ["three"]);
        spool.keep(&[]).unwrap();
        assert!(!spool.has_notes() && spool.lost().unwrap().is_none());
    }

    #[test]
    fn notes_without_room_are_counted() {
        let (_place, spool) = spool();
        let spool = spool.with_room(64);
        let left = (0..20).filter(|n| spool.leave(&format!("note {n:02}")).unwrap()).count();
        assert!((1..20).contains(&left));
        assert_eq!(spool.take().unwrap().len(), left);
        let lost = spool.lost().unwrap().unwrap();
        assert_eq!(lost.count, 20 - left as u64);
        assert!(lost.why.contains("than there is room for"), "{lost:?}");
        spool.lose(5, lost.last + 1000, "given up").unwrap();
        let lost = spool.lost().unwrap().unwrap();
        assert_eq!((lost.count, lost.why.as_str()), (25 - left as u64, "given up"));
        assert!(!spool.leave(&"x".repeat(MAX_NOTE)).unwrap());
    }

    #[test]
    fn a_truncated_line_loses_only_itself() {
        let (_place, spool) = spool();
        spool.leave("one").unwrap();
        open(&spool.file("new")).unwrap().write_all(b"\n{\"job\":7,\"me").unwrap();
        spool.leave("two").unwrap();
        assert_eq!(spool.take().unwrap(), ["one", "{\"job\":7,\"me", "two"]);
    }

    #[test]
    fn concurrent_writers_and_one_reader_lose_no_note() {
        let (_place, spool) = spool();
        let mut found = Vec::new();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    let spool = &spool;
                    scope.spawn(move || {
                        for n in 0..500 {
                            assert!(spool.leave(&format!("{writer} {n}")).unwrap());
                        }
                    })
                })
                .collect();
            while !writers.iter().all(|writer| writer.is_finished()) {
                found.extend(spool.take().unwrap());
                spool.keep(&[]).unwrap();
            }
        });
        found.extend(spool.take().unwrap());
        found.sort();
        found.dedup();
        assert_eq!(found.len(), 2000);
    }
}

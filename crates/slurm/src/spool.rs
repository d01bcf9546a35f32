//! Notes that short-lived processes leave and one process works off: a file of lines. It is bounded, and notes that were
//! not kept are counted.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg};
use railgate_fsutil::{lock_data, nofollow, write_whole};
use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

/// Notes that were not taken over yet, bytes: more than 150,000.
const MOST: u64 = 32 << 20;
/// Longest note, bytes.
const MAX_NOTE: usize = 64 << 10;
/// Refused notes beyond that are not counted; each is a byte.
const MOST_REFUSED: u64 = 16 << 20;
/// Taking the notes over takes milliseconds.
const WAIT: Duration = Duration::from_secs(5);

/// Notes in a directory of their own: `new` is what was left, `taken` what is being taken over, `kept` what the process
/// that works them off has.
#[derive(Clone, Debug)]
pub struct Spool {
    dir: PathBuf,
    most: u64,
}

/// Notes that were not worked off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// How many, since the files `lost` and `refused` were begun.
    pub count: u64,
    /// The last one.
    pub last: UnixMillis,
    /// Why, of the last ones.
    pub why: String,
}

impl Spool {
    /// The job ends that wait to be summed up. `controller` is `/var/lib/railgate/controller`.
    pub fn of_job_ends(controller: &Path) -> Self {
        Spool::new(&controller.join("sum-up"))
    }

    /// The spool in `dir`.
    pub fn new(dir: &Path) -> Self {
        Spool { dir: dir.to_owned(), most: MOST }
    }

    /// The same with room for so many bytes, for tests.
    #[must_use]
    pub fn with_room(self, most: u64) -> Self {
        Spool { most, ..self }
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Leaves a note, one line. False where there is no room: then it is counted.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn leave(&self, note: &str) -> io::Result<bool> {
        // An unfinished line before it, of a disk that was full, does not spoil it.
        let text = format!("\n{note}\n");
        let path = self.file("new");
        let deadline = Instant::now() + WAIT;
        loop {
            // Shared, so that only taking over waits for us; it renames the file first.
            let mut held = locked(&path, FlockArg::LockSharedNonblock, deadline)?;
            let ours = held.metadata()?;
            let there = fs::symlink_metadata(&path);
            if there.is_ok_and(|there| (there.ino(), there.dev()) == (ours.ino(), ours.dev())) {
                let fits = text.len() <= MAX_NOTE && ours.len() + text.len() as u64 <= self.most;
                if fits {
                    // One write, so that notes left at the same time stay whole.
                    held.write_all(text.as_bytes())?;
                } else {
                    self.refuse()?;
                }
                return Ok(fits);
            }
        }
    }

    /// A byte for each, so that counting needs no lock.
    fn refuse(&self) -> io::Result<()> {
        let mut file = open(&self.file("refused"))?;
        if file.metadata()?.len() < MOST_REFUSED { file.write_all(b".") } else { Ok(()) }
    }

    /// Whether there is something to work off.
    pub fn has_notes(&self) -> bool {
        ["new", "taken", "kept"].iter().any(|name| self.file(name).exists())
    }

    /// Takes over what was left since the last time. It stays on the disk until [`Spool::keep`].
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
        // A process that opened it before it was renamed has written once this lock is had.
        let _held = locked(&taken, FlockArg::LockExclusiveNonblock, Instant::now() + WAIT)?;
        lines(&taken)
    }

    /// What was kept by the last process.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn kept(&self) -> io::Result<Vec<String>> {
        lines(&self.file("kept"))
    }

    /// Replaces what is kept by what there is to do still, with what was taken over in it.
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

    /// Counts notes that were given up.
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

    /// How many notes there was no room for, and when the last one came.
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

    /// All notes that were not worked off; `None` where there are none.
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

/// A lock on the notes themselves. Not a [`railgate_fsutil::FileLock`], whose file has no content and may be replaced.
fn locked(path: &Path, how: FlockArg, until: Instant) -> io::Result<Flock<File>> {
    let wait = until.saturating_duration_since(Instant::now());
    let held = lock_data(open(path)?, how, wait)?;
    held.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "the notes stay locked"))
}

/// For appending; a link in its place is refused.
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

/// The lines of a file, as far as they are text; a file that is not there has none.
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
        // The process was killed before it had kept them.
        assert!(spool.leave("three").unwrap() && spool.has_notes());
        assert_eq!(spool.take().unwrap(), ["one", "two"]);
        spool.keep(&["two".to_owned()]).unwrap();
        assert_eq!(spool.kept().unwrap(), ["two"]);
        assert_eq!(spool.take().unwrap(), ["three"]);
        spool.keep(&[]).unwrap();
        assert!(!spool.has_notes() && spool.lost().unwrap().is_none());
    }

    #[test]
    fn what_has_no_room_is_counted() {
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
    fn an_unfinished_line_costs_itself_only() {
        let (_place, spool) = spool();
        spool.leave("one").unwrap();
        open(&spool.file("new")).unwrap().write_all(b"\n{\"job\":7,\"me").unwrap();
        spool.leave("two").unwrap();
        assert_eq!(spool.take().unwrap(), ["one", "{\"job\":7,\"me", "two"]);
    }

    #[test]
    fn none_gets_lost_between_many_who_leave_and_one_who_takes() {
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

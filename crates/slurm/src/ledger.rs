//! History of jobs and nodes on the controller: append-only JSON lines. Restart budgets are counted from it, and it
//! shows which node or part repeatedly kills jobs, even after a GPU has moved to another slot.
//!
//! Users influence lines: the reports of their jobs name the blamed parts, and each job end adds a line. So every
//! line is cut to a bounded length, an unreadable line of a job makes the count of that job unknown, and rotation
//! keeps all entries that still count, up to a limit per user.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use railgate_fsutil::{FileLock, nofollow, write_whole};
use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

use crate::RequeueConfig;

/// Size at which the file is rotated, bytes.
const ROTATE_AT: u64 = 16 << 20;

/// Number of rotated files kept.
pub(crate) const KEEP: u32 = 8;

/// Most bytes of a line that are read. [`Entry::bounded`] keeps lines far shorter.
pub(crate) const MAX_LINE: usize = 64 << 10;

/// Most nodes and parts in a line.
const MAX_BLAMED: usize = 32;

/// Most characters of the explanation.
const MAX_WHY: usize = 600;

/// Most characters of every other text.
const MAX_WORD: usize = 100;

/// Marks the end of a text that was cut.
const CUT: &str = "...";

/// Most entries of one user that rotation keeps beyond the eight files.
const KEEP_OF_USER: usize = 2000;

/// The job number of [`Event::Dropped`], which is about all jobs of a user.
const ANY_JOB: u32 = 0;

const LOCK_WAIT: Duration = Duration::from_secs(5);

/// The kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// The job failed because of a node, and railgate requeued it.
    Death,
    /// A node of the job failed, and Slurm itself requeued the job.
    NodeFail,
    /// The gate refused the job on a node before it started.
    Move,
    /// The job was requeued by its owner, an admin or a preemption.
    Requeued,
    /// The job failed because of a node and its budget is spent: it is held.
    Held,
    /// The job failed because of a node and was not requeued, for example without consent.
    Left,
    /// `railgate launch` started the program again inside the allocation. Self-reported by the job's owner: it counts against no
    /// budget and blames no node.
    Restarted,
    /// Entries of the user's jobs before this time were dropped: there were too many.
    Dropped,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Version of the line format.
    pub schema: u32,
    /// When.
    pub time: UnixMillis,
    /// What happened.
    pub event: Event,
    /// Job id: a member of an array has its own, a heterogeneous job the leader's.
    pub job: u32,
    /// Its name in Slurm's commands: `12_3`.
    pub name: String,
    /// `SLURM_JOB_RESTART_COUNT` of the attempt.
    pub attempt: u32,
    /// How long the attempt ran, seconds; `None` if unknown.
    #[serde(default)]
    pub ran_s: Option<u64>,
    /// Nodes and parts that are blamed for it.
    #[serde(default)]
    pub blamed: Vec<Blamed>,
    /// One sentence of explanation.
    #[serde(default)]
    pub why: String,
    /// The job's owner; `None` in lines written by version 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

impl Entry {
    /// The entry with every text and list cut to its limit. A text that was cut ends in `...`.
    fn bounded(&self) -> Entry {
        let mut blamed: Vec<Blamed> = self.blamed.iter().take(MAX_BLAMED).map(Blamed::bounded).collect();
        let left_out = self.blamed.len() - blamed.len();
        if let (1.., Some(last)) = (left_out, blamed.last_mut()) {
            last.part = format!("and {left_out} more{CUT}");
        }
        Entry { name: cut(&self.name, MAX_WORD), blamed, why: cut(&self.why, MAX_WHY), ..self.clone() }
    }

    /// The entry that replaces a user's dropped entries, of which this is the last.
    fn dropped(&self, uid: Option<u32>, now: UnixMillis) -> Entry {
        Entry {
            schema: 1,
            time: now,
            event: Event::Dropped,
            job: ANY_JOB,
            name: String::new(),
            attempt: 0,
            ran_s: None,
            blamed: Vec::new(),
            why: format!("entries up to job {} were dropped", self.job),
            uid,
        }
    }

    fn counts(&self, since: UnixMillis) -> bool {
        self.time >= since && !matches!(self.event, Event::Left | Event::Restarted)
    }
}

/// Removes control characters and cuts to `most` characters.
fn cut(text: &str, most: usize) -> String {
    let clean = railgate_text::clip(text, most + 1);
    if clean.chars().count() <= most {
        return clean;
    }
    clean.chars().take(most - CUT.len()).chain(CUT.chars()).collect()
}

/// A node and the part of it that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blamed {
    /// Slurm's name of the node.
    pub node: String,
    /// `gpu-lost@3`.
    #[serde(default)]
    pub subject: String,
    /// Serial number, UUID, GUID or PCI address, which stay the same if the part moves.
    #[serde(default)]
    pub part: String,
}

impl Blamed {
    fn bounded(&self) -> Blamed {
        Blamed {
            node: cut(&self.node, MAX_WORD),
            subject: cut(&self.subject, MAX_WORD),
            part: cut(&self.part, MAX_WORD),
        }
    }
}

/// Why the entries of a job are unknown.
#[derive(Debug, thiserror::Error)]
pub enum Uncounted {
    /// The files cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line of this job cannot be read.
    #[error("line {line} of {file} is about it and cannot be read")]
    Line {
        /// The file's name.
        file: String,
        /// Line number, from 1.
        line: usize,
    },
    /// Entries of its owner were dropped within the window.
    #[error("its owner has had more than {KEEP_OF_USER} entries, and older ones were dropped")]
    Dropped,
}

/// The used part of a job's budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Failures of a running job since the last productive run and within the window.
    pub deaths: u32,
    /// Moves by the gate.
    pub moves: u32,
}

/// The ledger of one cluster.
#[derive(Clone, Debug)]
pub struct Ledger {
    pub(crate) path: PathBuf,
    rotate_at: u64,
    keep_of_user: usize,
    window: Duration,
}

impl Ledger {
    /// `state` is `/var/lib/railgate`.
    pub fn new(state: &Path) -> Self {
        Ledger {
            path: state.join("ledger.jsonl"),
            rotate_at: ROTATE_AT,
            keep_of_user: KEEP_OF_USER,
            window: RequeueConfig::default().window,
        }
    }

    /// The same ledger with the window in which entries count; rotation keeps those.
    #[must_use]
    pub fn counting(self, window: Duration) -> Self {
        Ledger { window, ..self }
    }

    /// Appends an entry, cut to its limits.
    ///
    /// # Errors
    /// The file system's error, or the file stayed locked. Nothing was appended then.
    pub fn append(&self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(&entry.bounded())?;
        line.push(b'\n');
        let _held = FileLock::take(&self.path.with_extension("lock"), LOCK_WAIT)?;
        let mut file = open(&self.path)?;
        if file.metadata()?.len() >= self.rotate_at {
            self.rotate(entry.time)?;
            file = open(&self.path)?;
        }
        let length = file.metadata()?.len();
        // A line that was truncated by a crash must not swallow this one.
        if length > 0 && !ends_line(&file, length)? {
            line.insert(0, b'\n');
        }
        // A single write, so that a reader without the lock sees whole lines.
        let written = file.write_all(&line);
        if written.is_err() {
            file.set_len(length)?;
        }
        written
    }

    /// All readable lines, oldest first.
    ///
    /// # Errors
    /// Errors of the file system; a missing file has no lines.
    pub fn read(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.lines(|_, _, text| entries.extend(parse(text).filter(|entry| entry.event != Event::Dropped)))?;
        Ok(entries)
    }

    /// Whether the ledger exists. Machines other than the controller may have the directory without it.
    pub fn is_there(&self) -> bool {
        self.path.exists()
    }

    /// The lines about one job, oldest first, without those that its owner reported. `uid`: its owner.
    ///
    /// # Errors
    /// As [`Ledger::read`], or a line of this job cannot be read or was dropped, so that the number of restarts is
    /// unknown. Lines before an [`Event::Held`] no longer count, so those may be unreadable.
    pub fn of_job(&self, job: u32, uid: u32, now: UnixMillis) -> Result<Vec<Entry>, Uncounted> {
        let marks = [format!("\"job\":{job},"), format!("\"job\":{ANY_JOB},")];
        let since = self.since(now);
        let (mut entries, mut unknown) = (Vec::new(), None);
        self.lines(|file, line, text| {
            if !marks.iter().any(|mark| contains(text, mark.as_bytes())) {
                return;
            }
            match parse(text) {
                Some(entry)
                    if entry.event == Event::Dropped && entry.uid == Some(uid) && entry.time >= since =>
                {
                    unknown = Some(Uncounted::Dropped);
                }
                Some(entry) if entry.event == Event::Restarted => {}
                Some(entry) if entry.job == job => {
                    if entry.event == Event::Held {
                        unknown = None;
                    }
                    entries.push(entry);
                }
                Some(_) => {}
                None if contains(text, marks[0].as_bytes()) => {
                    let file = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    unknown = Some(Uncounted::Line { file, line });
                }
                None => {}
            }
        })?;
        match unknown {
            Some(why) => Err(why),
            None => Ok(entries),
        }
    }

    /// Whether the restarts inside the allocation of this attempt are in the ledger.
    ///
    /// # Errors
    /// As [`Ledger::read`].
    pub fn has_restarts_of(&self, job: u32, attempt: u32) -> io::Result<bool> {
        let mark = format!("\"job\":{job},");
        let mut found = false;
        self.lines(|_, _, text| {
            let entry = contains(text, mark.as_bytes()).then(|| parse(text)).flatten();
            found |= entry.is_some_and(|entry| {
                entry.event == Event::Restarted && (entry.job, entry.attempt) == (job, attempt)
            });
        })?;
        Ok(found)
    }

    fn since(&self, now: UnixMillis) -> UnixMillis {
        now.saturating_sub(u64::try_from(self.window.as_millis()).unwrap_or(u64::MAX))
    }

    /// Calls `each` for every line, oldest first: the file, the line number, and at most the first [`MAX_LINE`]
    /// bytes.
    fn lines(&self, mut each: impl FnMut(&Path, usize, &[u8])) -> io::Result<()> {
        for path in (1..=KEEP).rev().map(|n| self.old(n)).chain([self.path.clone()]) {
            let file = match nofollow::read(&path) {
                Ok(file) => file,
                Err(why) if why.kind() == io::ErrorKind::NotFound => continue,
                Err(why) => return Err(why),
            };
            let mut reader = BufReader::new(file);
            let mut line = Vec::new();
            for number in 1.. {
                line.clear();
                if (&mut reader).take(MAX_LINE as u64).read_until(b'\n', &mut line)? == 0 {
                    break;
                }
                let whole = line.last() == Some(&b'\n');
                if !whole && line.len() == MAX_LINE {
                    reader.skip_until(b'\n')?;
                }
                each(&path, number, line.strip_suffix(b"\n").unwrap_or(&line));
            }
        }
        Ok(())
    }

    pub(crate) fn old(&self, n: u32) -> PathBuf {
        self.path.with_extension(format!("{n}.jsonl"))
    }

    /// Renames every file to the next number. Entries of the oldest one that still count are kept.
    fn rotate(&self, now: UnixMillis) -> io::Result<()> {
        let oldest = self.old(KEEP);
        let kept = self.still_counting(&oldest, now)?;
        for n in (1..KEEP).rev() {
            match fs::rename(self.old(n), self.old(n + 1)) {
                Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
                _ => {}
            }
        }
        if !kept.is_empty() {
            let mut content = kept;
            match fs::read(&oldest) {
                Ok(next) => content.extend(next),
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                Err(why) => return Err(why),
            }
            write_whole(&oldest, &content, 0o644)?;
        }
        fs::rename(&self.path, self.old(1))
    }

    /// Lines of a file that count within the window. Of a user with more than [`KEEP_OF_USER`] of them the oldest are
    /// dropped, which an entry records: the user's jobs are not restarted until the window has passed, so that no job
    /// restarts endlessly.
    fn still_counting(&self, path: &Path, now: UnixMillis) -> io::Result<Vec<u8>> {
        let mut of_user: BTreeMap<Option<u32>, Vec<Entry>> = BTreeMap::new();
        let since = self.since(now);
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(why) => return Err(why),
        };
        let mut unreadable = Vec::new();
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match parse(line) {
                Some(entry) if entry.counts(since) => of_user.entry(entry.uid).or_default().push(entry),
                Some(_) => {}
                // It names a job, and stops restarts of that job.
                None if line.len() <= MAX_LINE => unreadable.push(line),
                None => unreadable.push(&line[..MAX_WHY]),
            }
        }
        let mut kept = Vec::new();
        for line in unreadable.iter().rev().take(self.keep_of_user) {
            kept.extend_from_slice(line);
            kept.push(b'\n');
        }
        for (uid, entries) in of_user {
            let (mut dropped, mut entries): (Vec<Entry>, Vec<Entry>) =
                entries.into_iter().partition(|entry| entry.event == Event::Dropped);
            let over = entries.len().saturating_sub(self.keep_of_user);
            if let Some(last) = entries.drain(..over).next_back() {
                dropped = vec![last.dropped(uid, now)];
            }
            for entry in dropped.iter().chain(&entries) {
                serde_json::to_writer(&mut kept, entry)?;
                kept.push(b'\n');
            }
        }
        Ok(kept)
    }
}

pub(crate) fn parse(line: &[u8]) -> Option<Entry> {
    serde_json::from_slice(line).ok()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn ends_line(file: &File, length: u64) -> io::Result<bool> {
    let mut last = [0];
    file.read_exact_at(&mut last, length - 1)?;
    Ok(last == *b"\n")
}

fn open(path: &Path) -> io::Result<File> {
    nofollow::read_append(path, 0o644)
}

/// Counts a job's lines. `restarts`: how often Slurm had started the job again before the attempt that just ended;
/// `ran`: how long that attempt ran.
///
/// A node failure during the first attempt leaves no line: in the controller's environment it is a job with exit code
/// 0 that was never restarted, and the hook does not query such jobs. Every later restart leaves a line, so a first
/// restart without one was a failure.
pub fn used(
    entries: &[Entry],
    config: &RequeueConfig,
    now: UnixMillis,
    restarts: u32,
    ran: Option<Duration>,
) -> Used {
    let window = u64::try_from(config.window.as_millis()).unwrap_or(u64::MAX);
    let productive = |ran_s: Option<u64>| ran_s.is_some_and(|ran| ran >= config.refill.as_secs());
    let mut used = Used::default();
    if restarts > 0 && !entries.iter().any(|entry| entry.attempt == 0) {
        used.deaths = 1;
    }
    for entry in entries {
        if productive(entry.ran_s) {
            used.deaths = 0;
        }
        match entry.event {
            Event::Death | Event::NodeFail if now.saturating_sub(entry.time) <= window => used.deaths += 1,
            Event::Move => used.moves += 1,
            // The person who released a held job has seen the reason; the job has a new budget.
            Event::Held => used.deaths = 0,
            Event::Death
            | Event::NodeFail
            | Event::Requeued
            | Event::Left
            | Event::Restarted
            | Event::Dropped => {}
        }
    }
    if productive(ran.map(|ran| ran.as_secs())) {
        used.deaths = 0;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    fn entry(event: Event, attempt: u32, hours: u64, ran_s: u64) -> Entry {
        Entry {
            schema: 1,
            time: hours * HOUR,
            event,
            job: 7,
            name: "7".to_owned(),
            attempt,
            ran_s: Some(ran_s),
            blamed: vec![Blamed { node: "n1".to_owned(), ..Blamed::default() }],
            why: String::new(),
            uid: Some(1000),
        }
    }

    fn count(entries: &[Entry], now_hours: u64, restarts: u32, ran: u64) -> (u32, u32) {
        let used = used(
            entries,
            &RequeueConfig::default(),
            now_hours * HOUR,
            restarts,
            Some(Duration::from_secs(ran)),
        );
        (used.deaths, used.moves)
    }

    #[test]
    fn failures_count_within_the_window_and_until_a_productive_run() {
        use Event::{Death, Held, Move, NodeFail};
        let two = [entry(Death, 0, 1, 60), entry(NodeFail, 1, 2, 60)];
        assert_eq!(count(&two, 3, 2, 60), (2, 0));
        assert_eq!(count(&two, 3, 2, 3600), (0, 0));
        assert_eq!(count(&two, 26, 2, 60), (1, 0));
        assert_eq!(count(&two, 40, 2, 60), (0, 0));
        assert_eq!(count(&[entry(Death, 0, 1, 60), entry(Death, 1, 2, 3600)], 3, 2, 60), (1, 0));
        assert_eq!(count(&[entry(Move, 0, 1, 0), entry(Move, 1, 1, 0)], 3, 2, 60), (0, 2));
        assert_eq!(count(&[entry(Death, 0, 1, 60), entry(Held, 1, 1, 60)], 3, 2, 60), (0, 0));
    }

    #[test]
    fn a_first_restart_without_an_entry_counts_as_a_failure() {
        assert_eq!(count(&[], 3, 0, 60), (0, 0));
        assert_eq!(count(&[], 3, 1, 60), (1, 0));
        assert_eq!(count(&[entry(Event::NodeFail, 1, 2, 60)], 3, 2, 60), (2, 0));
        assert_eq!(count(&[entry(Event::Move, 0, 2, 0)], 3, 1, 60), (0, 1));
        assert_eq!(count(&[entry(Event::Requeued, 0, 2, 0)], 3, 1, 60), (0, 0));
    }

    #[test]
    fn restarts_inside_an_allocation_hide_no_failure() {
        let place = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(place.path());
        let restarted = entry(Event::Restarted, 0, 1, 0);
        ledger.append(&restarted).unwrap();
        let of_job = ledger.of_job(restarted.job, 1000, 2 * HOUR).unwrap();
        assert_eq!(of_job, []);
        assert_eq!(count(&of_job, 3, 1, 60), (1, 0), "the first restart by Slurm");
        assert!(ledger.has_restarts_of(restarted.job, 0).unwrap());
        assert!(!ledger.has_restarts_of(restarted.job, 1).unwrap());
    }

    #[test]
    fn entries_are_read_back_and_broken_lines_skipped() {
        let place = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(place.path());
        assert!(ledger.read().unwrap().is_empty());
        let first = entry(Event::Death, 0, 1, 60);
        ledger.append(&first).unwrap();
        fs::write(place.path().join("ledger.1.jsonl"), "torn {\n\u{0}\n").unwrap();
        let mut other = entry(Event::Move, 0, 2, 0);
        other.job = 77;
        ledger.append(&other).unwrap();
        assert_eq!(ledger.read().unwrap(), [first.clone(), other]);
        assert_eq!(ledger.of_job(7, 1000, HOUR).unwrap(), [first]);
    }

    #[test]
    fn a_long_entry_is_cut_when_written() {
        let place = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(place.path());
        let forged =
            Blamed { node: "n1".to_owned(), subject: "\u{1}\"".repeat(9000), part: "\u{1f600}".repeat(9000) };
        let long = Entry {
            blamed: vec![forged; 300],
            why: "\u{1}\\".repeat(100_000),
            ..entry(Event::Death, 0, 1, 60)
        };
        ledger.append(&long).unwrap();
        let text = fs::read(place.path().join("ledger.jsonl")).unwrap();
        assert!(text.len() < MAX_LINE / 2, "{}", text.len());
        let read = ledger.of_job(7, 1000, HOUR).unwrap();
        assert_eq!((read.len(), read[0].blamed.len()), (1, MAX_BLAMED));
        assert!(read[0].why.ends_with(CUT) && read[0].blamed[0].subject.ends_with(CUT));
        assert_eq!(read[0].blamed[MAX_BLAMED - 1].part, "and 268 more...");
    }

    #[test]
    fn an_unreadable_line_makes_only_the_count_of_its_job_unknown() {
        let place = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(place.path());
        let long = format!("{{\"schema\":1,\"job\":7,\"why\":\"{}\"}}\n", "x".repeat(MAX_LINE));
        let torn = "{\"schema\":1,\"time\":1,\"event\":\"death\",\"job\":8,\"na";
        fs::write(place.path().join("ledger.jsonl"), format!("{long}{torn}")).unwrap();
        // After the truncated line, not as part of it.
        ledger.append(&Entry { job: 9, ..entry(Event::Death, 0, 1, 60) }).unwrap();
        let of_job = |job| ledger.of_job(job, 1000, HOUR);
        assert!(matches!(of_job(7), Err(Uncounted::Line { line: 1, .. })), "{:?}", of_job(7));
        assert!(matches!(of_job(8), Err(Uncounted::Line { line: 2, .. })), "{:?}", of_job(8));
        assert_eq!(of_job(9).unwrap().len(), 1);
        assert_eq!(of_job(77).unwrap(), []);
        // Held and then released by a person: a new budget.
        ledger.append(&entry(Event::Held, 1, 1, 60)).unwrap();
        assert_eq!(of_job(7).unwrap().len(), 1);
    }

    #[test]
    fn rotation_keeps_counting_entries_of_other_users() {
        let place = tempfile::tempdir().unwrap();
        let ledger = Ledger { rotate_at: 10_000, keep_of_user: 20, ..Ledger::new(place.path()) };
        let victims = entry(Event::Death, 0, 50, 60);
        ledger.append(&victims).unwrap();
        for n in 0..300 {
            let other = Entry {
                uid: Some(2000),
                job: 1000 + n,
                why: "x".repeat(MAX_WHY),
                ..entry(Event::Death, 0, 50, 60)
            };
            ledger.append(&other).unwrap();
        }
        let now = 51 * HOUR;
        assert_eq!(ledger.of_job(7, 1000, now).unwrap(), [victims]);
        assert!(matches!(ledger.of_job(1000, 2000, now), Err(Uncounted::Dropped)));
        assert!(ledger.of_job(1000, 2000, now + 25 * HOUR).is_ok(), "once the window has passed");
        let size: u64 =
            fs::read_dir(place.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert!(size < 10 * (10_000 + 1000) + 20 * 1000, "{size}");
    }

    #[test]
    fn a_rotated_file_is_still_read() {
        let place = tempfile::tempdir().unwrap();
        let ledger = Ledger { rotate_at: 100, window: Duration::ZERO, ..Ledger::new(place.path()) };
        for n in 0..20 {
            ledger.append(&entry(Event::Death, n, u64::from(n) + 1, 60)).unwrap();
        }
        let attempts: Vec<u32> = ledger.read().unwrap().iter().map(|entry| entry.attempt).collect();
        assert_eq!(attempts, (11..20).collect::<Vec<_>>(), "eight old files and the current one");
    }

    #[test]
    fn concurrent_writers_lose_no_entry() {
        let place = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(place.path());
        std::thread::scope(|scope| {
            for n in 0..8 {
                let ledger = &ledger;
                scope.spawn(move || {
                    for _ in 0..20 {
                        ledger.append(&entry(Event::Death, n, 1, 60)).unwrap();
                    }
                });
            }
        });
        assert_eq!(ledger.read().unwrap().len(), 160);
    }
}

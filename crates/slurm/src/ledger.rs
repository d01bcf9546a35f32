//! What happened to jobs and nodes, on the controller: append-only JSON lines. Budgets are counted from it, and
//! it says which node or part keeps killing jobs, also after a card has moved to another slot.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc::O_NOFOLLOW;
use railgate_node::{FileLock, UnixMillis};
use serde::{Deserialize, Serialize};

use crate::RequeueConfig;

/// The file is renamed away when it has grown to this, bytes.
const ROTATE_AT: u64 = 16 << 20;

/// So many old files are kept.
const KEEP: u32 = 8;

/// A line that is longer is not ours.
const MAX_LINE: usize = 64 << 10;

const LOCK_WAIT: Duration = Duration::from_secs(5);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// The job died of a node and railgate put it back into the queue.
    Death,
    /// A node of the job died and Slurm itself put it back.
    NodeFail,
    /// The gate refused the job on a node before it had started.
    Move,
    /// Somebody else put it back: its owner, an admin, a preemption.
    Requeued,
    /// The job died of a node and its budget is spent: held.
    Held,
    /// The job died of a node and stays ended, for want of consent for example.
    Left,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Layout of the line.
    pub schema: u32,
    /// When.
    pub time: UnixMillis,
    /// What.
    pub event: Event,
    /// Job id, of an array's member its own; the leader's of a heterogeneous job.
    pub job: u32,
    /// As Slurm's commands name it: `12_3`.
    pub name: String,
    /// `SLURM_JOB_RESTART_COUNT` of the attempt.
    pub attempt: u32,
    /// How long the attempt ran, seconds, where that is known.
    #[serde(default)]
    pub ran_s: Option<u64>,
    /// Nodes and parts that it is blamed on.
    #[serde(default)]
    pub blamed: Vec<Blamed>,
    /// One sentence.
    #[serde(default)]
    pub why: String,
}

/// A node and the part of it that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blamed {
    /// Slurm's name of the node.
    pub node: String,
    /// `gpu-lost@3`.
    #[serde(default)]
    pub subject: String,
    /// What the part is called wherever it is: serial number, UUID, GUID, PCI address.
    #[serde(default)]
    pub part: String,
}

/// What of a job's budget is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Deaths during a run, since the last productive one and within the window.
    pub deaths: u32,
    /// Moves by the gate.
    pub moves: u32,
}

/// The ledger of one cluster.
#[derive(Clone, Debug)]
pub struct Ledger {
    path: PathBuf,
    rotate_at: u64,
}

impl Ledger {
    /// `state` is `/var/lib/railgate`.
    pub fn new(state: &Path) -> Self {
        Ledger { path: state.join("ledger.jsonl"), rotate_at: ROTATE_AT }
    }

    /// Adds a line.
    ///
    /// # Errors
    /// Whatever the file system gave, also that somebody kept the file locked.
    pub fn append(&self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let _held = FileLock::take(&self.path.with_extension("lock"), LOCK_WAIT)?;
        let mut file = open(&self.path)?;
        if file.metadata()?.len() >= self.rotate_at {
            self.rotate()?;
            file = open(&self.path)?;
        }
        // One write, so that a reader without the lock sees whole lines.
        file.write_all(&line)
    }

    /// Every line that can be read, oldest first.
    ///
    /// # Errors
    /// Whatever the file system gave; absent files have no lines.
    pub fn read(&self) -> io::Result<Vec<Entry>> {
        self.matching(|_| true)
    }

    /// The lines about one job, oldest first.
    ///
    /// # Errors
    /// As [`Ledger::read`].
    pub fn of_job(&self, job: u32) -> io::Result<Vec<Entry>> {
        let mark = format!("\"job\":{job},");
        let mut entries = self.matching(|line| line.contains(&mark))?;
        entries.retain(|entry| entry.job == job);
        Ok(entries)
    }

    fn matching(&self, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for path in (1..=KEEP).rev().map(|n| self.old(n)).chain([self.path.clone()]) {
            let file = match fs::File::open(&path) {
                Ok(file) => file,
                Err(why) if why.kind() == io::ErrorKind::NotFound => continue,
                Err(why) => return Err(why),
            };
            for line in BufReader::new(file).split(b'\n') {
                let line = line?;
                // A torn or foreign line costs that line only.
                if line.len() <= MAX_LINE
                    && let Ok(line) = std::str::from_utf8(&line)
                    && wanted(line)
                    && let Ok(entry) = serde_json::from_str(line)
                {
                    entries.push(entry);
                }
            }
        }
        Ok(entries)
    }

    fn old(&self, n: u32) -> PathBuf {
        self.path.with_extension(format!("{n}.jsonl"))
    }

    fn rotate(&self) -> io::Result<()> {
        for n in (1..KEEP).rev() {
            match fs::rename(self.old(n), self.old(n + 1)) {
                Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
                _ => {}
            }
        }
        fs::rename(&self.path, self.old(1))
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).append(true).create(true).mode(0o644).custom_flags(O_NOFOLLOW).open(path)
}

/// Counts a job's lines. `restarts` is how often Slurm has started it again before the attempt that just ended,
/// `ran` how long that attempt ran.
///
/// A node that dies during the very first attempt leaves no line: seen from the controller's environment that
/// is a job with exit code 0 that was never restarted, and of those nothing is asked. Every later restart
/// leaves one, so a first restart without a line was a death.
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
            // Whoever released a held job has seen why, and gave it a new budget.
            Event::Held => used.deaths = 0,
            Event::Death | Event::NodeFail | Event::Requeued | Event::Left => {}
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
    fn deaths_count_within_a_day_and_until_a_productive_run() {
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
    fn a_first_restart_without_a_line_was_a_death() {
        assert_eq!(count(&[], 3, 0, 60), (0, 0));
        assert_eq!(count(&[], 3, 1, 60), (1, 0));
        assert_eq!(count(&[entry(Event::NodeFail, 1, 2, 60)], 3, 2, 60), (2, 0));
        assert_eq!(count(&[entry(Event::Move, 0, 2, 0)], 3, 1, 60), (0, 1));
        assert_eq!(count(&[entry(Event::Requeued, 0, 2, 0)], 3, 1, 60), (0, 0));
    }

    #[test]
    fn lines_come_back_and_broken_ones_are_passed_over() {
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
        assert_eq!(ledger.of_job(7).unwrap(), [first]);
    }

    #[test]
    fn a_large_file_is_rotated_and_still_read() {
        let place = tempfile::tempdir().unwrap();
        let ledger = Ledger { rotate_at: 100, ..Ledger::new(place.path()) };
        for n in 0..20 {
            ledger.append(&entry(Event::Death, n, 1, 60)).unwrap();
        }
        let attempts: Vec<u32> = ledger.read().unwrap().iter().map(|entry| entry.attempt).collect();
        assert_eq!(attempts, (11..20).collect::<Vec<_>>(), "eight old files and the current one");
    }

    #[test]
    fn many_writers_lose_nothing() {
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

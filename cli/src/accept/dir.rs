//! The directory of an acceptance: `plan.toml`, `journal.jsonl`, `results/`, `jobs/`, `logs/`.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow, bail, ensure};
use railgate_accept::{Entry, Event, Journal, Plan, State};
use railgate_fsutil::{FileLock, nofollow, read, trusted};
use railgate_slurm::hostlist;

/// Longest plan, bytes.
const MOST_PLAN: u64 = 1 << 20;
/// Longest journal and longest result, bytes.
const MOST_FILE: u64 = 256 << 20;

/// The directory. Only root, or the calling user, can write to it.
#[derive(Clone, Debug)]
pub(crate) struct Dir(PathBuf);

/// Its plan and its journal.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) plan_digest: String,
    /// SHA-256 of the whole lines of the journal.
    pub(crate) journal_digest: String,
    pub(crate) journal: Journal,
    pub(crate) state: State,
}

/// The right to append to the journal: one process has it.
#[derive(Debug)]
pub(crate) struct Writer {
    file: File,
    _lock: FileLock,
}

impl Dir {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        Ok(Dir(trusted(path).map_err(|why| anyhow!("--dir: {why}"))?))
    }

    /// Opens the directory, and makes it first if it does not exist.
    pub(crate) fn make(path: &Path) -> anyhow::Result<Self> {
        let made = fs::DirBuilder::new().mode(0o700).create(path);
        if let Err(why) = made
            && why.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(why).with_context(|| path.display().to_string());
        }
        let dir = Dir::open(path)?;
        for name in ["results", "jobs", "logs"] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir.0.join(name))?;
        }
        Ok(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn results(&self) -> PathBuf {
        self.0.join("results")
    }

    fn plan(&self) -> PathBuf {
        self.0.join("plan.toml")
    }

    fn journal(&self) -> PathBuf {
        self.0.join("journal.jsonl")
    }

    /// Keeps a copy of the plan for the jobs. A run has one plan: a changed one is refused.
    pub(crate) fn keep_plan(&self, from: &Path) -> anyhow::Result<()> {
        // Its programs run as the caller, who may be root.
        let from = &trusted(from).map_err(|why| anyhow!("the plan: {why}"))?;
        let text = read::whole_bytes(from, MOST_PLAN)?;
        parse(from, &text)?;
        let place = self.plan();
        if !place.exists() {
            railgate_fsutil::write_whole(&place, &text, 0o600)?;
            nofollow::read(&place)?.sync_all()?;
        }
        ensure!(
            read::whole_bytes(&place, MOST_PLAN)? == text,
            "{} differs from {}, with which this acceptance began: use another --dir for another plan",
            from.display(),
            place.display()
        );
        Ok(())
    }

    pub(crate) fn run(&self) -> anyhow::Result<Run> {
        let text = read::whole_bytes(&self.plan(), MOST_PLAN)?;
        let bytes = match read::whole_bytes(&self.journal(), MOST_FILE) {
            Ok(bytes) => bytes,
            Err(_) if !self.journal().exists() => Vec::new(),
            Err(why) => return Err(why.into()),
        };
        let journal = Journal::parse(&bytes);
        let bad = |why: railgate_accept::BadJournal| {
            anyhow!("{}:{}: {}", self.journal().display(), why.line, why.why)
        };
        let journal = journal.map_err(bad)?;
        let state = State::follow(&journal.entries).map_err(bad)?;
        let journal_digest = railgate_accept::digest(bytes.get(..journal.length).unwrap_or_default());
        let plan_digest = railgate_accept::digest(&text);
        if !state.plan.is_empty() && state.plan != plan_digest {
            bail!("{}: not the plan with which this acceptance began", self.plan().display());
        }
        Ok(Run { plan: parse(&self.plan(), &text)?, plan_digest, journal_digest, journal, state })
    }

    /// Takes the right to append to the journal, and removes a line that was not finished.
    pub(crate) fn write(&self) -> anyhow::Result<Writer> {
        let lock = FileLock::take(&self.0.join("lock"), Duration::from_secs(2))
            .context("another railgate accept works in this directory")?;
        let file = nofollow::append(&self.journal(), 0o600)?;
        Ok(Writer { file, _lock: lock })
    }

    /// Names of the result files, without unfinished ones.
    pub(crate) fn result_names(&self) -> anyhow::Result<Vec<String>> {
        let names = read::names(&self.results())?;
        Ok(names.into_iter().filter(|name| name.ends_with(".json") && !name.starts_with('.')).collect())
    }

    pub(crate) fn result(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        Ok(read::whole_bytes(&self.results().join(name), MOST_FILE)?)
    }
}

impl Writer {
    /// Removes the end of the journal after its last whole line.
    pub(crate) fn cut(&self, length: usize) -> anyhow::Result<()> {
        self.file.set_len(u64::try_from(length)?)?;
        Ok(self.file.sync_all()?)
    }

    /// Appends a line and waits until it is on the disk. Returns it.
    pub(crate) fn append(&mut self, event: Event) -> anyhow::Result<Entry> {
        let entry = Entry { at: now(), event };
        self.file.write_all(entry.line()?.as_bytes()).context("journal")?;
        self.file.sync_all().context("journal")?;
        Ok(entry)
    }
}

fn parse(path: &Path, text: &[u8]) -> anyhow::Result<Plan> {
    let text = std::str::from_utf8(text).with_context(|| path.display().to_string())?;
    let expand = |list: &str| hostlist::expand(list).map_err(|why| why.to_string());
    Plan::parse(text, &expand).map_err(|bad| anyhow!("{}:{}: {}", path.display(), bad.line, bad.why))
}

/// Milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("accept");
        Dir::make(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let why = Dir::open(&path).unwrap_err().to_string();
        assert!(why.starts_with("--dir: "), "{why}");
        assert!(Dir::make(&path).is_err());
    }

    #[test]
    fn one_process_writes_the_journal_and_a_torn_line_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::make(&place.path().join("accept")).unwrap();
        fs::write(dir.plan(), "title = 't'\nnodes = 'gn1'\n[node]\n").unwrap();
        let mut writer = dir.write().unwrap();
        assert!(dir.write().is_err(), "two drivers");
        let begin = Event::Begin { run: "r".to_owned(), plan: dir.run().unwrap().plan_digest };
        writer.append(begin).unwrap();
        let whole = fs::read(dir.journal()).unwrap();
        fs::write(dir.journal(), [&whole[..], b"{\"at\":"].concat()).unwrap();
        let journal = dir.run().unwrap().journal;
        assert_eq!((journal.entries.len(), journal.torn), (1, 6));
        writer.cut(journal.length).unwrap();
        writer.append(Event::Torn { bytes: journal.torn }).unwrap();
        assert_eq!(dir.run().unwrap().journal.entries.len(), 2);
    }
}

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use railgate_fleet::Event;
use railgate_fsutil::{FileLock, trusted};
use railgate_model::UnixMillis;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params};

use crate::backup::{backup, empty, put, with_suffix};
use crate::check::open_existing;
use crate::file_system::check_local;
use crate::rows::{Row, by_id, milliseconds};
use crate::schema::{STEPS, migrate, version};
use crate::{StoreError, rows};

/// How long a lease is valid after the last write, milliseconds. Another controller can take over later; its clock may be a minute off.
const LEASE: UnixMillis = 5 * 60_000;

/// The only process that writes a history.
pub struct Writer {
    connection: Connection,
    path: PathBuf,
    holder: String,
    _lock: FileLock,
}

/// What became of the events of an intake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Not known before.
    pub new: usize,
    /// Known.
    pub known: usize,
    /// Known with another content.
    pub conflicting: usize,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("path", &self.path)
            .field("holder", &self.holder)
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// Opens a history for writing, and creates it if it does not exist.
    ///
    /// `holder` names this controller, for example `ctld1`: a process that starts again has the same name, and need not wait for the end of its
    /// own lease. `now` is the time.
    ///
    /// # Errors
    /// Returns an error if others can change the path, the file system is not a local one, another process or controller writes the
    /// history, or the file is damaged, foreign, or of a later release.
    pub fn open(path: &Path, holder: &str, now: UnixMillis) -> Result<Writer, StoreError> {
        let (dir, name) = match (path.parent(), path.file_name()) {
            (Some(dir), Some(name)) if !dir.as_os_str().is_empty() => (trusted(dir)?, name),
            (Some(_), Some(name)) => (trusted(Path::new("."))?, name),
            _ => return Err(StoreError::Absent { path: path.to_owned() }),
        };
        check_local(&dir)?;
        let path = dir.join(name);
        let lock = with_suffix(&path, ".lock");
        let lock = FileLock::try_take(&lock).map_err(|why| StoreError::io(&lock, why))?.ok_or_else(|| {
            StoreError::Held { path: path.clone(), holder: "another process of this machine".to_owned() }
        })?;
        if fs::symlink_metadata(&path).is_err_and(|why| why.kind() == std::io::ErrorKind::NotFound) {
            create(&path)?;
        }
        trusted(&path)?;
        let connection = open_existing(&path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let sqlite = |why| StoreError::sqlite(&path, why);
        let found = version(&connection, &path, STEPS)?;
        connection.pragma_update(None, "journal_mode", "WAL").map_err(sqlite)?;
        // A commit is on the disk.
        connection.pragma_update(None, "synchronous", "FULL").map_err(sqlite)?;
        let mut writer = Writer { connection, path: path.clone(), holder: holder.to_owned(), _lock: lock };
        writer.take_lease(now)?;
        migrate(&mut writer.connection, &path, found, STEPS)?;
        Ok(writer)
    }

    fn take_lease(&mut self, now: UnixMillis) -> Result<(), StoreError> {
        let path = self.path.clone();
        let sqlite = |why| StoreError::sqlite(&path, why);
        let change = self.begin()?;
        let lease =
            change.query_row("SELECT holder, until FROM lease", [], |row| Ok((row.get(0)?, row.get(1)?)));
        let lease: Option<(String, i64)> = lease.optional().map_err(sqlite)?;
        let Some((holder, until)) = lease else {
            return Err(StoreError::damaged(&path, "no lease"));
        };
        if holder != self.holder && until > milliseconds(now) {
            return Err(StoreError::Held { path, holder });
        }
        let until = milliseconds(now.saturating_add(LEASE));
        change
            .execute("UPDATE lease SET holder = ?1, until = ?2", params![self.holder, until])
            .map_err(sqlite)?;
        change.commit().map_err(sqlite)
    }

    fn begin(&self) -> Result<Transaction<'_>, StoreError> {
        // One connection, one transaction at a time: each function that begins one ends it.
        Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)
            .map_err(|why| StoreError::sqlite(&self.path, why))
    }

    /// Takes in events, all or none of them. They are on the disk when it returns.
    ///
    /// # Errors
    /// Returns an error if the disk is full, the lease was lost, or the file is damaged. Nothing of these events was written then.
    pub fn take_in(&mut self, events: &[Event], now: UnixMillis) -> Result<Taken, StoreError> {
        self.take_in_from(events, None, now)
    }

    /// As [`Writer::take_in`], with how far the sources of the events were read: both are kept, or neither.
    ///
    /// # Errors
    /// As [`Writer::take_in`].
    pub fn take_in_from(
        &mut self,
        events: &[Event],
        intake: Option<&str>,
        now: UnixMillis,
    ) -> Result<Taken, StoreError> {
        let sqlite = |why| StoreError::sqlite(&self.path, why);
        let change = self.begin()?;
        self.renew(&change, now)?;
        let mut taken = Taken::default();
        {
            let text = "INSERT INTO event (id, time, body, checksum) VALUES (?1, ?2, ?3, ?4) \
                        ON CONFLICT (id) DO UPDATE SET time = ?2, body = ?3, checksum = ?4";
            let mut insert = change.prepare_cached(text).map_err(sqlite)?;
            for event in events {
                let counts = match by_id(&change, &self.path, &event.id)? {
                    None => {
                        taken.new += 1;
                        true
                    }
                    Some(known) if known == *event => {
                        taken.known += 1;
                        false
                    }
                    Some(known) => {
                        taken.conflicting += 1;
                        event.supersedes(&known)
                    }
                };
                if counts {
                    let row = Row::of(event, &self.path)?;
                    insert.execute(params![row.id, row.time, row.body, row.checksum]).map_err(sqlite)?;
                }
            }
        }
        if let Some(intake) = intake {
            change
                .execute("INSERT OR REPLACE INTO intake (one, body) VALUES (1, ?1)", [intake])
                .map_err(sqlite)?;
        }
        change.commit().map_err(sqlite)?;
        self.checkpoint();
        Ok(taken)
    }

    /// Returns how far the sources were read; `None` in a new history.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn intake(&self) -> Result<Option<String>, StoreError> {
        let intake = self.connection.query_row("SELECT body FROM intake", [], |row| row.get(0));
        intake.optional().map_err(|why| StoreError::sqlite(&self.path, why))
    }

    /// Moves what was committed from the write-ahead log into the file and empties the log: a damaged log loses its commits without
    /// an error. If a reader or a full disk prevents it, the log keeps them until the next time.
    fn checkpoint(&self) {
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }

    fn renew(&self, change: &Transaction<'_>, now: UnixMillis) -> Result<(), StoreError> {
        let until = milliseconds(now.saturating_add(LEASE));
        let renewed =
            change.execute("UPDATE lease SET until = ?1 WHERE holder = ?2", params![until, self.holder]);
        match renewed.map_err(|why| StoreError::sqlite(&self.path, why))? {
            0 => Err(StoreError::LeaseLost { path: self.path.clone() }),
            _ => Ok(()),
        }
    }

    /// Deletes events before a time. Returns their number.
    ///
    /// # Errors
    /// As [`Writer::take_in`].
    pub fn forget_before(&mut self, time: UnixMillis, now: UnixMillis) -> Result<usize, StoreError> {
        let sqlite = |why| StoreError::sqlite(&self.path, why);
        let change = self.begin()?;
        self.renew(&change, now)?;
        let gone =
            change.execute("DELETE FROM event WHERE time < ?1", [milliseconds(time)]).map_err(sqlite)?;
        change.commit().map_err(sqlite)?;
        self.checkpoint();
        Ok(gone)
    }

    /// Returns the events from one time to another, both included, by time and id.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or the checksum of an event is wrong.
    pub fn events(&self, from: UnixMillis, to: UnixMillis) -> Result<Vec<Event>, StoreError> {
        rows::events(&self.connection, &self.path, from, to)
    }

    /// As [`crate::Reader::backup`].
    ///
    /// # Errors
    /// As [`crate::Reader::backup`].
    pub fn backup(&self, to: &Path) -> Result<(), StoreError> {
        backup(&self.connection, to)
    }
}

impl Drop for Writer {
    /// The next writer need not wait for the end of the lease.
    fn drop(&mut self) {
        let text = "UPDATE lease SET holder = '', until = 0 WHERE holder = ?1";
        let _ = self.connection.execute(text, params![self.holder]);
    }
}

/// Makes a file with the latest schema beside its place, and puts it there: a crash leaves no half of a history.
fn create(path: &Path) -> Result<(), StoreError> {
    let draft = with_suffix(path, ".new");
    let mut new = empty(&draft)?;
    migrate(&mut new, &draft, 0, STEPS)?;
    put(new, &draft, path)
}

use std::fmt;
use std::path::{Path, PathBuf};

use railgate_fleet::Event;
use railgate_fsutil::trusted;
use railgate_model::UnixMillis;
use rusqlite::{Connection, OpenFlags};

use crate::backup::backup;
use crate::check::open_existing;
use crate::file_system::check_local;
use crate::schema::{STEPS, version};
use crate::{StoreError, rows};

/// Reads a history, also while a [`crate::Writer`] writes it.
pub struct Reader {
    connection: Connection,
    path: PathBuf,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens an existing history and checks its structure.
    ///
    /// # Errors
    /// Returns an error if there is none, others can change the path, or the file is not on a local disk, damaged, foreign, or of a later release.
    pub fn open(path: &Path) -> Result<Reader, StoreError> {
        let path = match trusted(path) {
            Err(why) if why.is_absent() => return Err(StoreError::Absent { path: path.to_owned() }),
            path => path?,
        };
        check_local(path.parent().unwrap_or(Path::new("/")))?;
        // SQLite needs to write its shared memory file to read a file with a write-ahead log.
        let connection = open_existing(&path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        connection.pragma_update(None, "query_only", true).map_err(|why| StoreError::sqlite(&path, why))?;
        version(&connection, &path, STEPS)?;
        Ok(Reader { connection, path })
    }

    /// Returns the events from one time to another, both included, by time and id.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or the checksum of an event is wrong.
    pub fn events(&self, from: UnixMillis, to: UnixMillis) -> Result<Vec<Event>, StoreError> {
        rows::events(&self.connection, &self.path, from, to)
    }

    /// Writes a copy by SQLite's backup interface, checks it, and puts it at `to`, replacing an older one. The copy is a whole
    /// history without a lease: to restore it, put it in the place of a damaged file while no writer runs.
    ///
    /// # Errors
    /// Returns an error if others can change the directory of `to`, or the copy cannot be written or is damaged. An older file at `to` is kept then.
    pub fn backup(&self, to: &Path) -> Result<(), StoreError> {
        backup(&self.connection, to)
    }
}

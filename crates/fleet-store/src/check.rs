//! Opens a file of SQLite with care, and checks its structure.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::StoreError;

/// How long a statement waits for another process, for example a reader that checkpoints.
const BUSY: Duration = Duration::from_secs(5);

/// Opens an existing file, without links, and checks its structure.
pub(crate) fn open_existing(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let sqlite = |why| StoreError::sqlite(path, why);
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
            return Err(StoreError::Absent { path: path.to_owned() });
        }
        Err(why) => return Err(StoreError::io(path, why)),
    };
    // SQLite would begin a new history in it.
    if meta.len() == 0 {
        return Err(StoreError::damaged(path, "empty file"));
    }
    let connection =
        Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NOFOLLOW).map_err(sqlite)?;
    connection.busy_timeout(BUSY).map_err(sqlite)?;
    quick_check(&connection, path)?;
    Ok(connection)
}

/// SQLite's check of pages and indexes.
pub(crate) fn quick_check(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let said: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|why| StoreError::sqlite(path, why))?;
    if said == "ok" { Ok(()) } else { Err(StoreError::damaged(path, said)) }
}

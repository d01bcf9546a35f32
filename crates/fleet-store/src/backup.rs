//! Copies of a history, and files that appear whole.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use railgate_fsutil::trusted;
use railgate_model::UnixMillis;
use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags};

use crate::check::quick_check;
use crate::file_system::check_local;
use crate::{StoreError, rows};

/// Pages that a backup copies at once, and the pause between two such steps: the writer is not kept waiting.
const BACKUP_PAGES: i32 = 1000;
const BACKUP_PAUSE: Duration = Duration::from_millis(5);

/// See [`crate::Reader::backup`].
pub(crate) fn backup(connection: &Connection, to: &Path) -> Result<(), StoreError> {
    let (dir, name) = match (to.parent(), to.file_name()) {
        (Some(dir), Some(name)) => {
            (trusted(if dir.as_os_str().is_empty() { Path::new(".") } else { dir })?, name)
        }
        _ => return Err(StoreError::Absent { path: to.to_owned() }),
    };
    check_local(&dir)?;
    let to = dir.join(name);
    let draft = with_suffix(&to, ".new");
    let result = copy(connection, &draft, &to);
    if result.is_err() {
        let _ = fs::remove_file(&draft);
    }
    result
}

fn copy(connection: &Connection, draft: &Path, to: &Path) -> Result<(), StoreError> {
    let sqlite = |why| StoreError::sqlite(draft, why);
    let mut copy = empty(draft)?;
    {
        let backup = Backup::new(connection, &mut copy).map_err(sqlite)?;
        backup.run_to_completion(BACKUP_PAGES, BACKUP_PAUSE, None).map_err(sqlite)?;
    }
    copy.pragma_update(None, "journal_mode", "DELETE").map_err(sqlite)?;
    copy.execute("UPDATE lease SET holder = '', until = 0", []).map_err(sqlite)?;
    quick_check(&copy, draft)?;
    // Checks each checksum.
    rows::events(&copy, draft, 0, UnixMillis::MAX)?;
    put(copy, draft, to)
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(suffix);
    PathBuf::from(name)
}

/// An empty file that only this user can read.
pub(crate) fn empty(draft: &Path) -> Result<Connection, StoreError> {
    // What a crash left.
    match fs::remove_file(draft) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => return Err(StoreError::io(draft, why)),
        _ => {}
    }
    // Creating it follows no link.
    let made = fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(draft);
    made.map_err(|why| StoreError::io(draft, why))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    Connection::open_with_flags(draft, flags).map_err(|why| StoreError::sqlite(draft, why))
}

pub(crate) fn put(connection: Connection, draft: &Path, path: &Path) -> Result<(), StoreError> {
    let io = |why| StoreError::io(draft, why);
    connection.close().map_err(|(_, why)| StoreError::sqlite(draft, why))?;
    fs::File::open(draft).and_then(|file| file.sync_all()).map_err(io)?;
    fs::rename(draft, path).map_err(io)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(|why| StoreError::io(dir, why))
}

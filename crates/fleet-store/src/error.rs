use std::io;
use std::path::{Path, PathBuf};

use railgate_fsutil::{ReadError, Untrusted};
use railgate_text::Printable;
use rusqlite::ErrorCode;

/// Why the history cannot be read or written. None of these loses what was committed before.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Others can change the path.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// A file beside the history cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file system is not a known local one.
    #[error("{}: SQLite needs a local disk, and this is {kind}", Printable(path.display()))]
    NotLocal {
        /// The directory.
        path: PathBuf,
        /// The file system.
        kind: String,
    },
    /// Another process writes it.
    #[error("{}: {holder} writes this history", Printable(path.display()))]
    Held {
        /// The file.
        path: PathBuf,
        /// Who, as far as known.
        holder: String,
    },
    /// Another controller has taken over.
    #[error("{}: another controller writes this history now; nothing was written", Printable(path.display()))]
    LeaseLost {
        /// The file.
        path: PathBuf,
    },
    /// There is no history.
    #[error("{}: no history", Printable(path.display()))]
    Absent {
        /// The file.
        path: PathBuf,
    },
    /// Made by a later release.
    #[error("{}: schema {found} is of a later release of railgate, which knows more than {known}", Printable(path.display()))]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The latest that this release knows.
        known: i64,
    },
    /// Another program's file.
    #[error("{}: not a history of railgate", Printable(path.display()))]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The content is damaged.
    #[error("{}: damaged ({}); move it away and restore a backup", Printable(path.display()), Printable(what))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The disk is full.
    #[error("{}: the disk is full; nothing of this intake was written, and all earlier ones are kept", Printable(path.display()))]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// Another error of SQLite.
    #[error("{}: {why}", Printable(path.display()))]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// The error.
        why: rusqlite::Error,
    },
    /// An error of the file system.
    #[error("{}: {why}", Printable(path.display()))]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        why: io::Error,
    },
}

impl StoreError {
    /// Sorts SQLite's errors by what an admin has to do.
    pub(crate) fn sqlite(path: &Path, why: rusqlite::Error) -> StoreError {
        let path = path.to_owned();
        match why.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StoreError::Full { path },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                StoreError::Damaged { path, what: why.to_string() }
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                StoreError::Held { path, holder: "another process".to_owned() }
            }
            _ => StoreError::Sqlite { path, why },
        }
    }

    pub(crate) fn io(path: &Path, why: io::Error) -> StoreError {
        StoreError::Io { path: path.to_owned(), why }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> StoreError {
        StoreError::Damaged { path: path.to_owned(), what: what.into() }
    }
}

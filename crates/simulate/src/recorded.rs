use std::path::{Path, PathBuf};

use railgate_fsutil::{ReadError, read};
use railgate_model::{Origin, SNAPSHOT_SCHEMA, Snapshot};
use serde::Deserialize;

/// Maximum size of a snapshot. A node with 16 GPUs and a full kernel log needs less than a tenth of it.
const SNAPSHOT_BYTES: u64 = 32 * 1024 * 1024;

/// An error of reading a recorded snapshot.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    /// The file cannot be read, or is too large.
    #[error(transparent)]
    Unreadable(#[from] ReadError),
    /// A later release wrote it.
    #[error("{path}: snapshot schema {found}, and this railgate reads up to {SNAPSHOT_SCHEMA}", path = .path.display())]
    Newer {
        /// Path of the file.
        path: PathBuf,
        /// Schema version of the file.
        found: u32,
    },
    /// The file is not a snapshot.
    #[error("{path}: no snapshot: {source}", path = .path.display())]
    NoSnapshot {
        /// Path of the file.
        path: PathBuf,
        /// The problem, with line and column.
        source: serde_json::Error,
    },
}

/// Reads a snapshot that `railgate snapshot` wrote. Its origin becomes [`Origin::Recorded`].
///
/// # Errors
/// Returns an error if the file is unreadable, not a snapshot, or has a later schema.
pub fn recorded(path: &Path) -> Result<Snapshot, RecordedError> {
    #[derive(Deserialize)]
    struct Header {
        schema: u32,
    }
    let text = read::whole(path, SNAPSHOT_BYTES)?;
    let broken = |source| RecordedError::NoSnapshot { path: path.to_owned(), source };
    // The schema is checked first, so that the error of a later file names its schema rather than an unknown field.
    let Header { schema } = serde_json::from_str(&text).map_err(broken)?;
    if schema > SNAPSHOT_SCHEMA {
        return Err(RecordedError::Newer { path: path.to_owned(), found: schema });
    }
    let mut snapshot: Snapshot = serde_json::from_str(&text).map_err(broken)?;
    snapshot.origin = Origin::Recorded;
    Ok(snapshot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_file_name_line_and_column() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let why = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            recorded(file.path()).unwrap_err().to_string()
        };
        let path = file.path().display().to_string();
        assert!(why("{\"schema\": 1,\n\"node\": 5}").starts_with(&format!("{path}: no snapshot: ")));
        assert!(why("{\"schema\": 1,\n\"node\": 5}").contains("line 2"));
        assert!(why("{\"schema\": 7, \"shape\": \"new\"}").contains("snapshot schema 7"));
        assert!(why("").contains("line 1"));
        let missing = recorded(Path::new("/no/such.json")).unwrap_err().to_string();
        assert!(missing.starts_with("/no/such.json: "));
    }
}

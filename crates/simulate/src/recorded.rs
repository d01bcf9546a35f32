use std::path::{Path, PathBuf};

use railgate_fsutil::{ReadError, read};
use railgate_model::{Origin, SNAPSHOT_SCHEMA, Snapshot};
use serde::Deserialize;

/// A node with 16 GPUs and a full kernel log takes well below a tenth of it.
const SNAPSHOT_BYTES: u64 = 32 * 1024 * 1024;

/// A file that cannot stand in for a node.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    /// It cannot be read, or is too big.
    #[error(transparent)]
    Unreadable(#[from] ReadError),
    /// A later railgate wrote it.
    #[error("{path}: snapshot schema {found}, and this railgate reads up to {SNAPSHOT_SCHEMA}", path = .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: u32,
    },
    /// It is no snapshot.
    #[error("{path}: no snapshot: {source}", path = .path.display())]
    NoSnapshot {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        source: serde_json::Error,
    },
}

/// Reads a snapshot that `railgate snapshot` wrote. Its origin becomes [`Origin::Recorded`].
///
/// # Errors
/// The file is unreadable, no snapshot, or of a later schema.
pub fn recorded(path: &Path) -> Result<Snapshot, RecordedError> {
    #[derive(Deserialize)]
    struct Header {
        schema: u32,
    }
    let text = read::whole(path, SNAPSHOT_BYTES)?;
    let broken = |source| RecordedError::NoSnapshot { path: path.to_owned(), source };
    // The schema first: what is wrong with a later file is that it is later, not that a field is unknown.
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
    fn errors_name_the_file_and_the_place() {
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

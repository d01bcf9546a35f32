//! The tables, and how older files become newer ones.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use crate::StoreError;

/// "RGFL": marks the file as railgate's.
pub(crate) const APPLICATION: i64 = 0x5247_464c;

/// Each step from one schema to the next, the first from an empty file. A step is never changed once it was released.
pub(crate) const STEPS: &[&str] = &["
-- No index by time: a damaged one would hide events without an error, and most readers need nearly all of them.
CREATE TABLE event (
    id TEXT PRIMARY KEY NOT NULL,
    time INTEGER NOT NULL,
    -- JSON of railgate_fleet::Event.
    body TEXT NOT NULL,
    -- First bytes of the SHA-256 of id, time and body.
    checksum BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE lease (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    holder TEXT NOT NULL,
    -- Milliseconds since 1970.
    until INTEGER NOT NULL
);
INSERT INTO lease VALUES (1, '', 0);
", "
CREATE TABLE intake (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    -- How far the sources of the events were read.
    body TEXT NOT NULL
);
"];

/// The schema that this release writes.
pub(crate) fn latest(steps: &[&str]) -> i64 {
    i64::try_from(steps.len()).unwrap_or(i64::MAX)
}

/// Reads the schema of a file.
pub(crate) fn version(connection: &Connection, path: &Path, steps: &[&str]) -> Result<i64, StoreError> {
    let pragma = |name: &str| -> Result<i64, StoreError> {
        let value = connection.pragma_query_value(None, name, |row| row.get(0));
        value.map_err(|why| StoreError::sqlite(path, why))
    };
    if pragma("application_id")? != APPLICATION {
        return Err(StoreError::Foreign { path: path.to_owned() });
    }
    let (found, known) = (pragma("user_version")?, latest(steps));
    if found > known {
        return Err(StoreError::Newer { path: path.to_owned(), found, known });
    }
    Ok(found)
}

/// Takes the steps from a schema to the latest one, all or none of them.
pub(crate) fn migrate(
    connection: &mut Connection,
    path: &Path,
    from: i64,
    steps: &[&str],
) -> Result<(), StoreError> {
    let sqlite = |why| StoreError::sqlite(path, why);
    let left = steps.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or_default();
    if left.is_empty() {
        return Ok(());
    }
    let all = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sqlite)?;
    for step in left {
        all.execute_batch(step).map_err(sqlite)?;
    }
    all.pragma_update(None, "application_id", APPLICATION).map_err(sqlite)?;
    all.pragma_update(None, "user_version", latest(steps)).map_err(sqlite)?;
    all.commit().map_err(sqlite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_file_gets_the_missing_steps_and_keeps_its_rows() {
        let path = Path::new("memory");
        let mut file = Connection::open_in_memory().unwrap();
        migrate(&mut file, path, 0, &STEPS[..1]).unwrap();
        file.execute("INSERT INTO event VALUES ('a', 1, '{}', x'00')", []).unwrap();
        let steps = [STEPS[0], "ALTER TABLE event ADD COLUMN more TEXT; CREATE TABLE other (x)"];
        let found = version(&file, path, &steps).unwrap();
        assert_eq!(found, 1);
        migrate(&mut file, path, found, &steps).unwrap();
        assert_eq!(version(&file, path, &steps).unwrap(), 2);
        let id: String =
            file.query_row("SELECT id FROM event WHERE more IS NULL", [], |row| row.get(0)).unwrap();
        assert_eq!(id, "a");
        // A release that knows less refuses it.
        assert!(matches!(
            version(&file, path, &STEPS[..1]),
            Err(StoreError::Newer { found: 2, known: 1, .. })
        ));
    }

    #[test]
    fn a_step_that_fails_changes_nothing() {
        let path = Path::new("memory");
        let mut file = Connection::open_in_memory().unwrap();
        migrate(&mut file, path, 0, &STEPS[..1]).unwrap();
        let steps = [STEPS[0], "CREATE TABLE other (x)", "CREATE TABLE event (x)"];
        assert!(migrate(&mut file, path, 1, &steps).is_err());
        assert_eq!(version(&file, path, &steps).unwrap(), 1);
        let tables: i64 = file
            .query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'other'", [], |row| row.get(0))
            .unwrap();
        assert_eq!(tables, 0);
    }
}

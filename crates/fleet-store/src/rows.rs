//! Events as rows, with a checksum.

use std::path::Path;

use railgate_fleet::Event;
use railgate_model::UnixMillis;
use rusqlite::Connection;
use sha2::{Digest, Sha256};

use crate::StoreError;

/// Bytes of a checksum: enough to find damage, which is not made on purpose.
const CHECKSUM: usize = 8;

/// A row of the table `event`.
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) time: i64,
    pub(crate) body: String,
    pub(crate) checksum: Vec<u8>,
}

impl Row {
    pub(crate) fn of(event: &Event, path: &Path) -> Result<Row, StoreError> {
        let body = serde_json::to_string(event).map_err(|why| StoreError::io(path, why.into()))?;
        let time = milliseconds(event.time);
        let checksum = checksum(&event.id, time, &body);
        Ok(Row { id: event.id.clone(), time, body, checksum })
    }

    fn event(&self, path: &Path) -> Result<Event, StoreError> {
        let damaged = || StoreError::damaged(path, format!("event {}", self.id));
        if checksum(&self.id, self.time, &self.body) != self.checksum {
            return Err(damaged());
        }
        serde_json::from_str(&self.body).map_err(|_| damaged())
    }
}

/// SQLite's integers are signed; a time beyond them is none.
pub(crate) fn milliseconds(time: UnixMillis) -> i64 {
    i64::try_from(time).unwrap_or(i64::MAX)
}

fn checksum(id: &str, time: i64, body: &str) -> Vec<u8> {
    let mut sum = Sha256::new();
    for part in [id.as_bytes(), &time.to_le_bytes(), body.as_bytes()] {
        sum.update(part.len().to_le_bytes());
        sum.update(part);
    }
    sum.finalize().iter().take(CHECKSUM).copied().collect()
}

fn row(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    Ok(Row { id: row.get(0)?, time: row.get(1)?, body: row.get(2)?, checksum: row.get(3)? })
}

/// Events from one time to another, both included, by time and id.
pub(crate) fn events(
    connection: &Connection,
    path: &Path,
    from: UnixMillis,
    to: UnixMillis,
) -> Result<Vec<Event>, StoreError> {
    // A value of another type in a column is damage, not a wrong program.
    let sqlite = |why: rusqlite::Error| match why {
        rusqlite::Error::InvalidColumnType(..) | rusqlite::Error::FromSqlConversionFailure(..) => {
            StoreError::damaged(path, why.to_string())
        }
        why => StoreError::sqlite(path, why),
    };
    // All rows are read and checked: a damaged time must not hide a row.
    let mut statement =
        connection.prepare_cached("SELECT id, time, body, checksum FROM event").map_err(sqlite)?;
    let rows = statement.query_map([], row).map_err(sqlite)?;
    let mut events = Vec::new();
    for row in rows {
        let event = row.map_err(sqlite)?.event(path)?;
        if (from..=to).contains(&event.time) {
            events.push(event);
        }
    }
    events.sort_by(|one: &Event, other| (one.time, &one.id).cmp(&(other.time, &other.id)));
    Ok(events)
}

/// The event with an id.
pub(crate) fn by_id(connection: &Connection, path: &Path, id: &str) -> Result<Option<Event>, StoreError> {
    let sqlite = |why| StoreError::sqlite(path, why);
    let text = "SELECT id, time, body, checksum FROM event WHERE id = ?1";
    let mut statement = connection.prepare_cached(text).map_err(sqlite)?;
    let mut rows = statement.query_map([id], row).map_err(sqlite)?;
    rows.next().map(|row| row.map_err(sqlite)?.event(path)).transpose()
}

//! Events as rows, with a checksum.

use std::num::NonZero;
use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, available_parallelism, scope};

use railgate_fleet::Event;
use railgate_model::UnixMillis;
use rusqlite::Connection;
use sha2::{Digest, Sha256};

use crate::StoreError;

/// Bytes of a checksum: enough to find damage, which is not made on purpose.
const CHECKSUM: usize = 8;

/// Rows that one thread checks and parses at once.
const BATCH: usize = 2048;

/// Most threads that check and parse rows, which takes longer than reading them. SQLite reads in one thread, which keeps no more busy.
const PARSERS: usize = 4;

/// A batch of rows, and its number.
type Batch = (usize, Vec<Row>);

/// The events of a batch, and its number.
type Part = (usize, Result<Vec<Event>, StoreError>);

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

/// Checks and parses rows in other threads. Returns the events from one time to another, both included, by batches in the order of the rows.
fn parsed(
    rows: impl Iterator<Item = Result<Row, StoreError>>,
    path: &Path,
    span: &RangeInclusive<UnixMillis>,
) -> Result<Vec<Vec<Event>>, StoreError> {
    let parsers = available_parallelism().map_or(1, NonZero::get).min(PARSERS);
    // Short: rows that wait need memory beside the events.
    let (to_parse, batches) = sync_channel(2 * parsers);
    let batches = Arc::new(Mutex::new(batches));
    let parts: Result<Vec<Part>, StoreError> = scope(move |scope| {
        let mut threads = Vec::new();
        for _ in 0..parsers {
            let batches = Arc::clone(&batches);
            let thread = Builder::new().spawn_scoped(scope, move || parse(&batches, path, span));
            threads.push(thread.map_err(|why| StoreError::io(path, why))?);
        }
        // The parsers have the only ones: if all of them end, nothing waits for them.
        drop(batches);
        let mut rows = rows;
        for number in 0_usize.. {
            let mut batch = Vec::with_capacity(BATCH);
            for row in rows.by_ref().take(BATCH) {
                batch.push(row?);
            }
            if batch.is_empty() || to_parse.send((number, batch)).is_err() {
                break;
            }
        }
        drop(to_parse);
        let mut parts = Vec::new();
        for thread in threads {
            parts.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        Ok(parts)
    });
    let mut parts = parts?;
    parts.sort_by_key(|(number, _)| *number);
    // Of several rows that are damaged, the first one is named.
    parts.into_iter().map(|(_, part)| part).collect()
}

/// Parses batches of rows until there are no more. Returns the events of each batch with its number.
fn parse(batches: &Mutex<Receiver<Batch>>, path: &Path, span: &RangeInclusive<UnixMillis>) -> Vec<Part> {
    let next = || batches.lock().unwrap_or_else(PoisonError::into_inner).recv().ok();
    let mut parts = Vec::new();
    while let Some((number, rows)) = next() {
        parts.push((number, events_of(&rows, path, span)));
    }
    parts
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
    let batches = parsed(rows.map(|row| row.map_err(sqlite)), path, &(from..=to))?;
    Ok(sorted(batches))
}

fn events_of(rows: &[Row], path: &Path, span: &RangeInclusive<UnixMillis>) -> Result<Vec<Event>, StoreError> {
    let mut events = Vec::with_capacity(rows.len());
    for row in rows {
        let event = row.event(path)?;
        if span.contains(&event.time) {
            events.push(event);
        }
    }
    Ok(events)
}

/// Events of all batches by time and id. Their places are sorted and not the events, of which each move costs more.
fn sorted(batches: Vec<Vec<Event>>) -> Vec<Event> {
    let mut order: Vec<(UnixMillis, (usize, usize))> = Vec::new();
    for (batch, events) in batches.iter().enumerate() {
        order.extend(events.iter().enumerate().map(|(number, event)| (event.time, (batch, number))));
    }
    let id = |(batch, number): (usize, usize)| &batches[batch][number].id;
    order.sort_unstable_by(|(time, place), (other_time, other)| {
        time.cmp(other_time).then_with(|| id(*place).cmp(id(*other)))
    });
    let mut batches: Vec<Vec<Option<Event>>> =
        batches.into_iter().map(|events| events.into_iter().map(Some).collect()).collect();
    order.into_iter().filter_map(|(_, (batch, number))| batches[batch][number].take()).collect()
}

/// The event with an id.
pub(crate) fn by_id(connection: &Connection, path: &Path, id: &str) -> Result<Option<Event>, StoreError> {
    let sqlite = |why| StoreError::sqlite(path, why);
    let text = "SELECT id, time, body, checksum FROM event WHERE id = ?1";
    let mut statement = connection.prepare_cached(text).map_err(sqlite)?;
    let mut rows = statement.query_map([id], row).map_err(sqlite)?;
    rows.next().map(|row| row.map_err(sqlite)?.event(path)).transpose()
}

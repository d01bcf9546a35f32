//! Events as rows, with a checksum.

use std::borrow::Cow;
use std::num::NonZero;
use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, available_parallelism, scope};

use railgate_fleet::Event;
use railgate_model::UnixMillis;
use rusqlite::{Connection, Rows};
use sha2::{Digest, Sha256};

use crate::StoreError;

/// The first bytes of a hash: enough to find damage, which is not made on purpose.
type Checksum = [u8; 8];

/// Rows that one thread checks and parses at once.
const BATCH: usize = 2048;

/// Most threads that check and parse rows, which takes longer than reading them. SQLite reads in one thread, which keeps no more busy.
const PARSERS: usize = 4;

/// The events of a batch, and its number.
type Part = (usize, Result<Vec<Event>, StoreError>);

/// A row of the table `event`.
pub(crate) struct Row<'a> {
    pub(crate) id: &'a str,
    pub(crate) time: i64,
    pub(crate) body: Cow<'a, str>,
    /// `None` if it has another length.
    pub(crate) checksum: Option<Checksum>,
}

impl Row<'_> {
    pub(crate) fn of<'a>(event: &'a Event, path: &Path) -> Result<Row<'a>, StoreError> {
        let body = serde_json::to_string(event).map_err(|why| StoreError::io(path, why.into()))?;
        let time = milliseconds(event.time);
        let checksum = checksum(&event.id, time, &body);
        Ok(Row { id: &event.id, time, body: body.into(), checksum })
    }

    fn event(&self, path: &Path) -> Result<Event, StoreError> {
        let damaged = || StoreError::damaged(path, format!("event {}", self.id));
        if self.checksum.is_none() || checksum(self.id, self.time, &self.body) != self.checksum {
            return Err(damaged());
        }
        serde_json::from_str(&self.body).map_err(|_| damaged())
    }
}

/// SQLite's integers are signed; a time beyond them is none.
pub(crate) fn milliseconds(time: UnixMillis) -> i64 {
    i64::try_from(time).unwrap_or(i64::MAX)
}

fn checksum(id: &str, time: i64, body: &str) -> Option<Checksum> {
    let mut sum = Sha256::new();
    for part in [id.as_bytes(), &time.to_le_bytes(), body.as_bytes()] {
        sum.update(part.len().to_le_bytes());
        sum.update(part);
    }
    sum.finalize().first_chunk().copied()
}

fn row<'a>(row: &'a rusqlite::Row<'_>) -> rusqlite::Result<Row<'a>> {
    Ok(Row {
        id: row.get_ref(0)?.as_str()?,
        time: row.get(1)?,
        body: row.get_ref(2)?.as_str()?.into(),
        checksum: row.get_ref(3)?.as_blob()?.try_into().ok(),
    })
}

/// Rows that one thread checks and parses at once. Their texts are in one piece of memory: one for each would be allocated in one
/// thread and released in another, which takes longer than to copy it.
#[derive(Default)]
struct Batch {
    number: usize,
    /// Id and body of each row.
    texts: String,
    rows: Vec<Place>,
}

/// A row of a batch, with the ends of its texts.
struct Place {
    id: usize,
    body: usize,
    time: i64,
    checksum: Option<Checksum>,
}

impl Batch {
    /// The next rows; empty if there are no more.
    fn read(number: usize, rows: &mut Rows<'_>) -> rusqlite::Result<Batch> {
        let mut batch = Batch { number, ..Batch::default() };
        while batch.rows.len() < BATCH
            && let Some(next) = rows.next()?
        {
            let Row { id, time, body, checksum } = row(next)?;
            batch.texts.push_str(id);
            let id = batch.texts.len();
            batch.texts.push_str(&body);
            batch.rows.push(Place { id, body: batch.texts.len(), time, checksum });
        }
        Ok(batch)
    }

    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let text = |from, to| self.texts.get(from..to).unwrap_or_default();
        let starts = std::iter::once(0).chain(self.rows.iter().map(|row| row.body));
        starts.zip(&self.rows).map(move |(start, row)| Row {
            id: text(start, row.id),
            time: row.time,
            body: text(row.id, row.body).into(),
            checksum: row.checksum,
        })
    }
}

/// Checks and parses rows in other threads. Returns the events from one time to another, both included, by batches in the order of the rows.
fn parsed(
    mut rows: Rows<'_>,
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
        for number in 0_usize.. {
            let batch = Batch::read(number, &mut rows).map_err(|why| unreadable(path, why))?;
            if batch.rows.is_empty() || to_parse.send(batch).is_err() {
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
    while let Some(batch) = next() {
        parts.push((batch.number, events_of(&batch, path, span)));
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
    let sqlite = |why| StoreError::sqlite(path, why);
    // All rows are read and checked: a damaged time must not hide a row.
    let mut statement =
        connection.prepare_cached("SELECT id, time, body, checksum FROM event").map_err(sqlite)?;
    let rows = statement.query([]).map_err(sqlite)?;
    let batches = parsed(rows, path, &(from..=to))?;
    Ok(sorted(batches))
}

/// A value of another type in a column is damage, not a wrong program.
fn unreadable(path: &Path, why: rusqlite::Error) -> StoreError {
    match why {
        rusqlite::Error::InvalidColumnType(..) | rusqlite::Error::FromSqlConversionFailure(..) => {
            StoreError::damaged(path, format!("a row of events: {why}"))
        }
        why => StoreError::sqlite(path, why),
    }
}

fn events_of(
    batch: &Batch,
    path: &Path,
    span: &RangeInclusive<UnixMillis>,
) -> Result<Vec<Event>, StoreError> {
    let mut events = Vec::with_capacity(batch.rows.len());
    for row in batch.rows() {
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
    let mut rows = statement.query([id]).map_err(sqlite)?;
    let found = rows.next().map_err(sqlite)?;
    found.map(|found| row(found).map_err(sqlite)?.event(path)).transpose()
}

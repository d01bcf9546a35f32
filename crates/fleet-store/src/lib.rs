//! The history of a fleet in one SQLite file on a local disk.
//!
//! ```text
//! fleet.db         events by id, the lease of the writer; 0600
//! fleet.db-wal     SQLite's write-ahead log: empty after each intake
//! fleet.db.lock    lock between processes of this machine
//! entered.jsonl    events that admins entered, which the writer takes in; 0600
//! ```
//!
//! - [`Writer`] is the only one that writes: by a lock on this machine, and by a lease in the file where a disk moves between two
//!   controllers. Each write proves that the lease is still its own.
//! - Intake is idempotent: an event that is known changes nothing. Of two events with one id the same counts in any order.
//! - An intake is committed and on the disk when [`Writer::take_in`] returns. After a full disk or a crash all earlier ones are there.
//! - Each event has a checksum of its own, since SQLite checks the structure of its pages and not their content.
//! - [`Reader`] reads while a writer writes.

mod backup;
mod check;
mod entered;
mod error;
mod file_system;
mod reader;
mod rows;
mod schema;
mod writer;

pub use entered::{Entered, EnteredFile};
pub use error::StoreError;
pub use reader::Reader;
pub use writer::{Taken, Writer};

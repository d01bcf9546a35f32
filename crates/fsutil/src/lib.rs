//! Files and locks, handled with the care that a program of root needs: bounded [`read`]s that never wait, opens that follow
//! no link ([`nofollow`]), files written whole ([`write_whole`], [`put_at`]), paths that root alone can change ([`trusted`]),
//! locks that no other user can hold ([`FileLock`]) and locks on data ([`lock_data`]).

mod file_lock;
pub mod nofollow;
pub mod read;
mod read_error;
mod trust;
mod whole;

pub use file_lock::{FileLock, lock_data};
pub use read_error::ReadError;
pub use trust::{Untrusted, trusted};
pub use whole::{Put, put_at, read_small, write_whole};

//! Files and locks, handled with the care that a program of root needs: bounded [`read`]s that never wait, paths that
//! root alone can change ([`trusted`]), locks that no other user can hold ([`FileLock`]).

mod file_lock;
pub mod read;
mod read_error;
mod trust;

pub use file_lock::FileLock;
pub use read_error::ReadError;
pub use trust::{Untrusted, trusted};

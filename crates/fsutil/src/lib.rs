//! Files and locks for programs that run as root: bounded reads that never block ([`mod@read`]), opens that follow no
//! link ([`nofollow`]), atomic writes of whole files ([`write_whole`], [`put_at`]), paths that only root can change
//! ([`trusted`]), locks that no other user can hold ([`FileLock`]) and locks on data ([`lock_data`]).

mod file_lock;
pub mod nofollow;
pub mod read;
mod read_error;
mod trust;
mod whole;

pub use file_lock::{FileLock, Share, lock_data};
pub use read_error::ReadError;
pub use trust::{Untrusted, trusted};
pub use whole::{Put, put_at, read_small, write_whole};

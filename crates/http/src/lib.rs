//! HTTP requests within limits, and the secrets that they need.
//!
//! - [`Http`] sends one request: one deadline for all of it, from the name to the last byte of the answer; a limit for the bytes of an answer;
//!   no redirects; no proxy from the environment.
//! - [`Secret`] is a text that no error and no `Debug` contains. It comes from a file that other users cannot read.
//! - [`Address`] says whether an address needs TLS, before a secret is sent to it.

mod address;
mod client;
mod secret;

pub use address::{Address, Peer};
pub use client::{Answer, Http, HttpConfig, NoAnswer, OpenError};
pub use secret::{Secret, SecretError};

//! Sends the messages of `alerts` to receivers, and interprets their answers.
//!
//! - [`Sinks::open`] reads addresses and secrets. A receiver that cannot be opened does not affect the others.
//! - [`deliver`] sends the messages that are due. It commits the [`State`](railgate_alerts::State) before and after each message.
//! - [`StateFile`] keeps the state in one file. Other stores implement [`Keep`].
//!
//! **An answer of 200 is not enough.** WeCom, DingTalk and Feishu report refusals in the body. An unknown
//! answer does not count as accepted.
//!
//! **Secrets.** They come from files of root that others cannot read ([`Secret`](railgate_http::Secret)). No error and no `Debug` contains them, also where a
//! server repeats one in its answer.
//!
//! **Limits.** One deadline for all of a request, from the name to the last byte of the answer; 64 KiB of an answer; no redirects.

mod alertmanager;
mod answer;
mod delivery;
mod mail;
mod robots;
mod sink;
mod state_file;
mod webhook;

pub use delivery::{Deliver, Delivered, Keep, deliver};
pub use sink::{Sink, SinkError, Sinks};
pub use state_file::{Opened, StateFile, StateFileError};

//! Decides which messages about a fleet each receiver gets, when, and with which content. Pure: conditions, time and the previous state in, messages
//! and the next state out. `alert-sinks` sends them.
//!
//! 1. The caller makes a [`Condition`] of everything that is wrong now ([`fleet_conditions`] does it for the judgement of a fleet)
//!    and calls [`State::observe`]. It queues an entry for each sink when a condition begins, changes, ends, or is due for a repeat.
//! 2. [`State::next`] makes a [`Message`] of all that waits for a sink, if its limits permit one now. The caller commits the state,
//!    sends the message, calls [`State::finished`] with the answer, and commits again.
//!
//! - **Nothing is lost.** A message stays in the state until its sink has accepted it. What happens meanwhile waits, merged by condition, so the
//!   state does not grow while a sink is down.
//! - **At least once.** After a crash between the two commits that one message is sent again, with the same id and the same content.
//! - **One message per incident.** Conditions that begin close together go in one message; further ones wait for an interval.
//! - **An absent condition is not yet resolved.** A condition is resolved when it is absent from complete observations for [`AlertsConfig::resolve_after`].

mod condition;
mod config;
mod day;
mod from_fleet;
mod message;
mod observe;
mod outbox;
mod sink_config;
mod state;
#[cfg(test)]
mod tests;

pub use condition::{Condition, Priority};
pub use config::{AlertsConfig, Silence, Span, Until};
pub use day::{DayTime, QuietHours, UtcOffset};
pub use from_fleet::fleet_conditions;
pub use message::{Entry, EntryKind, Message, MessageKind};
pub use observe::{BLIND, Observation};
pub use outbox::Outcome;
pub use sink_config::{SinkConfig, SinkKind};
pub use state::{SinkState, State};

use std::error::Error;

use railgate_alerts::{AlertsConfig, Message, MessageKind, Outcome, State};
use railgate_model::UnixMillis;

/// Sends one message to the receiver that it names.
pub trait Deliver {
    /// Sends it, within a deadline. `now` is the time for signatures.
    fn send(&self, message: &Message, now: UnixMillis) -> Outcome;
}

/// Keeps the state.
pub trait Keep {
    /// Replaces the stored state as a whole. When it returns, a crash does not lose it.
    ///
    /// # Errors
    /// The state was not stored; the earlier one still is.
    fn commit(&mut self, state: &State) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// What [`deliver`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Messages that were accepted.
    pub accepted: usize,
    /// Heartbeats that were accepted.
    pub heartbeats: usize,
    /// Refreshes that were accepted.
    pub refreshes: usize,
    /// Why messages failed, by receiver: for a log.
    pub failed: Vec<(String, String)>,
    /// Why the state could not be stored. Messages are sent nevertheless: after a crash they may come again.
    pub not_stored: Option<String>,
}

/// Sends all that is due to all receivers, one message at a time. So a crash can repeat only the one under way. A receiver whose
/// message fails gets no further one in this call.
///
/// Call it after each [`State::observe`], and at least every few seconds while something waits. `clock` is the time in milliseconds.
pub fn deliver(
    state: &mut State,
    config: &AlertsConfig,
    sinks: &dyn Deliver,
    keep: &mut dyn Keep,
    clock: &dyn Fn() -> UnixMillis,
) -> Delivered {
    let mut done = Delivered::default();
    for name in config.sinks.keys() {
        while let Some(message) = state.next(config, name, clock()) {
            commit(keep, state, &mut done);
            let outcome = sinks.send(&message, clock());
            state.finished(name, &message.id, &outcome, clock());
            commit(keep, state, &mut done);
            match outcome {
                Outcome::Accepted => done.accepted += 1,
                Outcome::Later { problem, .. } | Outcome::Rejected { problem } => {
                    done.failed.push((name.clone(), problem));
                    break;
                }
            }
        }
        for due in [State::refresh, State::heartbeat] {
            let Some(message) = due(state, config, name, clock()) else { continue };
            commit(keep, state, &mut done);
            let outcome = sinks.send(&message, clock());
            state.finished(name, &message.id, &outcome, clock());
            match outcome {
                Outcome::Accepted if message.kind == MessageKind::Refresh => done.refreshes += 1,
                Outcome::Accepted => done.heartbeats += 1,
                Outcome::Later { problem, .. } | Outcome::Rejected { problem } => {
                    done.failed.push((name.clone(), format!("{}: {problem}", message.kind.name())));
                }
            }
        }
    }
    done
}

fn commit(keep: &mut dyn Keep, state: &State, done: &mut Delivered) {
    if let Err(why) = keep.commit(state) {
        done.not_stored = Some(why.to_string());
    }
}

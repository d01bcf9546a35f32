//! Converts the answer of a child process into a part of a snapshot.

use std::time::Duration;

use railgate_child::{Ended, Outcome};
use railgate_model::Part;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Runs a child that answers in JSON. Returns after at most the deadline plus the time to kill the child.
pub(crate) fn asked<T: DeserializeOwned>(task: &str, input: &impl Serialize, deadline: Duration) -> Part<T> {
    match serde_json::to_vec(input) {
        Ok(input) => answered(railgate_child::run_one(task, input, deadline), deadline),
        Err(why) => Part::Failed { why: format!("input: {why}"), took_ms: 0.0 },
    }
}

/// Converts the outcome of such a child into a part.
pub(crate) fn answered<T: DeserializeOwned>(ended: Ended, deadline: Duration) -> Part<T> {
    let (took_ms, after_ms) = (millis(ended.took), millis(deadline));
    match ended.outcome {
        Outcome::Done(reply) => match serde_json::from_slice(&reply) {
            Ok(data) => Part::Read { data, took_ms },
            Err(why) => Part::Failed { why: format!("reply: {why}"), took_ms },
        },
        Outcome::Failed(why) => Part::Failed { why, took_ms },
        Outcome::Silent => Part::Silent { after_ms },
        Outcome::Stuck => Part::Stuck { after_ms },
    }
}

pub(crate) fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

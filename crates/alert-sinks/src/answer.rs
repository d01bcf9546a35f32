//! What an answer means for the message.

use std::time::Duration;

use railgate_alerts::Outcome;
use railgate_http::Answer;
use railgate_text::printable_bytes;

/// Longest part of an answer in the text of a problem, bytes.
const SHOWN: usize = 200;

/// The message is sent again later.
pub(crate) fn later(problem: impl Into<String>, wait: Option<Duration>) -> Outcome {
    Outcome::Later { problem: problem.into(), wait }
}

/// The receiver refused the message.
pub(crate) fn rejected(problem: impl Into<String>) -> Outcome {
    Outcome::Rejected { problem: problem.into() }
}

/// The meaning of the status alone, for receivers whose status is all that counts.
pub(crate) fn by_status(answer: &Answer) -> Outcome {
    let body = answer.body.as_deref().unwrap_or_default();
    let body = printable_bytes(body.get(..SHOWN).unwrap_or(body));
    let problem = format!("status {}: {body}", answer.status);
    match answer.status {
        200..=299 => Outcome::Accepted,
        300..=399 => rejected(format!("status {}: redirects are not followed", answer.status)),
        408 | 425 | 429 | 500..=599 => later(problem, answer.wait),
        _ => rejected(problem),
    }
}

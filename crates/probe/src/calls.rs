//! The calls of one live reading: each runs in a child of its own, all at the same time.

use std::time::Duration;

use railgate_child::{Call, Ended, GRACE, run_all};
use railgate_model::{Part, Reading};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::answer::answered;

/// Deadline of a program that a child runs: less than the child's, which kills the program and reports how it ended. A child
/// of a few seconds needs most of them for a program that survives SIGKILL.
pub(crate) fn program_deadline(child: Duration) -> Duration {
    child.saturating_sub(GRACE * 3 / 2).max(child / 3)
}

/// The calls so far. Each has the whole deadline.
pub(crate) struct Calls {
    calls: Vec<Call>,
    deadline: Duration,
}

/// Identifies the answer of a call.
#[derive(Clone, Copy)]
pub(crate) struct Place(usize);

impl Calls {
    pub(crate) fn new(deadline: Duration) -> Self {
        Calls { calls: Vec::new(), deadline }
    }

    pub(crate) fn add(&mut self, task: &str, input: &impl Serialize) -> Place {
        // Only a path that is not UTF-8 cannot be written; the task then refuses its input.
        let input = serde_json::to_vec(input).unwrap_or_default();
        self.calls.push(Call { task: task.to_owned(), input, deadline: self.deadline });
        Place(self.calls.len() - 1)
    }

    /// Deadline of a program that one of the children runs.
    pub(crate) fn program_deadline(&self) -> Duration {
        program_deadline(self.deadline)
    }

    pub(crate) fn run(self) -> Answers {
        Answers { ended: run_all(self.calls).into_iter().map(Some).collect(), deadline: self.deadline }
    }
}

/// The answers of all calls. Each can be taken once.
pub(crate) struct Answers {
    ended: Vec<Option<Ended>>,
    deadline: Duration,
}

impl Answers {
    /// Skipped if there was no call.
    pub(crate) fn part<T: DeserializeOwned>(&mut self, place: Option<Place>) -> Part<T> {
        let ended = place.and_then(|place| self.ended.get_mut(place.0)?.take());
        ended.map_or(Part::Skipped, |ended| answered(ended, self.deadline))
    }

    /// The answer of a child whose whole reply is one reading.
    pub(crate) fn reading<T: DeserializeOwned>(&mut self, place: Place) -> Reading<T> {
        match self.part(Some(place)) {
            Part::Read { data, .. } => data,
            part => Reading::Failed(part.missing().unwrap_or_default()),
        }
    }

    /// How long a call took; `None` once its answer has been taken.
    pub(crate) fn took(&self, place: Place) -> Option<Duration> {
        Some(self.ended.get(place.0)?.as_ref()?.took)
    }
}

/// A task whose input and reply are JSON.
pub(crate) fn with_json<I: DeserializeOwned, O: Serialize>(
    input: &[u8],
    task: impl FnOnce(I) -> Result<O, String>,
) -> Result<Vec<u8>, String> {
    let input = serde_json::from_slice(input).map_err(|why| format!("input: {why}"))?;
    serde_json::to_vec(&task(input)?).map_err(|why| format!("reply: {why}"))
}

//! A source of conditions that is read less often than the others.

use std::time::{Duration, Instant};

use railgate_alerts::Condition;

/// The conditions of a source as of its last answer.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    conditions: Vec<Condition>,
    next: Option<Instant>,
    /// Why it could not be read: logged once while it holds.
    problem: Option<String>,
}

impl Reading {
    /// Calls `read` if that is due: `pause` after the last answer, and the next time after no answer. Without one, the conditions of the last
    /// answer are returned. `what` begins the line of the log about a problem.
    pub(crate) fn conditions(
        &mut self,
        pause: Duration,
        what: &str,
        read: impl FnOnce() -> Result<Vec<Condition>, String>,
    ) -> &[Condition] {
        if self.next.is_some_and(|next| Instant::now() < next) {
            return &self.conditions;
        }
        match read() {
            Ok(conditions) => {
                self.conditions = conditions;
                self.problem = None;
                self.next = Some(Instant::now() + pause);
            }
            Err(why) => {
                if self.problem.as_ref() != Some(&why) {
                    tracing::warn!("{what}: {why}");
                }
                self.problem = Some(why);
            }
        }
        &self.conditions
    }

    /// Whether the last reading had an answer. Without one, a missing condition may last.
    pub(crate) fn is_known(&self) -> bool {
        self.problem.is_none()
    }
}

/// `Jobs: 7 (64 nodes, 26 h), 8 (1 node, 25 h), 3 more.`: the first jobs of a list.
pub(crate) fn listed<T>(jobs: &[T], one: impl Fn(&T) -> String) -> String {
    const MOST: usize = 5;
    let mut listed: Vec<String> = jobs.iter().take(MOST).map(one).collect();
    if jobs.len() > MOST {
        listed.push(format!("{} more", jobs.len() - MOST));
    }
    format!("Jobs: {}.", listed.join(", "))
}

/// `26 h`; below an hour in minutes.
pub(crate) fn hours(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..3600 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

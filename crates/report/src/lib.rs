//! Report of a job: the merge of its nodes' and the controller's records, why it ended, and the pages.
//!
//! [`JobReport::merge`] interprets the records, `view` makes every sentence once, and text, HTML and the redacted
//! copy lay them out.

mod clocks;
mod exits;
mod first_error;
mod html;
mod idle;
mod job_report;
mod json;
mod load;
mod next_step;
mod redact;
#[cfg(test)]
mod testing;
mod text;
mod timeline;
mod view;
mod why;

/// Most starts of `railgate launch` that are listed of an attempt, the newest ones.
const MOST_STARTS: usize = 20;

pub use first_error::FirstError;
pub use html::{answer_html, html, html_with, redacted_html};
pub use idle::{IdleJob, IdleJobs, IdleQuery, IdleState, idle_jobs};
pub use job_report::{Attempt, JobReport, Missing};
pub use json::json;
pub use load::{load, load_known};
pub use redact::redacted_json;
pub use text::{answer, brief, live, redacted, summary, text};
pub use timeline::{Event, Weight};
pub use why::{EndKind, Ended, Next, Proof, why_ended};

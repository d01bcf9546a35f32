//! The first error of a job, found in the text of its logs by rules.
//!
//! The input is untrusted text of a job. It is read with bounds. A result is the log's own claim: it is never evidence
//! against a node.

mod choose;
mod events;
mod launcher;
mod line;
mod mask;
mod rule;
mod rules;
mod steps;
mod table;
mod traceback;

use railgate_node_report::{LogError, LogFound};

pub use mask::MASKED;
pub use rule::{Class, Hardware, Kind, Rule};
pub use rules::{EXCEPTION, rule};
pub use table::RULES;
pub use traceback::Place;

/// A log, or the end of one.
#[derive(Clone, Copy, Debug)]
pub struct Log<'a> {
    pub bytes: &'a [u8],
    /// The rank that wrote it, where each rank has a file.
    pub rank: Option<u32>,
    /// The first byte is not the first of the file: an earlier error may be missing.
    pub cut: bool,
}

/// The first error.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstError {
    /// The row of [`RULES`], or [`EXCEPTION`].
    pub rule: &'static Rule,
    /// The message in one line, printable, credentials masked, at most 300 characters.
    pub text: String,
    /// The exception that this one was raised from.
    pub from: Option<String>,
    /// Where in the user's own code.
    pub place: Option<Place>,
    /// The rank that wrote it; `None` if the log does not tell.
    pub rank: Option<u32>,
    /// How many labelled ranks wrote the same message: all of them failing alike is not one rank's failure.
    pub ranks: usize,
    /// Seconds from this error to the next rank's, where the log has times.
    pub ahead_s: Option<f64>,
    /// When it was written, or the last line with a time before it: seconds since the start of the year, in the log's zone.
    pub when: Option<f64>,
    /// `when` is its own time.
    pub exact: bool,
    /// Its line in the log, from 1; in what was read if the log was cut.
    pub line: usize,
    /// The index of its log.
    pub log: usize,
}

/// The result for the logs of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    pub first: Option<FirstError>,
    /// How many lines followed from an error elsewhere: watchdogs, closed connections.
    pub consequences: usize,
    /// A log was cut, and its first error lies in its first lines: the true first one may lie before.
    pub may_lie_before: bool,
}

impl Found {
    /// The result as a node's epilog stores it, for `files` logs that were read; `path` gives the path of a log by its index.
    pub fn stored(self, files: usize, path: impl FnOnce(usize) -> String) -> LogFound {
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let first = self.first.map(|first| LogError {
            rule: first.rule.id.to_owned(),
            text: first.text,
            from: first.from,
            line: first.place.as_ref().map(|place| place.line),
            file: first.place.map(|place| place.file),
            rank: first.rank,
            ranks: u32::try_from(first.ranks).unwrap_or(u32::MAX),
            ahead_s: first.ahead_s,
            when: first.when,
            exact: first.exact,
            log: path(first.log),
            log_line: count(first.line),
        });
        LogFound {
            first,
            consequences: count(self.consequences),
            may_lie_before: self.may_lie_before,
            files: u32::try_from(files).unwrap_or(u32::MAX),
            problems: Vec::new(),
        }
    }
}

/// The first error in the logs of a job with `ranks` ranks.
///
/// Causes come before reports of ended processes, these before consequences (a watchdog's timeout, a closed connection); among
/// causes the earliest counts. An error after which its process continued to work did not end the job.
pub fn first_error(logs: &[Log<'_>], ranks: u32) -> Found {
    let events: Vec<events::Read> = logs.iter().map(events::read).collect();
    choose::choose(&events, logs, ranks)
}

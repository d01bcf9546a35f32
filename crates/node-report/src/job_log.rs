use serde::{Deserialize, Serialize};

/// The first error in a job's own logs, as a node's epilog found it: `<attempt>/<node>.error`.
///
/// Logs can hold secrets: only the job's owner can read the file, also with `[report] access = "account"`. It is never part of a
/// node report, and decides nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobLog {
    /// [`crate::REPORT_SCHEMA`] of the writer.
    pub schema: u32,
    /// `SLURM_CLUSTER_NAME`.
    pub cluster: String,
    /// Job id.
    pub job: u32,
    /// The attempt.
    pub attempt: u32,
    /// Node name.
    pub node: String,
    /// What was found.
    pub found: LogFound,
}

/// What one node's epilog found in the logs that it read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogFound {
    /// The first error.
    pub first: Option<LogError>,
    /// Number of lines that follow from an error elsewhere: watchdogs, closed connections.
    pub consequences: u64,
    /// A log was longer than what was read, and its first error may lie before that.
    pub may_lie_before: bool,
    /// Number of files that were read.
    pub files: u32,
    /// Files that were not read, with the reason; at most a few.
    pub problems: Vec<String>,
}

/// An error in a log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogError {
    /// Id of the rule that recognised it, `cuda-oom`, or `exception`.
    pub rule: String,
    /// The message in one line, credentials masked.
    pub text: String,
    /// The exception that this one was raised from.
    pub from: Option<String>,
    /// File of the innermost frame in the user's own code, without its directories.
    pub file: Option<String>,
    /// Line in that file.
    pub line: Option<u32>,
    /// The rank that failed.
    pub rank: Option<u32>,
    /// Number of ranks that wrote the same message.
    pub ranks: u32,
    /// Seconds until the next rank's error, where the log has times.
    pub ahead_s: Option<f64>,
    /// Time of the error, or of the last line before it that has one: seconds since the start of the year, in the log's
    /// own zone. Used to compare nodes.
    pub when: Option<f64>,
    /// `when` is the time of the error itself.
    pub exact: bool,
    /// Path of the log.
    pub log: String,
    /// Line in the log, from 1; 0: not known.
    pub log_line: u64,
}

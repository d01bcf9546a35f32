//! The journal of a run: one line of JSON for each action of the driver, written before the next action begins.

use serde::{Deserialize, Serialize};

/// Something that the driver did or found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Event {
    /// The run begins: the first line.
    Begin {
        /// Id of the run, part of the names of its jobs.
        run: String,
        /// SHA-256 of the plan.
        plan: String,
    },
    /// A driver continues the run.
    Continue {},
    /// The driver ended before all units had a result.
    Stop {
        /// The reason.
        why: String,
    },
    /// The end of the file was not a whole line and was removed: the driver was killed while it wrote it.
    Torn {
        /// Bytes.
        bytes: usize,
    },
    /// A job is about to be submitted.
    Submit {
        /// The unit.
        unit: String,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Nodes of the job.
        nodes: Vec<String>,
    },
    /// Slurm accepted the job.
    Submitted {
        /// The unit.
        unit: String,
        /// Number of the attempt.
        attempt: u32,
        /// Id of the job.
        job: u32,
    },
    /// The attempt has a result.
    Result {
        /// The unit.
        unit: String,
        /// Number of the attempt.
        attempt: u32,
        /// Name of the file.
        file: String,
        /// Its SHA-256.
        digest: String,
    },
    /// An attempt that was counted as lost has a result after all, found before the next submission.
    LateResult {
        /// The unit.
        unit: String,
        /// Number of the attempt.
        attempt: u32,
        /// Name of the file.
        file: String,
        /// Its SHA-256.
        digest: String,
    },
    /// The attempt ended without a result.
    Lost {
        /// The unit.
        unit: String,
        /// Number of the attempt.
        attempt: u32,
        /// The reason.
        why: String,
        /// Whether Slurm reports that a node of the job failed; `None`: it is not known how the job ended.
        node_failed: Option<bool>,
    },
    /// The unit waits no longer: nodes are not available.
    GivenUp {
        /// The unit.
        unit: String,
        /// The reason.
        why: String,
    },
    /// Nodes of a unit were not available; it is run without them.
    Without {
        /// The unit.
        unit: String,
        /// Number of the attempt.
        attempt: u32,
        /// The nodes, each with its state in Slurm.
        nodes: Vec<String>,
    },
    /// A person accepts a failure.
    Waive {
        /// Id of the item.
        item: String,
        /// What the item reported then. The waiver does not hold for another failure of the item.
        failure: String,
        /// The name of the person.
        by: String,
        /// The reason.
        why: String,
    },
}

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// When, milliseconds since 1970.
    pub at: u64,
    /// What.
    pub event: Event,
}

/// A journal that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadJournal {
    /// Line, from 1.
    pub line: usize,
    /// The problem.
    pub why: String,
}

/// The whole lines of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// The lines.
    pub entries: Vec<Entry>,
    /// Length of the whole lines, bytes. What follows is a line that was not finished.
    pub length: usize,
    /// Bytes after `length`.
    pub torn: usize,
}

impl Journal {
    /// Reads a journal. An end without a line break is a line that a killed driver did not finish: nothing was done because of it,
    /// since each line is on the disk before its action begins.
    ///
    /// # Errors
    /// Returns the line that is damaged otherwise.
    pub fn parse(bytes: &[u8]) -> Result<Journal, BadJournal> {
        let length = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut journal = Journal { entries: Vec::new(), length, torn: bytes.len() - length };
        let whole = bytes.get(..length).unwrap_or_default();
        for (number, line) in whole.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let bad = |why: String| BadJournal { line: number + 1, why };
            let entry: Entry = serde_json::from_slice(line).map_err(|why| bad(why.to_string()))?;
            if matches!(entry.event, Event::Begin { .. }) != (number == 0) {
                return Err(bad("the first line, and no other one, begins a run".to_owned()));
            }
            journal.entries.push(entry);
        }
        Ok(journal)
    }
}

impl Entry {
    /// Returns the line, with its line break.
    ///
    /// # Errors
    /// Returns an error if the entry cannot be written as JSON.
    pub fn line(&self) -> serde_json::Result<String> {
        let mut line = serde_json::to_string(self)?;
        line.push('\n');
        Ok(line)
    }
}

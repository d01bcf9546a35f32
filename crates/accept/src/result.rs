//! The raw result of a unit.

use serde::{Deserialize, Serialize};

/// What one program printed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Id of the command within its unit.
    pub command: String,
    /// The command line.
    pub line: String,
    /// Exit code; `None`: it did not start, was killed, or did not end in time.
    pub exit: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// The last lines of standard error, or why there is no exit code.
    pub stderr: String,
}

/// What the job of a unit wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitResult {
    /// 1.
    pub schema: u32,
    /// Id of the run.
    pub run: String,
    /// The unit.
    pub unit: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// Id of the job.
    pub job: String,
    /// Nodes of the job.
    pub nodes: Vec<String>,
    /// Beginning, milliseconds since 1970.
    pub began: u64,
    /// End, milliseconds since 1970.
    pub ended: u64,
    /// Version of railgate.
    pub railgate: String,
    /// What its programs printed.
    pub outputs: Vec<Output>,
}

impl UnitResult {
    /// Returns what a command printed.
    pub(crate) fn output(&self, command: &str) -> Option<&Output> {
        self.outputs.iter().find(|output| output.command == command)
    }

    /// Reads the JSON that a command printed.
    ///
    /// Returns why there is none.
    pub(crate) fn json<T: for<'de> Deserialize<'de>>(&self, command: &str) -> Result<T, String> {
        let output = self.output(command).ok_or_else(|| format!("{command} was not run"))?;
        serde_json::from_str(&output.stdout).map_err(|why| match output.reason() {
            Some(reason) => format!("{command}: {reason}"),
            None => format!("{command} printed no valid result: {why}"),
        })
    }
}

impl Output {
    /// Returns why there is no result: the last line of standard error.
    pub(crate) fn reason(&self) -> Option<&str> {
        let line = self.stderr.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(line.trim())
    }
}

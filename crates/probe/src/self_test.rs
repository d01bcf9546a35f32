//! What the self-tests of RDMA devices and of GPUs have in common. Each is a separate program, since a driver that hangs must not
//! hang railgate; it runs in a child with a deadline and prints a line of JSON for each result.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use railgate_child::program::{Ended, Run, run_program};
use railgate_fsutil::trusted;
use serde::de::DeserializeOwned;

use crate::answer::whole_millis;
use crate::calls::program_deadline;

/// Bytes kept of the output: several lines for each pair of 16 GPUs, with wrong values.
const KEPT_BYTES: usize = 1 << 20;
/// Characters of a line that is not a result, in messages.
const SHOWN: usize = 80;

/// A run of `program` by a child with this deadline. The environment holds nothing that a user could have set.
pub(crate) fn run_of(program: &Path, arguments: Vec<String>, child: Duration) -> Run {
    // Root's program leaves no compiled kernels in a home directory.
    let environment = [("LC_ALL", "C"), ("CUDA_CACHE_DISABLE", "1")];
    Run {
        path: program.to_owned(),
        arguments,
        environment: BTreeMap::from(environment.map(|(name, value)| (name.to_owned(), value.to_owned()))),
        deadline_ms: whole_millis(program_deadline(child)),
        kept_bytes: KEPT_BYTES,
    }
}

/// What a self-test printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Printed {
    /// Standard output; up to the deadline, if the program had to be killed.
    pub(crate) out: String,
    pub(crate) end: End,
    /// How it ended, for messages: `exit code 3: no GPU`, `no answer in 8000 ms`.
    pub(crate) how: String,
}

/// How a self-test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With this exit code.
    Code(i32),
    /// By a signal that it did not get from railgate.
    Crash,
    /// It was killed at its deadline.
    Deadline,
}

/// Runs a self-test.
///
/// # Errors
/// The program cannot be started, or users other than root can change it.
pub(crate) fn printed(input: &Run) -> Result<Printed, String> {
    trusted(&input.path).map_err(|why| {
        let what = if why.path == input.path { why.what } else { why.to_string() };
        format!("cannot be started: {what}")
    })?;
    let (out, end, how) = match run_program(input) {
        Ended::Exited { code, out, err } => {
            let first = err.lines().next().unwrap_or("no message");
            (out, End::Code(code), format!("exit code {code}: {first}"))
        }
        Ended::Killed { signal, out } => (out, End::Crash, format!("killed by signal {signal}")),
        Ended::Silent { stuck, out, .. } => {
            let stuck = if stuck { ", stuck in the kernel" } else { "" };
            (out, End::Deadline, format!("no answer in {} ms{stuck}", input.deadline_ms))
        }
        Ended::Failed(why) => return Err(why),
    };
    Ok(Printed { out, end, how })
}

/// Parses a result from each line. Returns those of all lines that are results, and the first problem.
pub(crate) fn results<T: DeserializeOwned>(out: &str) -> (Vec<T>, Option<String>) {
    let mut problem = None;
    let mut results = Vec::new();
    for line in out.lines() {
        match serde_json::from_str(line) {
            Ok(result) => results.push(result),
            Err(why) => {
                problem.get_or_insert_with(|| format!("'{}': {why}", railgate_text::clip(line, SHOWN)));
            }
        }
    }
    (results, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_not_a_result_costs_only_itself() {
        let (numbers, problem) = results::<u32>("1\nsegmentation fault\n{\n3\n");
        assert_eq!(numbers, [1, 3]);
        assert_eq!(problem.as_deref(), Some("'segmentation fault': expected value at line 1 column 1"));
        assert_eq!(results::<u32>(""), (Vec::new(), None));
        let (_, long) = results::<u32>(&"x".repeat(10_000));
        assert!(long.is_some_and(|text| text.len() < 200));
    }
}

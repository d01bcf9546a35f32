//! What error lines mean: the first row of the table that matches a line counts.

use std::sync::LazyLock;

use regex::bytes::{RegexSet, RegexSetBuilder};

use crate::rule::{Class, Rule, cause};
use crate::table::RULES;

/// The rows of a command of the script that failed, and of one that does not exist.
pub(crate) const SHELL_COMMAND: &str = "shell-command";
pub(crate) const SHELL_COMMAND_MISSING: &str = "shell-command-missing";

/// The row of an exception of C++ that ended its process; the text is made of two lines.
pub(crate) const CPP_EXCEPTION: &str = "cpp-exception";

/// The rows of an error of a program that is not in Python, and of a line that a program calls an error.
pub(crate) const PROGRAM_ERROR: &str = "program-error";
pub(crate) const ERROR_LINE: &str = "error-line";

/// The rows of what a script could not load: a module, a conda environment.
pub(crate) const MODULE: &str = "module-unknown";
pub(crate) const MODULE_CONFLICT: &str = "module-conflict";
pub(crate) const CONDA: &str = "conda-shell";
pub(crate) const NOT_LOADED: [&str; 3] = [MODULE, MODULE_CONFLICT, CONDA];

/// The rows of a path that does not exist, and of a program that does not.
pub(crate) const FILE_MISSING: &str = "file-missing";
pub(crate) const LACKING_COMMAND: &str = "command-missing";

/// The rows of what is missing if a module or a conda environment is not loaded.
pub(crate) const LACKING: [&str; 4] = ["import", LACKING_COMMAND, "cuda-libraries", "compiler"];

/// The row of a connection that the other end closed.
pub(crate) const PEER_CLOSED: &str = "peer-closed";

/// The row of NCCL's report of a peer that ended or a network that failed.
pub(crate) const NCCL_REMOTE: &str = "nccl-remote";

/// The rows of a program that aborted itself, and of what C++ prints before.
pub(crate) const ABORTED: &str = "aborted";
pub(crate) const TERMINATE: &str = "terminate";

/// The row of a call of MPI that failed.
pub(crate) const MPI_ERROR: &str = "mpi-error";

/// The row of a container that did not start.
pub(crate) const CONTAINER: &str = "container";

/// The row of a job that Slurm ended: at its time limit, or for another job.
pub(crate) const SLURM_END: &str = "slurm-time-limit";

/// The rows of a node that Slurm lost, of NCCL's warnings that no other row knows, and of its errors.
pub(crate) const NODE_FAILURE: &str = "slurm-node-failure";
pub(crate) const NCCL_WARN: &str = "nccl-warn";
pub(crate) const NCCL_ERROR: &str = "nccl-error";

/// The row of what goes wrong when a process ends, and of exceptions that Python ignores.
pub(crate) const IGNORED: &str = "atexit";

/// An exception of Python that no other row knows.
pub const EXCEPTION: &Rule = &cause("exception", Class::Application, "", "");

/// Memory for states of the automaton.
const DFA_BYTES: usize = 16 << 20;

static SET: LazyLock<Option<RegexSet>> = LazyLock::new(|| {
    // Messages are ASCII: Unicode's classes would make the automaton many times as large.
    let patterns = RULES.iter().map(|rule| rule.pattern);
    RegexSetBuilder::new(patterns).unicode(false).dfa_size_limit(DFA_BYTES).build().ok()
});

/// The row with this id.
pub fn rule(id: &str) -> Option<&'static Rule> {
    RULES.iter().chain([EXCEPTION]).find(|rule| rule.id == id)
}

/// The first row that matches a line.
pub(crate) fn of(text: &str) -> Option<&'static Rule> {
    let found = SET.as_ref()?.matches(text.as_bytes()).iter().next()?;
    RULES.get(found)
}

/// The error of the rank itself that PyTorch's watchdog quotes, else the whole text: an access by one of its own kernels follows from no
/// other rank.
pub(crate) fn quoted(text: &str) -> &str {
    const BEFORE: &str = "watchdog thread terminated with exception: ";
    match text.split_once(BEFORE) {
        Some((_, error)) if error.starts_with("CUDA error: ") && of(error).is_some() => error,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patterns_are_valid_and_ids_are_unique() {
        assert!(SET.is_some());
        let mut ids: Vec<_> = RULES.iter().map(|rule| rule.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), RULES.len());
    }

    #[test]
    fn rows_that_code_names_exist() {
        let named = [
            SHELL_COMMAND,
            SHELL_COMMAND_MISSING,
            CPP_EXCEPTION,
            PROGRAM_ERROR,
            ERROR_LINE,
            FILE_MISSING,
            PEER_CLOSED,
            NCCL_REMOTE,
            ABORTED,
            TERMINATE,
            MPI_ERROR,
            CONTAINER,
            SLURM_END,
            NODE_FAILURE,
            NCCL_WARN,
            NCCL_ERROR,
            IGNORED,
        ];
        assert!(named.iter().chain(&LACKING).chain(&NOT_LOADED).all(|id| rule(id).is_some()));
    }
}

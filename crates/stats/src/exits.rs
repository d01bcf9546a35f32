//! What exit codes and signals mean for the question why a job ended.

/// What an exit code or signal usually means; `None` where it tells nothing.
pub(crate) fn explain_exit(code: i32, signal: i32) -> Option<&'static str> {
    Some(match (code, signal) {
        (_, 125) => "Slurm's mark for out of memory",
        (_, 9) | (137, _) => "killed (SIGKILL): often the memory limit, or someone's kill -9",
        (_, 15) | (143, _) => "asked to end (SIGTERM)",
        (_, 11) | (139, _) => "a crash (SIGSEGV)",
        (_, 6) | (134, _) => "it aborted itself (SIGABRT): an assertion, or NCCL's watchdog",
        (_, 7) | (135, _) => "a bus error (SIGBUS): often a full /dev/shm or a truncated file",
        (_, 8) | (136, _) => "an arithmetic fault (SIGFPE)",
        (130, _) => "interrupted (SIGINT)",
        (126, _) => "the command could not be executed",
        (127, _) => "the command was not found",
        (1, 0) => "a general error: in Python, an exception",
        (2, 0) => "a usage error",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_are_explained_where_there_is_something_to_say() {
        assert!(explain_exit(0, 125).unwrap().contains("out of memory"));
        assert!(explain_exit(139, 0).unwrap().contains("SIGSEGV"));
        assert_eq!(explain_exit(42, 0), None);
    }
}

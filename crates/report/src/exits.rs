//! Interpretation of exit codes and signals.

use railgate_node_report::Exit;

use crate::{Attempt, EndKind};

/// Slurm's marker for a job that ran out of memory, in place of the signal.
pub(crate) const OUT_OF_MEMORY: i32 = 125;

/// Text of an exit status: `exit code 3`, `signal 9`.
pub(crate) fn exit_said(exit: Exit) -> String {
    match (exit.code(), exit.signal()) {
        (code, 0) => format!("exit code {code}"),
        (_, OUT_OF_MEMORY) => "out of memory, according to Slurm".to_owned(),
        (_, signal) => format!("signal {signal}"),
    }
}

/// Exit status of an attempt if it is informative: cancelled, timed-out and refused jobs have exit code 0 like
/// successful ones.
pub(crate) fn telling_exit(attempt: &Attempt) -> Option<String> {
    let ended_so = matches!(
        attempt.ended.kind,
        EndKind::Completed
            | EndKind::Hardware
            | EndKind::Preflight
            | EndKind::Hung
            | EndKind::Application
            | EndKind::Unknown
    );
    attempt.exit().filter(|_| ended_so).map(with_signal)
}

/// The same with the signal that the code of a shell or of srun stands for, 128 and its number: `exit code 143 (SIGTERM)`.
fn with_signal(exit: Exit) -> String {
    let name = match (exit.code(), exit.signal()) {
        (129, 0) => "SIGHUP",
        (130, 0) => "SIGINT",
        (131, 0) => "SIGQUIT",
        (132, 0) => "SIGILL",
        (134, 0) => "SIGABRT",
        (135, 0) => "SIGBUS",
        (136, 0) => "SIGFPE",
        (137, 0) => "SIGKILL",
        (138, 0) => "SIGUSR1",
        (139, 0) => "SIGSEGV",
        (140, 0) => "SIGUSR2",
        (141, 0) => "SIGPIPE",
        (143, 0) => "SIGTERM",
        _ => return exit_said(exit),
    };
    format!("{} ({name})", exit_said(exit))
}

/// How the attempt ended, `cancelled` or `looks like the application, exit code 1`.
pub(crate) fn ending(attempt: &Attempt) -> String {
    let exit = telling_exit(attempt);
    match (attempt.ended.kind, exit) {
        (EndKind::MovedByGate, _) => "refused by the gate before it started".to_owned(),
        (EndKind::Unknown, Some(exit)) if exit == "exit code 0" => {
            format!("{exit}, which cancelled and timed-out jobs also have")
        }
        (EndKind::Unknown, Some(exit)) => exit,
        (kind, Some(exit)) => format!("{}, {exit}", kind.title()),
        (kind, None) => kind.title().to_owned(),
    }
}

/// Usual meaning of an exit code or signal; `None` if it has none.
pub(crate) fn explain_exit(code: i32, signal: i32) -> Option<&'static str> {
    Some(match (code, signal) {
        (_, 9) | (137, _) => "killed (SIGKILL): often the memory limit, or a kill -9",
        (_, 15) | (143, _) => "terminated (SIGTERM)",
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
    use railgate_node_report::NodeReport;
    use railgate_node_report::testing::{job, part, refused};

    use super::*;
    use crate::testing::{merged, slurm};
    use crate::{JobReport, brief, html, redacted, text};

    /// A report of a job and its end as one line, as timeline, page and first screen show it.
    fn pages(nodes: Vec<NodeReport>, state: &str) -> (JobReport, String) {
        let report = merged(nodes, vec![], slurm(state));
        let events: Vec<String> = report.timeline.iter().map(|event| event.what.clone()).collect();
        let pages =
            [text(&report, true).to_string(), html(&report), brief(&report).into(), redacted(&report).into()];
        let all = events.join(" ") + " " + &pages.join(" ");
        (report, all.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn end_is_described_by_its_state() {
        for (status, state, said) in [
            (0, "CANCELLED by 1000", "the job ended: cancelled"),
            (0, "TIMEOUT", "the job ended: ran into its time limit"),
            (0, "PREEMPTED", "the job ended: preempted"),
            (125, "OUT_OF_MEMORY", "the job ended: out of memory"),
            (125, "", "the job ended: out of memory"),
        ] {
            let nodes = ["n1", "n2"].map(|node| part(node, &job(0..8), "", vec![], status));
            let (report, all) = pages(nodes.into(), state);
            assert!(
                report.timeline.iter().any(|event| event.what == said),
                "{state}: {:#?}",
                report.timeline
            );
            for no in ["exit code 0", "code 0", "125"] {
                assert!(!all.contains(no), "{state}: '{no}' in {all}");
            }
        }
        let mut gone = refused("n2", &job(0..8));
        gone.exit = Some(Exit { status: 0, derived: None });
        gone.end = Some(gone.start + 9_000);
        let (_, all) = pages(vec![gone], "CANCELLED");
        assert!(all.contains("the job ended: refused by the gate before it started"), "{all}");
        assert!(!all.contains("exit code 0"), "{all}");
        // If nothing else is known, the code is shown with its possible meaning.
        let nodes = ["n1", "n2"].map(|node| part(node, &job(0..8), "", vec![], 0));
        let (_, all) = pages(nodes.into(), "");
        assert!(all.contains("exit code 0, which cancelled and timed-out jobs also have"), "{all}");
    }

    #[test]
    fn known_exit_codes_are_explained() {
        assert_eq!(exit_said(Exit { status: 125, derived: None }), "out of memory, according to Slurm");
        assert!(explain_exit(139, 0).unwrap().contains("SIGSEGV"));
        assert_eq!(explain_exit(42, 0), None);
        let said = |status| with_signal(Exit { status, derived: None });
        assert_eq!([143 << 8, 3 << 8, 9].map(said), ["exit code 143 (SIGTERM)", "exit code 3", "signal 9"]);
    }
}

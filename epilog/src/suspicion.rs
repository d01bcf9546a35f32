use railgate_stats::{Exit, NodeReport};

/// After a crash the report says that our library was in the process, whoever is to blame.
pub(crate) fn suspicion(report: &NodeReport) -> Option<String> {
    let processes = report.communication.as_ref()?.processes.len();
    let signal = crashed(report.exit?)?;
    (processes > 0).then(|| {
        format!(
            "a task crashed (signal {signal}); railgate's NCCL profiler plugin was loaded in {processes} of the job's \
             processes here. To try without: export NCCL_PROFILER_PLUGIN=none"
        )
    })
}

/// Where the script ends with its last step, the steps' status may still be 0 when the epilog starts (seen on 24.11).
fn crashed(exit: Exit) -> Option<i32> {
    exit.derived.and_then(crash).or_else(|| crash(exit.status))
}

/// SIGILL, SIGABRT, SIGBUS, SIGFPE or SIGSEGV, as a signal or as a shell's exit code.
fn crash(status: i32) -> Option<i32> {
    let (signal, code) = (status & 0x7f, (status >> 8) & 0xff);
    let signal = if signal == 0 { code - 128 } else { signal };
    [4, 6, 7, 8, 11].contains(&signal).then_some(signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_told_from_other_ends() {
        for (status, signal) in
            [(0, None), (256, None), (11, Some(11)), (139 << 8, Some(11)), (9, None), (6, Some(6))]
        {
            assert_eq!(crash(status), signal, "{status}");
        }
    }

    #[test]
    fn either_status_may_tell_of_it() {
        for (status, derived, signal) in [
            (139 << 8, Some(0), Some(11)),
            (0, Some(11), Some(11)),
            (139 << 8, None, Some(11)),
            (0, Some(0), None),
        ] {
            assert_eq!(crashed(Exit { status, derived }), signal, "{status} {derived:?}");
        }
    }
}

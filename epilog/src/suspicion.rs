use railgate_node_report::{Exit, NodeReport};

/// A line for the report after a crash: railgate's library was loaded in the process, whether or not it is the cause.
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

/// If the script ends with its last step, the steps' status may still be 0 when the epilog starts (observed on
/// 24.11).
fn crashed(exit: Exit) -> Option<i32> {
    exit.derived.and_then(crash).or_else(|| crash(exit.status))
}

/// Returns SIGILL, SIGABRT, SIGBUS, SIGFPE or SIGSEGV, from a signal or a shell's exit code.
fn crash(status: i32) -> Option<i32> {
    let (signal, code) = (status & 0x7f, (status >> 8) & 0xff);
    let signal = if signal == 0 { code - 128 } else { signal };
    [4, 6, 7, 8, 11].contains(&signal).then_some(signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_crash_signals_count_as_a_crash() {
        for (status, signal) in
            [(0, None), (256, None), (11, Some(11)), (139 << 8, Some(11)), (9, None), (6, Some(6))]
        {
            assert_eq!(crash(status), signal, "{status}");
        }
    }

    #[test]
    fn either_status_can_show_the_crash() {
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

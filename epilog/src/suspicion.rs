use railgate_stats::NodeReport;

/// After a crash the report says that our library was in the process, whoever is to blame.
pub(crate) fn suspicion(report: &NodeReport) -> Option<String> {
    let processes = report.communication.as_ref()?.processes.len();
    let signal = crash(report.exit?.derived.unwrap_or(report.exit?.status))?;
    (processes > 0).then(|| {
        format!(
            "a task crashed (signal {signal}); railgate's NCCL profiler plugin was loaded in {processes} of the job's \
             processes here. To try without: export NCCL_PROFILER_PLUGIN=none"
        )
    })
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
}

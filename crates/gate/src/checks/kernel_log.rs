use railgate_model::{Class, PartName};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct KernelLogReadable;

settings! {
    action = Drain, "unknown never drains";
}

impl Check for KernelLogReadable {
    const ABOUT: &'static str = "the kernel log could not be read, so driver errors may have gone unseen";
    const EXPLAIN: &'static str = "
Reads the records of `/dev/kmsg` that railgate has not handled yet in this boot; in the epilog, those since its job's prolog. A check
run has handled the log if it judged the whole node and found it fit or degraded, or if its finding was acted on: the node was
drained, or in report mode the drain was logged. No later check run judges these records again.

Why: without the log a faulty node may look healthy, so this is `unknown`. Records that the ring buffer dropped before they
were read are a note. NVML reports Xids too, but only to a process that waits for them: if the log cannot be read (in pods),
the job's sampler waits for them, and the epilog judges what it recorded. Xids from before the job, and messages of all other
drivers (NVSwitch, HCAs, PCIe, memory), stay unseen, as the finding states.

Fix: run as root (or with CAP_SYSLOG where `kernel.dmesg_restrict=1`); `log_buf_len=` for a larger buffer.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::KernelLog];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, _: &Settings, out: &mut Report<'_>) {
        let part = PartName::KernelLog.as_str();
        let Some(log) = scene.now.kernel_log.data() else {
            let mut why = scene.now.kernel_log.missing().unwrap_or_default();
            why.push_str(match scene.now.nvml_xids {
                Some(_) => "; only Xids that NVML reported are seen",
                None => "; Xids are not seen",
            });
            out.add(Found::unknown(Class::Site, "", &why).fix("see log").row(
                part,
                why,
                "records",
                "/dev/kmsg",
            ));
            return;
        };
        if log.overrun {
            out.add(
                Found::note(Class::Site, "", "records were lost before they were read")
                    .fix("larger log_buf_len")
                    .row(part, "overrun", "all records since railgate last handled the log", "/dev/kmsg"),
            );
        }
        let other_boot = log.since.as_ref().is_some_and(|mark| mark.boot_id != scene.now.boot_id);
        if other_boot {
            out.add(
                Found::unknown(Class::Internal, "", "read position is of another boot")
                    .fix("report a bug")
                    .row(part, "of another boot", "of this boot", "snapshot"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Fitness, KernelMark, Severity};

    use crate::testing::{case, read};

    #[test]
    fn an_unreadable_log_is_unknown() {
        let unread = case("h100-sxm:kmsg-unreadable");
        assert_eq!(unread.of("kernel-log"), [Severity::Unknown]);
        assert_eq!(unread.fitness(), Fitness::Degraded);
        let told = case("h100-sxm:gpu-nvml-xid@3").after_the_job();
        assert!(told.findings()[0].starts_with("fail gpu-xid@3: Xid 48"), "{:?}", told.findings());
        assert!(told.findings().iter().any(|line| line.contains("only Xids that NVML reported are seen")));
        let required = unread.settings("[prolog]\nrequired = [\"kernel-log\"]");
        assert!(required.summary().starts_with("unknown: unknown kernel-log: /dev/kmsg"));
    }

    #[test]
    fn lost_records_are_a_note_and_a_mark_of_another_boot_is_internal() {
        let overrun = case("h100-sxm").with(|case| read(&mut case.now.kernel_log).overrun = true);
        assert_eq!(overrun.of("kernel-log"), [Severity::Note]);
        let stale = case("h100-sxm").with(|case| {
            read(&mut case.now.kernel_log).since = Some(KernelMark { boot_id: "another".to_owned(), seq: 7 });
        });
        assert_eq!(stale.of("kernel-log"), [Severity::Unknown]);
    }
}

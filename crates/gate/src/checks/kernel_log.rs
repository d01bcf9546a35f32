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
Reads `/dev/kmsg` from the last clean look of this boot on.

Why: without the log a node may look healthy that is not, so this is `unknown`. Records that the ring buffer lost before
they were read are a note. NVML tells of Xids, too, but only whoever waits for them: where the log cannot be read (pods),
the job's sampler does, and the epilog judges what it heard. What came before the job, and all that other drivers say
(NVSwitch, HCAs, PCIe, memory), stays unseen, and the finding says so.

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
                Some(_) => "; Xids are those that NVML told, all else is unseen",
                None => "; Xids are unseen",
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
                    .row(part, "overrun", "all records since the last look", "/dev/kmsg"),
            );
        }
        let other_boot = log.since.as_ref().is_some_and(|mark| mark.boot_id != scene.now.boot_id);
        if other_boot {
            out.add(
                Found::unknown(Class::Internal, "", "read from a mark of another boot")
                    .fix("report a bug")
                    .row(part, "another boot's mark", "this boot's", "snapshot"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Fitness, KernelMark, Severity};

    use crate::testing::{look, read};

    #[test]
    fn an_unreadable_log_is_unknown() {
        let unread = look("h100-sxm:kmsg-unreadable");
        assert_eq!(unread.of("kernel-log"), [Severity::Unknown]);
        assert_eq!(unread.fitness(), Fitness::Degraded);
        let told = look("h100-sxm:gpu-nvml-xid@3").after_the_job();
        assert!(told.findings()[0].starts_with("fail gpu-xid@3: Xid 48"), "{:?}", told.findings());
        assert!(told.findings().iter().any(|line| line.contains("Xids are those that NVML told")));
        let required = unread.settings("[prolog]\nrequired = [\"kernel-log\"]");
        assert!(required.says().starts_with("unknown: unknown kernel-log: /dev/kmsg"));
    }

    #[test]
    fn lost_records_are_a_note_and_a_mark_of_another_boot_is_our_mistake() {
        let overrun = look("h100-sxm").with(|look| read(&mut look.now.kernel_log).overrun = true);
        assert_eq!(overrun.of("kernel-log"), [Severity::Note]);
        let stale = look("h100-sxm").with(|look| {
            read(&mut look.now.kernel_log).since = Some(KernelMark { boot_id: "another".to_owned(), seq: 7 });
        });
        assert_eq!(stale.of("kernel-log"), [Severity::Unknown]);
    }
}

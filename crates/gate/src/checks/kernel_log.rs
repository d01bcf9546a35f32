use railgate_node::{Class, PartName};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::register::ActionOnly as Settings;

/// The check.
pub(crate) struct KernelLogReadable;

impl Check for KernelLogReadable {
    const ABOUT: &'static str = "the kernel log could not be read, so driver errors may have gone unseen";
    const EXPLAIN: &'static str = "
Reads `/dev/kmsg` from the last clean look of this boot on.

Why: Xids stand nowhere else. Without the log a node may look healthy that is not, so this is `unknown`. Records that
the ring buffer lost before they were read are a note.

Fix: run as root (or with CAP_SYSLOG where `kernel.dmesg_restrict=1`); `log_buf_len=` for a larger buffer.

```toml
[gate.checks.kernel-log]
action = \"drain\"   # off, report, notify, drain; unknown never drains
```";
    const CLASS: Class = Class::Internal;
    const PARTS: &'static [PartName] = &[PartName::KernelLog];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, _: &Settings, out: &mut Report<'_>) {
        let part = PartName::KernelLog.as_str();
        let Some(log) = scene.now.kernel_log.data() else {
            let why = scene.now.kernel_log.missing().unwrap_or_default();
            out.add(Found::unknown(Class::Site, part, &why).fix("see log").row(
                part,
                why,
                "records",
                "/dev/kmsg",
            ));
            return;
        };
        if log.overrun {
            out.add(
                Found::note(Class::Site, part, "records were lost before they were read")
                    .fix("larger log_buf_len")
                    .row(part, "overrun", "all records since the last look", "/dev/kmsg"),
            );
        }
        let other_boot = log.since.as_ref().is_some_and(|mark| mark.boot_id != scene.now.boot_id);
        if other_boot {
            out.add(
                Found::unknown(Class::Internal, part, "read from a mark of another boot")
                    .fix("report a bug")
                    .row(part, "another boot's mark", "this boot's", "snapshot"),
            );
        }
    }
}

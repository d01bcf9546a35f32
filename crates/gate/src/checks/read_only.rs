use railgate_model::{Class, PartName};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct ReadOnly;

impl Check for ReadOnly {
    const ABOUT: &'static str = "the kernel has made a local file system read-only after errors";
    const EXPLAIN: &'static str = "
Reads `/proc/self/mountinfo`: a local file system that was mounted for writing and that the kernel has made read-only since
(`errors=remount-ro`, a forced shutdown). A file system that was mounted read-only on purpose shows that in its mount options,
too, and is left alone; so are images that can never be written.

Why: the disk below fails, and so does every program that writes to it.

Fix: check the kernel log and the drive (`nvme smart-log`, `smartctl`), `fsck`, replace it, reboot.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(host) = scene.now.host.data() else { return };
        // `disk` reports a failed reading, in the phases in which it runs.
        let Some(all) = host.system.file_systems.known() else { return };
        for one in all.iter().filter(|one| one.given_up) {
            let path = one.path.display().to_string();
            out.add(
                Found::new(set.severity, Class::Node, &path, "made read-only by the kernel")
                    .fix("fsck, check disk")
                    .row(
                        format!("{} on {}", one.fs_type, one.source),
                        "ro below a mount that is rw",
                        "rw",
                        "/proc/self/mountinfo",
                    ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::Reading;

    use crate::testing::{Case, case};

    fn with(read_only: bool, given_up: bool) -> Case {
        case("h100-sxm").host(|host| {
            let Reading::Known(all) = &mut host.system.file_systems else { panic!() };
            (all[0].read_only, all[0].given_up) = (read_only, given_up);
        })
    }

    #[test]
    fn only_a_file_system_that_the_kernel_made_read_only_warns() {
        assert_eq!(with(true, false).summary(), "fit");
        let bad = with(false, true);
        assert_eq!(
            bad.summary(),
            "degraded: warn read-only@/: made read-only by the kernel; fsck, check disk"
        );
        let strict = with(false, true).settings("[checks.read-only]\nseverity = \"fail\"");
        assert!(strict.summary().starts_with("unfit: fail read-only@/"));
    }
}

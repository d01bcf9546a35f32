use std::path::Path;

use railgate_model::{Class, PartName, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct SharedMemory;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "/dev/shm is too small or full";
    min_mib: u64 = 1024, "MiB; the smallest size";
    min_free_mib: u64 = 512, "MiB; the least free space";
}

impl Check for SharedMemory {
    const ABOUT: &'static str = "/dev/shm is too small, or full";
    const EXPLAIN: &'static str = "
Reads the size and the free space of `/dev/shm`. A machine without one is not judged.

Why: NCCL and data loaders pass data between the processes of a node there; without space they end with a bus error.

If it is too small, the class is `site`; if files that jobs left behind fill it, the class is `user` (the user is notified,
nothing drains).

Fix: `mount -o remount,size=50% /dev/shm`, and fstab; remove old files, or give each job its own (job_container/tmpfs).
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(host) = scene.now.host.data() else { return };
        // `disk` reports a failed reading, in the phases in which it runs.
        let Some(all) = host.system.file_systems.known() else { return };
        let Some(shm) = all.iter().find(|one| one.path == Path::new("/dev/shm")) else { return };
        let Some(space) = out.value("", "/dev/shm", "statvfs", &shm.space) else { return };
        if space.size_mib < set.min_mib {
            let got = format!("{} MiB", space.size_mib);
            out.add(
                Found::new(set.severity, Class::Site, "", format!("/dev/shm has {got}"))
                    .fix("remount larger")
                    .row("size of /dev/shm", got, format!("{} MiB", set.min_mib), "statvfs"),
            );
        } else if space.free_mib < set.min_free_mib {
            let got = format!("{} of {} MiB free", space.free_mib, space.size_mib);
            out.add(
                Found::new(set.severity, Class::User, "", format!("/dev/shm is full: {got}"))
                    .fix("clean it up")
                    .row("space in /dev/shm", got, format!("{} MiB", set.min_free_mib), "statvfs"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Reading, Space};

    use super::*;
    use crate::testing::{Case, case};

    fn with(size_mib: u64, free_mib: u64) -> Case {
        case("h100-sxm").host(|host| {
            let Reading::Known(all) = &mut host.system.file_systems else { panic!() };
            let shm = all.iter_mut().find(|one| one.path == Path::new("/dev/shm")).unwrap();
            shm.space = Reading::Known(Space { size_mib, free_mib, inodes: 0, inodes_free: 0 });
        })
    }

    #[test]
    fn a_small_dev_shm_is_a_site_problem_and_a_full_one_a_user_problem() {
        let small = with(64, 64);
        assert_eq!(small.summary(), "degraded: warn shm: /dev/shm has 64 MiB; remount larger");
        assert_eq!(small.judge().findings[0].class, Class::Site);
        let full = with(500_000, 100);
        assert_eq!(
            full.summary(),
            "degraded: warn shm: /dev/shm is full: 100 of 500000 MiB free; clean it up"
        );
        assert_eq!(full.judge().findings[0].class, Class::User);
        assert_eq!(with(500_000, 1_000).summary(), "fit");
        let none = case("h100-sxm").host(|host| {
            let Reading::Known(all) = &mut host.system.file_systems else { panic!() };
            all.retain(|one| one.path != Path::new("/dev/shm"));
        });
        assert_eq!(none.summary(), "fit");
    }
}

use railgate_model::{Class, FileSystem, PartName, Severity, Space, fits_pattern};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::{amount, settings, within, words};

/// The check.
pub(crate) struct Disk;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "a full file system";
    free_percent: f64 = 5.0, limit within(0.0..=100.0), "full: less than this share free, of space or of inodes, and ...";
    free_gib: f64 = 10.0, limit amount("size"), "... less than this many GiB of space ...";
    free_inodes: u64 = 100_000, "... or fewer inodes than this";
    users: Vec<String> = words("/tmp* /var/tmp* /home* /scratch* /local* /raid* /data* /mnt*"), "mount points that users fill: names, or beginnings with a trailing *";
    ignore: Vec<String> = words("/boot* /dev/shm"), "not judged";
}

impl Check for Disk {
    const ABOUT: &'static str = "a local file system has no space or no inodes left";
    const EXPLAIN: &'static str = "
Reads every local file system (block devices, and /run and /tmp in memory) by `statvfs`.

Why: jobs and daemons die at their first write; if slurmd cannot write its spool, the node goes down.

A file system is full if less than `free_percent` and less than `free_gib` of its space are free: a large disk may be 97 % full
and have room. It is also full if less than `free_percent` and fewer than `free_inodes` of its inodes are free. Below `users`
the class is `user` (the user is notified, nothing drains), elsewhere `node`. Read-only file systems are not judged; `/dev/shm`
is judged by `shm`.

Fix: remove large and old files (`du -x`, `journalctl --vacuum-size`); run a tmp cleaner in the epilog.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(host) = scene.now.host.data() else { return };
        let table = "/proc/self/mountinfo";
        let Some(all) = out.value("", "mounts", table, &host.system.file_systems) else { return };
        for one in all.iter().filter(|one| !one.read_only && !one.given_up) {
            let path = one.path.display().to_string();
            if set.ignore.iter().any(|pattern| fits_pattern(pattern, &path)) {
                continue;
            }
            if let Some(space) = out.value(&path, "space", "statvfs", &one.space) {
                judge(one, &path, space, set, out);
            }
        }
    }
}

fn judge(one: &FileSystem, path: &str, space: &Space, set: &Settings, out: &mut Report<'_>) {
    let users = set.users.iter().any(|pattern| fits_pattern(pattern, path));
    let (class, fix) = if users { (Class::User, "clean it up") } else { (Class::Node, "make room") };
    let percent = |left: u64, all: u64| 100.0 * left as f64 / all as f64;
    let device = format!("{} on {}", one.fs_type, one.source);
    let free_gib = space.free_mib as f64 / 1024.0;
    if space.size_mib > 0
        && percent(space.free_mib, space.size_mib) < set.free_percent
        && free_gib < set.free_gib
    {
        let left = format!("{free_gib:.1} of {:.0} GiB free", space.size_mib as f64 / 1024.0);
        let want = format!("{} GiB or {} %", set.free_gib, set.free_percent);
        out.add(Found::new(set.severity, class, path, &left).fix(fix).row(&device, left, want, "statvfs"));
    }
    // File systems that create inodes on demand, for example btrfs, report zero.
    if space.inodes > 0
        && percent(space.inodes_free, space.inodes) < set.free_percent
        && space.inodes_free < set.free_inodes
    {
        let left = format!("{} of {} inodes free", space.inodes_free, space.inodes);
        let want = format!("{} or {} %", set.free_inodes, set.free_percent);
        out.add(Found::new(set.severity, class, path, &left).fix(fix).row(&device, left, want, "statvfs"));
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Fitness, Reading};

    use super::*;
    use crate::testing::{Case, case};

    fn with(path: &str, space: Space) -> Case {
        case("h100-sxm").host(|host| {
            let Reading::Known(all) = &mut host.system.file_systems else { panic!() };
            all.iter_mut().find(|one| one.path.to_str() == Some(path)).unwrap().space = Reading::Known(space);
        })
    }

    fn gib(size: u64, free: u64) -> Space {
        Space { size_mib: size * 1024, free_mib: free * 1024, inodes: 1_000_000, inodes_free: 900_000 }
    }

    #[test]
    fn a_disk_is_full_if_both_share_and_free_space_are_small() {
        assert_eq!(with("/", gib(900, 20)).summary(), "fit", "2 % of much is much");
        assert_eq!(with("/", gib(20, 4)).summary(), "fit", "4 GiB of 20");
        assert_eq!(with("/", gib(900, 4)).summary(), "degraded: warn disk@/: 4.0 of 900 GiB free; make room");
    }

    #[test]
    fn a_full_tmp_is_a_user_problem() {
        let tmp = with("/tmp", gib(900, 0));
        assert_eq!(tmp.summary(), "degraded: warn disk@/tmp: 0.0 of 900 GiB free; clean it up");
        assert_eq!(tmp.judge().findings[0].class, Class::User);
        let all = with("/tmp", gib(900, 0)).settings("[checks.disk]\nseverity = \"fail\"");
        assert_eq!(all.fitness(), Fitness::Degraded, "a user's mess drains nothing");
        let node = with("/", gib(900, 0)).settings("[checks.disk]\nseverity = \"fail\"");
        assert_eq!(node.fitness(), Fitness::Unfit);
    }

    #[test]
    fn a_lack_of_inodes_warns() {
        let few = |inodes, inodes_free| with("/", Space { inodes, inodes_free, ..gib(900, 800) });
        assert_eq!(
            few(58_000_000, 900).summary(),
            "degraded: warn disk@/: 900 of 58000000 inodes free; make room"
        );
        assert_eq!(few(58_000_000, 150_000).summary(), "fit");
        assert_eq!(few(0, 0).summary(), "fit", "btrfs");
    }

    #[test]
    fn an_unreadable_file_system_is_unknown_and_a_read_only_one_is_skipped() {
        let bent = |read_only: bool| {
            case("h100-sxm").host(|host| {
                let Reading::Known(all) = &mut host.system.file_systems else { panic!() };
                all[0].space = Reading::Failed("/: statvfs: I/O error".to_owned());
                all[0].read_only = read_only;
            })
        };
        assert_eq!(bent(false).of("disk"), [Severity::Unknown]);
        assert_eq!(bent(true).summary(), "fit");
    }
}

use std::path::PathBuf;

use railgate_model::{Class, Extra, MountProbe, PartName};

use crate::plan::Need;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::{all_absolute, either, settings};

/// The check.
pub(crate) struct Mounts;

settings! {
    action = Drain;
    required: Vec<PathBuf> = Vec::new(), limit all_absolute(), "mount points that every job needs: [\"/home\", \"/scratch\"]";
    writable: bool = true, "they must be writable";
    class: Class = Class::Site, limit either(Class::Site, Class::Node), "site: missing on all nodes, report to the admin; node: a fault of this node, drain";
}

impl Check for Mounts {
    const ABOUT: &'static str =
        "a file system that jobs need is not mounted, does not answer, or is read-only";
    const EXPLAIN: &'static str = "
Reads each path of `required` by `statvfs` in a child process with a deadline: whether it is a mount point, answers, and
is writable.

Why: jobs die at their first open, or hang in the kernel, where no signal ends them.

Fix: `mount`, check the server, `umount -l` and mount again. A child that is stuck in the kernel ends only when the server is
back, or at a reboot.

No answer is `unknown` the first time and `fail` the second time in one boot, or if the child outlives SIGKILL. Within
`boot_grace` of `ib-port` after boot a missing mount is `unknown`, too: it may still be coming. A mount that is missing is
usually missing on all nodes, so the class is `site` and nothing drains; with `class = \"node\"` it is a fault of this node.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const NEEDS: &'static [Need<Settings>] =
        &[Need::extra(|set, _, _| (!set.required.is_empty()).then(|| Extra::Mounts(set.required.clone())))];
    const SCOPE: Scope = Scope::Always;
    const COST: &'static str = "one child process per mount";
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(host) = scene.now.host.data() else { return };
        for path in &set.required {
            let part = path.display().to_string();
            let Some(mount) = host.mounts.iter().find(|mount| mount.path == *path) else {
                out.add(Found::unknown(Class::Internal, &part, "was not queried").fix("report a bug").row(
                    &part,
                    "not queried",
                    "an answer",
                    "snapshot",
                ));
                continue;
            };
            let again = scene.seen.memory.mount_was_silent(path, &scene.now.boot_id);
            let found =
                match &mount.probe {
                    MountProbe::Answered { writable: true, .. } => continue,
                    MountProbe::Answered { writable: false, .. } if !set.writable => continue,
                    MountProbe::Answered { fs_type, source, .. } => {
                        Found::fail(set.class, &part, "read-only").fix("remount").row(
                            &part,
                            format!("read-only {fs_type} from {source}"),
                            "writable",
                            "/proc/self/mountinfo",
                        )
                    }
                    MountProbe::NotMounted => Found::fail(set.class, &part, "not mounted")
                        .fix("mount it")
                        .row(&part, "no mount point", "a mount", "/proc/self/mountinfo"),
                    MountProbe::Failed(why) => Found::fail(set.class, &part, why.as_str())
                        .fix("remount")
                        .row(&part, why, "an answer", "statvfs"),
                    MountProbe::Silent { stuck, after_ms } => {
                        let mut what = format!("no answer in {:.1} s", after_ms / 1000.0);
                        if *stuck {
                            what.push_str(", stuck in the kernel");
                        } else if again {
                            what.push_str(", as before");
                        }
                        let found = if *stuck || again {
                            Found::fail(set.class, &part, &what)
                        } else {
                            Found::unknown(set.class, &part, &what)
                        };
                        found.fix("check server").row(&part, what, "an answer", "statvfs")
                    }
                };
            let young = scene.just_booted() && !matches!(mount.probe, MountProbe::Silent { stuck: true, .. });
            out.add(if young { found.only_unknown("node just booted") } else { found });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use railgate_model::{Fitness, Mount, MountProbe, Severity};

    use crate::Memory;
    use crate::testing::{Case, case};

    const HOME: &str = "[checks.mounts]\nrequired = [\"/home\"]\n";

    fn home(probe: MountProbe) -> Case {
        case("h100-sxm")
            .settings(HOME)
            .host(|host| host.mounts = vec![Mount { path: PathBuf::from("/home"), probe }])
    }

    fn answered(writable: bool) -> MountProbe {
        MountProbe::Answered {
            fs_type: "nfs4".to_owned(),
            source: "srv:/home".to_owned(),
            writable,
            took_ms: 1.0,
        }
    }

    const SILENT: MountProbe = MountProbe::Silent { stuck: false, after_ms: 5000.0 };

    #[test]
    fn each_probe_result_gives_its_severity() {
        assert_eq!(home(answered(true)).summary(), "fit");
        assert_eq!(home(answered(false)).of("mounts"), [Severity::Fail]);
        assert_eq!(home(MountProbe::NotMounted).of("mounts"), [Severity::Fail]);
        assert_eq!(home(MountProbe::Failed("Stale file handle".to_owned())).of("mounts"), [Severity::Fail]);
        assert_eq!(home(MountProbe::Silent { stuck: true, after_ms: 5000.0 }).of("mounts"), [Severity::Fail]);
        assert_eq!(home(SILENT).of("mounts"), [Severity::Unknown]);
        assert_eq!(home(answered(true)).host(|host| host.mounts.clear()).of("mounts"), [Severity::Unknown]);
    }

    #[test]
    fn a_second_timeout_in_one_boot_fails() {
        let again = |boot: &str| {
            home(SILENT).with(|case| {
                case.memory = Memory {
                    boot_id: boot.to_owned(),
                    silent_mounts: vec![PathBuf::from("/home")],
                    ..Memory::default()
                };
            })
        };
        let boot = case("h100-sxm").now.boot_id;
        assert_eq!(again(&boot).of("mounts"), [Severity::Fail]);
        assert_eq!(again("another").of("mounts"), [Severity::Unknown]);
    }

    #[test]
    fn soon_after_boot_a_missing_mount_is_unknown() {
        let young = |probe: MountProbe| {
            home(probe).settings(&format!("{HOME}class = \"node\"")).with(|case| {
                let now = case.now.taken / 1000;
                crate::testing::read(&mut case.now.host).boot_time = railgate_model::Reading::Known(now - 60);
            })
        };
        assert_eq!(young(MountProbe::NotMounted).of("mounts"), [Severity::Unknown]);
        assert_eq!(
            young(MountProbe::Silent { stuck: true, after_ms: 5000.0 }).of("mounts"),
            [Severity::Fail]
        );
        assert_eq!(young(answered(true)).summary(), "fit");
    }

    #[test]
    fn it_drains_only_with_class_node() {
        assert_eq!(home(MountProbe::NotMounted).fitness(), Fitness::Degraded);
        let node = home(MountProbe::NotMounted).settings(&format!("{HOME}class = \"node\""));
        assert_eq!(node.summary(), "unfit: fail mounts@/home: not mounted; mount it");
    }

    #[test]
    fn a_read_only_mount_is_fit_if_configured() {
        let read_only = home(answered(false)).settings(&format!("{HOME}writable = false"));
        assert_eq!(read_only.summary(), "fit");
    }

    #[test]
    fn a_missing_mount_fails_jobs_without_gpus() {
        assert_eq!(home(MountProbe::NotMounted).holding(&[]).of("mounts"), [Severity::Fail]);
    }

    #[test]
    fn settings_out_of_range() {
        let config: crate::GateConfig =
            toml::from_str("[checks.mounts]\nrequired = [\"home\"]\nclass = \"user\"").unwrap();
        assert_eq!(
            config.problems(),
            [
                "gate.checks.mounts.required: 'home' is not an absolute path",
                "gate.checks.mounts.class: 'user' is neither 'site' nor 'node'"
            ]
        );
    }
}

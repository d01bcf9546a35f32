use std::path::PathBuf;

use railgate_node::{Action, Class, MountProbe, PartName};
use serde::{Deserialize, Serialize};

use crate::register::{Check, Scope, Table};
use crate::report::{Found, Report};
use crate::scene::Scene;

/// The check.
pub(crate) struct Mounts;

/// `[gate.checks.mounts]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The strongest thing that may follow: `off`, `report`, `notify`, `drain`.
    pub action: Action,
    /// Mount points that every job needs: absolute paths. Each is asked by a child process of its own.
    pub required: Vec<PathBuf>,
    /// They must be writable.
    pub writable: bool,
    /// `site`: a mount that is missing is missing everywhere, tell the admin. `node`: it is this node's, drain.
    pub class: Class,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { action: Action::Drain, required: Vec::new(), writable: true, class: Class::Site }
    }
}

impl Table for Settings {
    fn action(&self) -> Action {
        self.action
    }

    fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self
            .required
            .iter()
            .filter(|path| !path.is_absolute())
            .map(|path| format!("required: '{}' is not an absolute path", path.display()))
            .collect();
        if !matches!(self.class, Class::Site | Class::Node) {
            problems.push(format!("class: '{}' is neither 'site' nor 'node'", self.class));
        }
        problems
    }
}

impl Check for Mounts {
    const ABOUT: &'static str =
        "a file system that jobs need is not mounted, does not answer, or is read-only";
    const EXPLAIN: &'static str = "
Asks each path of `required` by `statvfs` in a child process with a deadline: whether it is a mount point, answers, and
is writable.

Why: jobs die at their first open, or hang where no signal reaches them.

Fix: `mount`, look at the server, `umount -l` and mount again. A child that is stuck in the kernel needs the server back
or a reboot.

No answer is `unknown` the first time and `fail` the second time in one boot, or when the child outlives SIGKILL. A
mount that is missing is usually missing everywhere, so the class is `site` and nothing drains; `class = \"node\"` makes
it this node's.

```toml
[gate.checks.mounts]
action = \"drain\"    # off, report, notify, drain
required = []       # [\"/home\", \"/scratch\"]
writable = true
class = \"site\"      # site, node
```";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    const COST: &'static str = "one child process per mount";
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(host) = scene.now.host.data() else { return };
        for path in &set.required {
            let part = path.display().to_string();
            let Some(mount) = host.mounts.iter().find(|mount| mount.path == *path) else {
                out.add(Found::unknown(Class::Internal, &part, "was not asked").fix("report a bug").row(
                    &part,
                    "not asked",
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
            out.add(found);
        }
    }
}

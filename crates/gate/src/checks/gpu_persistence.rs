use railgate_model::{Action, Class, PartName, Severity};
use serde::{Deserialize, Serialize};

use crate::register::{Check, Scope, Table};
use crate::report::{Found, Report};
use crate::scene::Scene;

/// The check.
pub(crate) struct GpuPersistence;

/// `[gate.checks.gpu-persistence]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The strongest thing that may follow: `off`, `shadow`, `report`, `notify`, `drain`.
    pub action: Action,
    /// How bad it is when the driver lets go of an idle GPU.
    pub severity: Severity,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { action: Action::Drain, severity: Severity::Note }
    }
}

impl Table for Settings {
    fn action(&self) -> Action {
        self.action
    }
}

impl Check for GpuPersistence {
    const ABOUT: &'static str = "persistence mode is off";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetPersistenceMode`.

Why: without it the driver lets go of an idle GPU, every job's start waits for seconds, and error counters start anew
each time, so that faults between jobs go unseen.

Fix: run `nvidia-persistenced`, or `nvidia-smi -pm 1` at boot.

```toml
[gate.checks.gpu-persistence]
action = \"drain\"     # off, shadow, report, notify, drain
severity = \"note\"    # note, unknown, warn, fail
```";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for gpu in scene.answering() {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} persistence mode");
            if out.value(&part, &what, SOURCE, &gpu.persistence) == Some(&false) {
                out.add(
                    Found::new(set.severity, Class::Site, part, "persistence mode is off")
                        .fix("run nvidia-persistenced")
                        .row(what, "off", "on", SOURCE),
                );
            }
        }
    }
}

const SOURCE: &str = "nvmlDeviceGetPersistenceMode";

#[cfg(test)]
mod tests {
    use railgate_model::Severity;

    use crate::testing::look;

    #[test]
    fn it_is_a_note_unless_the_site_says_more() {
        let off = look("h100-sxm:gpu-persistence-off@3");
        assert_eq!((off.says(), off.of("gpu-persistence")), ("fit".to_owned(), vec![Severity::Note]));
        let strict = off.settings("[checks.gpu-persistence]\nseverity = \"warn\"");
        assert!(strict.says().starts_with("degraded: warn gpu-persistence@3: persistence mode is off"));
    }
}

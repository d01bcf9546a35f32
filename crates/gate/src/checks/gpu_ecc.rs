use railgate_node::{Action, Class, PartName, Phase};
use serde::{Deserialize, Serialize};

use crate::register::{Check, Scope, Table};
use crate::report::{Found, Report};
use crate::scene::Scene;

/// The check.
pub(crate) struct GpuEcc;

/// `[gate.checks.gpu-ecc]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The strongest thing that may follow: `off`, `report`, `notify`, `drain`.
    pub action: Action,
    /// Uncorrected errors that are still tolerated: since the driver was loaded (before a job), during the
    /// job (after it).
    pub max_uncorrected: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { action: Action::Drain, max_uncorrected: 0 }
    }
}

impl Table for Settings {
    fn action(&self) -> Action {
        self.action
    }
}

impl Check for GpuEcc {
    const ABOUT: &'static str = "GPU memory had uncorrected errors, or ECC is off where it should be on";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetTotalEccErrors` (volatile, uncorrected: since the driver was loaded or the GPU reset) and
`nvmlDeviceGetEccMode`. Before a job the count itself is judged, after a job what it rose by since the prolog; a
count that went backwards is `unknown` (the GPU was reset meanwhile).

Why: an uncorrected error kills the process that meets it, and the page stays bad until the row is remapped by a reset.

Fix: reset the GPU when idle (`nvidia-smi -r -i N`); look at `gpu-remap` afterwards. ECC off: `nvidia-smi -e 1`, reboot
(class `site`, `warn`, only where the profile says that the machine has ECC on).

```toml
[gate.checks.gpu-ecc]
action = \"drain\"        # off, report, notify, drain
max_uncorrected = 0     # errors; more is `fail`
```";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let wanted = scene.profile().is_some_and(|profile| profile.gpus.ecc == Some(true));
        for gpu in scene.answering() {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} ECC mode");
            let mode = out.value(&part, &what, "nvmlDeviceGetEccMode", &gpu.ecc_enabled).copied();
            let off = mode == Some(false) || gpu.ecc_enabled == railgate_node::Reading::Unsupported;
            if wanted && off {
                let got = gpu.ecc_enabled.to_string();
                out.add(Found::warn(Class::Site, &part, "ECC is off").fix("nvidia-smi -e 1").row(
                    what,
                    got,
                    "true",
                    "nvmlDeviceGetEccMode",
                ));
            }

            let what = format!("gpu {part} ECC volatile uncorrected");
            let Some(&now) = out.value(&part, &what, SOURCE, &gpu.ecc.volatile_uncorrected) else { continue };
            let before = match scene.phase() {
                Phase::Epilog => {
                    scene.before(gpu).and_then(|old| old.ecc.volatile_uncorrected.known()).copied()
                }
                Phase::Prolog | Phase::Periodic => None,
            };
            let (errors, since) = match before {
                Some(before) if now < before => {
                    out.add(
                        Found::unknown(Class::Node, &part, "ECC counter went backwards during the job")
                            .fix("none")
                            .row(what, now.to_string(), format!("at least {before}"), SOURCE),
                    );
                    continue;
                }
                Some(before) => (now - before, "during the job"),
                None => (now, "since driver load"),
            };
            if errors > set.max_uncorrected {
                out.add(
                    Found::fail(Class::Node, &part, format!("{errors} uncorrected ECC errors {since}"))
                        .fix("reset GPU")
                        .row(
                            what,
                            format!("{errors} {since}"),
                            format!("at most {}", set.max_uncorrected),
                            SOURCE,
                        ),
                );
            }
        }
    }
}

const SOURCE: &str = "nvmlDeviceGetTotalEccErrors";

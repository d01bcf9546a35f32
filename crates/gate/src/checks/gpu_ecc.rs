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

#[cfg(test)]
mod tests {
    use railgate_node::{Phase, Reading, Severity};

    use crate::testing::{Look, look, read};

    fn errors(look: Look, now: u64) -> Look {
        look.gpu(1, |gpu| gpu.ecc.volatile_uncorrected = Reading::Known(now))
    }

    fn before(look: Look, then: u64) -> Look {
        look.after_the_job().with(|look| {
            let before = read(&mut look.before.as_mut().unwrap().gpus);
            before.gpus[1].ecc.volatile_uncorrected = Reading::Known(then);
        })
    }

    #[test]
    fn before_a_job_the_count_after_it_the_difference() {
        assert_eq!(errors(look("h100-sxm"), 4).of("gpu-ecc"), [Severity::Fail]);
        assert_eq!(errors(look("h100-sxm").phase(Phase::Periodic), 4).of("gpu-ecc"), [Severity::Fail]);
        assert_eq!(errors(before(look("h100-sxm"), 4), 4).says(), "fit");
        let rose = errors(before(look("h100-sxm"), 4), 6);
        assert_eq!(rose.says(), "unfit: fail gpu-ecc@1: 2 uncorrected ECC errors during the job; reset GPU");
    }

    #[test]
    fn a_counter_that_went_backwards_is_unknown() {
        let look = errors(before(look("h100-sxm"), 4), 1);
        assert_eq!(
            look.says(),
            "degraded: unknown gpu-ecc@1: ECC counter went backwards during the job; none"
        );
    }

    #[test]
    fn a_baseline_of_another_boot_is_none() {
        let rebooted =
            errors(before(look("h100-sxm"), 4), 1).with(|look| look.now.boot_id = "another".to_owned());
        assert_eq!(rebooted.of("gpu-ecc"), [Severity::Fail], "the count itself, since this boot");
    }

    #[test]
    fn the_threshold_is_the_sites() {
        let tolerant = |toml| errors(look("h100-sxm").settings(toml), 4).of("gpu-ecc");
        assert!(tolerant("[checks.gpu-ecc]\nmax_uncorrected = 4").is_empty());
        assert_eq!(tolerant("[checks.gpu-ecc]\nmax_uncorrected = 3"), [Severity::Fail]);
    }

    #[test]
    fn no_ecc_is_a_fault_only_where_the_machine_has_it() {
        let without = |id: &str| {
            look(id).gpu(1, |gpu| {
                gpu.ecc_enabled = Reading::Unsupported;
                gpu.ecc.volatile_uncorrected = Reading::Unsupported;
            })
        };
        assert!(without("generic").of("gpu-ecc").is_empty());
        assert_eq!(without("h100-sxm").of("gpu-ecc"), [Severity::Warn]);
        let off = look("h100-sxm").gpu(1, |gpu| gpu.ecc_enabled = Reading::Known(false));
        assert_eq!(off.says(), "degraded: warn gpu-ecc@1: ECC is off; nvidia-smi -e 1");
    }

    #[test]
    fn another_jobs_errors_and_failed_reads() {
        assert_eq!(errors(look("h100-sxm"), 4).holding(&[0, 2]).says(), "fit");
        let failed =
            look("h100-sxm").gpu(1, |gpu| gpu.ecc.volatile_uncorrected = Reading::Failed("999".to_owned()));
        assert_eq!(failed.of("gpu-ecc"), [Severity::Unknown]);
    }
}

use railgate_node::{Action, Class, Gpu, NvLinkErrors, PartName, Reading};
use serde::{Deserialize, Serialize};

use crate::register::{Check, Scope, Table};
use crate::report::{Found, Report};
use crate::scene::Scene;

use super::gpu_window::Window;

/// The check.
pub(crate) struct GpuLinkErrors;

/// `[gate.checks.gpu-link-errors]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The strongest thing that may follow: `off`, `shadow`, `report`, `notify`, `drain`.
    pub action: Action,
    /// Recoveries (a link trained anew) during a job that are tolerated.
    pub max_recoveries: u64,
    /// Replays in an hour of a job that are tolerated.
    pub replays_per_hour: u64,
    /// Checksum errors in an hour of a job that are tolerated.
    pub crc_per_hour: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { action: Action::Drain, max_recoveries: 0, replays_per_hour: 1_000, crc_per_hour: 360_000 }
    }
}

impl Table for Settings {
    fn action(&self) -> Action {
        self.action
    }
}

impl Check for GpuLinkErrors {
    const ABOUT: &'static str = "the NVLinks of a GPU had errors during the job";
    const EXPLAIN: &'static str = "
Reads the error counters of all NVLinks of a GPU together (fields 52, 59 and 38: replays, recoveries, checksum errors) and
judges what they rose by during the job. What stood there before is nobody's news: counters begin with the driver and
some links count while they are trained. A count that went backwards says nothing.

Why: a link that has to be trained anew stands still meanwhile, and one day does not come back.

Fix: watch; a GPU that shows it in job after job: reset all GPUs, then RMA (GPU, baseboard or NVSwitch).

```toml
[gate.checks.gpu-link-errors]
action = \"drain\"           # off, shadow, report, notify, drain
max_recoveries = 0         # during the job; more is `warn`
replays_per_hour = 1000
crc_per_hour = 360000      # 100 a second
```";
    const CLASS: Class = Class::Node;
    const PHASES: &'static [railgate_node::Phase] = &[railgate_node::Phase::Epilog];
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for gpu in scene.answering() {
            let Some(window) = Window::of(scene, gpu) else { continue };
            let kinds: [(&str, Counter, u64); 3] = [
                ("recoveries", |errors| &errors.recoveries, set.max_recoveries),
                ("replays", |errors| &errors.replays, window.allowed(set.replays_per_hour, HOUR_MS)),
                ("CRC errors", |errors| &errors.crc, window.allowed(set.crc_per_hour, HOUR_MS)),
            ];
            for (name, counter, allowed) in kinds {
                let what = format!("gpu {} NVLink {name}", gpu.index);
                let part = gpu.index.to_string();
                let reading = counter(&gpu.details.nvlink_errors);
                if out.value(&part, &what, "NVML fields 52, 59, 38", reading).is_none() {
                    continue;
                }
                let rose = window.rose(gpu, |gpu: &Gpu| counter(&gpu.details.nvlink_errors));
                let Some(rose) = rose.filter(|rose| *rose > allowed) else { continue };
                let text = format!("{rose} NVLink {name} {}", window.text());
                out.add(Found::warn(Class::Node, part, text).fix("watch").row(
                    what,
                    rose.to_string(),
                    format!("at most {allowed}"),
                    "NVML fields 52, 59, 38",
                ));
            }
        }
    }
}

type Counter = fn(&NvLinkErrors) -> &Reading<u64>;

const HOUR_MS: u64 = 3_600_000;

#[cfg(test)]
mod tests {
    use crate::testing::{look, read};

    #[test]
    fn what_came_during_the_job_counts() {
        let after = look("h100-sxm:gpu-nvlink-errors@3").after_the_job();
        assert_eq!(
            after.findings(),
            [
                "warn gpu-link-errors@3: 3 NVLink recoveries in 1 min; watch",
                "warn gpu-link-errors@3: 5000 NVLink replays in 1 min; watch"
            ]
        );
        assert_eq!(look("h100-sxm:gpu-nvlink-errors@3").says(), "fit", "nobody knows since when");
    }

    #[test]
    fn what_stood_there_before_does_not() {
        let old = look("h100-sxm:gpu-nvlink-errors@3").after_the_job().with(|look| {
            look.before = Some(look.now.clone());
        });
        assert_eq!(old.says(), "fit");
        let reloaded = old.with(|look| {
            read(&mut look.now.gpus).gpus[3].details.nvlink_errors.replays = railgate_node::Reading::Known(0);
        });
        assert_eq!(reloaded.says(), "fit");
    }
}

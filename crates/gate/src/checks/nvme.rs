use railgate_node::{Action, Class, Nvme, PartName, Severity};
use serde::{Deserialize, Serialize};

use crate::register::{Check, Scope, Table};
use crate::report::{Found, Report};
use crate::scene::Scene;

/// The check.
pub(crate) struct NvmeDrives;

/// `[gate.checks.nvme]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The strongest thing that may follow.
    pub action: Action,
    /// How bad it is.
    pub severity: Severity,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { action: Action::Drain, severity: Severity::Warn }
    }
}

impl Table for Settings {
    fn action(&self) -> Action {
        self.action
    }
}

impl Check for NvmeDrives {
    const ABOUT: &'static str = "an NVMe drive is missing, dead or too hot";
    const EXPLAIN: &'static str = "
Reads `/sys/class/nvme/*`: the state of each controller (`live`), and its own temperature, critical temperature and
alarm as its hwmon shows them. How many there should be stands in the machine type (`[host] nvmes`); without that the
number is not judged. Wear and spare blocks stand only in the drive's log, which needs a command to the drive:
write a check of the site's own around `nvme smart-log` for those.

Why: local scratch and data caches of jobs lie there, and a drive that resets stalls everything that waits for it.

Fix: airflow; `nvme reset`; reseat or replace the drive.

```toml
[gate.checks.nvme]
action = \"drain\"      # off, shadow, report, notify, drain
severity = \"warn\"     # note, warn, fail
```";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(host) = scene.now.host.data() else { return };
        let class = "/sys/class/nvme";
        let wanted = scene.profile().and_then(|profile| profile.host.nvmes);
        let drives = out.value("", "NVMe drives", class, &host.system.nvmes).map_or(&[][..], Vec::as_slice);
        let count = u32::try_from(drives.len()).unwrap_or(u32::MAX);
        if let Some(wanted) = wanted.filter(|wanted| count < *wanted && !failed(&host.system.nvmes)) {
            out.add(
                Found::new(set.severity, Class::Node, "", format!("{count} of {wanted} NVMe drives"))
                    .fix("reseat drive")
                    .row("NVMe controllers", count.to_string(), wanted.to_string(), class),
            );
        }
        for drive in drives {
            judge(drive, set, out);
        }
    }
}

fn failed<T>(reading: &railgate_node::Reading<T>) -> bool {
    matches!(reading, railgate_node::Reading::Failed(_))
}

fn judge(drive: &Nvme, set: &Settings, out: &mut Report<'_>) {
    let path = format!("/sys/class/nvme/{}", drive.name);
    let state = out.value(&drive.name, "state", &path, &drive.state);
    if let Some(state) = state.filter(|state| *state != "live") {
        out.add(
            Found::new(set.severity, Class::Node, &drive.name, format!("controller is {state}"))
                .fix("replace drive")
                .row("state", state, "live", format!("{path}/state")),
        );
    }
    let hot = out.value(&drive.name, "alarm", &path, &drive.alarm) == Some(&true);
    let degrees = out.value(&drive.name, "temperature", &path, &drive.temperature_c).copied();
    let critical = drive.critical_c.known().copied().filter(|critical| *critical > 0.0);
    let above = degrees.zip(critical).is_some_and(|(degrees, critical)| degrees >= critical);
    if hot || above {
        let shown = |value: Option<f64>| value.map_or("unknown".to_owned(), |value| format!("{value:.0} C"));
        let what = match (degrees, above) {
            (Some(degrees), true) => format!("{degrees:.0} C, critical"),
            _ => "temperature alarm".to_owned(),
        };
        let want = format!("below {}, no alarm", shown(critical));
        out.add(Found::new(set.severity, Class::Node, &drive.name, what).fix("check airflow").row(
            "temperature",
            shown(degrees),
            want,
            format!("{path}/hwmon"),
        ));
    }
}

#[cfg(test)]
mod tests {
    use railgate_node::Reading;

    use super::*;
    use crate::testing::{Look, look};

    fn with(bend: impl FnOnce(&mut Vec<Nvme>)) -> Look {
        look("h100-sxm").host(|host| {
            let Reading::Known(drives) = &mut host.system.nvmes else { panic!() };
            bend(drives);
        })
    }

    #[test]
    fn dead_hot_and_missing() {
        let dead = with(|drives| drives[2].state = Reading::Known("dead".to_owned()));
        assert_eq!(dead.says(), "degraded: warn nvme@nvme2: controller is dead; replace drive");
        let hot = with(|drives| drives[1].temperature_c = Reading::Known(85.0));
        assert_eq!(hot.says(), "degraded: warn nvme@nvme1: 85 C, critical; check airflow");
        let alarm = with(|drives| drives[1].alarm = Reading::Known(true));
        assert_eq!(alarm.says(), "degraded: warn nvme@nvme1: temperature alarm; check airflow");
        let missing = with(|drives| drives.truncate(3));
        assert_eq!(missing.says(), "fit", "nobody said how many");
        let missing = missing.with(|look| look.profile.as_mut().unwrap().host.nvmes = Some(4));
        assert_eq!(missing.says(), "degraded: warn nvme: 3 of 4 NVMe drives; reseat drive");
    }

    #[test]
    fn a_drive_without_a_sensor_and_a_machine_without_drives() {
        let cold = with(|drives| {
            for drive in drives {
                (drive.temperature_c, drive.alarm) = (Reading::Unsupported, Reading::Unsupported);
            }
        });
        assert_eq!(cold.says(), "fit");
        let none = look("h100-sxm").host(|host| host.system.nvmes = Reading::Unsupported);
        assert_eq!(none.says(), "fit");
        let unread = look("h100-sxm").host(|host| host.system.nvmes = Reading::Failed("EIO".to_owned()));
        let unread = unread.with(|look| look.profile.as_mut().unwrap().host.nvmes = Some(4));
        assert_eq!(unread.of("nvme"), [Severity::Unknown]);
    }
}

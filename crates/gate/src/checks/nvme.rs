use railgate_model::{Class, DriveHealth, Extra, Nvme, PartName, Phase, Severity};

use crate::plan::Need;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct NvmeDrives;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "severity of the finding";
    worn_percent: u8 = 100, "percent of the rated life; from here on the drive is worn out: a note";
}

impl Check for NvmeDrives {
    const ABOUT: &'static str = "an NVMe drive is missing, dead, too hot or worn out";
    const EXPLAIN: &'static str = "
Reads `/sys/class/nvme/*`: the state of each controller (`live`), and its temperature, critical temperature and alarm from
its hwmon. The profile has the expected number of drives (`[host] nvmes`); without it the number is not judged. The periodic
check also reads each drive's SMART log: its critical warnings, the spare blocks that are left, and how much of its rated life
is used (`worn_percent`; a drive beyond that still works, but without the vendor's guarantee). A drive that does not answer is
`unknown`.

Why: jobs keep local scratch and data caches there, and a drive that resets stalls every process that uses it.

Fix: check the airflow; `nvme reset`; reseat or replace the drive.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Host];
    // Sends a command to each drive, for which there is only time between jobs.
    const NEEDS: &'static [Need<Settings>] =
        &[Need::extra(|_, _, _| Some(Extra::DriveLogs)).only(&[Phase::Periodic])];
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

fn failed<T>(reading: &railgate_model::Reading<T>) -> bool {
    matches!(reading, railgate_model::Reading::Failed(_))
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
    if let Some(health) = out.value(&drive.name, "SMART log", &path, &drive.health) {
        own_word(drive, health, set, out);
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

/// Judges the drive's SMART log. Its temperature is left out: hwmon reports it together with the limits.
fn own_word(drive: &Nvme, health: &DriveHealth, set: &Settings, out: &mut Report<'_>) {
    const WARNINGS: [(u8, &str); 4] = [
        (0x08, "reports that it is read-only"),
        (0x04, "reports that it is unreliable"),
        (0x01, "runs out of spare blocks"),
        (0x10, "cannot keep its cache over a power cut"),
    ];
    let got = format!(
        "warnings {:#x}, spare {} % of at least {} %, used {} %, {} media errors",
        health.critical_warning,
        health.spare_percent,
        health.spare_threshold_percent,
        health.used_percent,
        health.media_errors
    );
    let mut say = |severity, what: String, want: &str| {
        let found = Found::new(severity, Class::Node, &drive.name, what).fix("replace drive");
        out.add(found.row("SMART log", &got, want, "NVMe log page 2"));
    };
    if let Some((_, what)) = WARNINGS.iter().find(|(bit, _)| health.critical_warning & bit != 0) {
        say(set.severity, (*what).to_owned(), "no warning");
    } else if health.used_percent >= set.worn_percent {
        let what = format!("{} % of its rated life is used", health.used_percent);
        say(Severity::Note, what, "less");
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::Reading;

    use super::*;
    use crate::testing::{Case, case};

    fn with(bend: impl FnOnce(&mut Vec<Nvme>)) -> Case {
        case("h100-sxm").host(|host| {
            let Reading::Known(drives) = &mut host.system.nvmes else { panic!() };
            bend(drives);
        })
    }

    #[test]
    fn dead_hot_and_missing_drives_warn() {
        let dead = with(|drives| drives[2].state = Reading::Known("dead".to_owned()));
        assert_eq!(dead.summary(), "degraded: warn nvme@nvme2: controller is dead; replace drive");
        let hot = with(|drives| drives[1].temperature_c = Reading::Known(85.0));
        assert_eq!(hot.summary(), "degraded: warn nvme@nvme1: 85 C, critical; check airflow");
        let alarm = with(|drives| drives[1].alarm = Reading::Known(true));
        assert_eq!(alarm.summary(), "degraded: warn nvme@nvme1: temperature alarm; check airflow");
        let missing = with(|drives| drives.truncate(3));
        assert_eq!(missing.summary(), "fit", "no number is configured");
        let missing = missing.with(|case| case.profile.as_mut().unwrap().host.nvmes = Some(4));
        assert_eq!(missing.summary(), "degraded: warn nvme: 3 of 4 NVMe drives; reseat drive");
    }

    #[test]
    fn the_smart_log_is_judged() {
        let says = |fault: &str| case(&format!("h100-sxm:{fault}")).summary();
        assert_eq!(
            says("nvme-read-only"),
            "degraded: warn nvme@nvme3: reports that it is read-only; replace drive"
        );
        assert_eq!(
            says("nvme-spare-low"),
            "degraded: warn nvme@nvme0: runs out of spare blocks; replace drive"
        );
        let worn = case("h100-sxm:nvme-worn");
        assert_eq!((worn.summary().as_str(), worn.of("nvme")), ("fit", vec![Severity::Note]));
        assert_eq!(worn.settings("[checks.nvme]\nworn_percent = 110").of("nvme"), []);
        let silent = with(|drives| drives[1].health = Reading::Failed("no answer in 25.0 s".to_owned()));
        assert_eq!(silent.of("nvme"), [Severity::Unknown]);
        let hot = with(|drives| {
            if let Reading::Known(health) = &mut drives[1].health {
                health.critical_warning = 2;
            }
        });
        assert_eq!(hot.summary(), "fit", "its sensor says how hot");
    }

    #[test]
    fn drives_without_a_sensor_and_machines_without_drives_are_fit() {
        let cold = with(|drives| {
            for drive in drives {
                (drive.temperature_c, drive.alarm) = (Reading::Unsupported, Reading::Unsupported);
            }
        });
        assert_eq!(cold.summary(), "fit");
        let none = case("h100-sxm").host(|host| host.system.nvmes = Reading::Unsupported);
        assert_eq!(none.summary(), "fit");
        let unread = case("h100-sxm").host(|host| host.system.nvmes = Reading::Failed("EIO".to_owned()));
        let unread = unread.with(|case| case.profile.as_mut().unwrap().host.nvmes = Some(4));
        assert_eq!(unread.of("nvme"), [Severity::Unknown]);
    }
}

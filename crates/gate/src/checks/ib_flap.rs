use std::time::Duration;

use railgate_model::{Class, PartName, Phase, Reading};

use crate::links;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::{JudgedPort, Scene};
use crate::settings::{seconds, settings, within};

/// The check.
pub(crate) struct IbFlap;

settings! {
    action = Drain;
    flaps: u32 = 3, limit within(2..=50), "check runs that found the link had gone down ...";
    #[serde(with = "railgate_model::duration_text")]
    window: Duration = Duration::from_secs(12 * 3600), limit seconds(3600..=7 * 24 * 3600), "... within this";
}

impl Check for IbFlap {
    const ABOUT: &'static str = "the link of a compute port went down and came back, again and again";
    const EXPLAIN: &'static str = "
Reads `counters/link_downed` of the compute ports in every check run and compares with the earlier check runs (over jobs and
boots, by the device's GUID). A check run that finds the link has gone down since the one before counts one flap, however often
it went down in between. If a device has no such counter, a port that was active and no longer is counts as one flap.

Why: a link that is trained again stops a collective for seconds, and each time may be the one at which NCCL gives up.

`flaps` within `window` fail. A link that went down during a job is a warning. Link training in the first minutes after boot is
not judged; a boot or a reload of the driver is not a flap. If several ports of a node flap together, the cause is not this
port but the fabric: that is a warning and does not drain.

Fix: replace cable or transceiver, then change the switch's port. After the repair: `railgate readmit NODE --repaired`, or wait
until the flaps are older than `window`.
";
    const CLASS: Class = Class::Fabric;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let ports = scene.judged_ports();
        let flapping: Vec<u32> = ports.iter().map(|judged| flaps(scene, set, judged)).collect();
        let shared = flapping.iter().filter(|flaps| **flaps >= set.flaps).count() > 1;
        for (judged, flaps) in ports.iter().zip(flapping) {
            let part = judged.name();
            let source = format!("/sys/class/infiniband/{}/ports/{}", judged.hca.name, judged.port.number);
            let window = humantime::format_duration(set.window).to_string();
            if flaps >= set.flaps {
                let mut found =
                    Found::fail(Class::Fabric, part, format!("went down {flaps} times in {window}"));
                if shared {
                    let what = format!("went down {flaps} times in {window}, as other ports did");
                    found = Found::warn(Class::Fabric, judged.name(), what);
                } else if scene.just_booted() {
                    found = found.only_unknown("node just booted");
                } else if !judged.certain {
                    found = found.only_unknown("may not be the job's");
                }
                let fix = if shared { "check switch" } else { "swap cable" };
                let want = format!("fewer than {} in {window}", set.flaps);
                out.add(found.fix(fix).row(
                    "check runs that found it had been down",
                    flaps.to_string(),
                    want,
                    source,
                ));
            } else if scene.phase() == Phase::Epilog
                && let Some(Reading::Known(value)) = judged.port.counters.get("link_downed")
                && let Some((before, _)) = scene.port_before(judged)
                && let Some(Reading::Known(old)) = before.counters.get("link_downed")
                && let Some(more) = value.checked_sub(*old).filter(|more| *more > 0)
            {
                let what = format!("went down during the job ({more} times)");
                out.add(Found::warn(Class::Fabric, part, what).fix("watch it").row(
                    "link_downed",
                    format!("+{more}"),
                    "+0",
                    source,
                ));
            }
        }
    }
}

/// Number of check runs within the window, this one included, that found that the link had gone down.
fn flaps(scene: &Scene<'_>, set: &Settings, judged: &JudgedPort<'_>) -> u32 {
    let now = scene.now.taken / 1000;
    let links = links::after(&scene.seen.memory.links, scene.now);
    let Some(link) = links::known(&links, judged.hca, judged.port) else { return 0 };
    let within = |down: &&u64| now.checked_sub(**down).is_some_and(|ago| ago <= set.window.as_secs());
    u32::try_from(link.downs.iter().filter(within).count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use railgate_model::{Fitness, Phase, Severity};

    use super::*;
    use crate::Memory;
    use crate::testing::{Case, case, read};

    /// Check runs 15 minutes apart. Each entry gives the ports' `link_downed` counts since boot.
    fn over_time(counts: &[&[(usize, u64)]]) -> Case {
        let mut case = case("h100-sxm").phase(Phase::Periodic);
        case.job = None;
        case.memory = Memory::default().after(&case.now, true);
        for (nth, ports) in counts.iter().enumerate() {
            case.now.taken += 900_000;
            for (port, count) in *ports {
                let port = &mut read(&mut case.now.fabric).hcas[*port].ports[0];
                port.counters.insert("link_downed".to_owned(), Reading::Known(*count));
            }
            if nth + 1 < counts.len() {
                case.memory = case.memory.after(&case.now, false);
            }
        }
        case
    }

    #[test]
    fn the_third_flap_fails() {
        assert_eq!(over_time(&[&[(2, 1)], &[(2, 9)]]).summary(), "fit");
        let third = over_time(&[&[(2, 1)], &[(2, 9)], &[(2, 10)]]);
        assert_eq!(third.summary(), "unfit: fail ib-flap@mlx5_2: went down 3 times in 12h; swap cable");
        let wide = third.settings("[checks.ib-flap]\nflaps = 4");
        assert_eq!(wide.summary(), "fit");
        let one_burst = over_time(&[&[(2, 40)], &[(2, 40)], &[(2, 40)]]);
        assert_eq!(one_burst.summary(), "fit", "one bad moment");
    }

    #[test]
    fn flaps_count_across_boots_until_the_window_ends() {
        let mut later = over_time(&[&[(2, 1)], &[(2, 2)], &[(2, 3)]]);
        later.memory = later.memory.after(&later.now, false);
        later.now.boot_id = "another".to_owned();
        read(&mut later.now.fabric).hcas[2].ports[0]
            .counters
            .insert("link_downed".to_owned(), Reading::Known(0));
        later.now.taken += 3_600_000;
        assert_eq!(later.fitness(), Fitness::Unfit);
        later.now.taken += 13 * 3_600_000;
        assert_eq!(later.summary(), "fit");
    }

    #[test]
    fn flaps_of_several_ports_warn_only() {
        let both: Vec<&[(usize, u64)]> = vec![&[(2, 1), (5, 1)], &[(2, 2), (5, 2)], &[(2, 3), (5, 3)]];
        let leaf = over_time(&both);
        assert_eq!(leaf.of("ib-flap"), [Severity::Warn, Severity::Warn]);
        assert_eq!(leaf.fitness(), Fitness::Degraded);
    }

    #[test]
    fn one_flap_during_a_job_warns() {
        assert_eq!(
            case("h100-sxm:ib-link-dropped@2").after_the_job().summary(),
            "degraded: warn ib-flap@mlx5_2: went down during the job (1 times); watch it"
        );
        assert_eq!(case("h100-sxm:ib-link-dropped@2").summary(), "fit");
    }

    #[test]
    fn settings_out_of_range() {
        let config: crate::GateConfig =
            toml::from_str("[checks.ib-flap]\nflaps = 1\nwindow = \"5m\"").unwrap();
        assert_eq!(config.problems().len(), 2, "{:?}", config.problems());
    }
}

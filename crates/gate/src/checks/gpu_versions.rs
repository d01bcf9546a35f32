use std::collections::BTreeMap;

use railgate_model::{Class, Gpu, Gpus, PartName, Reading, Severity, fits_pattern};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct GpuVersions;

settings! {
    action = Drain;
    foreign: Severity = Severity::Warn, "a version that is not in the profile";
    mixed: Severity = Severity::Note, "different versions on GPUs of one type";
}

impl Check for GpuVersions {
    const ABOUT: &'static str =
        "versions of driver, VBIOS, infoROM or GSP differ from the profile or from each other";
    const EXPLAIN: &'static str = "
Reads the versions of driver, NVML library, VBIOS, infoROM and GSP firmware.

- A driver, VBIOS, infoROM or GSP that the profile does not name (`gpus.driver`, `gpus.vbios`, `gpus.inforom`, `gpus.gsp`:
  lists, each entry a version or its beginning and `*`): `foreign`. An empty list is not judged.
- An NVML library of another version than the driver (for example, after an update without a reboot): `foreign`.
- GPUs of one type with several VBIOS, infoROM or GSP versions: `mixed`.

Why: nodes with different versions fail in different ways; a half-updated node breaks at the next restart.

Fix: install the right version; reboot after an update.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(gpus) = scene.now.gpus.data() else { return };
        system(scene, gpus, set, out);
        let facts = scene.profile().map(|profile| &profile.gpus);
        let none: &[String] = &[];
        let kinds: [(&str, &str, Which, &[String]); 3] = [
            (
                "VBIOS",
                "nvmlDeviceGetVbiosVersion",
                |gpu| &gpu.vbios,
                facts.map_or(none, |facts| &facts.vbios),
            ),
            (
                "infoROM",
                "nvmlDeviceGetInforomImageVersion",
                |gpu| &gpu.details.inforom,
                facts.map_or(none, |facts| &facts.inforom),
            ),
            (
                "GSP",
                "nvmlDeviceGetGspFirmwareVersion",
                |gpu| &gpu.details.gsp,
                facts.map_or(none, |facts| &facts.gsp),
            ),
        ];
        for (name, source, which, wanted) in kinds {
            let mut first: BTreeMap<&str, (u32, &str)> = BTreeMap::new();
            for gpu in scene.answering() {
                let part = gpu.index.to_string();
                let what = format!("gpu {part} {name}");
                let Some(version) = out.value(&part, &what, source, which(gpu)) else { continue };
                if !is_one_of(version, wanted) {
                    let text = format!("{name} {version}, the profile has {}", wanted.join(", "));
                    out.add(
                        Found::new(set.foreign, Class::Site, part, text).fix("install right version").row(
                            what,
                            version,
                            wanted.join(", "),
                            source,
                        ),
                    );
                    continue;
                }
                let Some(model) = gpu.name.known() else { continue };
                let (other, expected) = *first.entry(model).or_insert((gpu.index, version));
                if version != expected {
                    let text = format!("{name} {version}, GPU {other} has {expected}");
                    out.add(
                        Found::new(set.mixed, Class::Site, part, text)
                            .fix("install one version")
                            .row(what, version, expected, source),
                    );
                }
            }
        }
    }
}

type Which = fn(&Gpu) -> &Reading<String>;

fn system(scene: &Scene<'_>, gpus: &Gpus, set: &Settings, out: &mut Report<'_>) {
    const SOURCE: &str = "nvmlSystemGetDriverVersion";
    let Some(driver) = out.value("", "driver version", SOURCE, &gpus.driver) else { return };
    let wanted = scene.profile().map_or(&[][..], |profile| profile.gpus.driver.as_slice());
    if !is_one_of(driver, wanted) {
        let text = format!("driver {driver}, the profile has {}", wanted.join(", "));
        out.add(Found::new(set.foreign, Class::Site, "", text).fix("install right driver").row(
            "driver version",
            driver,
            wanted.join(", "),
            SOURCE,
        ));
    }
    let Some(library) = gpus.nvml.known() else { return };
    // For example `13.580.159.04`: NVML's own major version, then the version of its driver.
    let of = library.split_once('.').map_or("", |(_, of)| of);
    if of.contains('.') && of != driver && library != driver {
        out.add(
            Found::new(set.foreign, Class::Site, "", format!("NVML {library} with driver {driver}"))
                .fix("reboot")
                .row("NVML version", library, driver, "nvmlSystemGetNVMLVersion"),
        );
    }
}

fn is_one_of(version: &str, wanted: &[String]) -> bool {
    wanted.is_empty() || wanted.iter().any(|wanted| fits_pattern(wanted, version))
}

#[cfg(test)]
mod tests {
    use railgate_model::{GpuProfile, Reading, Severity};

    use crate::testing::{Case, case, read};

    fn wants(node: &str, bend: impl FnOnce(&mut GpuProfile)) -> Case {
        case(node).with(|case| bend(&mut case.profile.as_mut().unwrap().gpus))
    }

    #[test]
    fn a_version_that_is_not_in_the_profile_warns() {
        assert_eq!(case("h100-sxm:driver-other").summary(), "fit", "no built-in profile wants a driver");
        let other = wants("h100-sxm:driver-other", |gpus| gpus.driver = vec!["580.*".to_owned()]);
        assert_eq!(
            other.summary(),
            "degraded: warn gpu-versions: driver 535.183.01, the profile has 580.*; install right driver"
        );
        let right =
            |text: &str| wants("h100-sxm", |gpus| gpus.driver = vec!["1".to_owned(), text.to_owned()]);
        assert_eq!(
            (right("580.*").summary(), right("580.159.04").summary()),
            ("fit".to_owned(), "fit".to_owned())
        );
        assert_eq!(right("580.159").of("gpu-versions"), [Severity::Warn]);
        let vbios = wants("h100-sxm", |gpus| gpus.vbios = vec!["96.00.5E*".to_owned()]);
        assert_eq!(vbios.of("gpu-versions").len(), 8);
    }

    #[test]
    fn differing_vbios_versions_are_a_note() {
        let mixed = case("h100-sxm:gpu-vbios-other@3");
        assert_eq!((mixed.summary(), mixed.of("gpu-versions")), ("fit".to_owned(), vec![Severity::Note]));
        assert!(mixed.findings()[0].contains("VBIOS 96.00.5E.00.01, GPU 0 has 96.00.A5.00.01"));
    }

    #[test]
    fn a_library_of_another_driver_version_warns() {
        let half = case("h100-sxm:nvml-other");
        assert_eq!(
            half.summary(),
            "degraded: warn gpu-versions: NVML 13.580.95.05 with driver 580.159.04; reboot"
        );
        let unread = case("h100-sxm").with(|case| {
            read(&mut case.now.gpus).nvml = Reading::Failed("999".to_owned());
        });
        assert_eq!(unread.summary(), "fit");
    }
}

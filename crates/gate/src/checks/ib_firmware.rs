use railgate_model::{Class, Hca, PartName, Reading};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct IbFirmware;

impl Check for IbFirmware {
    const ABOUT: &'static str = "an RDMA device runs the wrong firmware";
    const EXPLAIN: &'static str = "
Reads `fw_ver` of the compute devices. With the profile's `[fabric] firmware` each version must be in that list; without
it, all devices of one kind (`hca_type`, `board_id`) must run the same version.

Why: adaptive routing, congestion control and known faults differ between releases, and one different card slows all ranks.

Fix: install the right version (`mlxfwmanager`), then cold boot.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let listed = scene.profile().map_or(&[][..], |profile| profile.fabric.firmware.as_slice());
        let hcas = scene.judged_hcas();
        for hca in &hcas {
            let source = format!("/sys/class/infiniband/{}/fw_ver", hca.name);
            let Some(runs) = out.value(&hca.name, "firmware", &source, &hca.firmware) else { continue };
            let want = if !listed.is_empty() {
                (!listed.contains(runs)).then(|| listed.join(" or "))
            } else {
                most_run(&hcas, hca).filter(|most| most != runs)
            };
            if let Some(want) = want {
                let what = format!("firmware {runs}, not {want}");
                let found = Found::new(set.severity, Class::Site, &hca.name, what);
                out.add(found.fix("update firmware").row("firmware", runs, want, source));
            }
        }
    }
}

/// The firmware version of more than half of the devices of the same kind, if there is one.
fn most_run(hcas: &[&Hca], like: &Hca) -> Option<String> {
    let kin = |hca: &&&Hca| (&hca.hca_type, &hca.details.board) == (&like.hca_type, &like.details.board);
    let all: Vec<&String> = hcas.iter().filter(kin).filter_map(|hca| Reading::known(&hca.firmware)).collect();
    let most = |runs: &&&String| all.iter().filter(|other| other == runs).count() * 2 > all.len();
    all.iter().find(most).map(|runs| (**runs).clone())
}

#[cfg(test)]
mod tests {
    use crate::testing::case;

    #[test]
    fn a_version_that_differs_from_most_devices_warns() {
        assert_eq!(
            case("h100-sxm:ib-firmware@2").summary(),
            "degraded: warn ib-firmware@mlx5_2: firmware 28.39.1002, not 28.43.2026; update firmware"
        );
        let half = "h100-sxm:ib-firmware@0,ib-firmware@1,ib-firmware@2,ib-firmware@3";
        assert_eq!(case(half).summary(), "fit", "there is no majority");
    }

    #[test]
    fn a_version_that_is_not_in_the_profile_warns() {
        let listed = |firmware: &str| {
            case("h100-sxm:ib-firmware@2")
                .with(|case| case.profile.as_mut().unwrap().fabric.firmware = vec![firmware.to_owned()])
        };
        assert_eq!(listed("28.39.1002").findings().len(), 7);
        assert_eq!(listed("28.43.2026").findings().len(), 1);
    }
}

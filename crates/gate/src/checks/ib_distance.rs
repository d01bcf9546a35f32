use railgate_model::{Class, Distance, PartName};

use crate::near::nearest_distance;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct IbDistance;

impl Check for IbDistance {
    const ABOUT: &'static str = "a GPU's nearest HCA is farther away than in the profile";
    const EXPLAIN: &'static str = "
Reads the PCI tree: how near the nearest compute device is to each GPU, compared with the profile's
`[fabric] distance` (`switch`: below one root port; `numa`: on the same socket).

Why: a card in the wrong slot, or a tree that a virtual machine or a BIOS setting flattens, sends a GPU's traffic through
the processor and halves its bandwidth.

Fix: move the card; check the BIOS and the virtual machine's PCI topology. If the machine is built like this, write a profile
for it.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Gpus, PartName::Fabric, PartName::Pci];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(want) = scene.profile().and_then(|profile| profile.fabric.distance.as_deref()) else {
            return;
        };
        let Some(pci) = scene.now.pci.data() else { return };
        let hcas: Vec<_> =
            scene.compute_ports().iter().filter_map(|(hca, _)| hca.pci.known().copied()).collect();
        // `ib-count` reports a missing device.
        if hcas.is_empty() {
            return;
        }
        for gpu in scene.answering() {
            let Some(at) = gpu.pci.known() else { continue };
            let Some(distance) = nearest_distance(pci, *at, &hcas) else { continue };
            let (near, enough) = match distance {
                Distance::Pix | Distance::Pxb => ("switch", true),
                Distance::Phb => ("numa", want != "switch"),
                Distance::Sys => ("far", false),
            };
            if !enough {
                let part = gpu.index.to_string();
                let found =
                    Found::new(set.severity, Class::Site, part, format!("nearest HCA is {near}, not {want}"));
                out.add(found.fix("check slots").row("distance", near, want, "/sys/bus/pci/devices"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::case;

    #[test]
    fn distance_is_judged_only_if_the_profile_sets_a_limit() {
        let wired = |node: &str, distance: &str| {
            case(node).with(|case| {
                case.profile.as_mut().unwrap().fabric.distance = Some(distance.to_owned());
            })
        };
        assert_eq!(wired("h100-sxm", "switch").summary(), "fit");
        assert_eq!(case("h100-sxm:ib-far@2").of("ib-distance"), []);
        assert_eq!(
            wired("h100-sxm:ib-far@2", "switch").summary(),
            "degraded: warn ib-distance@2: nearest HCA is numa, not switch; check slots"
        );
        assert_eq!(wired("h100-sxm:ib-far@2", "numa").summary(), "fit");
        assert_eq!(wired("h100-sxm:ib-far@2", "switch").holding(&[0]).summary(), "fit");
    }
}

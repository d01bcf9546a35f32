use railgate_model::{Class, Distance, PartName, Pci, PciAddress};

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

Without NUMA nodes only switches tell the distance: a card that may be on another socket is `unknown` under `numa`.

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
            if pci.device(*at).is_none() || hcas.iter().all(|hca| pci.device(*hca).is_none()) {
                continue;
            }
            let unread = std::iter::once(at).chain(&hcas).any(|at| lacks_numa_node(pci, *at));
            let (near, enough) = match nearest_distance(pci, *at, &hcas) {
                Some(Distance::Pix | Distance::Pxb) => ("switch", true),
                Some(Distance::Phb) => ("numa", want != "switch"),
                // The root complex alone decided: it says that devices are together, not that they are apart.
                Some(Distance::Sys) | None if unread => ("in an unknown NUMA node", false),
                Some(Distance::Sys) => ("far", false),
                None => continue,
            };
            if enough {
                continue;
            }
            let part = gpu.index.to_string();
            let what = format!("nearest HCA is {near}, not {want}");
            let found = if unread && want != "switch" {
                Found::unknown(Class::Site, part, "NUMA node of the GPU or of an HCA unknown")
            } else {
                Found::new(set.severity, Class::Site, part, what)
            };
            out.add(found.fix("check slots").row("distance", near, want, "/sys/bus/pci/devices"));
        }
    }
}

fn lacks_numa_node(pci: &Pci, at: PciAddress) -> bool {
    pci.device(at).is_some_and(|device| device.numa_node.known().is_none())
}

#[cfg(test)]
mod tests {
    use railgate_model::{PciDevice, Reading, Severity};

    use crate::testing::case;

    #[test]
    fn without_numa_nodes_only_the_switches_tell_the_distance() {
        let flat = |distance: &str, numa: Reading<u32>, roots: bool| {
            case("h100-sxm")
                .with(|case| {
                    case.profile.as_mut().unwrap().fabric.distance = Some(distance.to_owned());
                })
                .pci(|pci| {
                    let apart = |device: &mut PciDevice| {
                        device.bridges.clear();
                        device.numa_node = numa.clone();
                        device.root =
                            if roots { device.address.to_string() } else { "pci0000:00".to_owned() };
                    };
                    pci.devices.iter_mut().for_each(apart);
                })
        };
        for unread in [Reading::Unsupported, Reading::Failed("gone".to_owned())] {
            let numa = flat("numa", unread.clone(), true);
            assert_eq!(numa.of("ib-distance"), [Severity::Unknown; 8], "{unread:?}");
            // No switch is shared, on any NUMA nodes.
            let switch = flat("switch", unread.clone(), true);
            assert_eq!(switch.of("ib-distance"), [Severity::Warn; 8], "{unread:?}");
        }
        assert_eq!(flat("numa", Reading::Known(0), true).of("ib-distance"), []);
        assert_eq!(flat("numa", Reading::Unsupported, false).of("ib-distance"), [], "one root complex");
    }

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

use railgate_model::{Class, PartName};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct IbSlot;

impl Check for IbSlot {
    const ABOUT: &'static str = "an RDMA device is not in the slot that its name belongs to";
    const EXPLAIN: &'static str = "
Reads where `/sys/class/infiniband/*/device` points and compares it with the profile's `[fabric] slots`
(`mlx5_0 = \"0000:18:00.0\"`). Without such a table nothing is judged: railgate's own lists go by the PCI tree, so names that
change with the order of probing do no harm there.

Why: lists of names written by hand (`NCCL_IB_HCA`, a script that sets up addresses) then cross the rails.

Fix: use persistent names by udev (`rdma-core`'s `NAME_KERNEL` or `NAME_PCI` policy), or update the profile after cards were
moved.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(profile) = scene.profile() else { return };
        for hca in scene.judged_hcas() {
            let Some(want) = profile.fabric.slots.get(&hca.name) else { continue };
            let source = format!("/sys/class/infiniband/{}/device", hca.name);
            let Some(slot) = out.value(&hca.name, "slot", &source, &hca.pci) else { continue };
            if slot != want {
                let found =
                    Found::new(set.severity, Class::Site, &hca.name, format!("at {slot}, not {want}"));
                out.add(found.fix("check device names").row(
                    "slot",
                    slot.to_string(),
                    want.to_string(),
                    source,
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::case;

    #[test]
    fn names_are_compared_with_the_profile_only() {
        assert_eq!(case("h100-sxm:ib-swapped@2").remembering().summary(), "fit");
        let wired = |node: &str| {
            let slots = case("h100-sxm").now.fabric.data().unwrap().hcas.clone();
            case(node).with(|case| {
                let profile = case.profile.as_mut().unwrap();
                profile.fabric.slots =
                    slots.iter().map(|hca| (hca.name.clone(), *hca.pci.known().unwrap())).collect();
            })
        };
        assert_eq!(wired("h100-sxm").summary(), "fit");
        assert_eq!(
            wired("h100-sxm:ib-swapped@2").summary(),
            "degraded: warn ib-slot@mlx5_2: at 0000:5e:00.0, not 0000:4f:00.0; check device names"
        );
        assert_eq!(wired("h100-sxm:ib-swapped@2").holding(&[0]).summary(), "fit");
    }
}

use railgate_model::{Class, PartName, PciAddress, Reading};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct GpuAcs;

impl Check for GpuAcs {
    const ABOUT: &'static str =
        "a PCIe switch sends traffic between GPU and network card through the host (ACS)";
    const EXPLAIN: &'static str = "
Reads the ACS control register of every PCIe switch port above a GPU (`config` of the bridge in sysfs): request and
completion redirect (bits 2 and 3). Root ports are left out, as is a virtual machine, whose bridges are emulated.

Why: with redirection on, GPUDirect traffic goes up to the processor and back, at a fraction of the bandwidth.

Fix: switch ACS off in the firmware (often together with the IOMMU), or with `setpci` at boot. A hypervisor that
passes single GPUs to virtual machines needs ACS: switch the check off there.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Gpus, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let bare = scene.now.host.data().is_some_and(|host| host.virtualised == Reading::Known(false));
        let Some(pci) = scene.now.pci.data().filter(|_| bare) else { return };
        let device = |at: &PciAddress| pci.devices.iter().find(|device| device.address == *at);
        for gpu in scene.answering() {
            let Some(own) = gpu.pci.known().and_then(device) else { continue };
            let redirects = |at: &&PciAddress| {
                device(at).and_then(|bridge| bridge.acs.known()).is_some_and(|acs| acs & REDIRECT != 0)
            };
            // The first bridge is the root port of the host, where ACS redirects no peer-to-peer traffic.
            let Some(bridge) = own.bridges.iter().skip(1).find(redirects) else { continue };
            out.add(
                Found::new(
                    set.severity,
                    Class::Site,
                    gpu.index.to_string(),
                    format!("ACS redirects at {bridge}"),
                )
                .fix("switch ACS off")
                .row(
                    format!("{bridge} ACS control"),
                    device(bridge).map_or_else(String::new, |bridge| {
                        bridge.acs.known().map_or_else(String::new, |acs| format!("{acs:#06x}"))
                    }),
                    "bits 2 and 3 clear",
                    format!("/sys/bus/pci/devices/{bridge}/config"),
                ),
            );
        }
    }
}

/// The ACS control bits P2P Request Redirect (0x04) and P2P Completion Redirect (0x08).
const REDIRECT: u16 = 0x0c;

#[cfg(test)]
mod tests {
    use railgate_model::Reading;

    use crate::testing::case;

    #[test]
    fn acs_counts_on_switches_of_physical_machines_only() {
        let on = case("h100-sxm:gpu-acs-on@3");
        assert_eq!(on.summary(), "degraded: warn gpu-acs@3: ACS redirects at 0000:5d:00.0; switch ACS off");
        let guest = case("h100-sxm:gpu-acs-on@3").host(|host| host.virtualised = Reading::Known(true));
        assert_eq!(guest.summary(), "fit");
        let root = case("h100-sxm").pci(|pci| {
            for device in pci.devices.iter_mut().filter(|device| device.bridges.is_empty()) {
                device.acs = Reading::Known(0x1d);
            }
        });
        assert_eq!(root.summary(), "fit");
        assert_eq!(case("h100-sxm:gpu-acs-on@3").holding(&[0, 1]).summary(), "fit");
    }
}

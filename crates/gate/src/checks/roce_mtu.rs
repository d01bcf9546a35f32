use railgate_model::{Class, LinkLayer, PartName, Reading, roce_mtu};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct RoceMtu;

impl Check for RoceMtu {
    const ABOUT: &'static str = "a RoCE port carries smaller packets than the fabric";
    const EXPLAIN: &'static str = "
Reads `/sys/class/net/*/mtu` of the interfaces of the Ethernet compute ports, and compares the RDMA MTU that the kernel
derives from it (the largest of 256, 512, 1024, 2048, 4096 that leaves room for the headers) with the profile's
`[fabric] mtu`. The MTU of an InfiniBand port is not in sysfs: `rdma-self-test` shows it.

Why: an interface with an MTU of 1500 bytes has half its bandwidth; two ends with different MTUs cannot communicate.

Fix: `ip link set DEV mtu 9000` (or the fabric's value), and the same in the network's configuration.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(want) = scene.profile().and_then(|profile| profile.fabric.mtu) else { return };
        for judged in scene.judged_ports() {
            let part = judged.name();
            if judged.port.link_layer != Reading::Known(LinkLayer::Ethernet) {
                continue;
            }
            // A device with several ports has several interfaces; `dev_port` counts them from 0.
            let ours = |port: &Reading<u32>| {
                judged.hca.ports.len() == 1 || port.known().is_some_and(|port| port + 1 == judged.port.number)
            };
            for interface in judged.hca.details.interfaces.iter().filter(|interface| ours(&interface.port)) {
                let source = format!("/sys/class/net/{}/mtu", interface.name);
                let Some(&mtu) = out.value(&part, "MTU", &source, &interface.mtu) else { continue };
                let carries = roce_mtu(mtu).unwrap_or(0);
                if carries < want {
                    let what = format!("MTU {carries} of {want} ({} has {mtu})", interface.name);
                    let found = Found::new(set.severity, Class::Node, &part, what).fix("set MTU");
                    out.add(found.row("RDMA MTU", carries.to_string(), want.to_string(), source));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::roce;

    #[test]
    fn an_interface_mtu_too_small_for_the_rdma_mtu_warns() {
        let wanting =
            |faults: &str| roce(faults).with(|case| case.profile.as_mut().unwrap().fabric.mtu = Some(4096));
        assert_eq!(wanting("").summary(), "fit");
        assert_eq!(
            wanting("roce-mtu-low@2").summary(),
            "degraded: warn roce-mtu@mlx5_2: MTU 1024 of 4096 (ens79np0 has 1500); set MTU"
        );
        assert_eq!(roce("roce-mtu-low@2").summary(), "fit");
    }
}

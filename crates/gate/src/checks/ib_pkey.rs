use railgate_model::{Class, LinkLayer, PartName, PortState, Reading};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct IbPkey;

impl Check for IbPkey {
    const ABOUT: &'static str = "a compute port is not in the partition that it should be in";
    const EXPLAIN: &'static str = "
Reads `ports/*/pkeys` of the InfiniBand compute ports that are active. With the profile's `[fabric] pkeys` (`[0x8001]`, the
highest bit means full membership) the port must have each of them; without it, a port without any is a finding.

Why: peers in another partition do not answer, and NCCL hangs at its first connection. Two limited members of a partition
cannot communicate.

Fix: correct the subnet manager's partitions (`partitions.conf`, UFM).
";
    const CLASS: Class = Class::Fabric;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let wanted = scene.profile().map_or(&[][..], |profile| profile.fabric.pkeys.as_slice());
        for judged in scene.judged_ports() {
            let (part, port) = (judged.name(), judged.port);
            let infiniband = port.link_layer == Reading::Known(LinkLayer::InfiniBand);
            if !infiniband || port.state != Reading::Known(PortState::Active) {
                continue;
            }
            let source = format!("/sys/class/infiniband/{}/ports/{}/pkeys", judged.hca.name, port.number);
            let Some(keys) = out.value(&part, "partition keys", &source, &port.details.pkeys) else {
                continue;
            };
            let hex = |keys: &[u16]| {
                let keys: Vec<String> = keys.iter().map(|key| format!("0x{key:04x}")).collect();
                if keys.is_empty() { "none".to_owned() } else { keys.join(" ") }
            };
            let missing: Vec<u16> = wanted.iter().copied().filter(|key| !keys.contains(key)).collect();
            let what = if !missing.is_empty() {
                format!("no partition key {}", hex(&missing))
            } else if keys.is_empty() {
                "in no partition".to_owned()
            } else {
                continue;
            };
            let want = if wanted.is_empty() { "one".to_owned() } else { hex(wanted) };
            let found = Found::new(set.severity, Class::Fabric, &part, what);
            out.add(found.fix("check partitions").row("partition keys", hex(keys), want, source));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::case;

    #[test]
    fn a_port_outside_its_partition_warns() {
        assert_eq!(
            case("h100-sxm:ib-pkey-missing@2").summary(),
            "degraded: warn ib-pkey@mlx5_2: in no partition; check partitions"
        );
        let limited = case("h100-sxm:ib-pkey-limited@2");
        assert_eq!(limited.summary(), "fit");
        let wanted = limited.with(|case| case.profile.as_mut().unwrap().fabric.pkeys = vec![0xffff]);
        assert_eq!(
            wanted.summary(),
            "degraded: warn ib-pkey@mlx5_2: no partition key 0xffff; check partitions"
        );
    }
}

use railgate_model::{Class, LinkLayer, PartName, PortState, Reading};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct IbLid;

impl Check for IbLid {
    const ABOUT: &'static str = "an active InfiniBand port has no address or no subnet manager";
    const EXPLAIN: &'static str = "
Reads `ports/*/lid` and `ports/*/sm_lid` of the InfiniBand compute ports that are active.

Why: without a LID no other port can reach this one; without a subnet manager routes are not maintained, and the next change
of the fabric cuts the port off.

Fix: check the subnet manager (`sminfo`), not the node.
";
    const CLASS: Class = Class::Fabric;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for judged in scene.judged_ports() {
            let (part, port) = (judged.name(), judged.port);
            let infiniband = port.link_layer == Reading::Known(LinkLayer::InfiniBand);
            if !infiniband || port.state != Reading::Known(PortState::Active) {
                continue;
            }
            let folder = format!("/sys/class/infiniband/{}/ports/{}", judged.hca.name, port.number);
            for (name, file, value) in [("LID", "lid", &port.lid), ("SM LID", "sm_lid", &port.sm_lid)] {
                let source = format!("{folder}/{file}");
                if out.value(&part, name, &source, value) == Some(&0) {
                    let found =
                        Found::new(set.severity, Class::Fabric, &part, format!("active without {name}"));
                    out.add(found.fix("check subnet manager").row(name, "0x0", "an address", source));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::Severity;

    use crate::testing::case;

    #[test]
    fn an_active_port_without_lid_or_subnet_manager_warns() {
        assert_eq!(
            case("h100-sxm:ib-no-lid@2").summary(),
            "degraded: warn ib-lid@mlx5_2: active without LID; check subnet manager"
        );
        assert_eq!(case("h100-sxm:ib-no-sm@2").of("ib-lid"), [Severity::Warn]);
        assert_eq!(case("h100-sxm:ib-port-init@2").of("ib-lid"), [], "ib-port says the rest");
    }

    #[test]
    fn ethernet_ports_are_not_judged() {
        let roce = case("h100-sxm").with(|case| {
            let mut profile = case.profile.take().unwrap();
            profile.fabric.link_layer = Some("ethernet".to_owned());
            case.now = railgate_simulate::simulated(&profile, &[]);
            case.profile = Some(profile);
        });
        assert_eq!(roce.summary(), "fit");
    }
}

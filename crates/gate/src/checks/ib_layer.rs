use railgate_model::{Class, LinkLayer, PartName};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct IbLayer;

impl Check for IbLayer {
    const ABOUT: &'static str = "a port uses another protocol than the compute fabric";
    const EXPLAIN: &'static str = "
Reads `ports/*/link_layer` of the devices that the profile does not exclude, if there are fewer ports of the profile's
`[fabric] link_layer` than `hcas`.

Why: cards that support both protocols (VPI) start as Ethernet after their firmware was reset; the rail is then missing.

Fix: `mlxconfig -d DEVICE set LINK_TYPE_P1=1` (InfiniBand) or `=2` (Ethernet), then a reboot.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(profile) = scene.profile().map(|profile| &profile.fabric) else { return };
        let (Some(want), Some(layer)) = (scene.expected_ports(), profile.link_layer.as_deref()) else {
            return;
        };
        let Some(fabric) = scene.now.fabric.data() else { return };
        if !scene.whole() || scene.compute_ports().len() >= want {
            return;
        }
        for hca in fabric.hcas.iter().filter(|hca| !scene.excluded(&hca.name)) {
            for port in &hca.ports {
                let source = format!("/sys/class/infiniband/{}/ports/{}/link_layer", hca.name, port.number);
                let Some(speaks) = out.value(&hca.name, "link layer", &source, &port.link_layer) else {
                    continue;
                };
                let (right, name) = match speaks {
                    LinkLayer::InfiniBand => (layer == "infiniband", "InfiniBand"),
                    LinkLayer::Ethernet => (layer == "ethernet", "Ethernet"),
                    LinkLayer::Other(name) => (false, name.as_str()),
                };
                if !right {
                    let what = format!("is {name}, not {layer}");
                    let found = Found::new(set.severity, Class::Node, &hca.name, what);
                    out.add(found.fix("set LINK_TYPE").row("link layer", name, layer, source));
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
    fn a_compute_port_with_another_link_layer_warns() {
        let other = case("h100-sxm:ib-layer@2");
        assert_eq!(other.of("ib-layer"), [Severity::Warn]);
        assert!(other.findings().iter().any(|line| line.contains("mlx5_2: is Ethernet, not infiniband")));
        let storage = case("h100-sxm").with(|case| case.profile.as_mut().unwrap().fabric.exclude.clear());
        assert_eq!(storage.of("ib-layer"), [], "a storage card while the rails are all there");
    }
}

use std::net::Ipv4Addr;

use railgate_model::{Class, LinkLayer, PartName, PortState, Reading};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct RoceGid;

impl Check for RoceGid {
    const ABOUT: &'static str = "a RoCE port has no address that its peers can reach";
    const EXPLAIN: &'static str = "
Reads `ports/*/gids` and `gid_attrs/types` of the Ethernet compute ports that are active. Each must have a RoCE v2 entry;
with the profile's `[fabric] subnets` (`[\"10.10.0.0/16\"]`) it must have an IPv4 address in one of these networks.

Why: NCCL picks a GID at start (`NCCL_IB_GID_INDEX`); without a routable one it fails, or takes RoCE v1, which no router
forwards.

Fix: set the interface's address (`ip addr`); for v1 check `cma_roce_mode`.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let networks = scene.profile().map_or(&[][..], |profile| profile.fabric.subnets.as_slice());
        for judged in scene.judged_ports() {
            let (part, port) = (judged.name(), judged.port);
            let ethernet = port.link_layer == Reading::Known(LinkLayer::Ethernet);
            if !ethernet || port.state != Reading::Known(PortState::Active) {
                continue;
            }
            let source = format!("/sys/class/infiniband/{}/ports/{}/gids", judged.hca.name, port.number);
            let Some(gids) = out.value(&part, "GID table", &source, &port.details.gids) else { continue };
            let v2: Vec<_> =
                gids.iter().filter(|gid| gid.kind.known().is_some_and(|kind| kind == "RoCE v2")).collect();
            // If the type of any GID cannot be read, a missing version proves nothing.
            let unread = gids.iter().any(|gid| matches!(gid.kind, Reading::Failed(_)));
            let inside = |address: Ipv4Addr| networks.iter().any(|network| lies_in(address, network));
            let what = if gids.is_empty() {
                "no GID".to_owned()
            } else if v2.is_empty() && !unread {
                "no RoCE v2 GID".to_owned()
            } else if !networks.is_empty() && !unread && !v2.iter().filter_map(|gid| gid.ipv4()).any(inside) {
                format!("no GID in {}", networks.join(", "))
            } else {
                continue;
            };
            let found = Found::new(set.severity, Class::Node, &part, what).fix("check addresses");
            let text: Vec<String> = v2
                .iter()
                .map(|gid| gid.ipv4().map_or_else(|| gid.gid.clone(), |at| at.to_string()))
                .collect();
            let want = if networks.is_empty() { "one".to_owned() } else { networks.join(", ") };
            out.add(found.row("RoCE v2 GIDs", text.join(" "), want, source));
        }
    }
}

/// Whether `address` is in `network`, for example `10.10.0.0/16`.
fn lies_in(address: Ipv4Addr, network: &str) -> bool {
    let Some((base, bits)) = network.split_once('/') else { return false };
    let (Ok(base), Ok(bits)) = (base.parse::<Ipv4Addr>(), bits.parse::<u32>()) else { return false };
    let Some(rest) = 32_u32.checked_sub(bits) else { return false };
    let network = |address: Ipv4Addr| u32::from(address).checked_shr(rest).unwrap_or(0);
    network(address) == network(base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{case, roce};

    #[test]
    fn a_missing_version_or_network_warns() {
        assert_eq!(roce("").summary(), "fit");
        assert_eq!(
            roce("roce-gid-v1@2").summary(),
            "degraded: warn roce-gid@mlx5_2: no RoCE v2 GID; check addresses"
        );
        let in_network = |faults: &str| {
            roce(faults).with(|case| {
                case.profile.as_mut().unwrap().fabric.subnets = vec!["10.10.0.0/16".to_owned()];
            })
        };
        assert_eq!(in_network("").summary(), "fit");
        for fault in ["roce-gid-subnet@2", "roce-gid-missing@2"] {
            let says = in_network(fault).summary();
            assert_eq!(says, "degraded: warn roce-gid@mlx5_2: no GID in 10.10.0.0/16; check addresses");
        }
        assert_eq!(case("h100-sxm:roce-gid-missing@2").summary(), "fit", "InfiniBand");
    }

    #[test]
    fn addresses_are_matched_with_networks() {
        let at = |text: &str| text.parse().unwrap();
        assert!(lies_in(at("10.10.200.1"), "10.10.0.0/16") && lies_in(at("1.2.3.4"), "0.0.0.0/0"));
        assert!(lies_in(at("10.10.0.1"), "10.10.0.1/32"));
        assert!(!lies_in(at("10.11.0.1"), "10.10.0.0/16") && !lies_in(at("10.10.0.1"), "10.10.0.0/99"));
    }
}

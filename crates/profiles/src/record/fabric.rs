use std::collections::BTreeSet;

use railgate_model::{
    Access, Hca, LinkLayer, Pci, PciAddress, PciDevice, Port, PortState, Reading, Snapshot, roce_mtu,
};

use super::Recorded;

/// Records properties of the compute devices other than link layer and rate.
pub(super) fn details(snapshot: &Snapshot, rails: &[(&Hca, &Port)], into: &mut Recorded) {
    let Recorded { profile, unknown, .. } = into;
    let fabric = &mut profile.fabric;
    let mut left_out = |key: &str, why: &str| unknown.push((format!("fabric.{key}"), why.to_owned()));
    for (hca, _) in rails {
        match hca.pci.known() {
            Some(at) => drop(fabric.slots.insert(hca.name.clone(), *at)),
            None => left_out("slots", &format!("{} has no PCI address", hca.name)),
        }
    }
    let firmware: Option<BTreeSet<&String>> = rails.iter().map(|(hca, _)| hca.firmware.known()).collect();
    match firmware {
        Some(all) => fabric.firmware = all.into_iter().cloned().collect(),
        None => left_out("firmware", "a device does not report it"),
    }
    let widths: Option<BTreeSet<u32>> = rails.iter().map(|(_, port)| port.lanes()).collect();
    match widths.as_ref().and_then(|widths| widths.first().filter(|_| widths.len() == 1)) {
        Some(width) => fabric.width = Some(*width),
        None => left_out("width", "the ports do not report it, or differ"),
    }
    if fabric.link_layer.as_deref() == Some("infiniband") {
        match common_keys(rails) {
            Some(keys) => fabric.pkeys = keys,
            None => left_out("pkeys", "the partitions of a port cannot be read"),
        }
    } else {
        let mtus = rails.iter().flat_map(|(hca, _)| &hca.details.interfaces);
        let mtus: Option<BTreeSet<u32>> = mtus.map(|interface| roce_mtu(*interface.mtu.known()?)).collect();
        // The smallest of several, which every port supports.
        match mtus.and_then(|mtus| mtus.first().copied()) {
            Some(mtu) => fabric.mtu = Some(mtu),
            None => left_out("mtu", "an interface does not report it"),
        }
        left_out("subnets", "an address does not show the size of its network: write 10.10.0.0/16");
    }
    let mut interfaces = rails.iter().flat_map(|(hca, _)| &hca.details.interfaces).peekable();
    if interfaces.peek().is_none() {
        left_out("interfaces_up", "the devices have no interfaces");
    } else if interfaces.all(|interface| interface.state.known().is_some_and(|state| state == "up")) {
        fabric.interfaces_up = Some(true);
    } else {
        left_out("interfaces_up", "an interface is down");
    }
    match distance(snapshot, rails) {
        Some(distance) => fabric.distance = Some(distance.to_owned()),
        None => left_out("distance", "not every GPU has a compute device at its own socket"),
    }
}

/// The partition keys that every port has.
fn common_keys(rails: &[(&Hca, &Port)]) -> Option<Vec<u16>> {
    let mut common: Option<BTreeSet<u16>> = None;
    for (_, port) in rails {
        let keys: BTreeSet<u16> = port.details.pkeys.known()?.iter().copied().collect();
        common = Some(match common {
            Some(common) => common.intersection(&keys).copied().collect(),
            None => keys,
        });
    }
    common.map(|keys| keys.into_iter().collect())
}

/// Distance between a GPU and its nearest compute device, for the GPU with the largest distance.
fn distance(snapshot: &Snapshot, rails: &[(&Hca, &Port)]) -> Option<&'static str> {
    let pci = snapshot.pci.data()?;
    let hcas: Vec<&PciDevice> = rails.iter().filter_map(|(hca, _)| device(pci, *hca.pci.known()?)).collect();
    let gpus = &snapshot.gpus.data()?.gpus;
    let mut all_switch = !gpus.is_empty();
    for gpu in gpus.iter().filter(|gpu| gpu.access == Access::Ok) {
        let gpu = device(pci, *gpu.pci.known()?)?;
        let switch = |hca: &&&PciDevice| hca.root == gpu.root && hca.bridges.first() == gpu.bridges.first();
        let below_one = !gpu.bridges.is_empty() && hcas.iter().any(|hca| switch(&hca));
        let same_node = gpu.numa_node.known().is_some()
            && hcas.iter().any(|hca| hca.numa_node.known() == gpu.numa_node.known());
        if !below_one && !same_node {
            return None;
        }
        all_switch &= below_one;
    }
    Some(if all_switch { "switch" } else { "numa" })
}

fn device(pci: &Pci, at: PciAddress) -> Option<&PciDevice> {
    pci.devices.iter().find(|device| device.address == at)
}

/// The active ports of this kind, each with its device.
pub(super) fn ports_of<'a>(hcas: &'a [Hca], layer: &str, gbps: u64) -> Vec<(&'a Hca, &'a Port)> {
    let alike = |port: &&Port| {
        port.state == Reading::Known(PortState::Active) && super::kind(port) == Some((name_of(layer), gbps))
    };
    hcas.iter().flat_map(|hca| hca.ports.iter().filter(alike).map(move |port| (hca, port))).collect()
}

fn name_of(layer: &str) -> &'static str {
    if layer == "infiniband" { "infiniband" } else { "ethernet" }
}

/// The name of a link layer in profiles.
pub(super) fn layer(layer: &LinkLayer) -> Option<&'static str> {
    match layer {
        LinkLayer::InfiniBand => Some("infiniband"),
        LinkLayer::Ethernet => Some("ethernet"),
        LinkLayer::Other(_) => None,
    }
}

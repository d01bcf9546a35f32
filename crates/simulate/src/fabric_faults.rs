use railgate_model::{
    Fabric, Hca, LinkLayer, Part, PciAddress, Port, PortDetails, Reading, SelfTested, Snapshot,
};

use super::machine::rate_text;
use super::optics;

/// Faults of an RDMA device other than its state and rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is explained to people in FAULTS")]
pub enum FabricFault {
    Firmware,
    Swapped,
    LaneLost,
    Layer,
    NoLid,
    NoSubnetManager,
    PkeyMissing,
    PkeyLimited,
    InterfaceDown,
    GidMissing,
    GidVersion,
    GidSubnet,
    MtuLow,
    Far,
    /// A counter of the port is higher by this amount.
    Counts(&'static str, u64),
    CountersUnreadable,
    DirectMissing,
    OpticHot,
    OpticDark,
    OpticDim,
    OpticUneven,
    OpticAgeing,
    OpticUnreadable,
    OpticCopper,
    SelfTestFails,
    SelfTestMissing,
}

/// Applies the fault to the device with this index.
pub(super) fn apply(snapshot: &mut Snapshot, fault: FabricFault, index: u32) {
    if fault == FabricFault::DirectMissing {
        return no_direct_path(snapshot);
    }
    if fault == FabricFault::SelfTestMissing {
        let why =
            "/usr/libexec/railgate/railgate-rdma-selftest: cannot be started: No such file or directory";
        snapshot.extras.rdma_self_test = Some(Part::Failed { why: why.to_owned(), took_ms: 2.0 });
        return;
    }
    let Part::Read { data: Fabric { hcas }, .. } = &mut snapshot.fabric else { return };
    if fault == FabricFault::SelfTestFails {
        let one = |(nth, hca): (usize, &Hca)| {
            let fails = u32::try_from(nth) == Ok(index);
            SelfTested {
                device: hca.name.clone(),
                gbps: (!fails).then_some(191.4),
                bytes: if fails { 0 } else { 4_785_000_000 },
                error: fails.then(|| "completion: 12 (vendor 129)".to_owned()),
            }
        };
        let data = hcas.iter().enumerate().map(one).collect();
        snapshot.extras.rdma_self_test = Some(Part::Read { data, took_ms: 1_700.0 });
        return;
    }
    let Ok(place) = usize::try_from(index) else { return };
    if optics::apply(hcas, &mut snapshot.extras.optics, fault, place) {
        return;
    }
    match fault {
        FabricFault::Swapped => swap(hcas, place),
        FabricFault::Far => far(snapshot, place),
        _ => {
            if let Some(hca) = hcas.get_mut(place) {
                on_hca(hca, fault);
            }
        }
    }
}

fn on_hca(hca: &mut Hca, fault: FabricFault) {
    match fault {
        FabricFault::Firmware => hca.firmware = Reading::Known("28.39.1002".to_owned()),
        FabricFault::InterfaceDown => {
            for interface in &mut hca.details.interfaces {
                interface.state = Reading::Known("down".to_owned());
            }
        }
        FabricFault::MtuLow => {
            for interface in &mut hca.details.interfaces {
                interface.mtu = Reading::Known(1500);
            }
        }
        _ => {
            if let Some(port) = hca.ports.first_mut() {
                on_port(port, fault);
            }
        }
    }
}

fn on_port(port: &mut Port, fault: FabricFault) {
    match fault {
        FabricFault::LaneLost => {
            if let Reading::Known(rate) = &mut port.rate_gbps {
                *rate /= 4.0;
                port.rate_text = Reading::Known(rate_text(*rate).replace("4X", "1X"));
            }
        }
        FabricFault::Layer => {
            port.link_layer = Reading::Known(LinkLayer::Ethernet);
            // An Ethernet port has no partitions, and here no address either.
            port.details = PortDetails { gids: Reading::Known(Vec::new()), ..PortDetails::default() };
        }
        FabricFault::NoLid => port.lid = Reading::Known(0),
        FabricFault::NoSubnetManager => port.sm_lid = Reading::Known(0),
        FabricFault::PkeyMissing => port.details.pkeys = Reading::Known(Vec::new()),
        FabricFault::PkeyLimited => {
            if let Reading::Known(keys) = &mut port.details.pkeys {
                keys.iter_mut().for_each(|key| *key &= 0x7fff);
            }
        }
        FabricFault::GidMissing | FabricFault::GidVersion | FabricFault::GidSubnet => {
            // An InfiniBand port has no GID table, so the fault has no effect.
            let Reading::Known(gids) = &mut port.details.gids else { return };
            match fault {
                FabricFault::GidMissing => gids.retain(|gid| gid.ipv4().is_none()),
                FabricFault::GidVersion => {
                    gids.retain(|gid| gid.kind != Reading::Known("RoCE v2".to_owned()))
                }
                _ => {
                    for gid in gids {
                        gid.gid = gid.gid.replace(":ffff:0a0a:", ":ffff:a9fe:");
                    }
                }
            }
        }
        FabricFault::Counts(name, more) => {
            if let Some(Reading::Known(value)) = port.counters.get_mut(name) {
                *value = value.saturating_add(more);
            }
        }
        FabricFault::CountersUnreadable => {
            for value in port.counters.values_mut() {
                *value = Reading::Failed("Input/output error (os error 5)".to_owned());
            }
        }
        _ => {}
    }
}

/// Swaps the names of two slots.
fn swap(hcas: &mut [Hca], place: usize) {
    let other = if place + 1 < hcas.len() { place + 1 } else { place.saturating_sub(1) };
    let address = |at: usize| hcas.get(at).map(|hca| hca.pci.clone());
    if let (Some(one), Some(two)) = (address(place), address(other)) {
        for (at, pci) in [(place, two), (other, one)] {
            if let Some(hca) = hcas.get_mut(at) {
                hca.pci = pci;
            }
        }
    }
}

/// Moves the card to a port of its own below a root port of the other socket.
fn far(snapshot: &mut Snapshot, place: usize) {
    let Part::Read { data: Fabric { hcas }, .. } = &mut snapshot.fabric else { return };
    let Some(hca) = hcas.get_mut(place) else { return };
    let elsewhere = hca.numa_node.clone().map(|node| 1 - node.min(1));
    hca.numa_node = elsewhere.clone();
    let Part::Read { data, .. } = &mut snapshot.pci else { return };
    for device in data.devices.iter_mut().filter(|device| Some(&device.address) == hca.pci.known()) {
        device.numa_node = elsewhere.clone();
        device.bridges.clear();
        device.root = "pci0000:f0".to_owned();
    }
    // Bridges are only listed if a device is below them.
    let used: Vec<PciAddress> = data.devices.iter().flat_map(|device| device.bridges.clone()).collect();
    data.devices.retain(|device| device.class >> 8 != 0x0604 || used.contains(&device.address));
}

/// An old kernel without dma-buf, and without the module that replaces it.
fn no_direct_path(snapshot: &mut Snapshot) {
    if let Part::Read { data, .. } = &mut snapshot.host {
        data.kernel = Reading::Known("4.18.0-553.el8_10.x86_64".to_owned());
        if let Reading::Known(modules) = &mut data.system.modules {
            modules.retain(|module| !module.contains("peer"));
        }
    }
}

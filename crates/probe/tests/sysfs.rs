//! Tests the readers with a tree that was written by hand after real machines, so that they and the writer of simulated
//! hardware cannot share a mistake.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::{Path, PathBuf};

use railgate_model::{Hca, LinkLayer, Pci, PciAddress, PciDevice, PciLink, PhysState, PortState, Reading};
use railgate_probe::readers::{fabric_read, pci_read};

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/sysfs/hgx-rail")
}

fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

fn hcas() -> Vec<Hca> {
    fabric_read(&tree()).unwrap().hcas
}

#[test]
fn an_active_port_is_read() {
    let hcas = hcas();
    let hca = &hcas[0];
    assert_eq!(hca.name, "mlx5_0");
    assert_eq!(hca.pci, Reading::Known(at("0000:18:00.0")));
    assert_eq!(hca.node_guid, Reading::Known("b83f:d203:00aa:1b00".into()));
    assert_eq!(hca.firmware, Reading::Known("28.39.1002".into()));
    assert_eq!(hca.hca_type, Reading::Known("MT4129".into()));
    assert_eq!(hca.numa_node, Reading::Known(0));
    assert_eq!(hca.netdevs, ["ibp24s0"]);
    let port = &hca.ports[0];
    assert_eq!(port.number, 1);
    assert_eq!(port.link_layer, Reading::Known(LinkLayer::InfiniBand));
    assert_eq!(port.state, Reading::Known(PortState::Active));
    assert_eq!(port.phys_state, Reading::Known(PhysState::LinkUp));
    assert_eq!(port.rate_gbps, Reading::Known(400.0));
    assert_eq!(port.rate_text, Reading::Known("400 Gb/sec (4X NDR)".into()));
    assert_eq!(port.lid, Reading::Known(0x1a3));
    assert_eq!(port.sm_lid, Reading::Known(1));
    let counters: Vec<_> = port.counters.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let want = [
        ("VL15_dropped", Reading::Unsupported),
        ("link_downed", Reading::Known(2)),
        ("out_of_sequence", Reading::Known(17)),
        ("port_rcv_data", Reading::Known(81_236_172_837)),
        ("port_xmit_data", Reading::Known(u64::MAX)),
        ("symbol_error", Reading::Known(0)),
    ];
    assert_eq!(counters, want);
}

#[test]
fn ports_in_other_states_are_read() {
    let hcas = hcas();
    let names: Vec<&str> = hcas.iter().map(|hca| hca.name.as_str()).collect();
    assert_eq!(names, ["mlx5_0", "mlx5_2", "mlx5_10", "rxe0"]);

    let roce = &hcas[1];
    assert_eq!(roce.numa_node, Reading::Unsupported);
    assert_eq!(roce.netdevs, ["ens2f0np0", "ens2f1np1"]);
    assert_eq!(roce.ports[0].link_layer, Reading::Known(LinkLayer::Ethernet));
    assert_eq!(roce.ports[0].rate_gbps, Reading::Known(200.0));
    assert_eq!(roce.ports[1].state, Reading::Known(PortState::Init));
    assert_eq!(roce.ports[1].rate_gbps, Reading::Known(2.5));

    let down = &hcas[2].ports[0];
    assert_eq!(hcas[2].pci, Reading::Known(at("0001:00:00.0")));
    assert_eq!(down.state, Reading::Known(PortState::Down));
    assert_eq!(down.phys_state, Reading::Known(PhysState::Polling));
    assert_eq!(down.lid, Reading::Known(0xffff));

    let software = &hcas[3];
    assert_eq!(software.pci, Reading::Unsupported);
    assert_eq!(software.hca_type, Reading::Unsupported);
    assert_eq!(software.ports[0].phys_state, Reading::Known(PhysState::Disabled));
    assert_eq!(software.ports[0].lid, Reading::Unsupported);
    assert!(software.ports[0].counters.is_empty());
}

fn device<'a>(pci: &'a Pci, address: &str) -> &'a PciDevice {
    pci.devices.iter().find(|device| device.address == at(address)).unwrap()
}

#[test]
fn the_pci_tree_has_only_relevant_devices() {
    let pci = pci_read(&tree()).unwrap();
    let kept: Vec<String> = pci.devices.iter().map(|device| device.address.to_string()).collect();
    // Without the disk, the switch port above it, and the host's own function.
    let want = [
        "0000:00:02.0",
        "0000:15:01.0",
        "0000:16:00.0",
        "0000:17:00.0",
        "0000:17:01.0",
        "0000:18:00.0",
        "0000:1b:00.0",
        "0000:97:01.0",
        "0000:97:02.0",
        "0000:9b:00.0",
        "0000:9d:00.0",
        "0001:00:00.0",
    ];
    assert_eq!(kept, want);

    let gpu = device(&pci, "0000:1b:00.0");
    assert_eq!((gpu.vendor, gpu.device, gpu.class), (0x10de, 0x2330, 0x03_0200));
    assert_eq!(gpu.root, "pci0000:15");
    assert_eq!(gpu.bridges, [at("0000:15:01.0"), at("0000:16:00.0"), at("0000:17:01.0")]);
    assert_eq!(gpu.numa_node, Reading::Known(0));
    let full = PciLink { speed_gts: 32.0, max_speed_gts: 32.0, width: 16, max_width: 16 };
    assert_eq!(gpu.link, Reading::Known(full));

    assert!(matches!(&device(&pci, "0000:9b:00.0").link, Reading::Failed(why) if why.ends_with("Unknown")));
    let half = PciLink { speed_gts: 16.0, max_speed_gts: 16.0, width: 2, max_width: 4 };
    assert_eq!(device(&pci, "0000:9d:00.0").link, Reading::Known(half));
}

#[test]
fn links_of_a_virtual_machine_are_unsupported() {
    let pci = pci_read(&tree()).unwrap();
    let function = device(&pci, "0001:00:00.0");
    assert_eq!(function.root, "pci0001:00");
    assert!(function.bridges.is_empty());
    assert_eq!(function.numa_node, Reading::Unsupported);
    assert_eq!(function.link, Reading::Unsupported);
    assert_eq!(device(&pci, "0000:00:02.0").link, Reading::Unsupported);
}

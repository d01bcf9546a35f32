//! Small machines for the tests of this crate and of `railgate-topology-check`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use railgate_model::{
    Access, EccCounts, Fabric, FabricProfile, Gpu, GpuProfile, Gpus, Hca, Host, LinkLayer, Origin, Part, Pci,
    PciDevice, PhysState, Port, PortState, Profile, RailProfile, Reading, Snapshot,
};

fn read<T>(data: T) -> Part<T> {
    Part::Read { data, took_ms: 0.0 }
}

fn gpu(index: u32, pci: &str) -> Gpu {
    Gpu {
        index,
        access: Access::Ok,
        pci: Reading::Known(pci.parse().unwrap()),
        uuid: Reading::Known(format!("GPU-{index}")),
        serial: Reading::Unsupported,
        name: Reading::Known("GPU".to_owned()),
        minor: Reading::Known(index),
        vbios: Reading::Unsupported,
        recovery_action: Reading::Unsupported,
        ecc_enabled: Reading::Unsupported,
        ecc: EccCounts {
            volatile_uncorrected: Reading::Unsupported,
            aggregate_uncorrected: Reading::Unsupported,
            volatile_corrected: Reading::Unsupported,
        },
        row_remap: Reading::Unsupported,
        nvlinks: vec![],
        processes: Reading::Known(vec![]),
        memory: Reading::Unsupported,
        temperature_c: Reading::Unsupported,
        power_w: Reading::Unsupported,
        power_limit_w: Reading::Unsupported,
        energy_j: Reading::Unsupported,
        sm_clock_mhz: Reading::Unsupported,
        throttle_reasons: Reading::Unsupported,
        pcie_gen: Reading::Unsupported,
        pcie_width: Reading::Unsupported,
        pcie_replays: Reading::Unsupported,
        nvlink_tx_kib: Reading::Unsupported,
        nvlink_rx_kib: Reading::Unsupported,
        persistence: Reading::Unsupported,
        mig: Reading::Unsupported,
        details: railgate_model::GpuDetails::default(),
    }
}

pub fn hca(name: &str, pci: &str, numa: Reading<u32>, rate: f64) -> Hca {
    Hca {
        name: name.to_owned(),
        pci: Reading::Known(pci.parse().unwrap()),
        node_guid: Reading::Unsupported,
        firmware: Reading::Unsupported,
        hca_type: Reading::Unsupported,
        numa_node: numa,
        netdevs: vec![],
        ports: vec![Port {
            number: 1,
            link_layer: Reading::Known(LinkLayer::InfiniBand),
            state: Reading::Known(PortState::Active),
            phys_state: Reading::Known(PhysState::LinkUp),
            rate_gbps: Reading::Known(rate),
            rate_text: Reading::Unsupported,
            lid: Reading::Unsupported,
            sm_lid: Reading::Unsupported,
            counters: BTreeMap::new(),
            details: Default::default(),
        }],
        details: Default::default(),
    }
}

pub fn pci(address: &str, class: u32, numa: Reading<u32>, root: &str, bridges: &[&str]) -> PciDevice {
    PciDevice {
        address: address.parse().unwrap(),
        vendor: if class >> 16 == 3 { 0x10de } else { 0x15b3 },
        device: 0,
        class,
        numa_node: numa,
        bridges: bridges.iter().map(|bridge| bridge.parse().unwrap()).collect(),
        root: root.to_owned(),
        link: Reading::Failed("not read".to_owned()),
        acs: Reading::Unsupported,
    }
}

fn snapshot(gpus: Vec<Gpu>, hcas: Vec<Hca>, devices: Vec<PciDevice>, host: Host) -> Snapshot {
    Snapshot {
        boot_id: "b".to_owned(),
        taken: 0,
        gpus: read(Gpus {
            driver: Reading::Unsupported,
            nvml: Reading::Unsupported,
            count: Reading::Known(u32::try_from(gpus.len()).unwrap()),
            gpus,
        }),
        fabric: read(Fabric { hcas }),
        pci: read(Pci { devices }),
        host: read(host),
        ..Snapshot::unread("n1", Origin::Simulated)
    }
}

fn host(virtualised: bool, numa_cpus: &[(u32, &str)]) -> Host {
    Host {
        hostname: Reading::Known("n1".to_owned()),
        kernel: Reading::Unsupported,
        boot_time: Reading::Unsupported,
        memory_mib: Reading::Unsupported,
        virtualised: Reading::Known(virtualised),
        numa_cpus: numa_cpus.iter().map(|(node, cpus)| (*node, (*cpus).to_owned())).collect(),
        cpu: Reading::Known(("GenuineIntel".to_owned(), 6, 143)),
        addresses: vec![("eno1".to_owned(), "10.0.0.1".to_owned())],
        default_interface: Reading::Known("eno1".to_owned()),
        mounts: vec![],
        system: railgate_model::System::default(),
    }
}

/// `count` switches with the given GPUs and HCAs each, two sockets, and a slower storage HCA that is under no switch.
/// Names of GPUs and HCAs are numbered across switches.
pub fn switches(count: u32, gpus_each: u32, hcas_each: u32) -> Snapshot {
    let (mut gpus, mut hcas, mut devices) = (vec![], vec![], vec![]);
    for k in 0..count {
        let numa = Reading::Known(k * 2 / count);
        let (root, bus) = (format!("pci0000:{:02x}", 0x10 * (k + 1)), 0x10 * (k + 1));
        let bridge = |at: u32, device: u32| format!("0000:{:02x}:{device:02x}.0", bus + at);
        let up = [bridge(0, 1), bridge(1, 0)];
        let mut place = |slot: u32, class: u32| {
            let at = format!("0000:{:02x}:00.0", bus + 3 + slot);
            let bridges = [up[0].as_str(), up[1].as_str(), &bridge(2, slot)];
            devices.push(pci(&at, class, numa.clone(), &root, &bridges));
            at
        };
        for slot in 0..hcas_each {
            let name = format!("mlx5_{}", hcas.len());
            hcas.push(hca(&name, &place(slot, 0x02_0700), numa.clone(), 400.0));
        }
        for slot in 0..gpus_each {
            let index = u32::try_from(gpus.len()).unwrap();
            gpus.push(gpu(index, &place(hcas_each + slot, 0x03_0200)));
        }
    }
    devices.push(pci("0000:02:00.0", 0x02_0700, Reading::Known(0), "pci0000:00", &["0000:00:01.0"]));
    hcas.push(hca(&format!("mlx5_{}", hcas.len()), "0000:02:00.0", Reading::Known(0), 200.0));
    snapshot(gpus, hcas, devices, host(false, &[(0, "0-15"), (1, "16-31")]))
}

/// Four switches with one GPU and one HCA each.
pub fn machine() -> Snapshot {
    switches(4, 1, 1)
}

/// A virtual machine: four GPUs and four HCAs, all directly at root complexes.
pub fn flat_machine() -> Snapshot {
    let mut gpus = vec![];
    let mut hcas = vec![];
    let mut devices = vec![];
    for k in 0..4 {
        let (gpu_at, hca_at) = (format!("{:04x}:00:00.0", k + 1), format!("{:04x}:00:00.0", 0x101 + k));
        devices.push(pci(&gpu_at, 0x03_0200, Reading::Unsupported, "pci0000:00", &[]));
        devices.push(pci(&hca_at, 0x02_0700, Reading::Unsupported, "pci0000:00", &[]));
        gpus.push(gpu(k, &gpu_at));
        hcas.push(hca(&format!("mlx5_{k}"), &hca_at, Reading::Unsupported, 400.0));
    }
    snapshot(gpus, hcas, devices, host(true, &[(0, "0-15")]))
}

pub fn profile() -> Profile {
    Profile {
        id: "test".to_owned(),
        title: "test".to_owned(),
        gpus: GpuProfile { count: Some(4), pcie_gen: Some(5), ..GpuProfile::default() },
        fabric: FabricProfile { hcas: Some(4), rate_gbps: Some(400.0), ..FabricProfile::default() },
        ..Profile::generic()
    }
}

/// A profile in which GPU k belongs to HCA 3 - k.
pub fn wired_profile() -> Profile {
    let wiring = (0..4).map(|k| (k, format!("mlx5_{}", 3 - k))).collect();
    Profile { rails: RailProfile { wiring }, ..profile() }
}

/// Machines with ports that are down, unreadable, slow, of another link layer or without an address, and with HCAs in
/// any order.
pub fn machines() -> impl Strategy<Value = Snapshot> {
    let shape = prop_oneof![
        (1..5_u32, 1..3_u32, 0..3_u32).prop_map(|(count, gpus, hcas)| switches(count, gpus, hcas)),
        Just(flat_machine()),
    ];
    (shape, proptest::collection::vec(0..8_u8, 12), any::<u64>()).prop_map(|(mut snapshot, faults, turn)| {
        if let Part::Read { data, .. } = &mut snapshot.fabric {
            for (hca, fault) in data.hcas.iter_mut().zip(&faults) {
                let port = &mut hca.ports[0];
                match fault {
                    0 => port.state = Reading::Known(PortState::Down),
                    1 => port.state = Reading::Failed("I/O error".to_owned()),
                    2 => port.rate_gbps = Reading::Known(100.0),
                    3 => port.link_layer = Reading::Known(LinkLayer::Ethernet),
                    4 => hca.pci = Reading::Failed("no link".to_owned()),
                    _ => {}
                }
            }
            let count = data.hcas.len().max(1);
            data.hcas.rotate_left(usize::try_from(turn).unwrap_or(0) % count);
        }
        snapshot
    })
}

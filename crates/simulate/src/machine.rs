use std::path::PathBuf;

use railgate_model::{
    Access, EccCounts, Extras, Fabric, Gpu, Gpus, Hca, Host, KernelLine, KernelLog, LinkLayer, MemoryUse,
    Mount, MountProbe, NvLink, Origin, Part, Pci, PciAddress, PciDevice, PciLink, PhysState, Port, PortState,
    Profile, Reading, RecoveryAction, RowRemap, Snapshot,
};

use super::FaultPart;

/// 2026-01-05 08:00:00 UTC: any time will do as long as it is always the same.
const TAKEN: u64 = 1_767_600_000_000;
const DRIVER: &str = "580.159.04";
const UP_FOR_MS: u64 = 3 * 86_400_000;
/// Buses of the GPUs of a common eight-GPU machine; four belong to each socket.
const GPU_BUSES: [u8; 8] = [0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf];
/// A profile without a count: most machines with PCIe cards are built for eight.
const DEFAULT_GPUS: u32 = 8;

/// How many the machine has of something; `None` where the fault takes no index.
pub(super) fn how_many(profile: &Profile, part: FaultPart) -> Option<u32> {
    match part {
        FaultPart::Gpu => Some(gpu_count(profile)),
        FaultPart::Hca => Some(profile.fabric.hcas.unwrap_or(0)),
        FaultPart::Mount => Some(2),
        FaultPart::Node => None,
    }
}

fn gpu_count(profile: &Profile) -> u32 {
    profile.gpus.count.unwrap_or(DEFAULT_GPUS)
}

/// A healthy machine of this type.
pub(super) fn healthy(profile: &Profile, node: &str) -> Snapshot {
    let machine = Machine { profile, seed: seed(node) };
    Snapshot {
        boot_id: format!("{:08x}-5ea1-4d00-8000-51a01a7ed000", machine.seed),
        taken: TAKEN,
        gpus: Part::Read { data: machine.gpus(), took_ms: 180.0 },
        fabric: Part::Read { data: machine.fabric(), took_ms: 6.0 },
        pci: Part::Read { data: machine.pci(), took_ms: 4.0 },
        kernel_log: Part::Read { data: kernel_log(), took_ms: 2.0 },
        host: Part::Read { data: machine.host(node), took_ms: 3.0 },
        extras: extras(profile),
        ..Snapshot::unread(node, Origin::Simulated)
    }
}

fn extras(profile: &Profile) -> Extras {
    Extras {
        // Machines with NVSwitches have one.
        fabric_manager: (profile.gpus.nvlinks_up == Some(18)).then(|| Reading::Known(DRIVER.to_owned())),
        ..Extras::default()
    }
}

/// FNV-1a: spreads node names over serial numbers, the same way every time.
fn seed(node: &str) -> u32 {
    node.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

struct Machine<'a> {
    profile: &'a Profile,
    seed: u32,
}

/// Where one GPU hangs, and the HCAs beside it.
struct Slot {
    domain: u32,
    gpu_bus: u8,
    numa_node: u32,
}

impl Slot {
    fn of(gpu: u32) -> Self {
        let place = usize::try_from(gpu % 8).unwrap_or_default();
        let gpu_bus = GPU_BUSES.get(place).copied().unwrap_or_default();
        Slot { domain: gpu / 8, gpu_bus, numa_node: u32::from(place >= 4) }
    }

    fn at(&self, below: u8, device: u8) -> PciAddress {
        PciAddress { domain: self.domain, bus: self.gpu_bus - below, device, function: 0 }
    }

    fn root(&self) -> String {
        format!("pci{:04x}:{:02x}", self.domain, self.gpu_bus - 6)
    }

    fn root_port(&self) -> PciAddress {
        self.at(6, 1)
    }

    fn gpu(&self) -> PciAddress {
        self.at(0, 0)
    }

    /// The switch's port to the host, and one to the GPU (device 0) or an HCA (1 to 3).
    fn switch_up(&self) -> PciAddress {
        self.at(5, 0)
    }

    fn switch_down(&self, device: u8) -> PciAddress {
        self.at(4, device)
    }

    /// At most three HCAs share a switch.
    fn hca(&self, nth: u8) -> PciAddress {
        self.at(3 - nth.min(2), 0)
    }
}

impl Machine<'_> {
    /// Data-centre GPUs with NVLink sit behind PCIe switches together with their HCAs; cards sit in slots.
    fn is_hgx(&self) -> bool {
        self.hcas() > 0 || self.nvlinks() > 0
    }

    fn hcas(&self) -> u32 {
        self.profile.fabric.hcas.unwrap_or(0)
    }

    fn nvlinks(&self) -> u32 {
        self.profile.gpus.nvlinks_up.unwrap_or(0)
    }

    /// The slot of HCA `nth` and its place there.
    fn hca_place(&self, nth: u32) -> (Slot, u8) {
        let gpus = gpu_count(self.profile).max(1);
        let slot = |nth: u32| nth * gpus / self.hcas().max(1);
        let before = (0..nth).filter(|other| slot(*other) == slot(nth)).count();
        (Slot::of(slot(nth)), u8::try_from(before).unwrap_or(2))
    }

    fn gpus(&self) -> Gpus {
        let count = gpu_count(self.profile);
        Gpus {
            driver: Reading::Known(DRIVER.to_owned()),
            nvml: Reading::Known("13.580.159.04".to_owned()),
            count: Reading::Known(count),
            gpus: (0..count).map(|index| self.gpu(index)).collect(),
        }
    }

    fn gpu(&self, index: u32) -> Gpu {
        let facts = &self.profile.gpus;
        let name = facts.names.first().cloned().unwrap_or_else(|| "NVIDIA Simulated GPU".to_owned());
        let server = facts.ecc == Some(true);
        let total_mib = u64::from(facts.memory_gib.unwrap_or(48)) * 1024 + 72;
        let limit = facts.power_limit_w.unwrap_or(400.0);
        let links = self.nvlinks();
        let seed = self.seed;
        Gpu {
            index,
            access: Access::Ok,
            pci: Reading::Known(Slot::of(index).gpu()),
            uuid: Reading::Known(format!("GPU-{seed:08x}-5ea1-4d00-8000-{:012x}", 0xa000 + index)),
            serial: only(server, format!("16{:08}{index:03}", seed % 100_000_000)),
            name: Reading::Known(name),
            minor: Reading::Known(index),
            vbios: Reading::Known("96.00.A5.00.01".to_owned()),
            recovery_action: only(server, RecoveryAction::None),
            ecc_enabled: only(server, true),
            ecc: EccCounts {
                volatile_uncorrected: only(server, 0),
                aggregate_uncorrected: only(server, 0),
                volatile_corrected: only(server, 0),
            },
            row_remap: only(
                facts.row_remap == Some(true),
                RowRemap { correctable: 0, uncorrectable: 0, pending: false, failed: false },
            ),
            nvlinks: (0..links).map(|link| NvLink { link, up: Reading::Known(true) }).collect(),
            processes: Reading::Known(Vec::new()),
            memory: Reading::Known(MemoryUse { total_mib, used_mib: 0 }),
            temperature_c: Reading::Known(31 + index % 4),
            power_w: Reading::Known((limit / 10.0).round()),
            power_limit_w: Reading::Known(limit),
            energy_j: Reading::Known(18_000_000.0),
            sm_clock_mhz: Reading::Known(345),
            throttle_reasons: Reading::Known(1),
            pcie_gen: Reading::Known(facts.pcie_gen.unwrap_or(5)),
            pcie_width: Reading::Known(facts.pcie_width.unwrap_or(16)),
            pcie_replays: Reading::Known(0),
            nvlink_tx_kib: only(links > 0, 1_000_000),
            nvlink_rx_kib: only(links > 0, 1_000_000),
            persistence: Reading::Known(true),
            mig: only(server, false),
            details: super::gpu_details::healthy(self.profile, index, gpu_count(self.profile)),
        }
    }

    fn speed_gts(&self) -> f64 {
        match self.profile.gpus.pcie_gen {
            Some(3) => 8.0,
            Some(4) => 16.0,
            Some(6) => 64.0,
            _ => 32.0,
        }
    }

    fn function(
        &self,
        address: PciAddress,
        slot: &Slot,
        bridges: &[PciAddress],
        ids: (u32, u32, u32),
    ) -> PciDevice {
        let (vendor, device, class) = ids;
        let speed_gts = self.speed_gts();
        PciDevice {
            address,
            vendor,
            device,
            class,
            numa_node: Reading::Known(slot.numa_node),
            bridges: bridges.to_vec(),
            root: slot.root(),
            link: Reading::Known(PciLink { speed_gts, max_speed_gts: speed_gts, width: 16, max_width: 16 }),
            acs: only(class == 0x06_0400, 0),
        }
    }

    fn pci(&self) -> Pci {
        const ROOT_PORT: (u32, u32, u32) = (0x8086, 0x352a, 0x06_0400);
        const SWITCH: (u32, u32, u32) = (0x1000, 0xc030, 0x06_0400);
        let gpu_ids = (0x10de, gpu_device_id(&self.profile.id), 0x03_0200);
        let mut devices = Vec::new();
        for index in 0..gpu_count(self.profile) {
            let slot = Slot::of(index);
            let (port, up) = (slot.root_port(), slot.switch_up());
            devices.push(self.function(port, &slot, &[], ROOT_PORT));
            if self.is_hgx() {
                devices.push(self.function(up, &slot, &[port], SWITCH));
                let down = slot.switch_down(0);
                devices.push(self.function(down, &slot, &[port, up], SWITCH));
                devices.push(self.function(slot.gpu(), &slot, &[port, up, down], gpu_ids));
            } else {
                devices.push(self.function(slot.gpu(), &slot, &[port], gpu_ids));
            }
        }
        for nth in 0..self.hcas() {
            let (slot, place) = self.hca_place(nth);
            let (port, up, down) = (slot.root_port(), slot.switch_up(), slot.switch_down(place + 1));
            devices.push(self.function(down, &slot, &[port, up], SWITCH));
            devices.push(self.function(slot.hca(place), &slot, &[port, up, down], self.hca_ids()));
        }
        if self.hcas() > 0 {
            let slot = management();
            devices.push(self.function(slot.root_port(), &slot, &[], ROOT_PORT));
            devices.push(self.function(slot.gpu(), &slot, &[slot.root_port()], (0x15b3, 0x101d, 0x02_0000)));
        }
        devices.sort_by_key(|device| device.address);
        devices.dedup_by_key(|device| device.address);
        Pci { devices }
    }

    fn is_ethernet(&self) -> bool {
        self.profile.fabric.link_layer.as_deref() == Some("ethernet")
    }

    fn hca_ids(&self) -> (u32, u32, u32) {
        let device = if self.rate() > 200.0 { 0x1021 } else { 0x101b };
        (0x15b3, device, if self.is_ethernet() { 0x02_0000 } else { 0x02_0700 })
    }

    fn rate(&self) -> f64 {
        self.profile.fabric.rate_gbps.unwrap_or(400.0)
    }

    fn fabric(&self) -> Fabric {
        let layer = if self.is_ethernet() { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
        let mut hcas: Vec<Hca> = (0..self.hcas())
            .map(|nth| {
                let (slot, place) = self.hca_place(nth);
                let pci = slot.hca(place);
                let netdev = if self.is_ethernet() {
                    format!("ens{}np0", pci.bus)
                } else {
                    format!("ibp{}s0", pci.bus)
                };
                self.hca(format!("mlx5_{nth}"), pci, &slot, netdev, port(nth, layer.clone(), self.rate()))
            })
            .collect();
        // The card for storage and management, which is no rail.
        if self.hcas() > 0 {
            let slot = management();
            let port = port(0x80, LinkLayer::Ethernet, 200.0);
            hcas.push(self.hca("mlx5_bond_0".to_owned(), slot.gpu(), &slot, "bond0".to_owned(), port));
        }
        Fabric { hcas }
    }

    fn hca(&self, name: String, pci: PciAddress, slot: &Slot, netdev: String, port: Port) -> Hca {
        let [a, b, c, d] = self.seed.to_be_bytes();
        Hca {
            name,
            pci: Reading::Known(pci),
            node_guid: Reading::Known(format!(
                "{a:02x}{b:02x}:{c:02x}{d:02x}:0300:{:02x}{:02x}",
                pci.domain, pci.bus
            )),
            firmware: Reading::Known("28.43.2026".to_owned()),
            hca_type: Reading::Known("MT4129".to_owned()),
            numa_node: Reading::Known(slot.numa_node),
            details: super::fabric_details::of_hca(&netdev, &port),
            netdevs: vec![netdev],
            ports: vec![port],
        }
    }

    fn host(&self, node: &str) -> Host {
        let mount = |path: &str, fs_type: &str, source: &str| Mount {
            path: PathBuf::from(path),
            probe: MountProbe::Answered {
                fs_type: fs_type.to_owned(),
                source: source.to_owned(),
                writable: true,
                took_ms: 0.4,
            },
        };
        let [_, _, c, d] = self.seed.to_be_bytes();
        Host {
            hostname: Reading::Known(node.to_owned()),
            kernel: Reading::Known("6.1.0-32-amd64".to_owned()),
            boot_time: Reading::Known((TAKEN - UP_FOR_MS) / 1000),
            memory_mib: Reading::Known(2_063_840),
            virtualised: Reading::Known(false),
            numa_cpus: vec![(0, "0-47,96-143".to_owned()), (1, "48-95,144-191".to_owned())],
            cpu: Reading::Known(("GenuineIntel".to_owned(), 6, 143)),
            addresses: vec![("eno1".to_owned(), format!("10.20.{c}.{d}"))],
            default_interface: Reading::Known("eno1".to_owned()),
            mounts: vec![
                mount("/home", "nfs4", "storage:/home"),
                mount("/scratch", "lustre", "10.20.0.1@o2ib:/scratch"),
            ],
            system: super::host::system(),
        }
    }
}

/// Its bus lies outside the slots'.
fn management() -> Slot {
    Slot { domain: 0, gpu_bus: 0xaf, numa_node: 1 }
}

fn only<T>(there: bool, value: T) -> Reading<T> {
    if there { Reading::Known(value) } else { Reading::Unsupported }
}

fn gpu_device_id(profile: &str) -> u32 {
    match profile {
        "h100-sxm" => 0x2330,
        "h200-sxm" => 0x2335,
        "h800-sxm" => 0x2324,
        "h20" => 0x2329,
        "a100-sxm" => 0x20b2,
        "a800-sxm" => 0x20f3,
        "b200" => 0x2901,
        "l40s" => 0x26b9,
        "l20" => 0x26ba,
        "rtx4090" => 0x2684,
        "rtx3090" => 0x2204,
        "a6000" => 0x2230,
        _ => 0x2330,
    }
}

/// The kernel's words for a rate.
pub(super) fn rate_text(gbps: f64) -> String {
    let kind = match gbps {
        g if g > 799.0 => "XDR",
        g if g > 399.0 => "NDR",
        g if g > 199.0 => "HDR",
        g if g > 99.0 => "EDR",
        g if g > 55.0 => "FDR",
        g if g > 39.0 => "QDR",
        _ => "SDR",
    };
    format!("{gbps} Gb/sec (4X {kind})")
}

fn port(nth: u32, layer: LinkLayer, rate: f64) -> Port {
    let infiniband = layer == LinkLayer::InfiniBand;
    let moving =
        ["port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "rx_corrected_bits_phy"];
    let still = [
        "symbol_error",
        "link_error_recovery",
        "link_downed",
        "port_rcv_errors",
        "port_rcv_remote_physical_errors",
        "port_rcv_switch_relay_errors",
        "port_rcv_constraint_errors",
        "port_xmit_constraint_errors",
        "port_xmit_discards",
        "port_xmit_wait",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
        "VL15_dropped",
        "duplicate_request",
        "out_of_buffer",
        "implied_nak_seq_err",
        "local_ack_timeout_err",
        "np_cnp_sent",
        "np_ecn_marked_roce_packets",
        "out_of_sequence",
        "packet_seq_err",
        "req_cqe_error",
        "resp_cqe_error",
        "rnr_nak_retry_err",
        "roce_adp_retrans",
        "rp_cnp_handled",
        // Of the interface.
        "rx_discards_phy",
        "rx_pcs_symbol_err_phy",
        "rx_prio3_pause_duration",
        "tx_pause_storm_error_events",
        "tx_prio3_pause_duration",
    ];
    let moving = moving.iter().map(|name| (*name, 1_000_000));
    let counters = moving.chain(still.iter().map(|name| (*name, 0)));
    Port {
        number: 1,
        details: super::fabric_details::of_port(nth, &layer),
        link_layer: Reading::Known(layer),
        state: Reading::Known(PortState::Active),
        phys_state: Reading::Known(PhysState::LinkUp),
        rate_gbps: Reading::Known(rate),
        rate_text: Reading::Known(rate_text(rate)),
        lid: Reading::Known(if infiniband { 0x100 + nth } else { 0 }),
        sm_lid: Reading::Known(u32::from(infiniband)),
        counters: counters.map(|(name, value)| (name.to_owned(), Reading::Known(value))).collect(),
    }
}

fn kernel_log() -> KernelLog {
    let line = |seq, after_ms: u64, level, text: &str| KernelLine {
        seq,
        time: TAKEN - UP_FOR_MS + after_ms,
        level,
        text: text.to_owned(),
    };
    KernelLog {
        since: None,
        last_seq: Some(2_400),
        overrun: false,
        lines: vec![
            line(1_210, 21_000, 5, "nvidia: loading out-of-tree module taints kernel."),
            line(1_305, 24_500, 6, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04"),
        ],
        forged: Vec::new(),
    }
}

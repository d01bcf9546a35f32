use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::PciAddress;

/// What a healthy machine of a type has. Hardware facts only: thresholds are the checks' own, consequences
/// the policy's. A field that is absent is not judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// `h100-sxm`.
    pub id: String,
    /// For people.
    pub title: String,
    /// GPUs.
    #[serde(default)]
    pub gpus: GpuProfile,
    /// HCAs.
    #[serde(default)]
    pub fabric: FabricProfile,
    /// Wiring, for machines that hide it.
    #[serde(default)]
    pub rails: RailProfile,
    /// The machine around them.
    #[serde(default)]
    pub host: HostProfile,
}

impl Profile {
    /// A machine of which nothing is known.
    pub fn generic() -> Self {
        Profile {
            id: "generic".to_owned(),
            title: "any machine with NVIDIA GPUs".to_owned(),
            gpus: GpuProfile::default(),
            fabric: FabricProfile::default(),
            rails: RailProfile::default(),
            host: HostProfile::default(),
        }
    }

    /// Values that no machine can have, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut range = |key: &str, value: Option<f64>, low: f64, high: f64| {
            if let Some(value) = value
                && !(low..=high).contains(&value)
            {
                problems.push(format!("{key} = {value} is not between {low} and {high}"));
            }
        };
        let gpus = &self.gpus;
        range("gpus.count", gpus.count.map(f64::from), 0.0, 256.0);
        range("gpus.nvlinks_up", gpus.nvlinks_up.map(f64::from), 0.0, 64.0);
        range("gpus.pcie_gen", gpus.pcie_gen.map(f64::from), 1.0, 8.0);
        range("gpus.pcie_width", gpus.pcie_width.map(f64::from), 1.0, 32.0);
        range("gpus.memory_gib", gpus.memory_gib.map(f64::from), 1.0, 4096.0);
        range("gpus.power_limit_w", gpus.power_limit_w, 1.0, 10_000.0);
        range("gpus.bf16_tflops", gpus.bf16_tflops, 0.1, 1_000_000.0);
        range("fabric.hcas", self.fabric.hcas.map(f64::from), 0.0, 256.0);
        let host = &self.host;
        range("host.memory_gib", host.memory_gib.map(f64::from), 1.0, 1_000_000.0);
        range("host.dimms", host.dimms.map(f64::from), 1.0, 1024.0);
        range("host.cpus", host.cpus.map(f64::from), 1.0, 65_536.0);
        range("host.nvmes", host.nvmes.map(f64::from), 0.0, 1024.0);
        range("fabric.width", self.fabric.width.map(f64::from), 1.0, 16.0);
        range("fabric.rate_gbps", self.fabric.rate_gbps, 0.1, 10_000.0);
        if let Some(layer) = &self.fabric.link_layer
            && !matches!(layer.as_str(), "infiniband" | "ethernet")
        {
            problems.push(format!("fabric.link_layer = '{layer}' is neither infiniband nor ethernet"));
        }
        if let Some(mtu) = self.fabric.mtu
            && !matches!(mtu, 256 | 512 | 1024 | 2048 | 4096)
        {
            problems.push(format!("fabric.mtu = {mtu} is none of 256, 512, 1024, 2048, 4096"));
        }
        if let Some(distance) = &self.fabric.distance
            && !matches!(distance.as_str(), "switch" | "numa")
        {
            problems.push(format!("fabric.distance = '{distance}' is neither switch nor numa"));
        }
        for subnet in &self.fabric.subnets {
            let good = subnet.split_once('/').is_some_and(|(address, bits)| {
                address.parse::<std::net::Ipv4Addr>().is_ok()
                    && bits.parse::<u8>().is_ok_and(|bits| bits <= 32)
            });
            if !good {
                problems.push(format!("fabric.subnets = '{subnet}' is not a network (want 10.10.0.0/16)"));
            }
        }
        for pattern in &self.fabric.exclude {
            if pattern.trim_end_matches('*').contains('*') || pattern.is_empty() {
                problems.push(format!("fabric.exclude = '{pattern}': a name, or its beginning and one '*'"));
            }
        }
        let wiring = &self.rails.wiring;
        for (rail, (gpu, hca)) in wiring.iter().enumerate() {
            if wiring.iter().take(rail).any(|(other, _)| other == gpu) {
                problems.push(format!("rails.wiring names gpu {gpu} twice (second time with {hca})"));
            }
        }
        problems
    }
}

/// The GPUs of a machine type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuProfile {
    /// How many.
    pub count: Option<u32>,
    /// `nvmlDeviceGetName` values that belong to the type.
    pub names: Vec<String>,
    /// NVLinks that are up on each GPU; 0 means that it has none.
    pub nvlinks_up: Option<u32>,
    /// The machine has ECC memory and it is on.
    pub ecc: Option<bool>,
    /// The GPU remaps rows (Ampere and later data-centre parts).
    pub row_remap: Option<bool>,
    /// PCIe generation at full speed.
    pub pcie_gen: Option<u32>,
    /// PCIe lanes.
    pub pcie_width: Option<u32>,
    /// Frame buffer as NVML counts it (`nvmlDeviceGetMemoryInfo_v2`, total), whole GiB, rounded down.
    pub memory_gib: Option<u32>,
    /// Power limit, watts.
    pub power_limit_w: Option<f64>,
    /// Dense bf16 peak, TFLOP/s.
    pub bf16_tflops: Option<f64>,
    /// MIG is on (or off) on every GPU.
    pub mig: Option<bool>,
    /// Driver versions that are right, or their beginning and `*`; empty: not judged.
    pub driver: Vec<String>,
    /// The same for the VBIOS.
    pub vbios: Vec<String>,
    /// The same for the infoROM.
    pub inforom: Vec<String>,
    /// The same for the GSP firmware.
    pub gsp: Vec<String>,
    /// Where the numbers come from.
    pub source: String,
}

/// The compute HCAs of a machine type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FabricProfile {
    /// How many compute ports; 0 means that the machine has no RDMA fabric.
    pub hcas: Option<u32>,
    /// `infiniband` or `ethernet`.
    pub link_layer: Option<String>,
    /// Gb/s of each compute port.
    pub rate_gbps: Option<f64>,
    /// Device names (`mlx5_8`) or patterns with a trailing `*` that are storage or management, not rails.
    pub exclude: Vec<String>,
    /// Which slot each device sits in.
    pub slots: BTreeMap<String, PciAddress>,
    /// Firmware releases that may run on the compute devices.
    pub firmware: Vec<String>,
    /// Lanes of each compute port: 4 if the kernel shows `4X`.
    pub width: Option<u32>,
    /// Partition keys that every compute port has, the membership bit included: 0x8001.
    pub pkeys: Vec<u16>,
    /// RDMA MTU of each RoCE port, bytes: 1024, 2048, 4096.
    pub mtu: Option<u32>,
    /// Networks that the RoCE v2 addresses of the compute ports lie in: `10.10.0.0/16`.
    pub subnets: Vec<String>,
    /// The interfaces of the compute devices (IPoIB, Ethernet) are up.
    pub interfaces_up: Option<bool>,
    /// How near the nearest compute device is to each GPU: `switch` or `numa`.
    pub distance: Option<String>,
}

impl FabricProfile {
    /// The pattern of `exclude` that leaves an HCA out of the compute fabric: a name, or a start with a trailing `*`.
    pub fn exclusion(&self, hca: &str) -> Option<&str> {
        let fits = |pattern: &&String| match pattern.strip_suffix('*') {
            Some(start) => hca.starts_with(start),
            None => *pattern == hca,
        };
        self.exclude.iter().find(fits).map(String::as_str)
    }
}

/// The machine around GPUs and HCAs. Sites build them differently, so no built-in profile has values here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostProfile {
    /// `MemTotal`, GiB; the kernel keeps some percent of what is plugged in for itself.
    pub memory_gib: Option<u32>,
    /// Memory modules that the memory controllers name.
    pub dimms: Option<u32>,
    /// Processors that are online.
    pub cpus: Option<u32>,
    /// The frequency governor of all of them.
    pub governor: Option<String>,
    /// NVMe controllers.
    pub nvmes: Option<u32>,
    /// Services of systemd that run, without `.service`.
    pub services: Vec<String>,
    /// Modules of the kernel, loaded or built in.
    pub modules: Vec<String>,
    /// Words of the kernel's command line: `iommu=pt`.
    pub boot_args: Vec<String>,
}

/// Which HCA belongs to which GPU, if the PCI tree does not show it (virtual machines).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RailProfile {
    /// Rail k's GPU index and HCA name, in rail order.
    pub wiring: Vec<(u32, String)>,
}

/// A profile that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// No such id; the text lists the known ones.
    #[error("no machine profile '{id}'{meant} (known: {known})")]
    Unknown {
        /// What was asked for.
        id: String,
        /// `; did you mean 'h100-sxm'?`, or nothing.
        meant: String,
        /// What there is.
        known: String,
    },
    /// The file is not a profile; the text has file, line and column.
    #[error("{0}")]
    Invalid(String),
}

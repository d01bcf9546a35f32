use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{PciAddress, fits_pattern};

/// The properties of a healthy machine of a type. It has hardware facts only: thresholds are settings of the checks,
/// actions those of the policy. An absent field is not judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Id, for example `h100-sxm`.
    pub id: String,
    /// Name for people.
    pub title: String,
    /// GPUs.
    #[serde(default)]
    pub gpus: GpuProfile,
    /// HCAs.
    #[serde(default)]
    pub fabric: FabricProfile,
    /// Wiring, for machines that hide it in their PCI tree.
    #[serde(default)]
    pub rails: RailProfile,
    /// The rest of the machine.
    #[serde(default)]
    pub host: HostProfile,
}

impl Profile {
    /// Returns the profile of an unknown machine, without any values.
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

    /// Returns values that no machine can have, one line each.
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
        for (name, rate) in &gpus.self_test {
            for (key, value) in [("median", rate.median), ("lowest", rate.lowest), ("highest", rate.highest)]
            {
                range(&format!("gpus.self_test.'{name}'.{key}"), Some(value), 1e-6, 1e9);
            }
        }
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
    /// Number of GPUs.
    pub count: Option<u32>,
    /// `nvmlDeviceGetName` values that belong to the type.
    pub names: Vec<String>,
    /// Number of NVLinks that are up on each GPU; 0 if it has none.
    pub nvlinks_up: Option<u32>,
    /// Whether the machine has ECC memory with ECC enabled.
    pub ecc: Option<bool>,
    /// Whether the GPU supports row remapping (data-centre GPUs from Ampere on).
    pub row_remap: Option<bool>,
    /// PCIe generation at full speed.
    pub pcie_gen: Option<u32>,
    /// PCIe lanes.
    pub pcie_width: Option<u32>,
    /// Frame buffer in whole GiB, rounded down, as reported by NVML (`nvmlDeviceGetMemoryInfo_v2`, total).
    pub memory_gib: Option<u32>,
    /// Power limit, watts.
    pub power_limit_w: Option<f64>,
    /// Dense bf16 peak performance, TFLOP/s.
    pub bf16_tflops: Option<f64>,
    /// Rates of good cards in the GPU self-test, by `TEST.FIGURE`, for example `gemm-rate-bf16.rate_tflops`.
    pub self_test: BTreeMap<String, RecordedRate>,
    /// Whether MIG is on, on every GPU.
    pub mig: Option<bool>,
    /// Accepted driver versions, or prefixes with `*`. Empty: not judged.
    pub driver: Vec<String>,
    /// Accepted VBIOS versions, likewise.
    pub vbios: Vec<String>,
    /// Accepted infoROM versions, likewise.
    pub inforom: Vec<String>,
    /// Accepted GSP firmware versions, likewise.
    pub gsp: Vec<String>,
    /// Source of the numbers.
    pub source: String,
}

/// A rate of good cards of a machine type, in the unit of its name.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedRate {
    /// Median of the cards.
    pub median: f64,
    /// That of the slowest card.
    pub lowest: f64,
    /// That of the fastest card.
    pub highest: f64,
    /// Number of cards.
    pub gpus: u32,
}

/// The compute HCAs of a machine type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FabricProfile {
    /// Number of compute ports; 0 if the machine has no RDMA fabric.
    pub hcas: Option<u32>,
    /// `infiniband` or `ethernet`.
    pub link_layer: Option<String>,
    /// Rate of each compute port, Gb/s.
    pub rate_gbps: Option<f64>,
    /// Devices that are used for storage or management, not as rails: names (`mlx5_8`) or patterns with a trailing `*`.
    pub exclude: Vec<String>,
    /// PCI slot of each device.
    pub slots: BTreeMap<String, PciAddress>,
    /// Accepted firmware versions of the compute devices.
    pub firmware: Vec<String>,
    /// Lanes of each compute port, for example 4 if the kernel shows `4X`.
    pub width: Option<u32>,
    /// Partition keys of every compute port, including the membership bit, for example 0x8001.
    pub pkeys: Vec<u16>,
    /// RDMA MTU of each RoCE port, bytes: for example 1024, 2048 or 4096.
    pub mtu: Option<u32>,
    /// Networks of the RoCE v2 addresses of the compute ports, for example `10.10.0.0/16`.
    pub subnets: Vec<String>,
    /// Whether the interfaces of the compute devices (IPoIB, Ethernet) must be up.
    pub interfaces_up: Option<bool>,
    /// Required distance between each GPU and its nearest compute device: `switch` or `numa`.
    pub distance: Option<String>,
}

impl FabricProfile {
    /// Returns the pattern of `exclude` that matches an HCA: a name, or a prefix with a trailing `*`.
    pub fn exclusion(&self, hca: &str) -> Option<&str> {
        self.exclude.iter().find(|pattern| fits_pattern(pattern, hca)).map(String::as_str)
    }
}

/// The machine without GPUs and HCAs. It differs between sites, so no built-in profile has values here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostProfile {
    /// `MemTotal`, GiB. The kernel reserves a few per cent of the installed memory.
    pub memory_gib: Option<u32>,
    /// Number of memory modules that the memory controllers report.
    pub dimms: Option<u32>,
    /// Number of online processors.
    pub cpus: Option<u32>,
    /// Frequency governor of all processors.
    pub governor: Option<String>,
    /// Number of NVMe controllers.
    pub nvmes: Option<u32>,
    /// Running systemd services, without `.service`.
    pub services: Vec<String>,
    /// Kernel modules, loaded or built in.
    pub modules: Vec<String>,
    /// Words of the kernel command line, for example `iommu=pt`.
    pub boot_args: Vec<String>,
}

/// The HCA of each GPU, if the PCI tree does not show it (virtual machines).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RailProfile {
    /// GPU index and HCA name of each rail, in rail order.
    pub wiring: Vec<(u32, String)>,
}

/// Error of loading a profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// There is no such id.
    #[error("no machine profile '{id}'{meant} (known: {known})")]
    Unknown {
        /// The requested id.
        id: String,
        /// Suggestion, for example `; did you mean 'h100-sxm'?`, or empty.
        meant: String,
        /// List of the known ids.
        known: String,
    },
    /// The file is not a valid profile; the text has file, line and column.
    #[error("{0}")]
    Invalid(String),
}

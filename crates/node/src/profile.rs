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
    /// Lanes of each compute port: 4 where the kernel says `4X`.
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

/// The machine around GPUs and HCAs. Sites build them differently, so no built-in profile says anything here.
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

/// Which HCA belongs to which GPU, where the PCI tree cannot tell (virtual machines).
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

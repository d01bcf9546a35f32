use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{HcaDetails, PciAddress, PortDetails, Reading};

/// The RDMA devices of a node (`/sys/class/infiniband`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fabric {
    /// One entry per device, by name.
    pub hcas: Vec<Hca>,
}

/// One RDMA device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hca {
    /// Device name, for example `mlx5_0`.
    pub name: String,
    /// Target of the `device` link.
    pub pci: Reading<PciAddress>,
    /// `node_guid`.
    pub node_guid: Reading<String>,
    /// `fw_ver`.
    pub firmware: Reading<String>,
    /// `hca_type`.
    pub hca_type: Reading<String>,
    /// `device/numa_node`; the kernel's -1 is `Unsupported`.
    pub numa_node: Reading<u32>,
    /// Names under `device/net`.
    pub netdevs: Vec<String>,
    /// Its ports.
    pub ports: Vec<Port>,
    /// Further values from the device's directory.
    #[serde(default)]
    pub details: HcaDetails,
}

/// The link layer of the port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkLayer {
    /// `InfiniBand`
    InfiniBand,
    /// `Ethernet`: RoCE.
    Ethernet,
    /// Anything else, as the kernel wrote it.
    Other(String),
}

impl LinkLayer {
    /// As the kernel writes it: `InfiniBand`.
    pub fn name(&self) -> &str {
        match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::Other(text) => text,
        }
    }
}

/// `state`: the number before the colon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortState {
    /// 1
    Down,
    /// 2
    Init,
    /// 3
    Armed,
    /// 4
    Active,
    /// Anything else, as the kernel wrote it.
    Other(String),
}

/// `phys_state`: the number before the colon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PhysState {
    /// 5
    LinkUp,
    /// 2
    Polling,
    /// 3
    Disabled,
    /// Anything else, as the kernel wrote it.
    Other(String),
}

/// One port of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// From 1.
    pub number: u32,
    /// `link_layer`.
    pub link_layer: Reading<LinkLayer>,
    /// `state`.
    pub state: Reading<PortState>,
    /// `phys_state`.
    pub phys_state: Reading<PhysState>,
    /// `rate`, Gb/s.
    pub rate_gbps: Reading<f64>,
    /// `rate`, as the kernel wrote it: `400 Gb/sec (4X NDR)`.
    pub rate_text: Reading<String>,
    /// `lid`.
    pub lid: Reading<u32>,
    /// `sm_lid`.
    pub sm_lid: Reading<u32>,
    /// `counters/*` and `hw_counters/*`, in the kernel's units (`port_xmit_data` and `port_rcv_data` count units of
    /// four octets). The periodic check run adds some counters of the port's interface (`ethtool -S`).
    pub counters: BTreeMap<String, Reading<u64>>,
    /// Tables of the port.
    #[serde(default)]
    pub details: PortDetails,
}

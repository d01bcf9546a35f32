use std::fmt;

use serde::{Deserialize, Serialize};

use crate::net::known_or_other;
use crate::{LinkLayer, Net, PciAddress, PortState, Reading};

/// Distance between a GPU and an HCA, in NCCL's terms, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Distance {
    /// Under one PCIe switch.
    Pix,
    /// Through several PCIe switches, not the host bridge.
    Pxb,
    /// Through the host bridge of one NUMA node.
    Phb,
    /// Across NUMA nodes.
    Sys,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distance::Pix => "PIX",
            Distance::Pxb => "PXB",
            Distance::Phb => "PHB",
            Distance::Sys => "SYS",
        })
    }
}

/// The wiring of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailMap {
    /// GPUs by index, each with its rail.
    pub gpus: Vec<RailGpu>,
    /// The compute ports in rail order. NCCL gets exactly this list.
    pub rails: Vec<Rail>,
    /// RDMA ports that are not used as rails, with the reason.
    pub left_out: Vec<LeftOut>,
    /// How the pairs were found: `pci tree`, `profile wiring`.
    pub method: String,
    /// Values that are unknown or contradict each other.
    pub notes: Vec<String>,
}

/// A GPU and its rail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailGpu {
    /// NVML index.
    pub index: u32,
    /// PCI address.
    pub pci: Reading<PciAddress>,
    /// NUMA node.
    pub numa_node: Reading<u32>,
    /// The rail of the GPU, an index into [`RailMap::rails`].
    pub rail: Option<usize>,
    /// Distance to the HCA of that rail.
    pub distance: Option<Distance>,
}

/// One compute port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rail {
    /// Rail number from 0, the same on every node of a machine type.
    pub number: usize,
    /// Device, for example `mlx5_0`.
    pub hca: String,
    /// Port, from 1.
    pub port: u32,
    /// PCI address of the HCA.
    pub pci: Reading<PciAddress>,
    /// NUMA node of the HCA.
    pub numa_node: Reading<u32>,
    /// Link layer of the port.
    pub link_layer: Reading<LinkLayer>,
    /// Gb/s.
    pub rate_gbps: Reading<f64>,
    /// Port state.
    pub state: Reading<PortState>,
}

/// An RDMA port that NCCL must not use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Device and port, for example `mlx5_8:1`.
    pub port: String,
    /// The reason.
    pub why: String,
}

/// One variable that railgate sets for the tasks of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Name, for example `NCCL_IB_HCA`.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Whether it overrides the user's value, by the admin's policy. Otherwise it is only set if unset.
    pub force: bool,
    /// Id of the rule.
    pub rule: String,
    /// The reason for this value.
    pub why: String,
    /// Source of the reason: NCCL source file or document, or a measurement.
    pub source: String,
    /// NCCL releases to which it applies, for example `>=2.30.7`; set through NCCL's environment plugin, never in the
    /// environment of tasks. `None`: all releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl: Option<String>,
    /// Network plugins to which it applies; empty: all. Unknown names are read as `other`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "known_or_other")]
    pub nets: Vec<Net>,
    /// Applies only if railgate has set this variable as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<String>,
}

impl Setting {
    /// Returns whether it belongs in the environment of tasks if `net` carries NCCL's data between nodes.
    pub fn fits(&self, net: Net) -> bool {
        self.nccl.is_none() && (self.nets.is_empty() || self.nets.contains(&net))
    }
}

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::net::known_or_other;
use crate::{LinkLayer, Net, PciAddress, PortState, Reading};

/// How far a GPU is from an HCA, in NCCL's terms, nearest first.
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

/// How this node is wired.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailMap {
    /// GPUs by index, each with its rail.
    pub gpus: Vec<RailGpu>,
    /// The compute ports, in rail order: NCCL gets exactly this list.
    pub rails: Vec<Rail>,
    /// RDMA ports that are no rail, and why.
    pub left_out: Vec<LeftOut>,
    /// How the pairs were found: `pci tree`, `profile wiring`.
    pub method: String,
    /// Values that are not known, or that contradict each other.
    pub notes: Vec<String>,
}

/// A GPU's place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailGpu {
    /// NVML index.
    pub index: u32,
    /// PCI address.
    pub pci: Reading<PciAddress>,
    /// NUMA node.
    pub numa_node: Reading<u32>,
    /// Its rail, an index into [`RailMap::rails`].
    pub rail: Option<usize>,
    /// To that rail's HCA.
    pub distance: Option<Distance>,
}

/// One compute port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rail {
    /// 0, 1, … the same on every node of a type.
    pub number: usize,
    /// Device, `mlx5_0`.
    pub hca: String,
    /// Port, from 1.
    pub port: u32,
    /// PCI address of the HCA.
    pub pci: Reading<PciAddress>,
    /// NUMA node of the HCA.
    pub numa_node: Reading<u32>,
    /// What it speaks.
    pub link_layer: Reading<LinkLayer>,
    /// Gb/s.
    pub rate_gbps: Reading<f64>,
    /// Port state.
    pub state: Reading<PortState>,
}

/// An RDMA port that NCCL must not use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// `mlx5_8:1`
    pub port: String,
    /// Why.
    pub why: String,
}

/// One variable that railgate gives to the tasks of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// `NCCL_IB_HCA`
    pub name: String,
    /// Its value.
    pub value: String,
    /// Overrides the user's value, by the admin's policy; otherwise it is set only if unset.
    pub force: bool,
    /// Id of the rule.
    pub rule: String,
    /// Why this value.
    pub why: String,
    /// Where that comes from: NCCL source file or document, measurement.
    pub source: String,
    /// Releases of NCCL that get it, `>=2.30.7`: through NCCL's environment plugin, never in the environment.
    /// None: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl: Option<String>,
    /// Only where one of these moves NCCL's data between nodes. Empty: whatever does. Names that this release does not know are
    /// read as `other`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "known_or_other")]
    pub nets: Vec<Net>,
    /// Only where railgate has set this variable, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<String>,
}

impl Setting {
    /// Whether it is meant for the environment of tasks where `net` moves NCCL's data between nodes.
    pub fn fits(&self, net: Net) -> bool {
        self.nccl.is_none() && (self.nets.is_empty() || self.nets.contains(&net))
    }
}

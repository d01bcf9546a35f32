use std::path::PathBuf;

use crate::{PartName, SiteRequest};

/// What to read of a node. Which checks need it, and when, is the caller's business.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The parts to read; the others come out as [`crate::Part::Skipped`]. GPUs bring the PCI tree along, since
    /// a lost GPU's address is found there.
    pub parts: Vec<PartName>,
    /// Readings that no part includes by itself.
    pub extras: Vec<Extra>,
}

impl Plan {
    /// Every part, with the counters of NVLinks and the logs of drives. No mounts, files or programs: those
    /// come from a configuration.
    pub fn everything() -> Self {
        Plan {
            parts: vec![PartName::Gpus, PartName::Fabric, PartName::Pci, PartName::KernelLog, PartName::Host],
            extras: vec![Extra::NvLinkErrors, Extra::DriveLogs],
        }
    }
}

/// A reading that is made on request only, since it costs time or starts a program. It runs beside the parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extra {
    /// What each NVLink counts, with [`PartName::Gpus`]: some 50 questions to each GPU.
    NvLinkErrors,
    /// The own logs of NVMe drives, with [`PartName::Host`].
    DriveLogs,
    /// These mounts, with [`PartName::Host`].
    Mounts(Vec<PathBuf>),
    /// The site's own checks.
    SiteChecks(SiteRequest),
    /// NCCL's topology file, which the request for a live reading names.
    TopologyFile,
    /// The version that the fabric manager's program prints.
    FabricManager(PathBuf),
}

/// A reading of devices that an earlier reading found: it can only be planned and made after the parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowUp {
    /// The RDMA self-test.
    RdmaSelfTest {
        /// The program that tests.
        program: PathBuf,
        /// RDMA devices: `mlx5_2`.
        devices: Vec<String>,
    },
    /// The modules in these ports: RDMA device and network interface.
    Optics(Vec<(String, String)>),
    /// What the drivers of these interfaces count: RDMA device and network interface.
    Statistics(Vec<(String, String)>),
}

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    CloudEvent, CloudService, GpuSelfTest, Optic, Part, PciAddress, Reading, SelfTestLength, SelfTested,
    SiteCheck, SiteRequest, TopologyFile,
};

/// A reading that is made on request only, since it costs time or starts a program. It runs beside the parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extra {
    /// What each NVLink counts, with [`crate::PartName::Gpus`]: some 50 questions to each GPU.
    NvLinkErrors,
    /// The own logs of NVMe drives, with [`crate::PartName::Host`].
    DriveLogs,
    /// These mounts, with [`crate::PartName::Host`].
    Mounts(Vec<PathBuf>),
    /// The site's own checks.
    SiteChecks(SiteRequest),
    /// NCCL's topology file, which the request for a live reading names.
    TopologyFile,
    /// The version that the fabric manager's program prints.
    FabricManager(PathBuf),
    /// What the provider of a virtual machine announces for it.
    CloudMaintenance(CloudService),
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
    /// The GPU self-test.
    GpuSelfTest {
        /// The program that tests.
        program: PathBuf,
        /// GPUs that no process uses, unless `shared`; if there is none, the program is not started.
        gpus: Vec<PciAddress>,
        /// How long each of them works.
        length: SelfTestLength,
        /// Whether GPUs that other processes use are tested.
        shared: bool,
    },
    /// The modules in these ports: RDMA device and network interface.
    Optics(Vec<(String, String)>),
    /// What the drivers of these interfaces count: RDMA device and network interface.
    Statistics(Vec<(String, String)>),
}

/// The readings of a snapshot that were made on request and belong to none of its parts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Extras {
    /// The site's own checks, where they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub site_checks: Vec<SiteCheck>,
    /// NCCL's topology file, where one that is not ours is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_file: Option<TopologyFile>,
    /// What the RDMA devices did in a self-test, where one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_self_test: Option<Part<Vec<SelfTested>>>,
    /// What the GPUs did in a self-test, where one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_self_test: Option<Part<GpuSelfTest>>,
    /// The modules in the compute ports, where they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optics: Option<Part<Vec<Optic>>>,
    /// Version of the installed fabric manager, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric_manager: Option<Reading<String>>,
    /// What the provider announces for this virtual machine, where it was asked; empty if it announces nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_maintenance: Option<Reading<Vec<CloudEvent>>>,
}

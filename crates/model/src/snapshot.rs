use serde::{Deserialize, Serialize};

use crate::{Extras, Fabric, Gpus, Host, KernelLog, Part, Pci, XidEvent};

/// Milliseconds since the Unix epoch.
pub type UnixMillis = u64;

/// The schema that this build writes. A reader accepts this and every earlier one; fields are added,
/// never renamed.
pub const SNAPSHOT_SCHEMA: u32 = 1;

/// Where a snapshot comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Read from this machine just now.
    Live,
    /// Read from a file.
    Recorded,
    /// Made from a profile and named faults.
    Simulated,
}

/// One reading of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`SNAPSHOT_SCHEMA`] of the writer.
    pub schema: u32,
    /// Slurm's name of the node where known, else the short host name.
    pub node: String,
    /// `/proc/sys/kernel/random/boot_id`; empty where it could not be read.
    pub boot_id: String,
    /// When the reading began.
    pub taken: UnixMillis,
    /// Where it comes from.
    pub origin: Origin,
    /// NVML.
    pub gpus: Part<Gpus>,
    /// InfiniBand and RoCE, from sysfs.
    pub fabric: Part<Fabric>,
    /// The PCI tree.
    pub pci: Part<Pci>,
    /// Kernel log records since a mark.
    pub kernel_log: Part<KernelLog>,
    /// Host, processes, mounts.
    pub host: Part<Host>,
    /// Readings that were requested.
    #[serde(flatten)]
    pub extras: Extras,
    /// Xids that NVML reported during the job, if the kernel log cannot be read and a sampler waited for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvml_xids: Option<Vec<XidEvent>>,
}

impl Snapshot {
    /// A snapshot of which nothing has been read: a writer fills in what it reads.
    pub fn unread(node: &str, origin: Origin) -> Self {
        Snapshot {
            schema: SNAPSHOT_SCHEMA,
            node: node.to_owned(),
            boot_id: String::new(),
            taken: 0,
            origin,
            gpus: Part::Skipped,
            fabric: Part::Skipped,
            pci: Part::Skipped,
            kernel_log: Part::Skipped,
            host: Part::Skipped,
            extras: Extras::default(),
            nvml_xids: None,
        }
    }
}

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Reading, System};

/// The host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// `uname -n`.
    pub hostname: Reading<String>,
    /// `uname -r`.
    pub kernel: Reading<String>,
    /// Boot time, seconds since the epoch (`btime` of `/proc/stat`).
    pub boot_time: Reading<u64>,
    /// `MemTotal` of `/proc/meminfo`, MiB.
    pub memory_mib: Reading<u64>,
    /// Running under a hypervisor (`hypervisor` flag of `/proc/cpuinfo`).
    pub virtualised: Reading<bool>,
    /// `cpulist` of each NUMA node. The NUMA nodes of GPUs and HCAs are in the PCI part.
    pub numa_cpus: Vec<(u32, String)>,
    /// CPU vendor, family, model: `GenuineIntel`, 6, 143.
    pub cpu: Reading<(String, u32, u32)>,
    /// Network devices with an IPv4 or IPv6 address, without `lo`: candidates for NCCL's bootstrap network.
    pub addresses: Vec<(String, String)>,
    /// The interface of the default route.
    pub default_interface: Reading<String>,
    /// The mounts that the site requires.
    pub mounts: Vec<Mount>,
    /// Disks, memory, processors, processes, services.
    #[serde(default)]
    pub system: System,
}

/// One required mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mount {
    /// The required path.
    pub path: PathBuf,
    /// The result of a child process that probes it.
    pub probe: MountProbe,
}

/// The result of probing a mount point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MountProbe {
    /// It is a mount point and `statvfs` answered.
    Answered {
        /// File system type, for example `ext4`, `nfs4` or `lustre`.
        fs_type: String,
        /// Device or server path.
        source: String,
        /// Whether it is mounted writable.
        writable: bool,
        /// How long `statvfs` took, milliseconds.
        took_ms: f64,
    },
    /// The path is not a mount point.
    NotMounted,
    /// It is a mount point, and `statvfs` failed, for example with `Stale file handle`.
    Failed(String),
    /// No answer by the deadline.
    Silent {
        /// The child outlived SIGKILL: it hangs in the kernel.
        stuck: bool,
        /// The deadline, milliseconds.
        after_ms: f64,
    },
}

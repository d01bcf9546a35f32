use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Reading, System};

/// The host around the devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// `uname -n`.
    pub hostname: Reading<String>,
    /// `uname -r`.
    pub kernel: Reading<String>,
    /// Boot time, seconds since the epoch (`btime` of `/proc/stat`).
    pub boot_time: Reading<u64>,
    /// `MemTotal`, MiB.
    pub memory_mib: Reading<u64>,
    /// Running under a hypervisor (`hypervisor` flag of `/proc/cpuinfo`).
    pub virtualised: Reading<bool>,
    /// NUMA node of each GPU and HCA comes from the PCI part; here is each node's `cpulist`.
    pub numa_cpus: Vec<(u32, String)>,
    /// CPU vendor, family, model: `GenuineIntel`, 6, 143.
    pub cpu: Reading<(String, u32, u32)>,
    /// Network devices with an IPv4 or IPv6 address, `lo` left out: candidates for the bootstrap network.
    pub addresses: Vec<(String, String)>,
    /// The interface of the default route.
    pub default_interface: Reading<String>,
    /// The mounts that the site requires, one entry each.
    pub mounts: Vec<Mount>,
    /// Disks, memory, processors, processes, services.
    #[serde(default)]
    pub system: System,
}

/// One required mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mount {
    /// The path that was asked for.
    pub path: PathBuf,
    /// What a child process found there.
    pub probe: MountProbe,
}

/// What asking a mount point gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MountProbe {
    /// It is a mount point and `statvfs` answered.
    Answered {
        /// `ext4`, `nfs4`, `lustre`.
        fs_type: String,
        /// Device or server path.
        source: String,
        /// Not mounted read-only.
        writable: bool,
        /// How long `statvfs` took, milliseconds.
        took_ms: f64,
    },
    /// The path is no mount point.
    NotMounted,
    /// It is one, and `statvfs` failed (`Stale file handle`).
    Failed(String),
    /// No answer by the deadline; `stuck` if the child outlived SIGKILL.
    Silent {
        /// It hangs in the kernel.
        stuck: bool,
        /// The deadline, milliseconds.
        after_ms: f64,
    },
}

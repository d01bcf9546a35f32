use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{DriveHealth, Reading};

/// State of the machine apart from GPUs and fabric: disks, memory, processors, processes, services.
///
/// All of it is unsupported or empty in snapshots of earlier releases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct System {
    /// Local file systems, and in-memory ones to which jobs write (`/proc/self/mountinfo`), each once.
    pub file_systems: Reading<Vec<FileSystem>>,
    /// NVMe controllers (`/sys/class/nvme`); unsupported on a machine without any.
    pub nvmes: Reading<Vec<Nvme>>,
    /// Memory controllers (`/sys/devices/system/edac/mc`); unsupported without an EDAC driver.
    pub memory: Reading<Vec<MemoryController>>,
    /// Machine check exceptions since boot, summed over all processors (`MCE` of `/proc/interrupts`).
    pub machine_checks: Reading<u64>,
    /// Number of online processors (`/sys/devices/system/cpu/online`).
    pub cpus: Reading<u32>,
    /// Frequency governors, with the number of policies that use each.
    pub governors: Reading<BTreeMap<String, u32>>,
    /// Zombies and blocked processes.
    pub processes: Reading<Processes>,
    /// Systemd services that have a process (`system.slice` of the cgroup tree), without `.service`.
    pub services: Reading<Vec<String>>,
    /// Clock synchronisation.
    pub clock: Reading<Clock>,
    /// Kernel modules, loaded or built in (`/sys/module`).
    pub modules: Reading<Vec<String>>,
    /// The words of `/proc/cmdline`.
    pub boot_args: Reading<Vec<String>>,
    /// Limit of locked memory for jobs, bytes: `Max locked memory` of slurmd. `u64::MAX` means unlimited.
    pub memlock: Reading<u64>,
}

impl Default for System {
    fn default() -> Self {
        System {
            file_systems: Reading::Unsupported,
            nvmes: Reading::Unsupported,
            memory: Reading::Unsupported,
            machine_checks: Reading::Unsupported,
            cpus: Reading::Unsupported,
            governors: Reading::Unsupported,
            processes: Reading::Unsupported,
            services: Reading::Unsupported,
            clock: Reading::Unsupported,
            modules: Reading::Unsupported,
            boot_args: Reading::Unsupported,
            memlock: Reading::Unsupported,
        }
    }
}

/// One local file system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileSystem {
    /// First mount point.
    pub path: PathBuf,
    /// `ext4`, `xfs`, `tmpfs`.
    pub fs_type: String,
    /// Device, or the source in the mount table.
    pub source: String,
    /// Mounted read-only on purpose.
    pub read_only: bool,
    /// Mounted writable, and made read-only by the kernel after an error.
    pub given_up: bool,
    /// `statvfs`.
    pub space: Reading<Space>,
}

/// Space that is left for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Size, MiB.
    pub size_mib: u64,
    /// MiB that an unprivileged user can still write.
    pub free_mib: u64,
    /// Number of inodes; 0 if the file system creates them on demand.
    pub inodes: u64,
    /// Number of free inodes.
    pub inodes_free: u64,
}

/// One NVMe controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nvme {
    /// `nvme0`.
    pub name: String,
    /// `model`.
    pub model: Reading<String>,
    /// `serial`.
    pub serial: Reading<String>,
    /// `firmware_rev`.
    pub firmware: Reading<String>,
    /// `live`, `resetting`, `connecting`, `dead`.
    pub state: Reading<String>,
    /// Composite temperature, degrees (`temp1_input` of its hwmon).
    pub temperature_c: Reading<f64>,
    /// The drive's own critical temperature, degrees (`temp1_crit`).
    pub critical_c: Reading<f64>,
    /// The drive reports that it is too hot or too cold (`temp1_alarm`, that bit of the critical warning).
    pub alarm: Reading<bool>,
    /// SMART log, if it was requested.
    #[serde(default = "not_asked")]
    pub health: Reading<DriveHealth>,
}

fn not_asked<T>() -> Reading<T> {
    Reading::Unsupported
}

/// One memory controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryController {
    /// `mc0`.
    pub name: String,
    /// Corrected errors since the driver was loaded (`ce_count`).
    pub corrected: Reading<u64>,
    /// Uncorrected errors since the driver was loaded (`ue_count`).
    pub uncorrected: Reading<u64>,
    /// Its memory modules.
    pub dimms: Vec<Dimm>,
}

/// One memory module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dimm {
    /// `CPU_SrcID#0_MC#1_Chan#0_DIMM#0`, or its directory's name if it has no label.
    pub label: String,
    /// Size, MiB.
    pub size_mib: Reading<u64>,
    /// Corrected errors (`dimm_ce_count`).
    pub corrected: Reading<u64>,
    /// Uncorrected ones (`dimm_ue_count`).
    pub uncorrected: Reading<u64>,
}

/// Zombies and blocked processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processes {
    /// Number of processes, including kernel threads.
    pub total: u32,
    /// Number of zombies: processes that have ended and are not reaped by their parents.
    pub zombies: u32,
    /// Processes in uninterruptible sleep (state D), without kernel threads.
    pub blocked: Vec<BlockedProcess>,
}

/// A process in uninterruptible sleep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedProcess {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks after boot; identifies a process together with its id.
    pub started: u64,
    /// Command name.
    pub name: String,
    /// Number of context switches; while it is unchanged, it is the same sleep.
    pub switches: u64,
}

/// Clock synchronisation (`adjtimex`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// A time service keeps it synchronised.
    pub synchronised: bool,
    /// Estimated error, microseconds.
    pub error_us: u64,
    /// Maximum error, microseconds.
    pub max_error_us: u64,
    /// PTP hardware clocks (`/sys/class/ptp`), for example `ptp0 mlx5_ptp`.
    pub ptp: Vec<String>,
}

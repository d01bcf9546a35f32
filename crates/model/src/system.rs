use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{DriveHealth, Reading};

/// What the machine around the devices is made of and how it is: disks, memory, processors, processes, services.
///
/// Everything is unsupported or empty in a snapshot that an earlier build wrote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct System {
    /// Local file systems, and those in memory that jobs write to (`/proc/self/mountinfo`), each once.
    pub file_systems: Reading<Vec<FileSystem>>,
    /// NVMe controllers (`/sys/class/nvme`); unsupported on a machine without.
    pub nvmes: Reading<Vec<Nvme>>,
    /// Memory controllers (`/sys/devices/system/edac/mc`); unsupported where no driver counts.
    pub memory: Reading<Vec<MemoryController>>,
    /// Machine check exceptions since boot, all processors together (`MCE` of `/proc/interrupts`).
    pub machine_checks: Reading<u64>,
    /// Processors that are online (`/sys/devices/system/cpu/online`).
    pub cpus: Reading<u32>,
    /// Frequency governors, and how many policies have each.
    pub governors: Reading<BTreeMap<String, u32>>,
    /// Processes that are in trouble.
    pub processes: Reading<Processes>,
    /// Services of systemd that have a process (`system.slice` of the cgroup tree), without `.service`.
    pub services: Reading<Vec<String>>,
    /// How well the clock is kept.
    pub clock: Reading<Clock>,
    /// Modules of the kernel, loaded or built in (`/sys/module`).
    pub modules: Reading<Vec<String>>,
    /// The words of `/proc/cmdline`.
    pub boot_args: Reading<Vec<String>>,
    /// What the jobs of this node may lock at most, bytes: `Max locked memory` of slurmd. `u64::MAX` is unlimited.
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
    /// The first place where it is mounted.
    pub path: PathBuf,
    /// `ext4`, `xfs`, `tmpfs`.
    pub fs_type: String,
    /// The device, or what the table says.
    pub source: String,
    /// Mounted read-only on purpose.
    pub read_only: bool,
    /// Mounted for writing, and the kernel has made it read-only since: it found errors.
    pub given_up: bool,
    /// `statvfs`.
    pub space: Reading<Space>,
}

/// What is left on a file system for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// MiB.
    pub size_mib: u64,
    /// MiB that a user may still write.
    pub free_mib: u64,
    /// Inodes; 0 where the file system makes them as it goes.
    pub inodes: u64,
    /// Inodes that are left.
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
    /// Its own critical temperature, degrees (`temp1_crit`).
    pub critical_c: Reading<f64>,
    /// It reports that it is too hot or too cold (`temp1_alarm`: that bit of the critical warning).
    pub alarm: Reading<bool>,
    /// Its SMART log, where it was asked for.
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
    /// Uncorrected ones (`ue_count`).
    pub uncorrected: Reading<u64>,
    /// Its memory modules.
    pub dimms: Vec<Dimm>,
}

/// One memory module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dimm {
    /// `CPU_SrcID#0_MC#1_Chan#0_DIMM#0`, or its directory's name if it has no label.
    pub label: String,
    /// MiB.
    pub size_mib: Reading<u64>,
    /// Corrected errors (`dimm_ce_count`).
    pub corrected: Reading<u64>,
    /// Uncorrected ones (`dimm_ue_count`).
    pub uncorrected: Reading<u64>,
}

/// Processes that are in trouble.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processes {
    /// How many there are, kernel threads included.
    pub total: u32,
    /// How many have ended and are not collected by their parents.
    pub zombies: u32,
    /// Those that sleep in the kernel where no signal reaches them (state D), kernel threads left out.
    pub blocked: Vec<BlockedProcess>,
}

/// A process in uninterruptible sleep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedProcess {
    /// Its number.
    pub pid: u32,
    /// Its start, clock ticks after boot: with the number it names one process.
    pub started: u64,
    /// Its name.
    pub name: String,
    /// Context switches so far: as long as they are the same it is the same sleep.
    pub switches: u64,
}

/// How well the clock is kept (`adjtimex`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// A time service keeps it synchronised.
    pub synchronised: bool,
    /// The estimated error, microseconds.
    pub error_us: u64,
    /// What it may be off at most, microseconds.
    pub max_error_us: u64,
    /// PTP hardware clocks (`/sys/class/ptp`): `ptp0 mlx5_ptp`.
    pub ptp: Vec<String>,
}

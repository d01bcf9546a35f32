use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{GpuDetails, PciAddress, Reading};

/// The GPUs of a node, from NVML.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpus {
    /// `nvmlSystemGetDriverVersion`.
    pub driver: Reading<String>,
    /// `nvmlSystemGetNVMLVersion`.
    pub nvml: Reading<String>,
    /// `nvmlDeviceGetCount_v2`.
    pub count: Reading<u32>,
    /// One entry per index below `count`, in NVML (PCI) order, also for those that could not be opened.
    pub gpus: Vec<Gpu>,
}

/// Whether NVML can access a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// The GPU responds.
    Ok,
    /// `NVML_ERROR_GPU_IS_LOST` (15) or `NVML_ERROR_GPU_NOT_FOUND` (28), from any call; the text names the call.
    Lost(String),
    /// `NVML_ERROR_RESET_REQUIRED` (16), from any call.
    ResetRequired(String),
    /// The handle could not be obtained for another reason.
    Failed(String),
}

/// One GPU. Each field gives its NVML source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML index: PCI order, the same as Slurm's Gres index with `AutoDetect=nvml`.
    pub index: u32,
    /// Whether NVML can access the GPU.
    pub access: Access,
    /// `nvmlDeviceGetPciInfo_v3`; for a lost GPU, the address at the same position in the PCI tree.
    pub pci: Reading<PciAddress>,
    /// `nvmlDeviceGetUUID`.
    pub uuid: Reading<String>,
    /// `nvmlDeviceGetSerial`.
    pub serial: Reading<String>,
    /// `nvmlDeviceGetName`.
    pub name: Reading<String>,
    /// `nvmlDeviceGetMinorNumber`: the N of `/dev/nvidiaN`.
    pub minor: Reading<u32>,
    /// `nvmlDeviceGetVbiosVersion`.
    pub vbios: Reading<String>,
    /// Field 230.
    pub recovery_action: Reading<RecoveryAction>,
    /// `nvmlDeviceGetEccMode`, current.
    pub ecc_enabled: Reading<bool>,
    /// `nvmlDeviceGetTotalEccErrors`.
    pub ecc: EccCounts,
    /// `nvmlDeviceGetRemappedRows`.
    pub row_remap: Reading<RowRemap>,
    /// `nvmlDeviceGetNvLinkState`, one entry per link below 18 (or as many as the GPU has).
    pub nvlinks: Vec<NvLink>,
    /// Compute and graphics processes, `nvmlDeviceGet{Compute,Graphics}RunningProcesses_v3`.
    pub processes: Reading<Vec<GpuProcess>>,
    /// `nvmlDeviceGetMemoryInfo_v2`.
    pub memory: Reading<MemoryUse>,
    /// `nvmlDeviceGetTemperature`, °C.
    pub temperature_c: Reading<u32>,
    /// `nvmlDeviceGetPowerUsage`, watts.
    pub power_w: Reading<f64>,
    /// `nvmlDeviceGetEnforcedPowerLimit`, watts.
    pub power_limit_w: Reading<f64>,
    /// `nvmlDeviceGetTotalEnergyConsumption` since driver load, joules.
    pub energy_j: Reading<f64>,
    /// `nvmlDeviceGetClockInfo(SM)`, MHz.
    pub sm_clock_mhz: Reading<u32>,
    /// `nvmlDeviceGetCurrentClocksThrottleReasons`, NVML's bits.
    pub throttle_reasons: Reading<u64>,
    /// `nvmlDeviceGetCurrPcieLinkGeneration`.
    pub pcie_gen: Reading<u32>,
    /// `nvmlDeviceGetCurrPcieLinkWidth`.
    pub pcie_width: Reading<u32>,
    /// `nvmlDeviceGetPcieReplayCounter`, since driver load.
    pub pcie_replays: Reading<u64>,
    /// Field 138, all links: KiB sent over NVLink since driver load.
    pub nvlink_tx_kib: Reading<u64>,
    /// Field 139, all links: KiB received over NVLink since driver load.
    pub nvlink_rx_kib: Reading<u64>,
    /// `nvmlDeviceGetPersistenceMode`.
    pub persistence: Reading<bool>,
    /// `nvmlDeviceGetMigMode`, current.
    pub mig: Reading<bool>,
    /// Further values.
    #[serde(default)]
    pub details: GpuDetails,
}

impl Gpu {
    /// Creates a GPU without values: every reading has failed with the reason `why`.
    pub fn silent(index: u32, access: Access, why: &str) -> Self {
        fn none<T>(why: &str) -> Reading<T> {
            Reading::Failed(why.to_owned())
        }
        Gpu {
            index,
            access,
            pci: none(why),
            uuid: none(why),
            serial: none(why),
            name: none(why),
            minor: none(why),
            vbios: none(why),
            recovery_action: none(why),
            ecc_enabled: none(why),
            ecc: EccCounts {
                volatile_uncorrected: none(why),
                aggregate_uncorrected: none(why),
                volatile_corrected: none(why),
            },
            row_remap: none(why),
            nvlinks: Vec::new(),
            processes: none(why),
            memory: none(why),
            temperature_c: none(why),
            power_w: none(why),
            power_limit_w: none(why),
            energy_j: none(why),
            sm_clock_mhz: none(why),
            throttle_reasons: none(why),
            pcie_gen: none(why),
            pcie_width: none(why),
            pcie_replays: none(why),
            nvlink_tx_kib: none(why),
            nvlink_rx_kib: none(why),
            persistence: none(why),
            mig: none(why),
            details: GpuDetails::default(),
        }
    }
}

/// The recovery action that the driver asks for (NVML field 230, `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryAction {
    /// 0
    None,
    /// 1
    GpuReset,
    /// 2
    NodeReboot,
    /// 3: stop peer traffic first.
    DrainP2p,
    /// 4: reduced capacity; finish the work, then reset.
    DrainAndReset,
    /// A value newer than this build.
    Other(u32),
}

impl fmt::Display for RecoveryAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RecoveryAction::None => "none",
            RecoveryAction::GpuReset => "GPU reset",
            RecoveryAction::NodeReboot => "node reboot",
            RecoveryAction::DrainP2p => "drain P2P",
            RecoveryAction::DrainAndReset => "drain and reset",
            RecoveryAction::Other(5) => "recover IMEX domain",
            RecoveryAction::Other(6) => "bus reset",
            RecoveryAction::Other(7) => "system reboot",
            RecoveryAction::Other(number) => {
                return write!(f, "action {number}, unknown to this version of railgate");
            }
        })
    }
}

/// Counts of ECC errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccCounts {
    /// Uncorrected, since the driver was loaded.
    pub volatile_uncorrected: Reading<u64>,
    /// Uncorrected, over the life of the card.
    pub aggregate_uncorrected: Reading<u64>,
    /// Corrected, since the driver was loaded.
    pub volatile_corrected: Reading<u64>,
}

/// Row remapping (Ampere and later).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowRemap {
    /// Rows remapped for correctable errors.
    pub correctable: u32,
    /// Rows remapped for uncorrectable errors.
    pub uncorrectable: u32,
    /// A remap waits for a reset.
    pub pending: bool,
    /// A remap failed: the RMA criterion.
    pub failed: bool,
}

/// One NVLink of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLink {
    /// Link number.
    pub link: u32,
    /// Up or down.
    pub up: Reading<bool>,
}

/// A process that NVML lists on a GPU, joined with its data in `/proc`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Process id in the node's own PID namespace.
    pub pid: u32,
    /// `nvmlProcessInfo_t.usedGpuMemory`, MiB.
    pub used_mib: Reading<u64>,
    /// Command name; failed if the process had already ended.
    pub name: Reading<String>,
    /// Owner.
    pub uid: Reading<u32>,
    /// Ended, a zombie or exiting (`PF_EXITING`): not judged, since it only needs time.
    pub exiting: bool,
    /// The Slurm job of the process, from its cgroup or its slurmstepd ancestor.
    pub slurm_job: Reading<Option<u32>>,
}

/// Frame buffer use, MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Total size.
    pub total_mib: u64,
    /// Used by processes, without reserved memory.
    pub used_mib: u64,
}

use serde::{Deserialize, Serialize};

use crate::Reading;

/// Further values of a GPU from NVML: its state rather than its activity.
///
/// All of it is unsupported in a snapshot that an earlier build wrote, and where the driver has no such call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuDetails {
    /// `nvmlDeviceGetInforomImageVersion`.
    pub inforom: Reading<String>,
    /// `nvmlDeviceGetGspFirmwareVersion`.
    pub gsp: Reading<String>,
    /// `nvmlDeviceGetEccMode`, pending: what it will be after the next reset.
    pub ecc_pending: Reading<bool>,
    /// `nvmlDeviceGetSramEccErrorStatus` (driver 550 and later).
    pub sram: Reading<SramEcc>,
    /// Fields 29 to 31 (before Ampere).
    pub retired_pages: Reading<RetiredPages>,
    /// `nvmlDeviceGetMarginTemperature`: degrees that are left before the GPU slows itself down.
    pub margin_c: Reading<i32>,
    /// `nvmlDeviceGetTemperatureThreshold`, slowdown, °C; superseded by the margin from Ada on.
    pub slowdown_c: Reading<u32>,
    /// Field 82: the memory's temperature, °C.
    pub memory_c: Reading<u32>,
    /// `nvmlDeviceGetTemperatureThreshold`, memory maximum, °C.
    pub memory_max_c: Reading<u32>,
    /// `nvmlDeviceGetCurrentClocksThrottleReasons` once more, after everything else was read.
    pub throttle_reasons_later: Reading<u64>,
    /// Time that the hardware's thermal slowdown was on since the driver was loaded, nanoseconds: field 252, from
    /// driver 580.82 on 270.
    pub hw_thermal_ns: Reading<u64>,
    /// The same for the power brake: field 253, then 271.
    pub power_brake_ns: Reading<u64>,
    /// `nvmlDeviceGetPowerManagementDefaultLimit`, watts.
    pub power_default_w: Reading<f64>,
    /// `nvmlDeviceGetApplicationsClock(SM)`, MHz.
    pub app_clock_mhz: Reading<u32>,
    /// `nvmlDeviceGetDefaultApplicationsClock(SM)`, MHz.
    pub app_clock_default_mhz: Reading<u32>,
    /// `nvmlDeviceGetMaxPcieLinkGeneration`: what GPU and slot can do together.
    pub pcie_max_gen: Reading<u32>,
    /// `nvmlDeviceGetMaxPcieLinkWidth`: the same, lanes.
    pub pcie_max_width: Reading<u32>,
    /// `nvmlDeviceGetUtilizationRates`, percent of the last sample in which a kernel ran.
    pub utilization: Reading<u32>,
    /// `nvmlDeviceGetGpuFabricInfoV` (NVSwitch machines).
    pub fabric: Reading<GpuFabric>,
    /// Errors of its NVLinks, since the driver was loaded.
    pub nvlink_errors: NvLinkErrors,
    /// `nvmlDeviceGetP2PStatus(READ)` towards each GPU of a higher index.
    pub peers: Vec<Peer>,
}

impl Default for GpuDetails {
    fn default() -> Self {
        GpuDetails {
            inforom: Reading::Unsupported,
            gsp: Reading::Unsupported,
            ecc_pending: Reading::Unsupported,
            sram: Reading::Unsupported,
            retired_pages: Reading::Unsupported,
            margin_c: Reading::Unsupported,
            slowdown_c: Reading::Unsupported,
            memory_c: Reading::Unsupported,
            memory_max_c: Reading::Unsupported,
            throttle_reasons_later: Reading::Unsupported,
            hw_thermal_ns: Reading::Unsupported,
            power_brake_ns: Reading::Unsupported,
            power_default_w: Reading::Unsupported,
            app_clock_mhz: Reading::Unsupported,
            app_clock_default_mhz: Reading::Unsupported,
            pcie_max_gen: Reading::Unsupported,
            pcie_max_width: Reading::Unsupported,
            utilization: Reading::Unsupported,
            fabric: Reading::Unsupported,
            nvlink_errors: NvLinkErrors::default(),
            peers: Vec::new(),
        }
    }
}

/// Errors of the memories inside the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SramEcc {
    /// Uncorrected (parity and SEC-DED), since the driver was loaded.
    pub volatile_uncorrected: u64,
    /// Uncorrected, over the life of the card.
    pub aggregate_uncorrected: u64,
    /// The card's own threshold is exceeded: a criterion for RMA.
    pub over_threshold: bool,
}

/// Pages of memory that are out of use for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetiredPages {
    /// For corrected errors that came again.
    pub single_bit: u32,
    /// For uncorrected ones.
    pub double_bit: u32,
    /// Some wait for a reset.
    pub pending: bool,
}

/// How a GPU stands in its NVLink fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFabric {
    /// 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub state: u32,
    /// How the registration ended: an NVML return code, 0 where well. Means something when completed.
    pub status: u32,
    /// GPUs of one clique reach each other.
    pub clique: u32,
    /// The fabric's own id, hexadecimal; all zeroes on a machine that is a fabric by itself.
    pub cluster: String,
    /// `healthSummary`: 0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity.
    pub health: u32,
    /// `healthMask`, NVML's bits.
    pub health_mask: u32,
}

/// Errors of NVLinks: of all together up to Ampere (fields 52, 59, 38), of each from Hopper on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvLinkErrors {
    /// Packets sent again.
    pub replays: Reading<u64>,
    /// Links trained anew.
    pub recoveries: Reading<u64>,
    /// Checksum errors.
    pub crc: Reading<u64>,
    /// The same of each link; empty if the driver reports only sums.
    pub links: Vec<LinkErrors>,
}

impl Default for NvLinkErrors {
    fn default() -> Self {
        NvLinkErrors {
            replays: Reading::Unsupported,
            recoveries: Reading::Unsupported,
            crc: Reading::Unsupported,
            links: Vec::new(),
        }
    }
}

/// Errors of one NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkErrors {
    /// Link number.
    pub link: u32,
    /// Field 161.
    pub replays: Reading<u64>,
    /// Field 162, from Blackwell on 215.
    pub recoveries: Reading<u64>,
    /// Field 163.
    pub crc: Reading<u64>,
}

/// Whether a GPU can read another one's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The other's NVML index.
    pub index: u32,
    /// `nvmlGpuP2PStatus_t`: 0 yes, 1 to 5 why not, 6 unknown.
    pub status: Reading<u32>,
}

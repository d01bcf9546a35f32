use serde::{Deserialize, Serialize};

use crate::Reading;

/// Further values of a GPU from NVML, about its state rather than its activity.
///
/// All of them are unsupported in snapshots of earlier releases, and if the driver lacks the call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuDetails {
    /// `nvmlDeviceGetInforomImageVersion`.
    pub inforom: Reading<String>,
    /// `nvmlDeviceGetGspFirmwareVersion`.
    pub gsp: Reading<String>,
    /// `nvmlDeviceGetEccMode`, pending: the mode after the next reset.
    pub ecc_pending: Reading<bool>,
    /// `nvmlDeviceGetSramEccErrorStatus` (driver 550 and later).
    pub sram: Reading<SramEcc>,
    /// Fields 29 to 31 (before Ampere).
    pub retired_pages: Reading<RetiredPages>,
    /// `nvmlDeviceGetMarginTemperature`: degrees until the GPU slows itself down.
    pub margin_c: Reading<i32>,
    /// `nvmlDeviceGetTemperatureThreshold`, slowdown, °C; superseded by the margin from Ada on.
    pub slowdown_c: Reading<u32>,
    /// Field 82: the memory's temperature, °C.
    pub memory_c: Reading<u32>,
    /// `nvmlDeviceGetTemperatureThreshold`, memory maximum, °C.
    pub memory_max_c: Reading<u32>,
    /// `nvmlDeviceGetCurrentClocksThrottleReasons` again, after all other readings.
    pub throttle_reasons_later: Reading<u64>,
    /// Nanoseconds of hardware thermal slowdown since the driver was loaded: field 252, or 270 from driver 580.82 on.
    pub hw_thermal_ns: Reading<u64>,
    /// Nanoseconds of power brake slowdown since the driver was loaded: field 253, or 271 from driver 580.82 on.
    pub power_brake_ns: Reading<u64>,
    /// `nvmlDeviceGetPowerManagementDefaultLimit`, watts.
    pub power_default_w: Reading<f64>,
    /// `nvmlDeviceGetApplicationsClock(SM)`, MHz.
    pub app_clock_mhz: Reading<u32>,
    /// `nvmlDeviceGetDefaultApplicationsClock(SM)`, MHz.
    pub app_clock_default_mhz: Reading<u32>,
    /// `nvmlDeviceGetMaxPcieLinkGeneration`: the maximum that GPU and slot support together.
    pub pcie_max_gen: Reading<u32>,
    /// `nvmlDeviceGetMaxPcieLinkWidth`: the same for lanes.
    pub pcie_max_width: Reading<u32>,
    /// `nvmlDeviceGetUtilizationRates`: share of the last sample period in which a kernel ran, per cent.
    pub utilization: Reading<u32>,
    /// `nvmlDeviceGetGpuFabricInfoV` (NVSwitch machines).
    pub fabric: Reading<GpuFabric>,
    /// Error counters of the NVLinks, since the driver was loaded.
    pub nvlink_errors: NvLinkErrors,
    /// `nvmlDeviceGetP2PStatus(READ)` for each GPU with a higher index.
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

/// Errors of the on-chip SRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SramEcc {
    /// Uncorrected (parity and SEC-DED), since the driver was loaded.
    pub volatile_uncorrected: u64,
    /// Uncorrected, over the life of the card.
    pub aggregate_uncorrected: u64,
    /// The card's own threshold is exceeded: a criterion for RMA.
    pub over_threshold: bool,
}

/// Memory pages that are permanently retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetiredPages {
    /// Retired for repeated corrected errors.
    pub single_bit: u32,
    /// Retired for uncorrected errors.
    pub double_bit: u32,
    /// Some retirements wait for a reset.
    pub pending: bool,
}

/// State of a GPU in its NVLink fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFabric {
    /// 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub state: u32,
    /// Result of the registration: an NVML return code, 0 for success. Only valid in state 3.
    pub status: u32,
    /// Id of the clique. GPUs of one clique can reach each other.
    pub clique: u32,
    /// UUID of the fabric, hexadecimal; all zeros on a machine that is a complete fabric.
    pub cluster: String,
    /// `healthSummary`: 0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity.
    pub health: u32,
    /// `healthMask`, NVML's bits.
    pub health_mask: u32,
}

/// NVLink errors: sums over all links up to Ampere (fields 52, 59, 38), per link from Hopper on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvLinkErrors {
    /// Retransmitted packets.
    pub replays: Reading<u64>,
    /// Link retrainings.
    pub recoveries: Reading<u64>,
    /// Checksum errors.
    pub crc: Reading<u64>,
    /// The same counters for each link; empty if the driver reports only sums.
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

/// Whether a GPU can read the memory of another GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// NVML index of the other GPU.
    pub index: u32,
    /// `nvmlGpuP2PStatus_t`: 0 yes, 1 to 5 reasons why not, 6 unknown.
    pub status: Reading<u32>,
}

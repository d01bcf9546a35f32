//! GPU samples over time, as the child process that watches the GPUs reports them.

use serde::{Deserialize, Serialize};

use crate::{Reading, XidEvent};

/// A message from the child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Watched {
    /// The GPUs of the samples, in order. The first message.
    Gpus(Vec<WatchedGpu>),
    /// One sample.
    Sample(GpuSamples),
    /// New Xids, in order. The first such message is empty; all Xids after it are reported.
    Xids(Vec<XidEvent>),
    /// Xids are not or no longer reported; the text gives the reason. Sampling continues.
    NoXids(String),
}

/// A GPU that is sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchedGpu {
    /// NVML index; for a MIG instance, that of its parent.
    pub index: Reading<u32>,
    /// UUID; for a MIG instance, its own.
    pub uuid: Reading<String>,
    /// `nvmlDeviceGetName`.
    pub name: Reading<String>,
    /// GPU instance id, if it is a MIG instance.
    pub instance: Option<u32>,
    /// `multiprocessorCount` of the instance.
    pub instance_sms: Reading<u32>,
    /// Memory in MiB; for a MIG instance, its own.
    pub memory_total_mib: Reading<u64>,
    /// Whether the GPU supports GPM. Without it, the fields of [`GpuField::GPM`] are missing.
    pub gpm: Reading<bool>,
}

/// Samples of all GPUs for one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSamples {
    /// Length of the interval, seconds.
    pub seconds: f64,
    /// In the order of [`Watched::Gpus`].
    pub gpus: Vec<GpuSample>,
    /// CPU time of the child so far, seconds.
    pub cpu_s: f64,
    /// Peak memory of the child, MiB.
    pub memory_mib: f64,
}

/// A metric of GPM, NVML's monitoring of GPU performance, and the field that it fills.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpmMetric {
    /// The field.
    pub field: GpuField,
    /// NVML's id, `NVML_GPM_METRIC_*`.
    pub id: u32,
    /// Factor from GPM's unit to the unit of the field.
    pub factor: f64,
}

/// GPM reports activities in per cent.
const PERCENT: f64 = 1.0;
/// GPM reports traffic in MiB per second; fields have bytes per second.
const MIB_S: f64 = 1_048_576.0;

/// Declares what is sampled of a GPU. A row makes a field of samples, of the sampler's files and, under `reported`, of a
/// node report. `gpm(id, unit)` is where it comes from; `probe` sets the fields without it.
macro_rules! gpu_fields {
    (
        reported { $($(#[$doc:meta])* $field:ident = $name:ident $(from gpm($id:literal, $unit:ident))?;)* }
        internal { $($(#[$note:meta])* $inner:ident = $text:ident;)* }
    ) => {
        /// A value that is sampled of a GPU. Activities are in per cent over the duration of the sample.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum GpuField {
            $($(#[$doc])* $field,)*
            $($(#[$note])* $inner,)*
        }

        impl GpuField {
            /// All fields, at most 64.
            pub const ALL: &'static [GpuField] = &[$(GpuField::$field,)* $(GpuField::$inner,)*];

            /// The fields that GPM has, in the order in which it is asked for them.
            pub const GPM: &'static [GpmMetric] =
                &[$($(GpmMetric { field: GpuField::$field, id: $id, factor: $unit },)?)*];

            /// Whether a node report has the field, with its minimum and maximum.
            pub fn is_reported(self) -> bool {
                match self {
                    $(GpuField::$field => true,)*
                    $(GpuField::$inner => false,)*
                }
            }

            /// Name in files and reports, `tensor_percent`.
            pub fn name(self) -> &'static str {
                match self {
                    $(GpuField::$field => stringify!($name),)*
                    $(GpuField::$inner => stringify!($text),)*
                }
            }
        }

        /// One reading for each field that a node report has.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct GpuCounters<T> {
            $($(#[$doc])* #[serde(default = "not_sampled")] pub $name: Reading<T>,)*
        }

        impl<T> GpuCounters<T> {
            /// Makes the reading of each field with a function.
            pub fn from_fn(mut of: impl FnMut(GpuField) -> Reading<T>) -> Self {
                GpuCounters { $($name: of(GpuField::$field),)* }
            }

            /// Replaces each reading by what a function makes of it.
            pub fn map<U>(self, mut of: impl FnMut(Reading<T>) -> Reading<U>) -> GpuCounters<U> {
                GpuCounters { $($name: of(self.$name),)* }
            }
        }
    };
}

/// Reading of a field that the writer of the report did not know.
fn not_sampled<T>() -> Reading<T> {
    Reading::Failed("not sampled by the release that wrote the report".to_owned())
}

gpu_fields! {
    reported {
        /// Time in which a context was active.
        Graphics = graphics_percent from gpm(1, PERCENT);
        /// SMs with at least one warp.
        Sm = sm_percent from gpm(2, PERCENT);
        /// Resident warps, of the maximum.
        Occupancy = occupancy_percent from gpm(3, PERCENT);
        /// Any tensor pipe active. Includes recomputation, padding and other work that is not progress.
        Tensor = tensor_percent from gpm(5, PERCENT);
        /// Tensor pipe, double precision.
        Dfma = dfma_percent from gpm(6, PERCENT);
        /// Tensor pipe, all floating-point types below double, including fp8.
        Hmma = hmma_percent from gpm(7, PERCENT);
        /// Tensor pipe, integers.
        Imma = imma_percent from gpm(9, PERCENT);
        /// Memory traffic, of the theoretical peak.
        Dram = dram_percent from gpm(10, PERCENT);
        /// Double precision outside the tensor pipe.
        Fp64 = fp64_percent from gpm(11, PERCENT);
        /// Single precision outside the tensor pipe.
        Fp32 = fp32_percent from gpm(12, PERCENT);
        /// Half precision outside the tensor pipe.
        Fp16 = fp16_percent from gpm(13, PERCENT);
        /// Bytes per second sent over PCIe.
        PcieTx = pcie_tx_bytes_s from gpm(20, MIB_S);
        /// Bytes per second received over PCIe.
        PcieRx = pcie_rx_bytes_s from gpm(21, MIB_S);
        /// Bytes per second sent over all NVLinks.
        NvlinkTx = nvlink_tx_bytes_s from gpm(61, MIB_S);
        /// Bytes per second received over all NVLinks.
        NvlinkRx = nvlink_rx_bytes_s from gpm(60, MIB_S);
        /// Time with any kernel running, regardless of its size: from the driver's record (`nvmlDeviceGetSamples`), else the
        /// last moment of the sample (`nvmlDeviceGetUtilizationRates`). For GPUs without GPM.
        AnyKernel = any_kernel_percent;
        /// `nvmlDeviceGetUtilizationRates`: time with any memory access. For GPUs without GPM.
        MemoryBusy = memory_busy_percent;
        /// SM clock, MHz, mean of readings every 50 ms.
        SmClock = sm_clock_mhz;
        /// Power, watts, `nvmlDeviceGetPowerUsage`, mean of readings every 50 ms. With MIG: of the whole GPU.
        Power = power_w;
        /// Temperature, °C.
        Temperature = temperature_c;
        /// Memory in use, MiB.
        MemoryUsed = memory_used_mib;
        /// Time in pauses: no kernel at all for 0.4 s or longer, from the driver's record of its utilisation
        /// (`nvmlDeviceGetSamples`), whose windows are about 0.2 s long.
        Paused = paused_percent;
        /// Such pauses that began, per minute.
        Pauses = pauses_per_minute;
        /// CPU time of the processes that use the GPU, in per cent of one core.
        ProcessCpu = process_cpu_percent;
        /// Time in which threads of these processes could run and had no core, in per cent of one core
        /// (`/proc/PID/task/TID/schedstat`).
        ProcessWait = process_wait_percent;
    }
    internal {
        /// SM activity × SM clock while SMs were active, in per cent × MHz. Both are read in windows shorter than the
        /// interval, because the clock changes with the load.
        SmWork = sm_percent_mhz;
        /// Tensor activity × SM clock, in per cent × MHz. Activity is a ratio of cycles, so its product with the mean
        /// clock gives the cycles of the pipe even if the clock changed, as long as NVML reports the true clock.
        TensorWork = tensor_percent_mhz;
        /// The part of `TensorWork` for which the clock was read while tensor kernels ran. SMs then run slower than the
        /// clock that NVML reports: by a tenth on an H200, regardless of power.
        TensorWorkSlowed = tensor_percent_slowed_mhz;
        /// Single precision activity × SM clock, in per cent × MHz, likewise.
        Fp32Work = fp32_percent_mhz;
        /// Energy since the first reading, joules, from the energy counter. The call costs milliseconds, so only one GPU
        /// per interval is read, in turn.
        Energy = energy_j;
        /// Share of readings every 50 ms with throttle reason 0x4: the power cap.
        PowerCap = power_cap_percent;
        /// Throttle reason 0x8: hardware slowdown.
        HwSlowdown = hw_slowdown_percent;
        /// Throttle reason 0x20: thermal limit of the software.
        SwThermal = sw_thermal_percent;
        /// Throttle reason 0x40: thermal limit of the hardware.
        HwThermal = hw_thermal_percent;
        /// Throttle reason 0x80: power brake.
        PowerBrake = power_brake_percent;
    }
}

/// Sample of one GPU for one interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// In the order of [`GpuField::ALL`].
    readings: Vec<Reading<f64>>,
}

impl Default for GpuSample {
    /// Every field is unsupported.
    fn default() -> Self {
        GpuSample { readings: vec![Reading::Unsupported; GpuField::ALL.len()] }
    }
}

impl GpuSample {
    /// Reading of a field.
    pub fn get(&self, field: GpuField) -> &Reading<f64> {
        self.readings.get(usize::from(field as u8)).unwrap_or(&Reading::Unsupported)
    }

    /// Sets the reading of a field.
    pub fn set(&mut self, field: GpuField, reading: Reading<f64>) {
        if let Some(place) = self.readings.get_mut(usize::from(field as u8)) {
            *place = reading;
        }
    }
}

// The sampler's files have two bits for each field in 128 bits.
const _: () = assert!(GpuField::ALL.len() <= 64);

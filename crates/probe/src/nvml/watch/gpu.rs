#![allow(unsafe_code, reason = "NVML is a C library; this file makes the calls that watching a GPU takes")]

use std::path::Path;
use std::{mem, ptr};

use nvml_wrapper_sys::bindings as sys;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};
use railgate_model::{GpuField, GpuId, GpuSample, Reading, WatchedGpu};

use super::super::device::{self, present, until_nul};
use super::super::returns;
use super::clocks::{Clocks, Mean};
use super::gpm::{Gpm, OF_SAMPLE, OF_WINDOW};
use super::host_side::HostSide;
use super::pauses::{Pauses, Window};

const MIB: f64 = 1_048_576.0;
/// Windows of utilisation per call: an H100 keeps 71, of 0.2 s.
const MOST_WINDOWS: usize = 256;
/// Processes per GPU and call; more are not read.
const MOST_PROCESSES: usize = 64;
/// Less than the memory of a CUDA context, 524 MiB on an H100.
const CONTEXT_BYTES: u64 = 256 << 20;
/// `NVML_ERROR_NOT_FOUND`: no new window.
const NOTHING_NEW: u32 = 6;
/// The processes are always those of this machine, even if a test simulates its GPUs.
const PROC: &str = "/proc";
/// Bits of `nvmlClocksThrottleReasons*`.
const REASONS: [(GpuField, u64); 5] = [
    (GpuField::PowerCap, 0x4),
    (GpuField::HwSlowdown, 0x8),
    (GpuField::SwThermal, 0x20),
    (GpuField::HwThermal, 0x40),
    (GpuField::PowerBrake, 0x80),
];

/// A GPU that is sampled.
pub(super) struct Gpu<'l> {
    lib: &'l NvmlLib,
    /// The device for power, clock and energy: for a MIG instance, its parent.
    whole: Result<nvmlDevice_t, String>,
    /// The MIG instance, if it is one.
    slice: Option<nvmlDevice_t>,
    instance: Option<u32>,
    gpm: Reading<Gpm>,
    clocks: Clocks,
    power: Mean,
    reasons: [Mean; 5],
    energy: Reading<f64>,
    energy_first: Option<f64>,
    pauses: Pauses,
    host_side: HostSide,
    /// Processes on the GPU when they were last read.
    on_it: Reading<Vec<u32>>,
    /// Memory in use at that time, bytes.
    memory_then: Option<u64>,
}

/// The readings of one sample. Calls that take a millisecond or two are made for some of the GPUs, in turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// Length of the interval, seconds.
    pub(super) seconds: f64,
    /// Whether it is this GPU's turn.
    pub(super) turn: bool,
    /// Whether the driver's record of its utilisation is read, which covers more than one interval.
    pub(super) record: bool,
}

fn not_its_turn<T>() -> Reading<T> {
    Reading::Failed("read for some of the GPUs, in turn".to_owned())
}

impl<'l> Gpu<'l> {
    pub(super) fn open(lib: &'l NvmlLib, id: &GpuId) -> Self {
        let mut slice = None;
        let whole = match id {
            GpuId::Index(index) => device::by_index(lib, *index),
            GpuId::Uuid(uuid) => by_uuid(lib, uuid).and_then(|handle| {
                if uuid.starts_with("MIG-") {
                    slice = Some(handle);
                    parent(lib, handle)
                } else {
                    Ok(handle)
                }
            }),
        };
        let mut gpu = Gpu {
            lib,
            whole,
            slice,
            instance: None,
            gpm: Reading::Unsupported,
            clocks: Clocks::new(),
            power: Mean::new(),
            reasons: std::array::from_fn(|_| Mean::new()),
            energy: Reading::Unsupported,
            energy_first: None,
            pauses: Pauses::default(),
            host_side: HostSide::default(),
            on_it: Reading::Failed("not read yet".to_owned()),
            memory_then: None,
        };
        gpu.instance = slice.and_then(|handle| {
            ask(lib.nvmlDeviceGetGpuInstanceId.as_ref().ok(), "nvmlDeviceGetGpuInstanceId", |call| {
                let mut id = 0;
                // SAFETY: the handle is NVML's own and `id` outlives the call.
                (unsafe { call(handle, &raw mut id) }, id)
            })
            .known()
            .copied()
        });
        gpu.gpm = gpu.open_gpm();
        gpu
    }

    fn open_gpm(&self) -> Reading<Gpm> {
        let device = match &self.whole {
            Ok(device) => *device,
            Err(why) => return Reading::Failed(why.clone()),
        };
        let in_mig = ask(self.lib.nvmlDeviceGetMigMode.as_ref().ok(), "nvmlDeviceGetMigMode", |call| {
            let (mut now, mut next) = (0, 0);
            // SAFETY: as in `open`.
            (unsafe { call(device, &raw mut now, &raw mut next) }, now != 0)
        });
        if in_mig == Reading::Known(true) && self.instance.is_none() {
            return Reading::Failed("the GPU is in MIG mode and the job's instance is not known".to_owned());
        }
        let supported =
            ask(self.lib.nvmlGpmQueryDeviceSupport.as_ref().ok(), "nvmlGpmQueryDeviceSupport", |call| {
                let mut support = sys::nvmlGpmSupport_t { version: 1, isSupportedDevice: 0 };
                // SAFETY: as in `open`.
                (unsafe { call(device, &raw mut support) }, support.isSupportedDevice != 0)
            });
        match supported {
            Reading::Known(true) => Reading::from_result(Gpm::new(self.lib, device, self.instance)),
            Reading::Known(false) | Reading::Unsupported => Reading::Unsupported,
            Reading::Failed(why) => Reading::Failed(why),
        }
    }

    /// Makes one call about the whole GPU.
    fn out<T: Default>(
        &self,
        name: &str,
        call: Option<&unsafe extern "C" fn(nvmlDevice_t, *mut T) -> sys::nvmlReturn_t>,
    ) -> Reading<T> {
        match &self.whole {
            Ok(device) => out_of(*device, name, call),
            Err(why) => Reading::Failed(why.clone()),
        }
    }

    pub(super) fn describe(&self) -> WatchedGpu {
        let lib = self.lib;
        let own = self.slice.map_or_else(|| self.whole.clone(), Ok);
        let text = |device: &Result<nvmlDevice_t, String>, name: &str, call: Option<&TextCall>| match device {
            Ok(device) => ask(call, name, |call| {
                let mut buffer = [0_u8; 128];
                // SAFETY: the handle is NVML's own, and the buffer has one byte more than the length passed.
                (unsafe { call(*device, buffer.as_mut_ptr().cast(), 127) }, until_nul(&buffer))
            }),
            Err(why) => Reading::Failed(why.clone()),
        };
        let instance_sms = match self.slice {
            Some(slice) => {
                let name = "nvmlDeviceGetAttributes_v2";
                ask(lib.nvmlDeviceGetAttributes_v2.as_ref().ok(), name, |call| {
                    // SAFETY: a plain C structure of numbers, for which all zeroes is a value.
                    let mut attributes: sys::nvmlDeviceAttributes_t = unsafe { mem::zeroed() };
                    // SAFETY: as in `open`.
                    (unsafe { call(slice, &raw mut attributes) }, attributes.multiprocessorCount)
                })
            }
            None => Reading::Unsupported,
        };
        WatchedGpu {
            index: self.out("nvmlDeviceGetIndex", lib.nvmlDeviceGetIndex.as_ref().ok()),
            uuid: text(&own, "nvmlDeviceGetUUID", lib.nvmlDeviceGetUUID.as_ref().ok()),
            name: text(&self.whole, "nvmlDeviceGetName", lib.nvmlDeviceGetName.as_ref().ok()),
            instance: self.instance,
            instance_sms,
            memory_total_mib: self.memory().map(|memory| memory.total >> 20),
            gpm: match &self.gpm {
                Reading::Known(_) => Reading::Known(true),
                Reading::Unsupported => Reading::Known(false),
                Reading::Failed(why) => Reading::Failed(why.clone()),
            },
        }
    }

    fn memory(&self) -> Reading<sys::nvmlMemory_v2_t> {
        let device = match (self.slice, &self.whole) {
            (Some(slice), _) => slice,
            (None, Ok(whole)) => *whole,
            (None, Err(why)) => return Reading::Failed(why.clone()),
        };
        ask(self.lib.nvmlDeviceGetMemoryInfo_v2.as_ref().ok(), "nvmlDeviceGetMemoryInfo_v2", |call| {
            let mut memory = sys::nvmlMemory_v2_t {
                version: device::version::<sys::nvmlMemory_v2_t>(2),
                total: 0,
                reserved: 0,
                free: 0,
                used: 0,
            };
            // SAFETY: as in `open`.
            (unsafe { call(device, &raw mut memory) }, memory)
        })
    }

    /// Takes the first GPM sample and energy reading, before the first interval.
    pub(super) fn begin(&mut self) {
        if let Reading::Known(gpm) = &mut self.gpm
            && let Err(why) = gpm.restart()
        {
            self.gpm = Reading::Failed(why);
        }
        self.read_energy();
        // The record also holds the time before.
        let _ = self.read_pauses();
        self.pauses.take();
    }

    pub(super) fn tick(&mut self) {
        let clock = match &self.whole {
            Ok(device) => {
                ask(self.lib.nvmlDeviceGetClockInfo.as_ref().ok(), "nvmlDeviceGetClockInfo", |call| {
                    let mut clock = 0;
                    // SAFETY: as in `open`.
                    let code =
                        unsafe { call(*device, sys::nvmlClockType_enum_NVML_CLOCK_SM, &raw mut clock) };
                    (code, f64::from(clock))
                })
            }
            Err(why) => Reading::Failed(why.clone()),
        };
        self.clocks.tick(clock);
        let power =
            self.out::<u32>("nvmlDeviceGetPowerUsage", self.lib.nvmlDeviceGetPowerUsage.as_ref().ok());
        self.power.add(power.map(|milliwatts| f64::from(milliwatts) / 1000.0));
        let reasons = self.out::<u64>(
            "nvmlDeviceGetCurrentClocksThrottleReasons",
            self.lib.nvmlDeviceGetCurrentClocksThrottleReasons.as_ref().ok(),
        );
        for (mean, (_, bit)) in self.reasons.iter_mut().zip(REASONS) {
            mean.add(reasons.clone().map(|bits| if bits & bit == 0 { 0.0 } else { 100.0 }));
        }
    }

    pub(super) fn window(&mut self, seconds: f64) {
        let activities = match &mut self.gpm {
            Reading::Known(gpm) => gpm.window(),
            Reading::Unsupported => [const { Reading::Unsupported }; OF_WINDOW.len()],
            Reading::Failed(why) => std::array::from_fn(|_| Reading::Failed(why.clone())),
        };
        self.clocks.window(activities, seconds);
    }

    /// Reads the energy. A MIG instance has no such reading.
    pub(super) fn read_energy(&mut self) {
        let name = "nvmlDeviceGetTotalEnergyConsumption";
        let total = self.out::<u64>(name, self.lib.nvmlDeviceGetTotalEnergyConsumption.as_ref().ok());
        #[expect(clippy::cast_precision_loss, reason = "exact below 285 years at 1 kW")]
        let total = total.map(|millijoules| millijoules as f64 / 1000.0);
        self.energy = match total {
            Reading::Known(now) => {
                let first = *self.energy_first.get_or_insert(now);
                if now < first {
                    Reading::Failed("the energy counter went backwards".to_owned())
                } else {
                    Reading::Known(now - first)
                }
            }
            other => other,
        };
    }

    /// Makes a sample of the last interval. `now`: what else is read now.
    pub(super) fn sample(&mut self, now: Now) -> GpuSample {
        let mut sample = GpuSample::default();
        let metrics = match &mut self.gpm {
            Reading::Known(gpm) => gpm.sample(),
            Reading::Unsupported => [const { Reading::Unsupported }; OF_SAMPLE],
            Reading::Failed(why) => std::array::from_fn(|_| Reading::Failed(why.clone())),
        };
        for (metric, reading) in GpuField::GPM.iter().zip(metrics) {
            sample.set(metric.field, reading.map(|value| value * metric.factor));
        }
        let clock = self.clocks.take();
        for (work, activity, clock) in [
            (GpuField::SmWork, GpuField::Sm, &clock.at_work),
            (GpuField::TensorWork, GpuField::Tensor, &clock.mean),
            (GpuField::TensorWorkSlowed, GpuField::Tensor, &clock.slowed),
            (GpuField::Fp32Work, GpuField::Fp32, &clock.mean),
        ] {
            let both = sample.get(activity).clone().zip(clock.clone());
            sample.set(work, both.map(|(activity, clock)| activity * clock));
        }
        sample.set(GpuField::SmClock, clock.mean);
        // GPM has better figures of both.
        let utilization = match self.gpm {
            Reading::Known(_) if !now.turn => not_its_turn(),
            _ => self.out_utilization(),
        };
        let (record, over) = match now.record {
            true => (self.read_pauses(), self.pauses.take()),
            false => (not_its_turn(), None),
        };
        let of = |get: fn(&super::pauses::Over) -> f64| match (&record, &over) {
            (Reading::Known(()), Some(over)) => Reading::Known(get(over)),
            (Reading::Known(()), None) => Reading::Failed("the driver has no new utilisation".to_owned()),
            (other, _) => other.clone().map(|()| 0.0),
        };
        sample.set(GpuField::Paused, of(|over| over.paused_percent));
        sample.set(GpuField::Pauses, of(|over| over.per_minute));
        let memory_used = self.memory().map(|memory| memory.used);
        if now.turn || self.has_changed(&memory_used) {
            self.on_it = self.processes();
            self.memory_then = memory_used.known().copied();
        }
        let host = self.host_side.step(Path::new(PROC), &self.on_it, now.seconds);
        sample.set(GpuField::ProcessCpu, host.cpu_percent);
        sample.set(GpuField::ProcessWait, host.wait_percent);
        // The record covers the whole interval, the rates only its last window.
        let any_kernel = match of(|over| over.busy_percent) {
            Reading::Known(percent) => Reading::Known(percent),
            _ => utilization.clone().map(|rates| rates.0),
        };
        sample.set(GpuField::AnyKernel, any_kernel);
        sample.set(GpuField::MemoryBusy, utilization.map(|rates| rates.1));
        sample.set(GpuField::Power, self.power.take());
        // The last reading is repeated until the next one, since the counter only grows.
        sample.set(GpuField::Energy, self.energy.clone());
        sample.set(GpuField::Temperature, self.temperature());
        #[expect(clippy::cast_precision_loss, reason = "no GPU has an exbibyte")]
        let memory_used = memory_used.map(|bytes| bytes as f64 / MIB);
        sample.set(GpuField::MemoryUsed, memory_used);
        for (mean, (reason, _)) in self.reasons.iter_mut().zip(REASONS) {
            sample.set(reason, mean.take());
        }
        sample
    }

    fn temperature(&self) -> Reading<f64> {
        let device = match &self.whole {
            Ok(device) => *device,
            Err(why) => return Reading::Failed(why.clone()),
        };
        ask(self.lib.nvmlDeviceGetTemperature.as_ref().ok(), "nvmlDeviceGetTemperature", |call| {
            let mut degrees = 0;
            // SAFETY: as in `open`.
            (unsafe { call(device, 0, &raw mut degrees) }, f64::from(degrees))
        })
    }

    /// Adds what the driver has recorded of its utilisation since the last call. There is no such record of a MIG instance.
    fn read_pauses(&mut self) -> Reading<()> {
        let device = match (&self.whole, self.slice) {
            (Ok(device), None) => *device,
            (Ok(_), Some(_)) => return Reading::Unsupported,
            (Err(why), _) => return Reading::Failed(why.clone()),
        };
        let since = self.pauses.last_us();
        let empty = sys::nvmlSample_t { timeStamp: 0, sampleValue: sys::nvmlValue_t { uiVal: 0 } };
        let mut samples = [empty; MOST_WINDOWS];
        let mut count = u32::try_from(samples.len()).unwrap_or_default();
        let name = "nvmlDeviceGetSamples";
        let read = ask(self.lib.nvmlDeviceGetSamples.as_ref().ok(), name, |call| {
            let mut kind = 0;
            let what = sys::nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES;
            // SAFETY: as in `open`; `samples` has room for `count` entries, and NVML writes no more.
            let code =
                unsafe { call(device, what, since, &raw mut kind, &raw mut count, samples.as_mut_ptr()) };
            match code {
                NOTHING_NEW => (returns::SUCCESS, false),
                _ => (code, kind == sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT),
            }
        });
        read.map(|whole_numbers| {
            let count = if whole_numbers { usize::try_from(count).unwrap_or_default() } else { 0 };
            self.pauses.add(samples.iter().take(count).map(|sample| Window {
                end_us: sample.timeStamp,
                // SAFETY: NVML says that the values are unsigned integers, and each field of the union was initialized.
                percent: unsafe { sample.sampleValue.uiVal },
            }));
        })
    }

    /// Whether a process may have come or gone since the processes were last read: the memory in use tells.
    fn has_changed(&self, memory_used: &Reading<u64>) -> bool {
        let difference = memory_used.known().zip(self.memory_then).map(|(now, then)| now.abs_diff(then));
        difference.is_none_or(|bytes| bytes > CONTEXT_BYTES)
    }

    /// Process ids that use the GPU, or the job's instance of it.
    fn processes(&self) -> Reading<Vec<u32>> {
        let device = match (self.slice, &self.whole) {
            (Some(slice), _) => slice,
            (None, Ok(whole)) => *whole,
            (None, Err(why)) => return Reading::Failed(why.clone()),
        };
        let empty =
            sys::nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        let mut infos = [empty; MOST_PROCESSES];
        let mut count = u32::try_from(infos.len()).unwrap_or_default();
        let name = "nvmlDeviceGetComputeRunningProcesses_v3";
        ask(self.lib.nvmlDeviceGetComputeRunningProcesses_v3.as_ref().ok(), name, |call| {
            // SAFETY: as in `open`; `infos` has room for `count` entries, and NVML writes no more.
            let code = unsafe { call(device, &raw mut count, infos.as_mut_ptr()) };
            let pids = infos.iter().take(usize::try_from(count).unwrap_or_default()).map(|info| info.pid);
            (code, pids.collect())
        })
    }

    fn out_utilization(&self) -> Reading<(f64, f64)> {
        let device = match &self.whole {
            Ok(device) => *device,
            Err(why) => return Reading::Failed(why.clone()),
        };
        let name = "nvmlDeviceGetUtilizationRates";
        ask(self.lib.nvmlDeviceGetUtilizationRates.as_ref().ok(), name, |call| {
            let mut rates = sys::nvmlUtilization_t { gpu: 0, memory: 0 };
            // SAFETY: as in `open`.
            (unsafe { call(device, &raw mut rates) }, (f64::from(rates.gpu), f64::from(rates.memory)))
        })
    }
}

type TextCall =
    unsafe extern "C" fn(nvmlDevice_t, *mut std::ffi::c_char, std::ffi::c_uint) -> sys::nvmlReturn_t;

/// Makes a call that an older driver may lack.
fn ask<F: Copy, T>(call: Option<&F>, name: &str, with: impl FnOnce(F) -> (u32, T)) -> Reading<T> {
    let Some(call) = call else { return Reading::Unsupported };
    let (code, value) = with(*call);
    returns::reading(name, code).map(|()| value)
}

fn out_of<T: Default>(
    device: nvmlDevice_t,
    name: &str,
    call: Option<&unsafe extern "C" fn(nvmlDevice_t, *mut T) -> sys::nvmlReturn_t>,
) -> Reading<T> {
    ask(call, name, |call| {
        let mut value = T::default();
        // SAFETY: the handle is NVML's own and `value` outlives the call.
        (unsafe { call(device, &raw mut value) }, value)
    })
}

fn by_uuid(lib: &NvmlLib, uuid: &str) -> Result<nvmlDevice_t, String> {
    let name = "nvmlDeviceGetHandleByUUID";
    let call = present(name, &lib.nvmlDeviceGetHandleByUUID)?;
    let text = std::ffi::CString::new(uuid).map_err(|why| why.to_string())?;
    let mut handle = ptr::null_mut();
    // SAFETY: the text ends in NUL, and both outlive the call.
    match unsafe { call(text.as_ptr(), &raw mut handle) } {
        returns::SUCCESS => Ok(handle),
        code => Err(returns::text(name, code)),
    }
}

fn parent(lib: &NvmlLib, slice: nvmlDevice_t) -> Result<nvmlDevice_t, String> {
    let name = "nvmlDeviceGetDeviceHandleFromMigDeviceHandle";
    let call = present(name, &lib.nvmlDeviceGetDeviceHandleFromMigDeviceHandle)?;
    let mut handle = ptr::null_mut();
    // SAFETY: the handle is NVML's own and `handle` outlives the call.
    match unsafe { call(slice, &raw mut handle) } {
        returns::SUCCESS => Ok(handle),
        code => Err(returns::text(name, code)),
    }
}

#![allow(unsafe_code, reason = "NVML is a C library; this file makes the calls that watching takes")]

//! The loop of a watching child. What costs nothing (clock, power and reasons lie in shared memory: a microsecond
//! each on an H200) is read every [`TICK`]; GPM, which costs a millisecond, for the sample and, as often as
//! [`BUDGET`] allows, in between, so that it is known which clock belongs to work and which to rest. One thread:
//! NVML has crashed where several GPUs were sampled at once. A second one only waits for Xids, where somebody wants
//! them: a reading that hangs (a GPU has just left the bus) must not keep to itself what NVML says of it.

use std::mem::{self, ManuallyDrop};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings as sys;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlGpmSample_t};

use super::device::{self, present, printable};
use super::events::Waiting;
use super::{chain, returns};
use crate::child::Line;
use crate::gpu_watch::{GpuSample, GpuSamples, GpuWatch, Watched, WatchedGpu, own_memory_mib};
use crate::{GpuId, Reading};

const TICK: Duration = Duration::from_millis(50);
/// GPM refreshes itself every 100 ms: samples must be further apart.
const SHORTEST: Duration = Duration::from_millis(200);
/// Share of a core that the windows within a sample may take, all GPUs together.
const BUDGET: f64 = 0.002;
/// Tensor activity by SM activity from which on it is taken that nothing but tensor kernels ran: GEMMs of 1,536 to
/// 10,240 have 0.78 to 0.98.
const ALL_TENSOR: f64 = 0.85;
const MIB: f64 = 1_048_576.0;

const OF_SAMPLE: [u32; 15] = [1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 20, 21, 61, 60];
const OF_WINDOW: [u32; 3] = [1, 2, 5];
const REASONS: [u64; 5] = [0x4, 0x8, 0x20, 0x40, 0x80];

/// Samples until the other side wants an end.
pub(crate) fn watch(order: &GpuWatch, line: &mut Line) -> Result<(), String> {
    let library = &order.library;
    let nvml = Nvml::builder()
        .lib_path(library.as_os_str())
        .init()
        .map_err(|why| format!("{}: {}", library.display(), chain(&why)))?;
    let nvml = ManuallyDrop::new(nvml);
    let lib = nvml.lib();
    let mut gpus: Vec<Gpu<'_>> = order.gpus.iter().map(|id| Gpu::open(lib, id)).collect();
    let line = RwLock::new(line);
    say(&line, &Watched::Gpus(gpus.iter().map(Gpu::describe).collect()))?;
    // Before the first reading, and not beside it.
    let waiting = match order.xids.then(|| Waiting::begin(lib)) {
        Some(Ok(waiting)) => {
            say(&line, &Watched::Xids(Vec::new()))?;
            Some(waiting)
        }
        Some(Err(why)) => {
            say(&line, &Watched::NoXids(why))?;
            None
        }
        None => None,
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        if let Some(waiting) = waiting {
            let wait = || tell(waiting, &line, &over);
            if let Err(why) = thread::Builder::new().name("xids".to_owned()).spawn_scoped(scope, wait) {
                say(&line, &Watched::NoXids(why.to_string()))?;
            }
        }
        let read = read(order, &mut gpus, &line);
        over.store(true, Ordering::Relaxed);
        read
    })
}

/// Says each Xid as it comes, whatever the readings do.
fn tell(waiting: Waiting<'_>, line: &SharedLine<'_>, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let said = match waiting.next() {
            Ok(None) => continue,
            Ok(Some(event)) => say(line, &Watched::Xids(vec![event])),
            Err(why) => say(line, &Watched::NoXids(why.clone())).and(Err(why)),
        };
        if said.is_err() {
            return;
        }
    }
}

/// Waiting for the other side's word takes a share of it, saying something all of it: no word comes into another.
type SharedLine<'l> = RwLock<&'l mut Line>;

fn read(order: &GpuWatch, gpus: &mut [Gpu<'_>], line: &SharedLine<'_>) -> Result<(), String> {
    let interval = Duration::try_from_secs_f64(order.interval_s.max(0.2)).map_err(|why| why.to_string())?;
    let mut begun = Instant::now();
    let mut window = begun;
    let mut length = SHORTEST.min(interval);
    for gpu in &mut *gpus {
        gpu.begin();
    }
    let (mut turn, mut count, mut memory_mib) = (0, 0_u32, 0.0_f64);
    loop {
        let go_on = line.read().unwrap_or_else(PoisonError::into_inner).wait(TICK.min(interval));
        for gpu in &mut *gpus {
            gpu.tick();
        }
        let now = Instant::now();
        let full = !go_on || now.duration_since(begun) >= interval;
        let spent = window.elapsed();
        // What is left of the interval is a window of its own where it is long enough for GPM.
        if spent >= length || (full && spent >= SHORTEST / 2) {
            let before = cpu_s();
            for gpu in &mut *gpus {
                gpu.window(spent.as_secs_f64());
            }
            window = now;
            let cost = (cpu_s() - before).max(0.0);
            length = Duration::try_from_secs_f64(cost / BUDGET).unwrap_or(interval).clamp(SHORTEST, interval);
        }
        if full {
            for (place, gpu) in gpus.iter_mut().enumerate() {
                if !go_on || place == turn {
                    gpu.read_energy();
                }
            }
            turn = (turn + 1) % gpus.len().max(1);
            let seconds = now.duration_since(begun).as_secs_f64();
            let samples = gpus.iter_mut().map(Gpu::sample).collect();
            // Going through the pages costs more than all the rest of a sample.
            if count.is_multiple_of(12) {
                memory_mib = memory_mib.max(own_memory_mib().unwrap_or(0.0));
            }
            count = count.wrapping_add(1);
            let sample = GpuSamples { seconds, gpus: samples, cpu_s: cpu_s(), memory_mib };
            say(line, &Watched::Sample(sample))?;
            begun = now;
            window = now;
        }
        if !go_on {
            return Ok(());
        }
    }
}

fn say(line: &SharedLine<'_>, what: &Watched) -> Result<(), String> {
    let text = serde_json::to_vec(what).map_err(|why| why.to_string())?;
    line.write().unwrap_or_else(PoisonError::into_inner).say(&text).map_err(|why| why.to_string())
}

fn cpu_s() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF)
        .map_or(0.0, |usage| [usage.user_time(), usage.system_time()].iter().map(seconds).sum())
}

#[expect(clippy::cast_precision_loss, reason = "a process lives no 285 years")]
fn seconds(time: &nix::sys::time::TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

/// Sums and count of what is read every tick.
#[derive(Clone, Debug)]
struct Mean {
    sum: f64,
    count: f64,
    without: Reading<()>,
}

impl Mean {
    fn new() -> Self {
        Mean { sum: 0.0, count: 0.0, without: Reading::Failed("not read yet".to_owned()) }
    }

    fn add(&mut self, value: Reading<f64>) {
        match value {
            Reading::Known(value) => {
                self.sum += value;
                self.count += 1.0;
            }
            Reading::Unsupported => self.without = Reading::Unsupported,
            Reading::Failed(why) => self.without = Reading::Failed(why),
        }
    }

    fn take(&mut self) -> Reading<f64> {
        let Mean { sum, count, without } = mem::replace(self, Mean::new());
        if count > 0.0 { Reading::Known(sum / count) } else { without.map(|()| 0.0) }
    }
}

struct Gpu<'l> {
    lib: &'l NvmlLib,
    /// Where power, clock and energy are read: the parent of a MIG instance.
    whole: Result<nvmlDevice_t, String>,
    /// The instance, where it is one.
    slice: Option<nvmlDevice_t>,
    instance: Option<u32>,
    gpm: Reading<Gpm>,
    clock: Mean,
    window_clock: Mean,
    power: Mean,
    reasons: [Mean; 5],
    /// SM activity × clock and SM activity; the clock of the time with tensor kernels, the rest of it being 0.
    sm_work: f64,
    sm: f64,
    slowed: Mean,
    energy: Reading<f64>,
    energy_first: Option<f64>,
}

impl<'l> Gpu<'l> {
    fn open(lib: &'l NvmlLib, id: &GpuId) -> Self {
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
            clock: Mean::new(),
            window_clock: Mean::new(),
            power: Mean::new(),
            reasons: [const { Mean { sum: 0.0, count: 0.0, without: Reading::Unsupported } }; 5],
            sm_work: 0.0,
            sm: 0.0,
            slowed: Mean::new(),
            energy: Reading::Unsupported,
            energy_first: None,
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

    /// One call about the whole GPU.
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

    fn describe(&self) -> WatchedGpu {
        let lib = self.lib;
        let own = self.slice.map_or_else(|| self.whole.clone(), Ok);
        let text = |device: &Result<nvmlDevice_t, String>, name: &str, call: Option<&TextCall>| match device {
            Ok(device) => ask(call, name, |call| {
                let mut buffer = [0_u8; 128];
                // SAFETY: the handle is NVML's own, and the buffer has one byte more than is said.
                (unsafe { call(*device, buffer.as_mut_ptr().cast(), 127) }, printable(&buffer))
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

    /// The first GPM sample and energy reading, before the first interval.
    fn begin(&mut self) {
        if let Reading::Known(gpm) = &mut self.gpm
            && let Err(why) = gpm.restart()
        {
            self.gpm = Reading::Failed(why);
        }
        self.read_energy();
    }

    fn tick(&mut self) {
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
        self.clock.add(clock.clone());
        self.window_clock.add(clock);
        let power =
            self.out::<u32>("nvmlDeviceGetPowerUsage", self.lib.nvmlDeviceGetPowerUsage.as_ref().ok());
        self.power.add(power.map(|milliwatts| f64::from(milliwatts) / 1000.0));
        let reasons = self.out::<u64>(
            "nvmlDeviceGetCurrentClocksThrottleReasons",
            self.lib.nvmlDeviceGetCurrentClocksThrottleReasons.as_ref().ok(),
        );
        for (mean, bit) in self.reasons.iter_mut().zip(REASONS) {
            mean.add(reasons.clone().map(|bits| if bits & bit == 0 { 0.0 } else { 100.0 }));
        }
    }

    fn window(&mut self, seconds: f64) {
        let clock = self.window_clock.take();
        let activity = match &mut self.gpm {
            Reading::Known(gpm) => gpm.window(),
            Reading::Unsupported => [const { Reading::Unsupported }; OF_WINDOW.len()],
            Reading::Failed(why) => std::array::from_fn(|_| Reading::Failed(why.clone())),
        };
        let [graphics, sm, tensor] = activity;
        match clock.zip(graphics).zip(sm.zip(tensor)) {
            Reading::Known(((clock, graphics), (sm, tensor))) => {
                self.sm_work += sm * clock * seconds;
                self.sm += sm * seconds;
                let share = if sm > 0.0 { (tensor / sm / ALL_TENSOR).min(1.0) } else { 0.0 };
                // Weighted by time: the last window of an interval may be shorter.
                self.slowed.sum += clock * graphics / 100.0 * share * seconds;
                self.slowed.count += seconds;
            }
            missing => self.slowed.without = missing.map(drop),
        }
    }

    /// Nobody asks for the energy of a slice: there is none.
    fn read_energy(&mut self) {
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

    fn sample(&mut self) -> GpuSample {
        let mut of = match &mut self.gpm {
            Reading::Known(gpm) => gpm.sample(),
            Reading::Unsupported => [const { Reading::Unsupported }; OF_SAMPLE.len()],
            Reading::Failed(why) => std::array::from_fn(|_| Reading::Failed(why.clone())),
        }
        .into_iter();
        let mut next = || of.next().unwrap_or(Reading::Unsupported);
        let (graphics, sm, occupancy) = (next(), next(), next());
        let (tensor, dfma, hmma, imma) = (next(), next(), next(), next());
        let (dram, fp64, fp32, fp16) = (next(), next(), next(), next());
        // MiB per second.
        let mut bytes = || next().map(|mib| mib * MIB);
        let (pcie_tx, pcie_rx, nvlink_tx, nvlink_rx) = (bytes(), bytes(), bytes(), bytes());
        let (clock, slowed) = (self.clock.take(), self.slowed.take());
        let times = |activity: &Reading<f64>, clock: &Reading<f64>| {
            activity.clone().zip(clock.clone()).map(|(activity, clock)| activity * clock)
        };
        let at_work = mem::take(&mut self.sm_work) / mem::take(&mut self.sm).max(f64::MIN_POSITIVE);
        let at_work = slowed.clone().map(|_| at_work);
        let utilization = self.out_utilization();
        let temperature = match &self.whole {
            Ok(device) => {
                ask(self.lib.nvmlDeviceGetTemperature.as_ref().ok(), "nvmlDeviceGetTemperature", |call| {
                    let mut degrees = 0;
                    // SAFETY: as in `open`.
                    (unsafe { call(*device, 0, &raw mut degrees) }, f64::from(degrees))
                })
            }
            Err(why) => Reading::Failed(why.clone()),
        };
        #[expect(clippy::cast_precision_loss, reason = "no GPU has an exbibyte")]
        let memory_used = self.memory().map(|memory| memory.used as f64 / MIB);
        let mut shares = [0.0; 5];
        let mut reasons = Reading::Known(shares);
        for (share, mean) in shares.iter_mut().zip(&mut self.reasons) {
            match mean.take() {
                Reading::Known(percent) => *share = percent,
                other => reasons = other.map(|_| [0.0; 5]),
            }
        }
        GpuSample {
            graphics,
            sm_work: times(&sm, &at_work),
            tensor_work: times(&tensor, &clock),
            fp32_work: times(&fp32, &clock),
            tensor_work_slowed: times(&tensor, &slowed),
            sm,
            occupancy,
            tensor,
            dfma,
            hmma,
            imma,
            dram,
            fp64,
            fp32,
            fp16,
            pcie_tx,
            pcie_rx,
            nvlink_tx,
            nvlink_rx,
            any_kernel: utilization.clone().map(|rates| rates.0),
            memory_busy: utilization.map(|rates| rates.1),
            clock,
            power: self.power.take(),
            // The last one stands until its turn comes again: it only grows.
            energy: self.energy.clone(),
            temperature,
            memory_used,
            reasons: reasons.map(|_| shares),
        }
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

/// One call that an older driver may not have.
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

/// Three of NVML's samples, taken in turn: where the interval began, where the last window ended, and a free one.
struct Gpm {
    lib: *const NvmlLib,
    device: nvmlDevice_t,
    instance: Option<u32>,
    samples: [nvmlGpmSample_t; 3],
    first: usize,
    last: usize,
    /// 8 KiB that would otherwise be cleared for every question.
    query: Box<sys::nvmlGpmMetricsGet_t>,
}

impl Gpm {
    fn new(lib: &NvmlLib, device: nvmlDevice_t, instance: Option<u32>) -> Result<Self, String> {
        let name = "nvmlGpmSampleAlloc";
        let call = present(name, &lib.nvmlGpmSampleAlloc)?;
        let mut samples = [ptr::null_mut(); 3];
        for sample in &mut samples {
            // SAFETY: `sample` outlives the call. It is never freed: this process ends by itself.
            match unsafe { call(sample) } {
                returns::SUCCESS => {}
                code => return Err(returns::text(name, code)),
            }
        }
        // SAFETY: numbers and pointers that NVML fills in; all zeroes is a value.
        let query = unsafe { Box::<sys::nvmlGpmMetricsGet_t>::new_zeroed().assume_init() };
        Ok(Gpm { lib, device, instance, samples, first: 0, last: 0, query })
    }

    fn lib(&self) -> &NvmlLib {
        // SAFETY: the library is loaded for as long as this process lives, and `watch` keeps it in place.
        unsafe { &*self.lib }
    }

    fn take(&mut self, place: usize) -> Result<(), String> {
        let lib = self.lib();
        let Some(sample) = self.samples.get(place).copied() else { return Err("no such sample".to_owned()) };
        let (name, code) = match self.instance {
            None => {
                let name = "nvmlGpmSampleGet";
                let call = present(name, &lib.nvmlGpmSampleGet)?;
                // SAFETY: both are NVML's own.
                (name, unsafe { call(self.device, sample) })
            }
            Some(instance) => {
                let name = "nvmlGpmMigSampleGet";
                let call = present(name, &lib.nvmlGpmMigSampleGet)?;
                // SAFETY: as above.
                (name, unsafe { call(self.device, instance, sample) })
            }
        };
        if code == returns::SUCCESS { Ok(()) } else { Err(returns::text(name, code)) }
    }

    fn restart(&mut self) -> Result<(), String> {
        (self.first, self.last) = (0, 0);
        self.take(0)
    }

    /// Activities since the last window.
    fn window(&mut self) -> [Reading<f64>; 3] {
        let free = (0..3).find(|place| *place != self.first && *place != self.last).unwrap_or(1);
        if let Err(why) = self.take(free) {
            return std::array::from_fn(|_| Reading::Failed(why.clone()));
        }
        let before = mem::replace(&mut self.last, free);
        self.metrics(OF_WINDOW, before, free)
    }

    /// Everything since the interval began. The window before this call has ended it.
    fn sample(&mut self) -> [Reading<f64>; OF_SAMPLE.len()] {
        let (first, last) = (self.first, self.last);
        if first == last {
            return std::array::from_fn(|_| Reading::Failed("too short for GPM".to_owned()));
        }
        self.first = last;
        self.metrics(OF_SAMPLE, first, last)
    }

    fn metrics<const N: usize>(&mut self, ids: [u32; N], one: usize, two: usize) -> [Reading<f64>; N] {
        let name = "nvmlGpmMetricsGet";
        let call = match present(name, &self.lib().nvmlGpmMetricsGet) {
            Ok(call) => call,
            Err(why) => return std::array::from_fn(|_| Reading::Failed(why.clone())),
        };
        let sample = |place: usize| self.samples.get(place).copied().unwrap_or(ptr::null_mut());
        let (one, two) = (sample(one), sample(two));
        let query = &mut self.query;
        (query.version, query.numMetrics) = (1, u32::try_from(N).unwrap_or_default());
        (query.sample1, query.sample2) = (one, two);
        for (metric, id) in query.metrics.iter_mut().zip(ids) {
            (metric.metricId, metric.nvmlReturn, metric.value) = (id, returns::UNKNOWN, f64::NAN);
        }
        // SAFETY: the structure has room for more metrics than are asked for, and both samples are NVML's own.
        let code = unsafe { call(&raw mut **query) };
        if code != returns::SUCCESS {
            return std::array::from_fn(|_| returns::reading(name, code).map(|()| 0.0));
        }
        let mut values = query.metrics.iter().map(|metric| match metric.nvmlReturn {
            returns::SUCCESS if metric.value.is_finite() => Reading::Known(metric.value),
            // No number: GPM had none for this time.
            returns::SUCCESS => Reading::Failed(format!("{name}: metric {}: no number", metric.metricId)),
            returns::INVALID_ARGUMENT => Reading::Unsupported,
            code => returns::reading(name, code).map(|()| 0.0),
        });
        std::array::from_fn(|_| values.next().unwrap_or(Reading::Unsupported))
    }
}

//! NVML's readings of a card while it works, and its true clock.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_POWER_INSTANT;
use nvml_wrapper::{Device as Card, Nvml};

use crate::cuda::{Context, Device};
use crate::kernels::{Kernels, Shape, TYPES};
use crate::said::Outcome;

/// Time over which cycles are counted.
const COUNTED: Duration = Duration::from_millis(600);
const BETWEEN: Duration = Duration::from_millis(20);
/// More products than the fastest card computes in that time.
const MOST_PRODUCTS: u128 = 20_000;

/// Processes that use a GPU, other than this one; an error if that is not known.
pub(crate) fn other_processes(nvml: &Nvml, device: &Device) -> Result<Vec<u32>, String> {
    let card = nvml.device_by_pci_bus_id(device.pci.to_string()).map_err(|why| format!("NVML: {why}"))?;
    let processes =
        card.running_compute_processes().map_err(|why| format!("NVML: list of processes: {why}"))?;
    Ok(processes.into_iter().map(|one| one.pid).filter(|pid| *pid != std::process::id()).collect())
}

/// NVML's UUID of a GPU.
pub(crate) fn uuid(nvml: &Nvml, device: &Device) -> Option<String> {
    nvml.device_by_pci_bus_id(device.pci.to_string()).and_then(|card| card.uuid()).ok()
}

/// Whether MIG is on. A card without MIG has no answer.
pub(crate) fn is_partitioned(nvml: &Nvml, device: &Device) -> bool {
    let mode = nvml.device_by_pci_bus_id(device.pci.to_string()).and_then(|card| card.mig_mode());
    mode.is_ok_and(|mode| mode.current != 0)
}

/// Lets the card multiply for a while, and counts the cycles of its multiprocessors meanwhile.
pub(crate) fn clock(
    nvml: Option<&Nvml>,
    device: &Device,
    context: &Context,
    kernels: &Kernels<'_>,
    shape: Shape,
) -> Result<Outcome, String> {
    let [of, ..] = TYPES;
    let (work, count) = (context.stream()?, context.stream()?);
    let inputs = shape.input_elements() * of.bytes;
    let (a, b) = (context.buffer(inputs)?, context.buffer(inputs)?);
    let c = context.buffer(shape.sums() * of.sum.bytes())?;
    let counts = context.buffer(16 * usize::try_from(device.multiprocessors).unwrap_or(usize::MAX))?;
    kernels.fill(&work, of, shape, &a, &b)?;
    let multiply = || kernels.multiply(&work, of, shape, [&a, &b, &c], None);
    let one_s = work.timed(multiply)?;
    let product = Duration::from_secs_f64(one_s.max(1e-6));
    let times = COUNTED.as_nanos() / product.as_nanos().max(1) + 16;
    // The driver loads a kernel when it first runs, and waits for others with that.
    kernels.clocks(&count, &counts, 0)?;
    count.wait()?;
    for _ in 0..times / 8 {
        multiply()?;
    }
    let (_, observed) = observed(nvml, device, || {
        kernels.clocks(&count, &counts, u64::try_from(COUNTED.as_nanos()).unwrap_or(u64::MAX))?;
        for _ in 0..times.min(MOST_PRODUCTS) {
            multiply()?;
        }
        count.wait()
    })?;
    let counted = Instant::now();
    work.wait()?;
    if counted.elapsed() > COUNTED / 2 {
        return Err("the card did not multiply while its cycles were counted".to_owned());
    }
    let words = counts.get::<u64>(2 * usize::try_from(device.multiprocessors).unwrap_or_default())?;
    let clocks: Vec<f64> = words.chunks_exact(2).filter_map(megahertz).collect();
    let (Some(true_mhz), Some(slowest)) = (mean(&clocks), clocks.iter().copied().reduce(f64::min)) else {
        return Err("no multiprocessor counted its cycles".to_owned());
    };
    let mut outcome = Outcome::default().with("sm_clock_mhz", true_mhz).with("slowest_sm_clock_mhz", slowest);
    if let Some(shown) = observed.sm_mhz {
        outcome = outcome.with("nvml_sm_clock_mhz", shown).with("clock_factor", shown / true_mhz);
    }
    Ok(observed.add_to(outcome))
}

/// NVML's readings while a card worked. What could not be read is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Observed {
    /// Mean clock of the multiprocessors.
    pub(crate) sm_mhz: Option<f64>,
    /// Mean power.
    watts: Option<f64>,
    /// Highest temperature.
    celsius: Option<u32>,
    /// Reasons that were set in any of the readings.
    throttle_reasons: Option<u64>,
}

impl Observed {
    /// Adds all figures but the clock, whose name depends on the test.
    pub(crate) fn add_to(self, mut outcome: Outcome) -> Outcome {
        if let Some(watts) = self.watts {
            outcome = outcome.with("power_w", watts);
        }
        if let Some(celsius) = self.celsius {
            outcome = outcome.with("temperature_c", f64::from(celsius));
        }
        if let Some(reasons) = self.throttle_reasons {
            #[expect(clippy::cast_precision_loss, reason = "a mask of few bits")]
            let bits = reasons as f64;
            outcome = outcome.with("throttle_reasons_mask", bits);
        }
        outcome
    }
}

/// Runs `work`, which ends when the card has done it, and reads the card meanwhile. The readings have a thread of their own, because
/// starting much work blocks until the driver's queue has room.
pub(crate) fn observed<T>(
    nvml: Option<&Nvml>,
    device: &Device,
    work: impl FnOnce() -> Result<T, String>,
) -> Result<(T, Observed), String> {
    std::thread::scope(|scope| {
        let (running, ended) = mpsc::channel::<()>();
        let readings = std::thread::Builder::new()
            .spawn_scoped(scope, move || read_until(nvml, device, &ended))
            .map_err(|why| format!("thread for NVML: {why}"))?;
        let result = work();
        drop(running);
        let observed = readings.join().unwrap_or_default();
        Ok((result?, observed))
    })
}

/// Reads the card until the other end of the channel is dropped.
fn read_until(nvml: Option<&Nvml>, device: &Device, ended: &mpsc::Receiver<()>) -> Observed {
    let Some(card) = nvml.and_then(|nvml| nvml.device_by_pci_bus_id(device.pci.to_string()).ok()) else {
        return Observed::default();
    };
    let (mut shown, mut power, mut celsius, mut reasons) = (Vec::new(), Vec::new(), None, None);
    while ended.recv_timeout(BETWEEN) == Err(RecvTimeoutError::Timeout) {
        shown.extend(card.clock_info(Clock::SM).ok().map(f64::from));
        power.extend(watts(&card));
        celsius = celsius.max(card.temperature(TemperatureSensor::Gpu).ok());
        if let Ok(now) = card.current_throttle_reasons() {
            reasons = Some(reasons.unwrap_or_default() | now.bits());
        }
    }
    Observed { sm_mhz: mean(&shown), watts: mean(&power), celsius, throttle_reasons: reasons }
}

/// Power at this moment. `nvmlDeviceGetPowerUsage` is the mean of one second on many cards, longer than a quick test; it counts only where
/// the driver has no other figure.
fn watts(card: &Card<'_>) -> Option<f64> {
    let fields = card.field_values_for(&[FieldId(NVML_FI_DEV_POWER_INSTANT)]).unwrap_or_default();
    let now = fields.into_iter().find_map(|field| match field.ok()?.value.ok()? {
        SampleValue::U32(milliwatts) => Some(milliwatts),
        _ => None,
    });
    now.or_else(|| card.power_usage().ok()).map(|milliwatts| f64::from(milliwatts) / 1000.0)
}

fn megahertz(words: &[u64]) -> Option<f64> {
    let [cycles, nanoseconds] = *words else { return None };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    (nanoseconds > 0).then(|| cycles as f64 / nanoseconds as f64 * 1000.0)
}

fn mean(values: &[f64]) -> Option<f64> {
    let count = u32::try_from(values.len()).ok().filter(|count| *count > 0)?;
    Some(values.iter().sum::<f64>() / f64::from(count))
}

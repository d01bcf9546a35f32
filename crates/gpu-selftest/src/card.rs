//! What NVML says about a card while it works, and its true clock.

use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};

use crate::cuda::{Context, Device};
use crate::kernels::{Kernels, Shape, TYPES};
use crate::said::Outcome;

/// Time over which cycles are counted.
const COUNTED: Duration = Duration::from_millis(600);
const BETWEEN: Duration = Duration::from_millis(20);

/// Processes that use a GPU, other than this one; an error if that is not known.
pub(crate) fn other_processes(nvml: &Nvml, device: &Device) -> Result<Vec<u32>, String> {
    let card = nvml.device_by_pci_bus_id(device.pci.to_string()).map_err(|why| format!("NVML: {why}"))?;
    let processes =
        card.running_compute_processes().map_err(|why| format!("NVML: list of processes: {why}"))?;
    Ok(processes.into_iter().map(|one| one.pid).filter(|pid| *pid != std::process::id()).collect())
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
    for _ in 0..times / 8 {
        multiply()?;
    }
    kernels.clocks(&count, &counts, u64::try_from(COUNTED.as_nanos()).unwrap_or(u64::MAX))?;
    for _ in 0..times.min(900) {
        multiply()?;
    }
    let card = nvml.and_then(|nvml| nvml.device_by_pci_bus_id(device.pci.to_string()).ok());
    let (mut shown, mut watts) = (Vec::new(), Vec::new());
    for _ in 0..COUNTED.as_millis() / BETWEEN.as_millis() {
        std::thread::sleep(BETWEEN);
        let Some(card) = &card else { continue };
        shown.extend(card.clock_info(Clock::SM).ok().map(f64::from));
        watts.extend(card.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1000.0));
    }
    count.wait()?;
    work.wait()?;
    let words = counts.get::<u64>(2 * usize::try_from(device.multiprocessors).unwrap_or_default())?;
    let clocks: Vec<f64> = words.chunks_exact(2).filter_map(megahertz).collect();
    let (Some(true_mhz), Some(slowest)) = (mean(&clocks), clocks.iter().copied().reduce(f64::min)) else {
        return Err("no multiprocessor counted its cycles".to_owned());
    };
    let mut outcome = Outcome::default().with("sm_clock_mhz", true_mhz).with("slowest_sm_clock_mhz", slowest);
    if let Some(shown) = mean(&shown) {
        outcome = outcome.with("nvml_sm_clock_mhz", shown).with("clock_factor", shown / true_mhz);
    }
    if let Some(watts) = mean(&watts) {
        outcome = outcome.with("power_w", watts);
    }
    if let Some(card) = &card {
        if let Ok(celsius) = card.temperature(TemperatureSensor::Gpu) {
            outcome = outcome.with("temperature_c", f64::from(celsius));
        }
        if let Ok(reasons) = card.current_throttle_reasons() {
            #[expect(clippy::cast_precision_loss, reason = "a mask of few bits")]
            let bits = reasons.bits() as f64;
            outcome = outcome.with("throttle_reasons_mask", bits);
        }
    }
    Ok(outcome)
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

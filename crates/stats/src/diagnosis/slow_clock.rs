use super::Diagnosis;
use super::facts::{Facts, Unit, median};
use crate::usage::{GpuUsage, Throttled};

/// A GPU runs below the median of the others by so much, or more.
const BELOW: f64 = 0.06;

/// In a job whose ranks wait for one another a slow GPU costs what it is slower by.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Diagnosis> {
    let clock = |unit: &Unit<'_>| {
        let gpu = unit.gpu?;
        gpu.busy_clock_mhz.known().copied().or(gpu.sm_clock_mhz.known().map(|spread| spread.mean))
    };
    let known: Vec<(&Unit<'_>, f64)> =
        facts.units.iter().filter_map(|unit| Some((unit, clock(unit)?))).collect();
    if known.len() < 2 {
        return Vec::new();
    }
    let same = |unit: &Unit<'_>, other: &Unit<'_>| {
        unit.gpu.map(|gpu| gpu.model.as_str()) == other.gpu.map(|gpu| gpu.model.as_str())
    };
    let mut found: Vec<Diagnosis> = Vec::new();
    for (unit, mhz) in &known {
        let peers: Vec<f64> = known
            .iter()
            .filter(|(other, _)| same(unit, other) && !std::ptr::eq(*other, *unit))
            .map(|(_, mhz)| *mhz)
            .collect();
        let Some(typical) = median(peers) else { continue };
        let below = 1.0 - mhz / typical;
        // An idle GPU may clock down: it is not slow.
        if below < BELOW || unit.gpu.and_then(activity).is_none_or(|percent| percent < 20.0) {
            continue;
        }
        let reason = unit.gpu.and_then(|gpu| gpu.throttled.known()).and_then(reason).unwrap_or_default();
        let what = format!(
            "{} runs at {mhz:.0} MHz, the others at {typical:.0} MHz{reason}: every step waits for it",
            unit.name()
        );
        let fix = "exclude the node and have its power supply and cooling looked at";
        let mut one = Diagnosis::new("hardware", "high", unit.name(), what, fix);
        one.costs = Some(below.clamp(0.0, 1.0));
        found.push(one);
    }
    found.sort_by(|a, b| b.costs.unwrap_or(0.0).total_cmp(&a.costs.unwrap_or(0.0)));
    found
}

fn activity(gpu: &GpuUsage) -> Option<f64> {
    let spreads = [&gpu.sm_percent, &gpu.graphics_percent, &gpu.any_kernel_percent];
    spreads.into_iter().find_map(|reading| reading.known()).map(|spread| spread.mean)
}

fn reason(throttled: &Throttled) -> Option<String> {
    let over = Some(throttled.over_s).filter(|over| *over > 0.0)?;
    let (name, seconds) = [
        ("power brake", throttled.power_brake_s),
        ("hardware's thermal limit", throttled.hw_thermal_s),
        ("software's thermal limit", throttled.sw_thermal_s),
        ("hardware slowdown", throttled.hw_slowdown_s),
        ("power cap", throttled.power_cap_s),
    ]
    .into_iter()
    .find(|(_, seconds)| *seconds > 0.05 * over)?;
    Some(format!(" ({name} {:.0} % of the time)", 100.0 * seconds / over))
}

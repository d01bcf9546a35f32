use std::collections::BTreeMap;

use super::Diagnosis;
use super::facts::{Facts, Unit};
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
    let model = |unit: &Unit<'_>| unit.gpu.map(|gpu| gpu.model.clone());
    let mut clocks: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for (unit, mhz) in &known {
        clocks.entry(model(unit)).or_default().push(*mhz);
    }
    clocks.values_mut().for_each(|alike| alike.sort_by(f64::total_cmp));
    let mut found: Vec<Diagnosis> = Vec::new();
    for (unit, mhz) in &known {
        let alike = clocks.get(&model(unit)).map_or(&[][..], Vec::as_slice);
        let Some(typical) = median_of_others(alike, *mhz) else { continue };
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

/// Of sorted values without this one of them: a job has thousands, so nothing is sorted again for each.
fn median_of_others(sorted: &[f64], own: f64) -> Option<f64> {
    let own = sorted.partition_point(|value| *value < own);
    let other = |place: usize| sorted.get(place + usize::from(place >= own)).copied();
    match sorted.len().checked_sub(1)? {
        0 => None,
        odd if odd % 2 == 1 => other(odd / 2),
        even => Some(f64::midpoint(other(even / 2 - 1)?, other(even / 2)?)),
    }
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

#[cfg(test)]
mod tests {
    use super::median_of_others;
    use crate::diagnosis::median;

    #[test]
    fn the_median_of_the_others_needs_no_sorting() {
        for sorted in [&[1.0, 2.0, 2.0, 5.0][..], &[1.0, 3.0, 4.0], &[7.0, 7.0], &[1.0], &[]] {
            for (place, own) in sorted.iter().enumerate() {
                let mut others = sorted.to_vec();
                others.remove(place);
                assert_eq!(median_of_others(sorted, *own), median(others), "{sorted:?} without {own}");
            }
        }
    }
}

use std::collections::BTreeMap;

use railgate_model::Reading;
use railgate_node_report::application::ModelFlops;
use railgate_node_report::plain::float;
use railgate_node_report::usage::peaks::peak_of;

use super::facts::{Facts, busy, mean_of};
use super::{HardwareUse, ModelUse};

fn lacking<T>(what: &str) -> Reading<T> {
    Reading::Failed(what.to_owned())
}

/// Model FLOP utilisation, from the program's report.
pub(super) fn model(facts: &Facts<'_>) -> Reading<ModelUse> {
    let told: Vec<_> = facts.reporting().collect();
    if told.is_empty() {
        return lacking("the program does not report its steps (docs/application-reports.md)");
    }
    let Some(model) = told.iter().find_map(|(_, rank)| rank.model.as_ref()) else {
        return lacking("no rank describes the model: railgate.model(...)");
    };
    let (flops, unit) = match model.flops() {
        Ok(ModelFlops::Token(flops)) => (flops, "tokens"),
        Ok(ModelFlops::Sample(flops)) => (flops, "samples"),
        Err(why) => return Reading::Failed(why),
    };
    // Rate of each rank while its steps ran.
    let rates: Vec<(f64, f64)> = told
        .iter()
        .filter_map(|(_, rank)| {
            let times = rank.step_s.filter(|times| times.total > 0.0)?;
            let count = if unit == "tokens" { rank.timed_tokens? } else { rank.timed_samples? };
            Some((count / times.total, times.mean))
        })
        .collect();
    if rates.is_empty() {
        return Reading::Failed(format!("no rank reports {unit}, or none has two steps"));
    }
    let count = float(u64::try_from(rates.len()).unwrap_or(1));
    let sum: f64 = rates.iter().map(|(rate, _)| rate).sum();
    let step_s = rates.iter().map(|(_, step)| step).sum::<f64>() / count;
    let world = facts.world.map_or(count, f64::from);
    // Ranks that do not report are excluded, as are their GPUs, so that the fraction stays correct.
    let (units_per_s, ranks) = if model.global { (sum / count, world) } else { (sum, count) };
    let gpus = ranks * model.gpus.filter(|gpus| *gpus > 0.0).unwrap_or(1.0);
    let Some(peak) = peak(facts, model.rate()) else {
        return Reading::Failed(format!("the peak of these GPUs in {} is not known", model.rate()));
    };
    let done = units_per_s * flops / 1e12;
    let all = || told.iter().map(|(_, rank)| *rank).chain(facts.earlier.iter().copied());
    let timed: f64 = all().filter_map(|rank| rank.step_s).map(|times| times.total).sum();
    let redone: f64 = all().map(|rank| rank.redone_s).sum();
    let steps = timed / float(u64::try_from(told.len()).unwrap_or(1));
    let useful = if timed > 0.0 { (1.0 - redone / timed).clamp(0.0, 1.0) } else { 1.0 };
    let of_allocated = match (facts.start(), facts.end) {
        (Some(start), Some(end)) if end > start => {
            let allocated = float(end - start) / 1000.0;
            Reading::Known(done / (peak * gpus) * useful * (steps / allocated).min(1.0))
        }
        _ => lacking("the job runs"),
    };
    Reading::Known(ModelUse {
        fraction: done / (peak * gpus),
        of_allocated,
        convention: model.convention.title().to_owned(),
        dtype: model.rate().to_owned(),
        peak_tflops: peak,
        flops_per_unit: flops,
        unit: unit.to_owned(),
        units_per_s,
        step_s,
        gpus,
    })
}

/// Mean dense peak of the job's GPUs in a data type, TFLOP/s: from samples, which know MIG slices and the
/// site's values, else from model names.
fn peak(facts: &Facts<'_>, dtype: &str) -> Option<f64> {
    let rate = |name: &str| {
        let row = peak_of(name)?;
        let rate = match dtype {
            "bf16" | "fp16" => 1.0,
            "tf32" => row.tf32,
            "fp8" => row.fp8,
            _ => return None,
        };
        (rate > 0.0).then_some((rate, row.bf16))
    };
    let sampled: Vec<f64> = facts
        .units
        .iter()
        .filter_map(|unit| {
            let gpu = unit.gpu?;
            let peak = gpu.flop.peak.as_ref()?.bf16_tflops;
            match dtype {
                "bf16" | "fp16" => Some(peak),
                _ => Some(peak * rate(&gpu.model)?.0),
            }
        })
        .collect();
    let peaks: Vec<f64> = if sampled.is_empty() {
        let own = facts.nodes.iter().flat_map(|node| &node.gpus).filter(|gpu| gpu.own == Some(true));
        own.filter_map(|gpu| rate(gpu.name.known()?)).map(|(rate, bf16)| rate * bf16).collect()
    } else {
        sampled
    };
    let count = float(u64::try_from(peaks.len()).ok()?);
    (count > 0.0).then(|| peaks.iter().sum::<f64>() / count)
}

/// Utilisation of the GPUs' pipes.
pub(super) fn hardware(facts: &Facts<'_>) -> Reading<HardwareUse> {
    let gpus: Vec<_> = facts.units.iter().filter_map(|unit| unit.gpu).collect();
    if gpus.is_empty() {
        return lacking("no sampler has reported");
    }
    let of = facts.nodes.iter().filter_map(|node| node.usage.as_ref()).map(|usage| &usage.coverage);
    let (mut sampled, mut all) = (0.0, 0.0);
    for coverage in of {
        sampled += coverage.sampled_s;
        all += coverage.sampled_s + coverage.missing_s + coverage.yielded_s;
    }
    // Nodes without a report were not sampled.
    let parts = facts.nodes.iter().filter(|node| node.usage.is_some()).count();
    let share =
        float(u64::try_from(parts).unwrap_or(0)) / float(u64::try_from(facts.nodes.len()).unwrap_or(1));
    let mut calibrations: BTreeMap<String, u32> = BTreeMap::new();
    for gpu in &gpus {
        *calibrations.entry(gpu.flop.calibration.from.clone()).or_default() += 1;
    }
    let energy: Vec<f64> = gpus.iter().filter_map(|gpu| gpu.energy_j.known().copied()).collect();
    Reading::Known(HardwareUse {
        gpus: u32::try_from(gpus.len()).unwrap_or(u32::MAX),
        tensor_fraction: facts.mean(|gpu| gpu.flop.tensor_fraction.clone()),
        band: gpus.iter().map(|gpu| gpu.flop.calibration.band).fold(0.0, f64::max),
        calibrated: gpus.iter().all(|gpu| gpu.flop.calibration.from != "none"),
        calibrations,
        busy_percent: facts.mean(busy),
        sm_percent: facts.mean(|gpu| mean_of(&gpu.counters.sm_percent)),
        dram_percent: facts.mean(|gpu| mean_of(&gpu.counters.dram_percent)),
        sm_clock_mhz: facts.mean(|gpu| mean_of(&gpu.counters.sm_clock_mhz)),
        power_w: facts.mean(|gpu| mean_of(&gpu.counters.power_w)),
        energy_j: match energy.len() == gpus.len() {
            true => Reading::Known(energy.iter().sum()),
            false => lacking("not every GPU counts its energy"),
        },
        coverage: if all > 0.0 { sampled / all * share } else { 0.0 },
    })
}

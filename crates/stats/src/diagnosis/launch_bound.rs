use railgate_node::Reading;

use super::Diagnosis;
use super::facts::{Facts, busy, mean_of};
use super::hang::stood_still;

/// Some kernel nearly always runs, but it keeps few SMs at work: too small, or one at a time.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Diagnosis> {
    // Its means are of the standstill.
    if stood_still(facts).is_some() {
        return Vec::new();
    }
    let mean = |of: fn(&crate::usage::GpuUsage) -> Reading<f64>| facts.mean(of).known().copied();
    let (Some(busy), Some(sm), Some(tensor), Some(dram)) = (
        mean(busy),
        mean(|gpu| mean_of(&gpu.sm_percent)),
        mean(|gpu| mean_of(&gpu.tensor_percent)),
        mean(|gpu| mean_of(&gpu.dram_percent)),
    ) else {
        return Vec::new();
    };
    if busy < 50.0 || sm > 60.0 || sm > 0.7 * busy || tensor > 20.0 || dram > 30.0 {
        return Vec::new();
    }
    // Waiting in NCCL looks the same from outside: only its own times tell the two apart.
    let waiting: Vec<f64> = facts
        .units
        .iter()
        .filter_map(|unit| {
            let comm = unit.comm?;
            let whole = unit.usage?.coverage.sampled_s;
            (whole > 0.0).then(|| (comm.wait_s + comm.wire_s) / whole)
        })
        .collect();
    let talk = super::facts::median(waiting.clone());
    let confidence = match talk {
        Some(share) if 100.0 * share > 0.3 * busy => return Vec::new(),
        Some(_) => "high",
        None if facts.units.len() == 1 => "high",
        None if facts.failed => return Vec::new(),
        None => "low",
    };
    let what = format!(
        "kernels are too small: some kernel runs {busy:.0} % of the time, but {sm:.0} % of the SMs have work"
    );
    let fix = "CUDA graphs, torch.compile, larger batches; look for a CPU thread at 100 %";
    let mut found = Diagnosis::new("application", confidence, String::new(), what, fix);
    found.costs = Some(((busy - sm) / 100.0).clamp(0.0, 1.0));
    vec![found]
}

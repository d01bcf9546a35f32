use railgate_model::Reading;

use super::Diagnosis;
use super::facts::{Facts, Unit, busy, mean_of};

/// Below this share of all time, percent, memory is not what a job waits for most, however its kernels go about it.
const WORTH_A_WORD: f64 = 35.0;

/// Memory traffic near its practical peak, of about 80 to 90 %, while the tensor pipes do little. Judged by the time in
/// which the job's own kernels run: idleness and waiting for others, which may have causes of their own, hide it otherwise.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Diagnosis> {
    let (Reading::Known(dram), Reading::Known(tensor)) =
        (facts.mean(|gpu| mean_of(&gpu.dram_percent)), facts.mean(|gpu| mean_of(&gpu.tensor_percent)))
    else {
        return Vec::new();
    };
    let shares: Vec<f64> = facts.units.iter().filter_map(computing).collect();
    let Some(share) = super::facts::median(shares) else { return Vec::new() };
    let (dram_then, tensor_then) = (dram / share, tensor / share);
    if dram < WORTH_A_WORD || dram_then < 55.0 || tensor_then > 35.0 {
        return Vec::new();
    }
    let what = format!(
        "kernels wait for memory: while they run, {:.0} % of its bandwidth is used and the tensor pipes are active {:.0} %",
        dram_then.min(100.0),
        tensor_then.min(100.0)
    );
    let fix = "fuse element-wise kernels (torch.compile), larger batches, fewer bytes per element";
    let mut found = Diagnosis::new("application", "high", String::new(), what, fix);
    found.costs = Some(((dram - tensor) / 100.0).clamp(0.0, 1.0));
    vec![found]
}

/// At most this share of all time the GPU computed, 0 to 1: what is busy, less what NCCL says it took. Where that ran beside
/// computing, SMs were at work all the same, so it is never less than their share.
fn computing(unit: &Unit<'_>) -> Option<f64> {
    let gpu = unit.gpu?;
    let sm = *mean_of(&gpu.sm_percent).known()?;
    let busy = busy(gpu).known().copied().unwrap_or(100.0);
    let sampled_s = unit.usage?.coverage.sampled_s;
    let comm = unit
        .comm
        .filter(|_| sampled_s > 0.0)
        .map_or(0.0, |comm| 100.0 * (comm.wait_s + comm.wire_s) / sampled_s);
    Some((busy - comm).max(sm).clamp(1.0, 100.0) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Outcome;
    use crate::diagnosis::simulator;

    /// Collectives that run beside the computing take no time from it, whatever they add up to.
    #[test]
    fn collectives_that_computing_hides_make_no_memory_bound_job() {
        let mut nodes = simulator::healthy();
        let rows = nodes.iter_mut().flat_map(|node| &mut node.communication.as_mut().unwrap().collectives);
        rows.flat_map(|row| &mut row.by_rank).for_each(|rank| rank.gpu_s *= 6.0);
        for gpu in nodes.iter_mut().flat_map(|node| &mut node.usage.as_mut().unwrap().gpus) {
            let Reading::Known(dram) = &mut gpu.dram_percent else { unreachable!() };
            // So little of the tensor pipes that they excuse nothing, whatever time they are divided by.
            (dram.mean, gpu.tensor_percent, gpu.sm_percent) = (45.0, mean(5.0), mean(92.0));
        }
        let facts = Facts::new(&nodes, nodes[0].end, Outcome::Good, None);
        let comm = facts.units[0].comm.unwrap();
        assert!(comm.wait_s + comm.wire_s > 0.5 * facts.units[0].usage.unwrap().coverage.sampled_s);
        assert_eq!(find(&facts), vec![]);
    }

    fn mean(value: f64) -> Reading<crate::usage::Spread> {
        Reading::Known(crate::usage::Spread { mean: value, min: value, max: value, over_s: 1.0 })
    }
}

use railgate_model::Reading;

use crate::facts::{Facts, Unit, busy, mean_of, median};
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "memory-bound",
    about: "kernels wait for the GPU's memory while the tensor pipes do little",
    class: Class::Application,
    evidence: "memory traffic and tensor activity of the GPUs (GPM), over all time and over the time in which the job's own kernels
run. That time excludes idle time and waiting in NCCL, which have other causes.",
    why: "most of the peak performance of a GPU is in its tensor pipes; kernels that only move data leave them idle.",
    look_alikes: "work that moves much data for little arithmetic (inference at a small batch, embeddings, optimisers): the
finding is right, and only fewer bytes help. Practical peaks are 80 to 90 % of the bandwidth.",
    fix: "fuse element-wise kernels (torch.compile), larger batches, fewer bytes per element",
    thresholds: Settings::KEYS,
    line: Line::Verdict,
    over: Over::Training,
    explains: Explains::Nothing,
    find,
};

thresholds! {
    dram_percent: Number(35.0), 0.0 to 100.0, "%", "over all time at least this much of the memory bandwidth is used";
    dram_running_percent: Number(65.0), 0.0 to 100.0, "%", "while the job's own kernels run, at least this much of it is used";
    tensor_running_percent: Number(35.0), 0.0 to 100.0, "%", "and the tensor pipes are active for at most this share of that time";
}

/// Percent of the bandwidth that kernels reach in practice.
const PRACTICAL_PEAK: f64 = 80.0;
/// A program whose tensor pipes are active for less of the time, percent, multiplies no matrices.
const NO_PRODUCTS: f64 = 1.0;
const BYTES_FIX: &str = "fewer bytes: lower precision, fused kernels, fewer passes over the data; otherwise the job is as fast as this GPU's memory";

/// Uses only the time in which the job's own kernels run, because idle and waiting time would hide the limit.
fn find(facts: &Facts<'_>) -> Vec<Found> {
    let set = &facts.rules.memory_bound;
    let (Reading::Known(dram), Reading::Known(tensor)) = (
        facts.mean(|gpu| mean_of(&gpu.counters.dram_percent)),
        facts.mean(|gpu| mean_of(&gpu.counters.tensor_percent)),
    ) else {
        return Vec::new();
    };
    let shares: Vec<f64> = facts.units.iter().filter_map(computing).collect();
    let Some(share) = median(shares) else { return Vec::new() };
    let (dram_then, tensor_then) = (dram / share, tensor / share);
    if dram < set.dram_percent.get()
        || dram_then < set.dram_running_percent.get()
        || tensor_then > set.tensor_running_percent.get()
    {
        return Vec::new();
    }
    let limit = if dram_then >= PRACTICAL_PEAK { ", about the most that can be reached," } else { "" };
    let what = format!(
        "kernels wait for memory: while they run, {:.0} % of its bandwidth is used{limit} and the tensor pipes are active {:.0} %",
        dram_then.min(100.0),
        tensor_then.min(100.0)
    );
    let mut found = Found::new("high", String::new(), what);
    found.fix = (tensor_then < NO_PRODUCTS).then_some(BYTES_FIX);
    found.costs = Some(((dram - tensor) / 100.0).clamp(0.0, 1.0));
    vec![found]
}

/// Upper bound of the share of all time in which the GPU computed, 0 to 1: busy time less NCCL's. Not less than
/// the share of active SMs, because NCCL can overlap with computation.
fn computing(unit: &Unit<'_>) -> Option<f64> {
    let gpu = unit.gpu?;
    let sm = *mean_of(&gpu.counters.sm_percent).known()?;
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
    use crate::Outcome;
    use crate::simulator;

    /// Collectives that overlap with computation do not reduce its time, regardless of their sum.
    #[test]
    fn collectives_hidden_by_computation_do_not_make_a_job_memory_bound() {
        let mut nodes = simulator::healthy();
        let rows = nodes.iter_mut().flat_map(|node| &mut node.communication.as_mut().unwrap().collectives);
        rows.flat_map(|row| &mut row.by_rank).for_each(|rank| rank.gpu_s *= 6.0);
        for gpu in nodes.iter_mut().flat_map(|node| &mut node.usage.as_mut().unwrap().gpus) {
            let Reading::Known(dram) = &mut gpu.counters.dram_percent else { unreachable!() };
            // Too little tensor activity to excuse the traffic, regardless of the time base.
            (dram.mean, gpu.counters.tensor_percent, gpu.counters.sm_percent) = (45.0, mean(5.0), mean(92.0));
        }
        let facts = Facts::new(&nodes, nodes[0].end, Outcome::Good, None);
        let comm = facts.units[0].comm.unwrap();
        assert!(comm.wait_s + comm.wire_s > 0.5 * facts.units[0].usage.unwrap().coverage.sampled_s);
        assert_eq!(find(&facts), vec![]);
    }

    fn mean(value: f64) -> Reading<railgate_node_report::usage::Spread> {
        Reading::Known(railgate_node_report::usage::Spread {
            mean: value,
            min: value,
            max: value,
            over_s: 1.0,
        })
    }
}

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
    if facts.units.iter().any(|unit| unit.comm.is_some_and(|comm| comm.is_partial())) {
        return Vec::new();
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeReport;
    use crate::comm::RankTime;
    use crate::diagnosis::simulator::{Plant, parts_with};

    fn rules(nodes: &[NodeReport]) -> usize {
        find(&Facts::new(nodes, nodes[0].end, false, None)).len()
    }

    #[test]
    fn collectives_without_a_time_may_be_what_keeps_few_sms() {
        let mut nodes = parts_with(Plant::TinyKernels);
        assert_eq!(rules(&nodes), 1);
        for comm in nodes.iter_mut().map(|node| node.communication.as_mut().unwrap()) {
            let mut untimed = comm.collectives[0].clone();
            untimed.op = "AlltoAll".to_owned();
            for rank in &mut untimed.by_rank {
                *rank = RankTime { timed: 0, gpu_s: 0.0, ..*rank };
            }
            comm.collectives.push(untimed);
        }
        assert_eq!(rules(&nodes), 0);
    }

    /// nccl-tests on four H200s: all_reduce_perf and alltoall_perf were two steps, with processes of their own.
    #[test]
    fn a_rank_is_all_its_processes_together() {
        let mut nodes = parts_with(Plant::TinyKernels);
        for comm in nodes.iter_mut().map(|node| node.communication.as_mut().unwrap()) {
            let later: Vec<_> = comm
                .communicators
                .iter()
                .map(|one| crate::comm::Communicator {
                    pid: one.pid + 1000,
                    hash: "later".to_owned(),
                    ..one.clone()
                })
                .collect();
            comm.communicators.extend(later);
        }
        let with_later = Facts::new(&nodes, nodes[0].end, false, None);
        assert!(with_later.units.iter().all(|unit| unit.comm.is_some_and(|comm| comm.wire_s > 1.0)));
    }
}

use railgate_node::Reading;

use super::Diagnosis;
use super::facts::{Facts, Unit, busy, mean_of, median, own_sms};
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
    if tensor > 20.0 || dram > 30.0 {
        return Vec::new();
    }
    // Waiting in NCCL keeps as few SMs: only its own times tell the two apart.
    if facts.units.iter().any(|unit| unit.comm.is_some_and(|comm| comm.is_partial())) {
        return Vec::new();
    }
    let own = median(facts.units.iter().filter_map(own).collect());
    let (own, confidence) = match own {
        Some(own) => (own, "high"),
        None if facts.alone() => (busy, "high"),
        None if facts.failed => return Vec::new(),
        None => (busy, "low"),
    };
    // What is left of little says little: NCCL's times have errors, too.
    if own < (0.3 * busy).max(20.0) || sm > 60.0 || own_sms(sm, own) > 0.7 {
        return Vec::new();
    }
    let or_waiting = if confidence == "low" { ", or wait in NCCL, which has not said how long," } else { "" };
    let what = format!(
        "kernels are too small{or_waiting}: some kernel of the program's runs {own:.0} % of the time, but keeps {:.0} % of \
         the SMs at work",
        100.0 * own_sms(sm, own)
    );
    let fix = "CUDA graphs, torch.compile, larger batches; look for a CPU thread at 100 %";
    let mut found = Diagnosis::new("application", confidence, String::new(), what, fix);
    found.costs = Some(((1.0 - own_sms(sm, own)) * own / 100.0).clamp(0.0, 1.0));
    vec![found]
}

/// Percent of all time in which a GPU had kernels other than NCCL's; `None`: NCCL's time is not known.
fn own(unit: &Unit<'_>) -> Option<f64> {
    let (gpu, comm, whole) = (unit.gpu?, unit.comm?, unit.usage?.coverage.sampled_s);
    let busy = *busy(gpu).known()?;
    (whole > 0.0).then(|| (busy - 100.0 * (comm.wait_s + comm.wire_s) / whole).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeReport;
    use crate::comm::RankTime;
    use crate::diagnosis::simulator::{self, Plant, parts_with};

    fn rules(nodes: &[NodeReport]) -> usize {
        find(&Facts::new(nodes, nodes[0].end, false, None)).len()
    }

    /// Two things at once: the one that sleeps makes the others wait, and what is left of their time has tiny kernels.
    #[test]
    fn waiting_for_a_rank_hides_no_tiny_kernels() {
        let of = |planted: &[Plant]| {
            let nodes = parts_with(planted);
            find(&Facts::new(&nodes, nodes[0].end, false, None))
        };
        let both = of(&[Plant::Sleeps, Plant::TinyKernels]);
        let [one] = both.as_slice() else { panic!("{both:?}") };
        assert!(one.confidence == "high" && one.costs.is_some_and(|costs| costs < 0.6), "{one:?}");
        assert_eq!(of(&[Plant::Sleeps]), []);
    }

    /// A slow network: all wait for it for half of the time, on few SMs, and compute on all of them in the other half.
    #[test]
    fn waiting_for_the_network_makes_no_tiny_kernels() {
        let mut nodes = simulator::healthy();
        simulator::wait_for_the_network(&mut nodes);
        assert_eq!(rules(&nodes), 0);
    }

    #[test]
    fn collectives_without_a_time_may_be_what_keeps_few_sms() {
        let mut nodes = parts_with(&[Plant::TinyKernels]);
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
        let mut nodes = parts_with(&[Plant::TinyKernels]);
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

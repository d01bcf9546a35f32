use railgate_model::Reading;
use railgate_node_report::NodeReport;
use railgate_node_report::plain::float;

use super::Shares;
use super::facts::{Facts, Unit, busy, mean_of, own_sms};
use super::rules::hang::stood_still;
use super::rules::launch_bound;

/// NCCL kernels use one SM per channel, at most 32 by default: less than a third of all SMs.
const NCCL_SMS: f64 = 1.0 / 3.0;

/// Shares of a GPU's time, percent. Sources in order of reliability: times of the program (checkpoint, input),
/// NCCL's times, GPM's activities.
pub(super) fn shares(facts: &Facts<'_>) -> Reading<Shares> {
    let job = Job::new(facts);
    let of_units: Vec<Shares> = facts.units.iter().filter_map(|unit| of_unit(&job, unit)).collect();
    let Some(first) = of_units.first() else {
        return Reading::Failed("no GPU has the counters that tell compute from waiting (GPM)".to_owned());
    };
    let count = float(u64::try_from(of_units.len()).unwrap_or(1));
    let mean = |of: fn(&Shares) -> f64| of_units.iter().map(of).sum::<f64>() / count;
    // If only some GPUs have a share, the others' time counts as `idle` or `unknown`, so that the sum stays
    // 100.
    let part = |of: fn(&Shares) -> &Reading<f64>| match of_units.iter().any(|one| of(one).known().is_some()) {
        false => of(first).clone(),
        true => Reading::Known(of_units.iter().map(|one| known_or_none(of(one))).sum::<f64>() / count),
    };
    let held: Vec<f64> = of_units.iter().filter_map(|one| one.throttled.known().copied()).collect();
    let throttled = match held.is_empty() {
        true => first.throttled.clone(),
        false => Reading::Known(held.iter().sum::<f64>() / float(u64::try_from(held.len()).unwrap_or(1))),
    };
    Reading::Known(Shares {
        compute: mean(|shares| shares.compute),
        comm_wait: part(|shares| &shares.comm_wait),
        comm_wire: part(|shares| &shares.comm_wire),
        memory: mean(|shares| shares.memory),
        input: part(|shares| &shares.input),
        launch: mean(|shares| shares.launch),
        unknown: mean(|shares| shares.unknown),
        idle: mean(|shares| shares.idle),
        checkpoint: part(|shares| &shares.checkpoint),
        throttled,
        confidence: least_sure(&of_units),
    })
}

/// Lowest confidence of the GPUs.
fn least_sure(of_units: &[Shares]) -> String {
    let mut words = ["low", "medium"].into_iter();
    let least = words.find(|word| of_units.iter().any(|one| one.confidence == *word));
    least.unwrap_or("high").to_owned()
}

fn known_or_none(share: &Reading<f64>) -> f64 {
    share.known().copied().unwrap_or(0.0)
}

/// Figures of all GPUs together.
struct Job<'a> {
    facts: &'a Facts<'a>,
    /// Seconds without a step before the job failed.
    still_s: f64,
    /// Percent of all time in which kernels were launched too late.
    gap: f64,
}

impl<'a> Job<'a> {
    fn new(facts: &'a Facts<'a>) -> Self {
        let gap = launch_bound::gap(facts).zip(facts.in_steps());
        // A stall that is a phase of its own is not part of the training.
        let apart = facts.training_s().is_some() && facts.nodes.iter().any(ended_in_a_stall);
        Job {
            facts,
            still_s: stood_still(facts).filter(|_| !apart).map_or(0.0, |(_, seconds)| seconds),
            gap: gap.map_or(0.0, |(gap, within)| 100.0 * gap * within),
        }
    }
}

fn ended_in_a_stall(node: &NodeReport) -> bool {
    let phases = node.usage.as_ref().and_then(|usage| usage.phases.as_ref());
    phases.is_some_and(|phases| phases.last_stall().is_some())
}

fn of_unit(job: &Job<'_>, unit: &Unit<'_>) -> Option<Shares> {
    let facts = job.facts;
    let gpu = unit.gpu?;
    let (sm, dram) =
        (*mean_of(&gpu.counters.sm_percent).known()?, *mean_of(&gpu.counters.dram_percent).known()?);
    let tensor = *mean_of(&gpu.counters.tensor_percent).known()?;
    let busy = busy(gpu).known().copied().unwrap_or(sm).clamp(0.0, 100.0);
    let whole = unit.usage.map(|usage| usage.coverage.sampled_s).filter(|seconds| *seconds > 0.0)?;
    let percent = |seconds: f64| (100.0 * seconds / whole).clamp(0.0, 100.0);
    let no_word = || Reading::Failed("the program does not report its steps".to_owned());
    let checkpoint = unit.app.map_or_else(no_word, |rank| Reading::Known(percent(rank.checkpoint_s)));
    let input = match unit.app {
        None => no_word(),
        Some(rank) => rank.input_s.map_or_else(
            || Reading::Failed("the program does not report when it waits for input".to_owned()),
            |seconds| Reading::Known(percent(seconds)),
        ),
    };
    // Idle time is assigned to checkpoint, input and late launches first; the rest stays idle.
    let mut gone = 100.0 - busy;
    let checkpoint = checkpoint.map(|share| share.min(gone));
    gone -= known_or_none(&checkpoint);
    let input = input.map(|share| share.min(gone));
    gone -= known_or_none(&input);
    let gap = job.gap.min(gone);
    let idle = gone - gap;
    // Busy time consists of kernels that keep SMs active and kernels that wait. Waiting in NCCL uses few SMs.
    let comm = match unit.comm {
        Some(comm) if comm.in_graphs => Err("NCCL's calls in CUDA graphs were not timed"),
        Some(comm) if comm.is_partial() => Err("many of NCCL's calls were not timed"),
        Some(comm) => Ok((percent(comm.wait_s), percent(comm.wire_s))),
        None if facts.alone() => Ok((0.0, 0.0)),
        None if facts.communicators.is_empty() => Err("NCCL's profiler plugin was not loaded"),
        None => Err("NCCL's profiler plugin does not report which rank uses this GPU"),
    };
    // Overlap cannot be measured: at most the time without active SMs is exposed.
    let most = busy * (1.0 - tensor.max(dram).min(100.0) / 100.0);
    let comm = comm.map(|(wait, wire)| {
        let scale = if wait + wire > most { most / (wait + wire) } else { 1.0 };
        (wait * scale, wire * scale)
    });
    let own = match comm {
        Ok((wait, wire)) => (busy - wait - wire).max(0.0),
        // SMs beyond those that NCCL could use all the time, and tensor activity, are surely the program's.
        Err(_) => ((sm - NCCL_SMS * busy) / (1.0 - NCCL_SMS)).max(tensor).clamp(0.0, busy),
    };
    // A rank that waits in an operation that never ends has no time for it.
    let still = if facts.alone() { 0.0 } else { percent(job.still_s).min(own) };
    let own = own - still;
    let few_sms = own_sms(sm, own) < 0.5 && tensor < 20.0 && dram < 30.0;
    let too_small = if comm.is_ok() && few_sms { own * (1.0 - own_sms(sm, own)) } else { 0.0 };
    let unknown = if comm.is_ok() { still } else { busy - own };
    let rest = own - too_small;
    let of_memory = if dram > tensor { (dram - tensor).min(rest) } else { 0.0 };
    let throttled = gpu.throttled.clone().map(|throttled| {
        let held = throttled.hw_slowdown_s.max(throttled.hw_thermal_s).max(throttled.power_brake_s);
        let held = held.max(throttled.sw_thermal_s);
        if throttled.over_s > 0.0 { (100.0 * held / throttled.over_s).min(100.0) } else { 0.0 }
    });
    let sources = usize::from(unit.app.is_some()) + usize::from(unit.comm.is_some() || facts.alone());
    let partial = unit.comm.is_some_and(|comm| comm.is_partial());
    let of_comm = |of: fn((f64, f64)) -> f64| {
        comm.map_or_else(|why| Reading::Failed(why.to_owned()), |both| Reading::Known(of(both)))
    };
    let gaps =
        unit.usage.is_some_and(|usage| usage.coverage.missing_s > 0.2 * (whole + usage.coverage.missing_s));
    let confidence = match (gaps || partial, sources) {
        (true, _) | (false, 0) => "low",
        (false, 2) => "high",
        _ => "medium",
    };
    Some(Shares {
        compute: rest - of_memory,
        comm_wait: of_comm(|both| both.0),
        comm_wire: of_comm(|both| both.1),
        memory: of_memory,
        input,
        launch: too_small + gap,
        unknown,
        idle,
        checkpoint,
        throttled,
        confidence: confidence.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use railgate_node_report::comm::{NcclProcess, RankTime};

    use super::*;
    use crate::Outcome;
    use crate::simulator::{Plant, parts_with, wait_for_the_network};

    fn of(nodes: &[NodeReport]) -> Shares {
        let found = shares(&Facts::new(nodes, nodes[0].end, Outcome::Good, None)).known().unwrap().clone();
        let known = |reading: &Reading<f64>| reading.known().copied().unwrap_or(0.0);
        let told = [&found.comm_wait, &found.comm_wire, &found.input, &found.checkpoint].map(known);
        let plain = found.compute + found.memory + found.launch + found.idle + found.unknown;
        assert!((told.iter().sum::<f64>() + plain - 100.0).abs() < 1e-6, "{found:?}");
        found
    }

    /// As for alltoall and in mode `count`, which have no times.
    fn add_calls_without_a_time(node: &mut NodeReport) {
        let comm = node.communication.as_mut().unwrap();
        let mut untimed = comm.collectives[0].clone();
        untimed.op = "AlltoAll".to_owned();
        for rank in &mut untimed.by_rank {
            *rank = RankTime { timed: 0, gpu_s: 0.0, ..*rank };
        }
        comm.collectives.push(untimed);
    }

    #[test]
    fn possible_waiting_in_nccl_is_neither_launch_nor_compute() {
        let told = of(&parts_with(&[Plant::TinyKernels]));
        assert!(told.launch > 40.0 && told.unknown == 0.0, "{told:?}");

        let mut partial = parts_with(&[Plant::TinyKernels]);
        partial.iter_mut().for_each(add_calls_without_a_time);
        let mut silent = parts_with(&[Plant::TinyKernels]);
        silent.iter_mut().for_each(|node| node.communication = None);
        let mut replayed = parts_with(&[Plant::TinyKernels]);
        for comm in replayed.iter_mut().filter_map(|node| node.communication.as_mut()) {
            let pids: std::collections::BTreeSet<u64> =
                comm.communicators.iter().map(|one| one.pid).collect();
            comm.processes = pids
                .into_iter()
                .map(|pid| NcclProcess { pid, captured: 3, ..NcclProcess::default() })
                .collect();
        }
        for nodes in [partial, silent, replayed] {
            let untold = of(&nodes);
            assert!(untold.launch == 0.0 && untold.unknown > 60.0 && untold.compute < 20.0, "{untold:?}");
        }
    }

    /// A few calls that move most of the bytes may take most of the time.
    #[test]
    fn few_large_untimed_calls_leave_as_much_unknown_as_many() {
        let mut nodes = parts_with(&[Plant::TinyKernels]);
        for node in &mut nodes {
            add_calls_without_a_time(node);
            let large = node.communication.as_mut().unwrap().collectives.last_mut().unwrap();
            large.from_bytes <<= 10;
            for rank in &mut large.by_rank {
                rank.calls /= 100;
            }
        }
        let untold = of(&nodes);
        assert!(untold.launch == 0.0 && untold.unknown > 60.0, "{untold:?}");
    }

    /// SMs that are active all the time are the job's, even without reports: NCCL's kernels use few.
    #[test]
    fn activity_on_all_sms_is_compute_without_nccl_times() {
        let mut nodes = parts_with(&[Plant::Healthy]);
        nodes.iter_mut().for_each(|node| node.communication = None);
        let untold = of(&nodes);
        assert!(untold.compute > 50.0 && (5.0..30.0).contains(&untold.unknown), "{untold:?}");
    }

    #[test]
    fn single_gpu_has_no_wait_for_other_ranks() {
        let mut nodes = parts_with(&[Plant::TinyKernels]);
        nodes.truncate(1);
        nodes[0].communication = None;
        nodes[0].application = None;
        nodes[0].usage.as_mut().unwrap().gpus.truncate(1);
        // The other node of the job has no report.
        assert!(of(&nodes).launch == 0.0);
        nodes[0].job.nodelist = "n0".to_owned();
        let alone = of(&nodes);
        assert!(alone.launch > 40.0 && alone.unknown == 0.0, "{alone:?}");
        assert_eq!((&alone.comm_wait, alone.confidence.as_str()), (&Reading::Known(0.0), "medium"));
    }

    /// PyTorch on two H200s: a GPU waited for the other's rank, and 45 % of the time was attributed to small
    /// kernels.
    #[test]
    fn waiting_in_a_hang_is_not_launch_time() {
        let nodes = parts_with(&[Plant::Hang]);
        let found = shares(&Facts::new(&nodes, nodes[0].end, Outcome::Failed, None)).known().unwrap().clone();
        assert!(
            found.launch == 0.0 && found.unknown > 30.0 && found.comm_wait.known().is_some(),
            "{found:?}"
        );
    }

    /// GPUs of a node whose plugin did not report count like the others.
    #[test]
    fn nodes_without_plugin_reports_are_included() {
        let mut nodes = parts_with(&[Plant::TinyKernels]);
        let all = of(&nodes);
        add_calls_without_a_time(&mut nodes[1]);
        let half = of(&nodes);
        assert!((half.launch - all.launch / 2.0).abs() < 3.0 && half.unknown > 30.0, "{half:?}");
    }

    /// Waiting for a slow network uses few SMs, but is not due to small kernels.
    #[test]
    fn waiting_for_others_is_not_small_kernels() {
        let mut nodes = parts_with(&[Plant::Healthy]);
        wait_for_the_network(&mut nodes);
        let found = of(&nodes);
        assert!(found.launch == 0.0 && found.comm_wait.known().is_some(), "{found:?}");
    }
}

//! The register is complete, and each threshold takes effect.

use std::collections::BTreeSet;

use railgate_model::Reading;
use railgate_node_report::NodeReport;
use railgate_node_report::phases::PhaseKind;
use railgate_node_report::usage::{IdleTime, Spread};
use serde_json::json;

mod look_alikes;

use super::RULES;
use crate::facts::{Facts, Outcome};
use crate::phases::tests::silent as silent_phases;
use crate::register::{Found, Over, Value};
use crate::simulator::{PLANTS, Plant, parts_with};
use crate::{Rules, analyse, by_id, explain, rules_markdown};

fn flat(mean: f64) -> Reading<Spread> {
    Reading::Known(Spread { mean, min: mean, max: mean, over_s: 100.0 })
}

/// The table `[report.rules]` with one value set.
fn set(rule: &str, key: &str, value: &serde_json::Value) -> Rules {
    serde_json::from_value(json!({ rule: { key: value } })).unwrap()
}

fn find(rule: &str, nodes: &[NodeReport], rules: &Rules) -> Vec<Found> {
    let failed = nodes[0].exit.is_some_and(|exit| exit.status != 0);
    let outcome = if failed { Outcome::Failed } else { Outcome::Good };
    let training = crate::facts::training(nodes);
    let rule = by_id(rule).unwrap();
    let facts = Facts::new(nodes, nodes[0].end, outcome, None).under(rules);
    let facts = if rule.over == Over::Training { facts.in_training(&training) } else { facts };
    (rule.find)(&facts)
}

fn only(plant: Plant) -> Vec<NodeReport> {
    parts_with(&[plant])
}

/// Without the program's report.
fn silent(plant: Plant) -> Vec<NodeReport> {
    let mut nodes = only(plant);
    nodes.iter_mut().for_each(|node| node.application = None);
    nodes
}

/// Idle GPUs, no waiting for disks, some waiting for processors.
fn starved() -> Vec<NodeReport> {
    let mut nodes = silent(Plant::InputStalls);
    for host in nodes.iter_mut().map(|node| &mut node.usage.as_mut().unwrap().host) {
        (host.io_pressure_percent, host.cpu_pressure_percent) = (flat(0.0), flat(40.0));
    }
    nodes
}

/// The same with busy CPU cores and no process waiting for one.
fn busy_cores() -> Vec<NodeReport> {
    let mut nodes = starved();
    for host in nodes.iter_mut().map(|node| &mut node.usage.as_mut().unwrap().host) {
        (host.cpu_pressure_percent, host.cpu_cores) = (flat(0.0), flat(30.4));
    }
    nodes
}

/// Both: who waits for a core is not waiting for input.
fn starved_and_busy() -> Vec<NodeReport> {
    let mut nodes = busy_cores();
    for host in nodes.iter_mut().map(|node| &mut node.usage.as_mut().unwrap().host) {
        host.cpu_pressure_percent = flat(40.0);
    }
    nodes
}

/// Each rank reports a tenth of the time in checkpoints.
fn saves() -> Vec<NodeReport> {
    let mut nodes = only(Plant::Healthy);
    let seconds = nodes[0].usage.as_ref().unwrap().coverage.sampled_s;
    for rank in nodes.iter_mut().flat_map(|node| &mut node.application.as_mut().unwrap().ranks) {
        (rank.checkpoints, rank.checkpoint_s) = (4, 0.2 * seconds);
    }
    nodes
}

/// Two saves of 30 s between 180 s of good training.
fn saves_for_long() -> Vec<NodeReport> {
    use PhaseKind::{Saving, Steady};
    let good = [99.0, 92.0, 60.0, 30.0];
    silent_phases(&[(Steady, 60), (Saving, 30), (Steady, 60), (Saving, 30), (Steady, 60)], good, good)
}

fn saves_once() -> Vec<NodeReport> {
    let good = [99.0, 92.0, 60.0, 30.0];
    silent_phases(&[(PhaseKind::Steady, 60), (PhaseKind::Saving, 20)], good, good)
}

/// GPUs are idle for 61 % of the training, and copy 490 MB/s to the host.
fn saves_silently() -> Vec<NodeReport> {
    let mut nodes = half_idle();
    for gpu in nodes.iter_mut().flat_map(|node| &mut node.usage.as_mut().unwrap().gpus) {
        (gpu.counters.pcie_tx_bytes_s, gpu.counters.pcie_rx_bytes_s) = (flat(490e6), flat(19e6));
    }
    let phases = nodes[0].usage.as_mut().unwrap().phases.as_mut().unwrap();
    for gpu in &mut phases.training.as_mut().unwrap().gpus {
        gpu.counters.pcie_tx_bytes_s = Reading::Known(490e6);
        gpu.counters.pcie_rx_bytes_s = Reading::Known(19e6);
    }
    nodes
}

/// A silent job whose GPUs run no kernel for 61 % of the training.
fn half_idle() -> Vec<NodeReport> {
    let idle = [39.0, 34.0, 11.0, 22.0];
    silent_phases(&[(PhaseKind::StartUp, 15), (PhaseKind::Steady, 20)], idle, idle)
}

/// The same job, and 31 GB/s are copied over PCIe, both directions together: 50.8 GB for each second without a kernel.
fn copies_silently() -> Vec<NodeReport> {
    let mut nodes = half_idle();
    let phases = nodes[0].usage.as_mut().unwrap().phases.as_mut().unwrap();
    for gpu in &mut phases.training.as_mut().unwrap().gpus {
        gpu.counters.pcie_tx_bytes_s = Reading::Known(1e9);
        gpu.counters.pcie_rx_bytes_s = Reading::Known(30e9);
    }
    nodes
}

/// The same job whose processes compute 90 % of the time, and 6 GB/s are copied: 9.8 GB for each second without a kernel.
fn copies_by_a_core() -> Vec<NodeReport> {
    let mut nodes = with_host(0.9, 0.0, 0.0, true);
    let phases = nodes[0].usage.as_mut().unwrap().phases.as_mut().unwrap();
    for counters in phases.training.as_mut().unwrap().gpus.iter_mut().map(|gpu| &mut gpu.counters) {
        (counters.pcie_tx_bytes_s, counters.pcie_rx_bytes_s) = (Reading::Known(0.0), Reading::Known(6e9));
        (counters.paused_percent, counters.pauses_per_minute) = (Reading::Known(0.0), Reading::Known(0.0));
    }
    nodes
}

/// Rank 1 last reported 100 s before the others.
fn fell_silent() -> Vec<NodeReport> {
    let mut nodes = only(Plant::Killed);
    let rank = &mut nodes[0].application.as_mut().unwrap().ranks[1];
    (rank.last_seen, rank.steps) = (rank.last_seen - 100_000, rank.steps - 50);
    nodes
}

/// A hang whose communicator was aborted, and another communicator used 100 s later.
fn given_up() -> Vec<NodeReport> {
    const USED: u64 = 1_800_003_600_000;
    let mut nodes = only(Plant::Hang);
    for comm in nodes.iter_mut().map(|node| node.communication.as_mut().unwrap()) {
        for one in &mut comm.communicators {
            one.destroyed = true;
            one.last.as_mut().unwrap().time = USED - 100_000;
        }
        let mut later = comm.communicators.clone();
        for one in &mut later {
            (one.hash, one.ops, one.destroyed) = ("later".to_owned(), 7, false);
            one.last.as_mut().unwrap().time = USED;
        }
        comm.communicators.extend(later);
    }
    nodes
}

/// PCIe traffic of 4 GB/s, both directions together.
fn copies() -> Vec<NodeReport> {
    let mut nodes = only(Plant::LateLaunches);
    for gpu in nodes.iter_mut().flat_map(|node| &mut node.usage.as_mut().unwrap().gpus) {
        (gpu.counters.pcie_tx_bytes_s, gpu.counters.pcie_rx_bytes_s) = (flat(2e9), flat(2e9));
    }
    nodes
}

/// 3.4 busy cores for four GPUs.
fn three_cores() -> Vec<NodeReport> {
    let mut nodes = only(Plant::LateLaunches);
    nodes.iter_mut().for_each(|node| node.usage.as_mut().unwrap().host.cpu_cores = flat(3.4));
    nodes
}

/// Two GPUs: the one with less work has a higher clock, the other one more work at a lower clock.
fn half_a_batch() -> Vec<NodeReport> {
    let mut nodes = only(Plant::SmallBatch);
    nodes.truncate(1);
    nodes[0].usage.as_mut().unwrap().gpus.truncate(2);
    nodes
}

/// Two GPUs with the same work, of which the power cap slows one by 16 %.
fn capped() -> Vec<NodeReport> {
    let mut nodes = half_a_batch();
    for gpu in &mut nodes[0].usage.as_mut().unwrap().gpus {
        gpu.counters.tensor_percent = flat(60_000.0 / gpu.busy_clock_mhz.known().unwrap());
    }
    nodes
}

/// The straggler waits for the others in another collective.
fn waits_a_little() -> Vec<NodeReport> {
    let mut nodes = only(Plant::Sleeps);
    for comm in nodes.iter_mut().map(|node| node.communication.as_mut().unwrap()) {
        let mut other = comm.collectives[0].clone();
        other.op = "AllGather".to_owned();
        other.by_rank.iter_mut().for_each(|rank| rank.gpu_s = if rank.rank == 1 { 3.0 } else { 1.0 });
        comm.collectives.push(other);
    }
    nodes
}

/// The same job, whose GPUs pause for 50 % of the training, 15 times a minute; the process of the first GPU uses `cpu` cores and
/// waits for `wait` cores, as all others do if `all`, and other processes use `others` cores per GPU.
fn with_host(cpu: f64, wait: f64, others: f64, all: bool) -> Vec<NodeReport> {
    let mut nodes = half_idle();
    let usage = nodes[0].usage.as_mut().unwrap();
    usage.host.cpu_cores = flat(2.0 * (cpu + others));
    let training = usage.phases.as_mut().unwrap().training.as_mut().unwrap();
    training.host.cpu_cores = Reading::Known(2.0 * (cpu + others));
    for (place, (gpu, then)) in usage.gpus.iter_mut().zip(&mut training.gpus).enumerate() {
        let wait = if all || place == 0 { wait } else { 0.0 };
        let values = [50.0, 15.0, 100.0 * cpu, 100.0 * wait];
        let [paused, pauses, process_cpu, process_wait] = values.map(flat);
        let counters = &mut gpu.counters;
        (counters.paused_percent, counters.pauses_per_minute) = (paused, pauses);
        (counters.process_cpu_percent, counters.process_wait_percent) = (process_cpu, process_wait);
        let [paused, pauses, process_cpu, process_wait] = values.map(Reading::Known);
        (then.counters.paused_percent, then.counters.pauses_per_minute) = (paused, pauses);
        (then.counters.process_cpu_percent, then.counters.process_wait_percent) = (process_cpu, process_wait);
    }
    nodes
}

/// The processes sleep 55 % of the time, and their loaders use 1.2 cores per GPU.
fn loaders() -> Vec<NodeReport> {
    with_host(0.45, 0.0, 1.2, true)
}

/// A rank waits for no other one in NCCL, and the GPUs' activity is unknown.
fn waits_alone() -> Vec<NodeReport> {
    let mut nodes = only(Plant::Sleeps);
    for gpu in nodes.iter_mut().flat_map(|node| &mut node.usage.as_mut().unwrap().gpus) {
        (gpu.counters.any_kernel_percent, gpu.counters.graphics_percent) =
            (Reading::Unsupported, Reading::Unsupported);
    }
    nodes
}

/// A job of half a minute on two GPUs, of which one is never used.
fn one_unused() -> Vec<NodeReport> {
    let mut nodes = only(Plant::UnusedGpu);
    nodes.retain(|node| node.usage.as_ref().unwrap().gpus.len() > 4);
    for gpu in &mut nodes[0].usage.as_mut().unwrap().gpus {
        let over_s = 32.0;
        gpu.idle = gpu.idle.clone().map(|idle| IdleTime { over_s, idle_s: idle.idle_s.min(over_s), ..idle });
    }
    nodes[0].usage.as_mut().unwrap().coverage.sampled_s = 32.0;
    nodes
}

/// Six of 20 equal pauses are of another rank.
fn another_pauses_too() -> Vec<NodeReport> {
    let mut nodes = only(Plant::Pauses);
    for pauses in nodes.iter_mut().filter_map(|node| node.communication.as_mut()?.pauses.as_mut()) {
        pauses.sums.clear();
        for (place, pause) in pauses.longest.iter_mut().enumerate() {
            pause.lost_s = 1.5;
            if place % 10 < 3 && !pause.behind.is_empty() {
                pause.behind = vec![if pause.behind[0] == 1 { 2 } else { 5 }];
            }
        }
    }
    nodes
}

/// Two ranks have ten of 20 pauses each.
fn pauses_in_turn() -> Vec<NodeReport> {
    let mut nodes = only(Plant::Pauses);
    for pauses in nodes.iter_mut().filter_map(|node| node.communication.as_mut()?.pauses.as_mut()) {
        pauses.sums.clear();
        for (rank, pause) in (0..).zip(&mut pauses.longest).filter(|(_, pause)| !pause.behind.is_empty()) {
            pause.behind = vec![rank % 2];
        }
    }
    nodes
}

/// A silent job in which all ranks wait for one whose GPU does 30 % more tensor work.
fn more_work() -> Vec<NodeReport> {
    let mut nodes = silent(Plant::Sleeps);
    let late = super::sleeping_rank::waits(&Facts::new(&nodes, nodes[0].end, Outcome::Good, None));
    let [(part, _)] = &late[..] else { panic!("{late:?}") };
    for node in &mut nodes {
        let name = node.node.clone();
        for gpu in &mut node.usage.as_mut().unwrap().gpus {
            let is_late = part.starts_with(&format!("{name} GPU {} ", gpu.index));
            gpu.busy_clock_mhz = Reading::Known(1500.0);
            gpu.counters.tensor_percent = flat(if is_late { 52.0 } else { 40.0 });
            // It works all along: its rank does not sleep.
            (gpu.counters.graphics_percent, gpu.counters.any_kernel_percent) = (flat(97.0), flat(97.0));
        }
    }
    nodes
}

/// A silent job whose GPUs wait for 85 s before its end.
fn waits_to_the_end() -> Vec<NodeReport> {
    let phases = [(PhaseKind::Steady, 20), (PhaseKind::Stalled, 85)];
    let mut nodes = silent_phases(&phases, [99.0, 30.0, 12.0, 6.0], [99.0, 92.0, 60.0, 30.0]);
    nodes[0].exit = Some(railgate_node_report::Exit { status: 256, derived: None });
    nodes
}

/// A silent job that ran no kernel for 85 s before it was cancelled.
fn idles_to_the_end() -> Vec<NodeReport> {
    let phases = [(PhaseKind::Steady, 20), (PhaseKind::Tail, 85)];
    let mut nodes = silent_phases(&phases, [19.0, 6.0, 2.0, 1.0], [99.0, 92.0, 60.0, 30.0]);
    nodes[0].exit = Some(railgate_node_report::Exit { status: 256, derived: None });
    let since = nodes[0].end.map(|end| end - 85_000);
    let usage = nodes[0].usage.as_mut().unwrap();
    usage.host.cpu_cores = flat(4.0);
    for gpu in &mut usage.gpus {
        gpu.idle = Reading::Known(IdleTime { over_s: 105.0, idle_s: 85.0, since });
    }
    nodes
}

/// The same, and the job ended well.
fn idles_after_its_work() -> Vec<NodeReport> {
    let mut nodes = idles_to_the_end();
    nodes[0].exit = None;
    nodes
}

/// A start-up of 15 minutes without a kernel, and ten minutes of training.
fn starts_for_long() -> Vec<NodeReport> {
    let phases = [(PhaseKind::StartUp, 900), (PhaseKind::Steady, 600)];
    let mut nodes = silent_phases(&phases, [40.0; 4], [99.0, 92.0, 60.0, 30.0]);
    for gpu in &mut nodes[0].usage.as_mut().unwrap().gpus {
        gpu.idle = Reading::Known(IdleTime { over_s: 1500.0, idle_s: 900.0, since: None });
    }
    nodes
}

/// A rail that carries nothing for 130 s, and then again.
fn stops_for_a_while() -> Vec<NodeReport> {
    let mut nodes = only(Plant::StoppedRail);
    let rail = &mut nodes[0].usage.as_mut().unwrap().rails[3];
    let Reading::Known(quiet) = &mut rail.quiet else { panic!("{rail:?}") };
    let longest = quiet.longest.as_mut().unwrap();
    (longest.start, longest.end) = (1_800_001_200_000, Some(1_800_001_320_000));
    (longest.seconds, longest.before_s, longest.others_bytes_s) = (130.0, 90.0, 12e9);
    nodes
}

/// Rule and key of a threshold, a job on which it decides, words of the finding, a value with which the finding
/// appears, and one with which it does not.
type Row = (&'static str, &'static str, fn() -> Vec<NodeReport>, &'static str, f64, f64);

const ROWS: &[Row] = &[
    ("killed-rank", "silent", fell_silent, "stopped reporting", 99.0, 101.0),
    ("killed-rank", "silent_steps", fell_silent, "stopped reporting", 86.0, 87.0),
    ("hang", "stall", waits_to_the_end, "no step for", 84.0, 86.0),
    ("hang", "standstill", || only(Plant::Hang), "", 599.0, 601.0),
    ("hang", "standstill_steps", || only(Plant::Hang), "", 517.0, 518.0),
    ("hang", "assumed_step", || silent(Plant::Hang), "", 59.0, 61.0),
    ("hang", "same_time", given_up, "stopped before", 101.0, 99.0),
    ("slow-clock", "below_percent", || only(Plant::SlowClock), "", 14.2, 14.3),
    ("slow-clock", "capped_below_percent", capped, "power cap", 15.9, 16.1),
    ("slow-clock", "busy_percent", || only(Plant::SlowClock), "", 76.0, 77.0),
    ("slow-clock", "more_work_percent", half_a_batch, "", 40.1, 40.0),
    ("slow-clock", "reason_percent", || only(Plant::SlowClock), "power brake", 89.9, 90.1),
    ("pausing-rank", "least", || only(Plant::Pauses), "pauses while", 20.0, 21.0),
    ("pausing-rank", "lost_percent", || only(Plant::Pauses), "pauses while", 6.0, 6.5),
    ("pausing-rank", "same_percent", another_pauses_too, "pauses while", 69.0, 71.0),
    ("pausing-rank", "in_turn_percent", pauses_in_turn, "pause in turn", 6.1, 6.3),
    ("sleeping-rank", "least", || only(Plant::Sleeps), "wait for it in NCCL", 618.0, 619.0),
    ("sleeping-rank", "waiting_percent", || only(Plant::Sleeps), "wait for it in NCCL", 25.7, 25.8),
    ("sleeping-rank", "waits_percent", waits_a_little, "wait for it in NCCL", 20.2, 20.0),
    ("sleeping-rank", "alone_percent", waits_alone, "wait for it in NCCL", 24.0, 30.0),
    ("sleeping-rank", "busy_percent", || only(Plant::Sleeps), "is idle", 91.5, 91.6),
    ("sleeping-rank", "idle_percent", || only(Plant::Sleeps), "is idle", 24.0, 24.1),
    ("uneven-work", "off_percent", || only(Plant::SmallBatch), "", 40.0, 40.1),
    ("uneven-work", "more_percent", more_work, "more tensor work", 29.9, 30.1),
    ("input-bound", "waiting_percent", || only(Plant::InputStalls), "", 22.2, 22.3),
    ("input-bound", "busy_percent", || silent(Plant::InputStalls), "", 72.0, 71.9),
    ("input-bound", "sm_percent", || silent(Plant::InputStalls), "", 51.3, 51.2),
    ("input-bound", "io_pressure_percent", || silent(Plant::InputStalls), "", 34.9, 35.1),
    ("input-bound", "cpu_pressure_percent", starved_and_busy, "", 40.1, 39.9),
    ("input-bound", "cores_percent", busy_cores, "", 94.9, 95.1),
    ("input-bound", "asleep_percent", loaders, "data loaders", 54.9, 55.1),
    ("input-bound", "loader_cores", loaders, "data loaders", 1.1, 1.3),
    ("cpu-contention", "pressure_percent", starved, "waits for a CPU core", 39.9, 40.1),
    ("cpu-contention", "busy_percent", starved, "waits for a CPU core", 72.0, 71.9),
    ("saving", "told_percent", saves, "saves checkpoints", 19.9, 20.1),
    ("saving", "busy_percent", saves_silently, "copied off", 39.1, 38.9),
    ("saving", "copied_mb_s", saves_silently, "copied off", 489.0, 491.0),
    ("saving", "copied_times", saves_silently, "copied off", 25.7, 25.8),
    ("saving", "long_percent", saves_for_long, "no GPU works for", 24.9, 25.1),
    ("saving", "alone", saves_once, "no GPU works for", 20.0, 21.0),
    ("pauses", "share_percent", || with_host(0.9, 0.0, 0.1, true), "at a time", 49.9, 50.1),
    ("pauses", "count", || with_host(0.9, 0.0, 0.1, true), "at a time", 4.9, 5.1),
    ("pauses", "mean_s", || with_host(0.9, 0.0, 0.1, true), "at a time", 1.9, 2.1),
    ("host-bound", "least", half_idle, "the host sets the pace", 20.0, 21.0),
    ("host-bound", "copied_gb_s", copies_silently, "51 GB/s are copied", 50.7, 50.9),
    ("host-bound", "copied_by_a_core_gb_s", copies_by_a_core, "10 GB/s are copied", 9.8, 9.9),
    ("host-bound", "busy_percent", half_idle, "the host sets the pace", 39.1, 38.9),
    ("memory-bound", "dram_percent", || only(Plant::MemoryBound), "", 65.8, 65.9),
    ("memory-bound", "dram_running_percent", || only(Plant::MemoryBound), "", 83.5, 83.6),
    ("memory-bound", "tensor_running_percent", || only(Plant::MemoryBound), "", 10.1, 9.9),
    ("launch-bound", "tensor_percent", || only(Plant::TinyKernels), "", 3.2, 3.1),
    ("launch-bound", "dram_percent", || only(Plant::TinyKernels), "", 7.9, 7.8),
    ("launch-bound", "own_percent", || only(Plant::TinyKernels), "", 78.8, 78.9),
    ("launch-bound", "own_of_busy_percent", || only(Plant::TinyKernels), "", 87.5, 87.6),
    ("launch-bound", "sm_percent", || only(Plant::TinyKernels), "", 16.5, 16.4),
    ("launch-bound", "sm_running_percent", || only(Plant::TinyKernels), "", 20.9, 20.8),
    ("launch-bound", "gap_percent", || only(Plant::LateLaunches), "too late", 58.9, 59.0),
    ("launch-bound", "least_steps", || only(Plant::LateLaunches), "too late", 399.0, 400.0),
    ("launch-bound", "copied_gb_s", copies, "too late", 4.2, 4.1),
    ("launch-bound", "cores_percent", three_cores, "too late", 84.9, 85.1),
    ("degraded-rail", "lasts", stops_for_a_while, "from 08:20 to 08:22 UTC", 130.0, 131.0),
    ("degraded-rail", "carried", stops_for_a_while, "", 90.0, 91.0),
    ("degraded-rail", "used_mb_s", || only(Plant::StoppedRail), "", 39999.0, 40001.0),
    ("degraded-rail", "others_percent", stops_for_a_while, "", 30.0, 31.0),
    ("rail-imbalance", "used_mb_s", || only(Plant::SlowRail), "", 39999.0, 40001.0),
    ("rail-imbalance", "carries_percent", || only(Plant::SlowRail), "", 15.1, 14.9),
    ("idle-gpus", "least", || only(Plant::Asleep), "runs kernels", 10583.0, 10585.0),
    ("idle-gpus", "unused", one_unused, "never used", 31.0, 33.0),
    ("idle-gpus", "memory_mib", || only(Plant::UnusedGpu), "never used", 4.0, 3.9),
    ("idle-gpus", "idle_percent", || only(Plant::Asleep), "runs kernels", 97.9, 98.1),
    ("idle-gpus", "asleep_percent", || only(Plant::Asleep), "runs kernels", 0.6, 0.3),
    ("idle-gpus", "end", idles_to_the_end, "for the last 1 min 25 s", 84.0, 86.0),
    ("idle-gpus", "tail", idles_after_its_work, "for the last 1 min 25 s", 84.0, 86.0),
    ("idle-gpus", "tail_percent", idles_after_its_work, "for the last 1 min 25 s", 80.9, 81.0),
    (
        "idle-gpus",
        "start",
        starts_for_long,
        "the job's start-up took 15 min 00 s of 25 min 00 s",
        899.0,
        901.0,
    ),
    ("idle-gpus", "low_percent", || only(Plant::LowUse), "used them", 7.2, 6.8),
];

/// In seconds if the key is a time.
fn value(rule: &str, key: &str, number: f64) -> serde_json::Value {
    let one = by_id(rule).unwrap().thresholds.iter().find(|one| one.key == key).unwrap();
    match one.default {
        Value::Time(_) => json!(format!("{number}s")),
        Value::Number(_) => json!(number),
    }
}

#[test]
fn each_threshold_decides_at_its_limit() {
    for (rule, key, job, words, with, without) in ROWS {
        let nodes = job();
        let says = |number: f64| {
            let found = find(rule, &nodes, &set(rule, key, &value(rule, key, number)));
            found.iter().any(|found| found.what.contains(words))
        };
        assert!(says(*with), "{rule}: {key} = {with}: {words:?} is not found");
        assert!(!says(*without), "{rule}: {key} = {without}: {words:?} is found");
    }
    let tried: BTreeSet<(&str, &str)> = ROWS.iter().map(|row| (row.0, row.1)).collect();
    let keys = RULES.iter().flat_map(|rule| rule.thresholds.iter().map(|one| (rule.id, one.key)));
    assert_eq!(tried, keys.collect(), "each threshold has a row");
}

#[test]
fn each_value_out_of_range_is_refused_and_named() {
    for (rule, one) in RULES.iter().flat_map(|rule| rule.thresholds.iter().map(move |one| (rule.id, one))) {
        let problems = |value: &serde_json::Value| set(rule, one.key, value).problems();
        for inside in [one.default, one.low, one.high] {
            assert_eq!(problems(&json!(inside)), [""; 0], "{rule} {}", one.key);
        }
        let beyond = match (one.low, one.high) {
            (Value::Number(low), Value::Number(high)) => [json!(low.get() - 0.01), json!(high.get() + 0.01)],
            // A time cannot be below 0s.
            (_, high) => [json!(format!("{high} 1ms")), json!(format!("{high} 1ms"))],
        };
        for outside in beyond {
            let said = problems(&outside);
            let place = format!("report.rules.{rule}.{}: ", one.key);
            let range = format!("is not within {} to {}", one.low, one.high);
            assert!(said.len() == 1 && said[0].starts_with(&place) && said[0].ends_with(&range), "{said:?}");
        }
    }
    assert_eq!(Rules::default().problems(), [""; 0]);
}

#[test]
fn each_rule_has_documentation_and_a_table() {
    let page = rules_markdown();
    let tables = serde_json::to_value(Rules::default()).unwrap();
    let mut ids = BTreeSet::new();
    for rule in RULES {
        let id = rule.id;
        assert!(ids.insert(id), "{id} stands twice");
        for text in [rule.about, rule.evidence, rule.why, rule.look_alikes, rule.fix] {
            assert!(!text.is_empty() && !text.starts_with(' '), "{id}: {text:?}");
        }
        assert!(rule.about.len() <= 110 && !rule.about.ends_with('.') && !rule.fix.ends_with('.'), "{id}");
        let told = explain(id).unwrap();
        assert!(page.contains(&format!("\n## {id}\n")) && told.starts_with(&format!("{id}: ")), "{told}");
        let shown = tables.get(id).map(|table| table.as_object().unwrap().len()).unwrap_or_default();
        assert_eq!(shown, rule.thresholds.len(), "{id}: its table is named otherwise, or lacks keys");
        for one in rule.thresholds {
            let line = format!("\n{} = {}\n", one.key, one.default.toml());
            assert!(told.contains(&line) && page.contains(&line) && !one.meaning.is_empty(), "{id}: {line}");
            assert_eq!(tables[id][one.key], json!(one.default), "{id}: {}", one.key);
        }
    }
    assert_eq!(tables.as_object().unwrap().keys().filter(|id| !ids.contains(id.as_str())).count(), 0);
    assert_eq!(explain("slow-clok"), None);
    let long = page.lines().find(|line| line.chars().count() > 190 && !line.starts_with('|'));
    assert_eq!(long, None);
}

/// What the process of a GPU does while no kernel runs decides what is said.
#[test]
fn idle_gpus_are_explained_by_what_their_processes_do() {
    let all = |nodes: &[NodeReport]| {
        let told = analyse(nodes, nodes[0].end, Outcome::Good, None, &Rules::DEFAULT).unwrap();
        told.diagnoses.into_iter().map(|one| (one.rule, one.part, one.what)).collect::<Vec<_>>()
    };
    let only = |nodes: &[NodeReport]| match &all(nodes)[..] {
        [one] => one.clone(),
        several => panic!("{several:?}"),
    };
    let (rule, part, what) = only(&with_host(0.5, 0.6, 0.1, false));
    assert_eq!(rule, "cpu-contention");
    assert!(part.ends_with("GPU 0") && what.starts_with("the process of "), "{part}: {what}");
    let (rule, part, _) = only(&with_host(0.5, 0.6, 0.1, true));
    assert_eq!((rule.as_str(), part.as_str()), ("cpu-contention", ""));
    assert_eq!(only(&loaders()).0, "input-bound");
    assert_eq!(only(&with_host(0.9, 0.0, 0.1, true)).0, "pauses");
    let mut sums_on_the_host = with_host(0.9, 0.0, 0.1, true);
    let usage = sums_on_the_host[0].usage.as_mut().unwrap();
    for gpu in &mut usage.phases.as_mut().unwrap().training.as_mut().unwrap().gpus {
        (gpu.counters.pcie_tx_bytes_s, gpu.counters.pcie_rx_bytes_s) =
            (Reading::Known(628e6), Reading::Known(578e6));
    }
    let (rule, _, what) = only(&sums_on_the_host);
    assert_eq!(rule, "pauses");
    assert!(
        what.contains("628 MB/s are copied off each GPU and 578 MB/s onto it: sums of gradients"),
        "{what}"
    );
    let without_pauses = |cpu| {
        let mut nodes = with_host(cpu, 0.0, 0.1, true);
        let usage = nodes[0].usage.as_mut().unwrap();
        for gpu in &mut usage.phases.as_mut().unwrap().training.as_mut().unwrap().gpus {
            gpu.counters.paused_percent = Reading::Known(0.0);
        }
        only(&nodes)
    };
    let (rule, _, what) = without_pauses(1.0);
    assert!(rule == "host-bound" && what.contains("computes on the CPU meanwhile"), "{rule}: {what}");
    let (rule, _, what) = without_pauses(0.4);
    assert!(rule == "host-bound" && what.contains("sleeps 60 % of it"), "{rule}: {what}");
}

/// A silent program with small kernels and a busy core launches too late; the pauses are not counted.
#[test]
fn late_launches_of_a_silent_program_need_small_kernels() {
    let mut nodes = with_host(1.0, 0.0, 0.0, true);
    assert_eq!(find("launch-bound", &nodes, &Rules::DEFAULT), []);
    for gpu in &mut nodes[0].usage.as_mut().unwrap().phases.as_mut().unwrap().training.as_mut().unwrap().gpus
    {
        (gpu.counters.pcie_tx_bytes_s, gpu.counters.pcie_rx_bytes_s) =
            (Reading::Known(1e6), Reading::Known(1e6));
        gpu.counters.sm_percent = Reading::Known(4.0);
        gpu.counters.paused_percent = Reading::Known(24.0);
    }
    let [one] = &find("launch-bound", &nodes, &Rules::DEFAULT)[..] else { panic!("not found") };
    assert!(one.confidence != "high" && one.what.contains("no kernel runs 37 % of"), "{one:?}");
}

/// Finds rules missing in the register, and rules that no planted fault triggers.
#[test]
fn planted_faults_are_reported_under_registered_ids() {
    let mut reported = BTreeSet::new();
    for (plant, _, wanted) in PLANTS {
        let nodes = only(plant);
        let failed = nodes[0].exit.is_some_and(|exit| exit.status != 0);
        let outcome = if failed { Outcome::Failed } else { Outcome::Good };
        let analysis = analyse(&nodes, nodes[0].end, outcome, None, &Rules::DEFAULT).unwrap();
        for one in &analysis.diagnoses {
            let rule = by_id(&one.rule).unwrap_or_else(|| panic!("{one:?}"));
            assert_eq!(one.class, rule.class.as_str());
        }
        let ids = analysis.diagnoses.into_iter().map(|one| one.rule);
        reported.extend(ids);
        assert!(wanted.is_empty() || by_id(wanted).is_some(), "{wanted}");
    }
    // Rules of silent programs have no plant, but rows above.
    reported.extend(ROWS.iter().map(|row| row.0.to_owned()));
    assert_eq!(reported, RULES.iter().map(|rule| rule.id.to_owned()).collect());
}

fn counter(delta: u64) -> serde_json::Value {
    json!({ "before": Reading::Known(0), "after": Reading::Known(delta), "delta": Reading::Known(delta) })
}

/// The rail that stopped is named with the time, once, and before its partners if its own link went down.
#[test]
fn a_rail_that_stopped_is_named_with_its_time() {
    let all = |nodes: &[NodeReport]| {
        let told = analyse(nodes, nodes[0].end, Outcome::Good, None, &Rules::DEFAULT).unwrap();
        told.diagnoses
    };
    let nodes = stops_for_a_while();
    let [one] = &all(&nodes)[..] else { panic!("not one finding") };
    assert_eq!(
        one.what,
        "n0 ran degraded on rail 3 (mlx5_3) from 08:20 to 08:22 UTC: no traffic for 2 min 10 s, 40.00 GB/s before; the other rails \
         carried 12.00 GB/s"
    );
    assert_eq!(
        (one.confidence.as_str(), one.since, one.costs),
        ("medium", Some(1_800_001_200_000), Some(0.0))
    );

    let mut nodes = only(Plant::StoppedRail);
    let quiet = nodes[0].usage.as_ref().unwrap().rails[3].quiet.clone();
    nodes[1].usage.as_mut().unwrap().rails[3].quiet = quiet;
    let port = json!({
        "hca": "mlx5_3",
        "port": 1,
        "rail": 3,
        "state_before": Reading::Known("active"),
        "state_after": Reading::Known("active"),
        "rate_gbps": Reading::Known(400.0),
        "tx_bytes": counter(0),
        "rx_bytes": counter(0),
        "link_downed": counter(1),
        "errors": {},
    });
    nodes[1].ports = vec![serde_json::from_value(port).unwrap()];
    let found = all(&nodes);
    let told: Vec<_> = found.iter().map(|one| (one.part.as_str(), one.confidence.as_str())).collect();
    assert_eq!(told, [("n1 r3 (mlx5_3)", "high"), ("n0 r3 (mlx5_3)", "medium")]);
    assert!(
        found[0].what.contains(" UTC: ") && found[0].what.ends_with("; its link went down once"),
        "{found:?}"
    );

    // On most nodes of a larger job it is the program, except where a link went down.
    let mut four = nodes.clone();
    for (number, node) in nodes.iter().enumerate() {
        four.push(NodeReport { node: format!("n{}", number + 2), ports: vec![], ..node.clone() });
    }
    let told: Vec<_> = all(&four).into_iter().map(|one| one.part).collect();
    assert_eq!(told, ["n1 r3 (mlx5_3)"]);

    // Without the sampler's figures nothing is said of a time.
    for rail in nodes.iter_mut().flat_map(|node| &mut node.usage.as_mut().unwrap().rails) {
        rail.quiet = Reading::Failed("not sampled".to_owned());
    }
    assert!(all(&nodes).iter().all(|one| one.rule != "degraded-rail"));
}

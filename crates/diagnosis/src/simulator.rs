//! Simulates a job of a few ranks step by step: each computes, then all meet in a collective. Derives the
//! output of the sampler, the NCCL plugin and the program.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    clippy::unwrap_used,
    reason = "a test's own figures"
)]

#[cfg(test)]
mod matrix;

use railgate_model::{Allocation, GpuCounters, GpuField, Job, Reading};
use railgate_node_report::application::{
    AppEvent, AppEventKind, Application, Convention, Model, RankApplication, StepTimes,
};
use railgate_node_report::comm::{Collective, Communication, Communicator, LastOp, Pause, Pauses, RankTime};
use railgate_node_report::usage::{
    Calibration, Coverage, GpuUsage, HardwareFlop, HostUsage, IdleTime, PeakUsed, QuietTime, RailQuiet,
    RailUsage, SamplerCost, Spread, Throttled, Usage,
};
use railgate_node_report::{Exit, NodeReport};

const START: u64 = 1_800_000_000_000;
const NODES: u32 = 2;
const PER_NODE: u32 = 4;
const RANKS: u32 = NODES * PER_NODE;
const STEPS: u32 = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    Healthy,
    Sleeps,
    /// A rank does something else between some steps.
    Pauses,
    SlowClock,
    SmallBatch,
    InputStalls,
    MemoryBound,
    TinyKernels,
    LateLaunches,
    Nan,
    Killed,
    Hang,
    SlowRail,
    /// A rail carries nothing from the middle of the run on.
    StoppedRail,
    /// A GPU that the job holds and no rank uses.
    UnusedGpu,
    /// A notebook that computed for some minutes and sleeps.
    Asleep,
    /// Kernels run for 7 % of the time, spread over all of it.
    LowUse,
}

impl Plant {
    /// Programs that neither report nor use NCCL.
    fn is_alone(planted: Planted<'_>) -> bool {
        planted.contains(&Plant::Asleep) || planted.contains(&Plant::LowUse)
    }
}

pub const PLANTS: [(Plant, &str, &str); 17] = [
    (Plant::Healthy, "nothing", ""),
    (Plant::Sleeps, "a rank sleeps in every step", "sleeping-rank"),
    (Plant::Pauses, "a rank pauses every 20 steps", "pausing-rank"),
    (Plant::SlowClock, "a rank on a slower clock", "slow-clock"),
    (Plant::SmallBatch, "a rank with a smaller batch", "uneven-work"),
    (Plant::InputStalls, "an input pipeline that stalls", "input-bound"),
    (Plant::MemoryBound, "memory-bound kernels", "memory-bound"),
    (Plant::TinyKernels, "tiny kernels", "launch-bound"),
    (Plant::LateLaunches, "kernels launched too late", "launch-bound"),
    (Plant::Nan, "a NaN", "nan"),
    (Plant::Killed, "a killed rank", "killed-rank"),
    (Plant::Hang, "a hang in one collective", "hang"),
    (Plant::SlowRail, "a rail that carries little", "rail-imbalance"),
    (Plant::StoppedRail, "a rail that stops", "degraded-rail"),
    (Plant::UnusedGpu, "a GPU that no rank uses", "idle-gpus"),
    (Plant::Asleep, "a notebook asleep", "idle-gpus"),
    (Plant::LowUse, "GPUs busy 7 % of the time", "idle-gpus"),
];

/// Sources of data in a simulated run.
#[derive(Clone, Copy, Debug)]
struct Heard {
    application: bool,
    waits_told: bool,
    nccl: bool,
    /// The GPUs provide GPM activities, as Hopper does and Ampere does not.
    gpm: bool,
}

/// splitmix64 generator of numbers between 0 and 1.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        #[expect(clippy::cast_precision_loss, reason = "53 bits")]
        let unit = ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        unit
    }

    fn about(&mut self, value: f64, spread: f64) -> f64 {
        value * (1.0 + spread * (2.0 * self.next() - 1.0))
    }
}

#[derive(Clone, Debug, Default)]
struct Rank {
    busy: f64,
    sm: f64,
    tensor: f64,
    dram: f64,
    input: f64,
    comm: f64,
    ops: u64,
    steps: u32,
    seen: f64,
    tokens: f64,
    nan: Option<(f64, u32)>,
    /// Seconds without a kernel, in whole samples.
    idle: f64,
    /// When the last kernel ended, if it was the last one.
    idle_since: Option<f64>,
}

struct Run {
    ranks: Vec<Rank>,
    odd: u32,
    seconds: f64,
    clock: f64,
    /// Clock of ranks with a full batch; the one with less work has spare power for a higher clock.
    capped_clock: Option<f64>,
    failed: bool,
    pauses: Vec<Paused>,
}

/// A pause of the odd rank.
struct Paused {
    /// When the step before ended, and how long it did not go on, seconds.
    at: f64,
    seconds: f64,
    /// Operations until then.
    ops: u64,
}

/// Faults planted in one run: none, one or several.
pub type Planted<'a> = &'a [Plant];

fn run(planted: Planted<'_>, chance: &mut Chance) -> Run {
    let has = |plant: Plant| planted.contains(&plant);
    let odd = if chance.next() < 0.5 { 1 } else { 6 };
    let mut ranks = vec![Rank::default(); 8];
    let mut now = 40.0;
    let at = 150 + (chance.next() * 200.0) as u32;
    let slower = chance.about(0.8, 0.1);
    let strength = chance.about(0.4, 0.3);
    let (sm, tensor, dram, gaps) = if has(Plant::MemoryBound) {
        (0.85, 0.1, chance.about(0.85, 0.08), 0.02)
    } else if has(Plant::TinyKernels) {
        (chance.about(0.2, 0.3), 0.04, 0.1, 0.12)
    } else if has(Plant::LateLaunches) {
        // As on an H200: an eager loop of 3,000 additions of 1,024 numbers.
        (0.05, 0.0, 0.0, chance.about(2.5, 0.6))
    } else {
        (0.92, chance.about(0.55, 0.15), 0.4, 0.02)
    };
    let (mut stopped, mut pauses) = (None, Vec::new());
    for step in 0..STEPS {
        let pause = if has(Plant::Pauses) && step % 20 == 19 { chance.about(1.7, 0.1) } else { 0.0 };
        if pause > 0.0 {
            pauses.push(Paused { at: now, seconds: pause, ops: u64::from(step) });
        }
        let arrive: Vec<f64> = (0..RANKS)
            .zip(&mut ranks)
            .map(|(number, rank)| {
                let is_odd = number == odd;
                let stalls = has(Plant::InputStalls);
                let input = if stalls { chance.about(strength, 0.8) } else { chance.about(0.01, 0.5) };
                let mut compute = chance.about(1.0, 0.01);
                let mut idle = chance.about(gaps, 0.2);
                if is_odd && has(Plant::SlowClock) {
                    compute /= slower;
                }
                if is_odd && has(Plant::SmallBatch) {
                    compute *= 0.6;
                }
                if is_odd && has(Plant::Sleeps) {
                    idle += strength;
                }
                if is_odd {
                    idle += pause;
                }
                rank.input += input;
                rank.busy += compute;
                rank.sm += compute * sm;
                rank.tensor += compute * tensor;
                rank.dram += compute * dram;
                rank.tokens += if has(Plant::SmallBatch) && is_odd { 2457.0 } else { 4096.0 };
                input + compute + idle
            })
            .collect();
        let stops = step == at && (has(Plant::Killed) || has(Plant::Hang));
        let last = arrive.iter().copied().fold(0.0, f64::max);
        for ((number, rank), came) in (0_u32..).zip(&mut ranks).zip(&arrive) {
            if stops && number == odd {
                continue;
            }
            rank.ops += 1;
            if stops {
                continue;
            }
            let wire = chance.about(0.12, 0.02);
            rank.comm += last - came + wire;
            rank.busy += last - came + wire;
            // Waiting ranks spin on few SMs.
            rank.sm += 0.15 * (last - came + wire);
            rank.steps += 1;
            rank.seen = now + last + 0.12;
            if has(Plant::Nan) && (step > at || step == at && number == odd) && rank.nan.is_none() {
                rank.nan = Some((rank.seen, step));
            }
        }
        if stops {
            stopped = Some(if has(Plant::Hang) { 600.0 } else { 20.0 });
            for (number, rank) in (0_u32..).zip(&mut ranks) {
                // The other ranks wait inside NCCL meanwhile.
                if number != odd {
                    rank.busy += stopped.unwrap_or(0.0);
                    rank.sm += 0.15 * stopped.unwrap_or(0.0);
                }
            }
            break;
        }
        now += last + 0.12;
    }
    let mut seconds = now + stopped.unwrap_or(4.0);
    if Plant::is_alone(planted) {
        let asleep = has(Plant::Asleep);
        seconds = if asleep { 10_800.0 } else { 3600.0 };
        for rank in &mut ranks {
            let busy = seconds * if asleep { chance.about(0.004, 0.5) } else { chance.about(0.07, 0.02) };
            *rank = Rank { busy, sm: 0.2 * busy, tensor: 0.02 * busy, dram: 0.1 * busy, ..Rank::default() };
            if asleep {
                (rank.idle, rank.idle_since) = (0.98 * seconds, Some(chance.about(600.0, 0.2)));
            }
        }
    } else if has(Plant::UnusedGpu) {
        // Long enough to be judged.
        let scale = 2.0;
        seconds *= scale;
        for rank in &mut ranks {
            for part in [
                &mut rank.busy,
                &mut rank.sm,
                &mut rank.tensor,
                &mut rank.dram,
                &mut rank.input,
                &mut rank.comm,
                &mut rank.seen,
            ] {
                *part *= scale;
            }
        }
    }
    Run {
        ranks,
        odd,
        seconds,
        clock: if has(Plant::SlowClock) { slower } else { 1.0 },
        capped_clock: has(Plant::SmallBatch).then_some(0.84),
        failed: stopped.is_some() || has(Plant::Nan),
        pauses,
    }
}

fn flat(value: f64, seconds: f64) -> Reading<Spread> {
    Reading::Known(Spread { mean: value, min: value, max: value, over_s: seconds })
}

fn gpu(index: u32, rank: &Rank, run: &Run, is_odd: bool) -> GpuUsage {
    let seconds = run.seconds;
    let percent = |time: f64| flat(100.0 * time / seconds, seconds);
    let slow = is_odd && run.clock < 1.0;
    let capped = run.capped_clock.filter(|_| !is_odd);
    let clock = 1755.0 * if slow { run.clock } else { capped.unwrap_or(1.0) };
    let power_w = if run.capped_clock.is_some() && is_odd { 450.0 } else { 600.0 };
    let tensor = rank.tensor / seconds * clock / 1830.0;
    GpuUsage {
        index,
        uuid: format!("GPU-{index}"),
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        mig: None,
        sampled_s: seconds,
        counters: GpuCounters::from_fn(|field| match field {
            GpuField::Graphics | GpuField::AnyKernel => percent(rank.busy),
            GpuField::Sm => percent(rank.sm),
            GpuField::Occupancy => percent(rank.sm * 0.4),
            GpuField::Tensor | GpuField::Hmma => percent(rank.tensor),
            GpuField::Dram | GpuField::MemoryBusy => percent(rank.dram),
            GpuField::Fp32 => percent(rank.sm * 0.05),
            GpuField::Fp16 => percent(rank.sm * 0.02),
            GpuField::PcieTx | GpuField::PcieRx => flat(1e8, seconds),
            GpuField::NvlinkTx | GpuField::NvlinkRx => flat(2e10, seconds),
            GpuField::SmClock => flat(clock, seconds),
            GpuField::Power => flat(power_w, seconds),
            GpuField::Temperature => flat(60.0, seconds),
            GpuField::MemoryUsed => flat(if rank.busy > 0.0 { 60_000.0 } else { 4.0 }, seconds),
            // As reports of releases that did not sample them.
            GpuField::Paused | GpuField::Pauses | GpuField::ProcessCpu | GpuField::ProcessWait => {
                Reading::Unsupported
            }
            _ => percent(0.0),
        }),
        idle: Reading::Known(IdleTime {
            over_s: seconds,
            idle_s: rank.idle,
            since: rank.idle_since.map(millis),
        }),
        busy_clock_mhz: Reading::Known(clock),
        energy_j: Reading::Known(power_w * seconds),
        energy_from_power_j: Reading::Known(power_w * seconds),
        memory_total_mib: Reading::Known(81_559),
        throttled: Reading::Known(Throttled {
            over_s: seconds,
            power_brake_s: if slow { 0.9 * seconds } else { 0.0 },
            power_cap_s: if capped.is_some() { 0.9 * seconds } else { 0.0 },
            ..Throttled::default()
        }),
        flop: HardwareFlop {
            tensor_fraction: Reading::Known(tensor),
            uncalibrated_fraction: Reading::Known(tensor),
            calibration: Calibration { factor: 1.0, from: "none".to_owned(), band: 0.15 },
            peak: Some(PeakUsed {
                model: "h100-sxm".to_owned(),
                bf16_tflops: 989.4,
                clock_mhz: 1830.0,
                memory_gbytes_s: Reading::Known(3352.0),
                source: "sheet".to_owned(),
            }),
            tensor_tflops: std::collections::BTreeMap::new(),
            fp32_tflops: Reading::Unsupported,
            fp64_tflops: Reading::Unsupported,
        },
    }
}

/// Figures that NVML provides without GPM.
fn without_gpm(gpu: GpuUsage) -> GpuUsage {
    let GpuCounters {
        any_kernel_percent,
        memory_busy_percent,
        sm_clock_mhz,
        power_w,
        temperature_c,
        memory_used_mib,
        ..
    } = gpu.counters;
    GpuUsage {
        counters: GpuCounters {
            any_kernel_percent,
            memory_busy_percent,
            sm_clock_mhz,
            power_w,
            temperature_c,
            memory_used_mib,
            ..GpuCounters::from_fn(|_| Reading::Unsupported)
        },
        flop: HardwareFlop { tensor_fraction: no_flop(), uncalibrated_fraction: no_flop(), ..gpu.flop },
        ..gpu
    }
}

fn no_flop() -> Reading<f64> {
    Reading::Unsupported
}

fn millis(seconds: f64) -> u64 {
    START + (seconds * 1000.0) as u64
}

fn application(number: u32, rank: &Rank, run: &Run, heard: Heard) -> RankApplication {
    let count = u64::from(rank.steps).saturating_sub(1);
    let total = rank.seen - 41.0;
    let mean = total / count as f64;
    let event = |seconds: f64, step: u32, what| AppEvent {
        time: millis(seconds),
        step: step.into(),
        what,
        loss: None,
    };
    let mut events = vec![event(10.0, 0, AppEventKind::Start)];
    events.extend(rank.nan.map(|(seconds, step)| event(seconds, step, AppEventKind::Nan)));
    if !run.failed {
        events.push(event(rank.seen + 1.0, rank.steps, AppEventKind::End));
    }
    RankApplication {
        file: format!("0.{number}"),
        rank: Some(number),
        local_rank: Some(number % PER_NODE),
        world: Some(RANKS),
        model: Some(Model {
            convention: Convention::Explicit,
            flops_per_token: Some(4.3e10),
            ..Model::default()
        }),
        starts: 1,
        started: millis(10.0),
        first_step: Some(millis(41.0)),
        last_step: Some(millis(rank.seen)),
        last_seen: millis(rank.seen),
        steps: rank.steps.into(),
        step_s: Some(StepTimes { count, total, mean, min: mean, max: mean, p50: mean, p90: mean, p99: mean }),
        tokens: Some(rank.tokens),
        timed_tokens: Some(rank.tokens),
        input_s: heard.waits_told.then_some(rank.input),
        start_up_s: 31.0,
        events,
        ..RankApplication::default()
    }
}

/// What the sampler saw: the odd rank was behind on its node, and the others waited from the next step on.
fn pauses(node: u32, run: &Run) -> Option<Pauses> {
    const STEP_S: f64 = 1.1;
    let here = run.odd / PER_NODE == node;
    let mut found = Pauses::default();
    for one in &run.pauses {
        let ahead = u32::from(run.odd.is_multiple_of(PER_NODE));
        found.add(Pause {
            start: millis(one.at - STEP_S + if here { 0.0 } else { STEP_S }),
            seconds: one.seconds + STEP_S,
            lost_s: one.seconds,
            communicator: "00c0ffee".to_owned(),
            behind: if here { vec![run.odd] } else { vec![] },
            fewest: if here { one.ops } else { one.ops + 1 },
            most: one.ops + 1,
            ahead: node * PER_NODE + ahead,
            op: "AllReduce".to_owned(),
            seq: Some(one.ops + 1),
        });
    }
    (!found.is_empty()).then_some(found)
}

fn communication(node: u32, run: &Run) -> Communication {
    let own = node * PER_NODE..(node + 1) * PER_NODE;
    let ranks: Vec<(u32, &Rank)> =
        (0..RANKS).zip(&run.ranks).filter(|(number, _)| own.contains(number)).collect();
    Communication {
        communicators: ranks
            .iter()
            .map(|(number, rank)| Communicator {
                hash: "00c0ffee".to_owned(),
                size: RANKS,
                rank: *number,
                nodes: NODES.into(),
                pid: 100 + u64::from(*number),
                ops: rank.ops,
                destroyed: !run.failed,
                last: Some(LastOp {
                    op: "AllReduce".to_owned(),
                    seq: Some(rank.ops),
                    bytes: 1 << 30,
                    time: millis(rank.seen + 1.0),
                    time_is_earliest: false,
                }),
                ..Communicator::default()
            })
            .collect(),
        collectives: vec![Collective {
            communicator: "00c0ffee".to_owned(),
            size: RANKS,
            op: "AllReduce".to_owned(),
            from_bytes: 1 << 30,
            ranks: PER_NODE,
            by_rank: ranks
                .iter()
                .map(|(number, rank)| RankTime {
                    rank: *number,
                    calls: rank.ops,
                    timed: rank.ops / 16,
                    gpu_s: rank.comm / f64::from(rank.steps) * (rank.ops / 16) as f64,
                })
                .collect(),
            ..Collective::default()
        }],
        pauses: pauses(node, run),
        ..Communication::default()
    }
}

/// The GPU that no rank uses, after those of the node's ranks.
fn unused_gpu(planted: Planted<'_>, run: &Run, node: u32) -> Option<GpuUsage> {
    let here = planted.contains(&Plant::UnusedGpu) && run.odd / PER_NODE == node;
    let rank = Rank { idle: run.seconds, idle_since: Some(0.0), ..Rank::default() };
    here.then(|| gpu(PER_NODE, &rank, run, false))
}

/// A rail of 40 GB/s, unless a fault is planted in it.
fn rail(number: u32, node: u32, planted: Planted<'_>, seconds: f64) -> RailUsage {
    let has = |plant: Plant, odd: (u32, u32)| planted.contains(&plant) && (node, number) == odd;
    let stops = has(Plant::StoppedRail, (0, 3));
    let slow = has(Plant::SlowRail, (1, 2));
    let rate = if slow { 3e9 } else { 2e10 } * if stops { 0.5 } else { 1.0 };
    let longest = stops.then(|| QuietTime {
        start: millis(0.5 * seconds),
        end: None,
        seconds: 0.5 * seconds,
        others_bytes_s: 4e10,
        before_s: 0.5 * seconds,
        before_bytes_s: 4e10,
    });
    RailUsage {
        hca: format!("mlx5_{number}"),
        port: 1,
        rail: Some(number as usize),
        tx_bytes_s: flat(rate, seconds),
        rx_bytes_s: flat(rate, seconds),
        errors: Reading::Known(0),
        retransmits: Reading::Known(0),
        congestion_marks: Reading::Known(0),
        xmit_wait_s: flat(0.0, seconds),
        quiet: Reading::Known(RailQuiet { over_s: seconds, longest }),
    }
}

fn nodes(planted: Planted<'_>, run: &Run, heard: Heard) -> Vec<NodeReport> {
    let seconds = run.seconds;
    (0..NODES)
        .map(|node| {
            let job = Job {
                id: 7,
                uid: 1000,
                gid: 1000,
                user: "ann".to_owned(),
                restarts: 0,
                nodelist: "n[0-1]".to_owned(),
                het_leader: None,
                allocation: Allocation::NoGpus,
                partition: "gpu".to_owned(),
            };
            let mut report = NodeReport::new("alpha", format!("n{node}"), job, 0, START);
            let own = (0..RANKS).zip(&run.ranks).filter(|(number, _)| number / PER_NODE == node);
            let rail = |number: u32| rail(number, node, planted, seconds);
            report.end = Some(millis(seconds));
            report.exit = Some(Exit { status: if run.failed { 256 } else { 0 }, derived: None });
            report.usage = Some(Usage {
                phases: None,
                coverage: Coverage {
                    start: START,
                    end: millis(seconds),
                    interval_s: 5.0,
                    sampled_s: seconds,
                    ..Coverage::default()
                },
                gpus: own
                    .clone()
                    .map(|(number, rank)| gpu(number % PER_NODE, rank, run, number == run.odd))
                    .chain(unused_gpu(planted, run, node))
                    .map(|gpu| if heard.gpm { gpu } else { without_gpm(gpu) })
                    .collect(),
                rails: (0..PER_NODE).map(rail).collect(),
                host: HostUsage {
                    cpu_cores: flat(6.0, seconds),
                    cpus_allowed: Reading::Known(32.0),
                    memory_mib: flat(1e4, seconds),
                    memory_peak_mib: Reading::Known(10_000),
                    oom_kills: Reading::Known(0),
                    cpu_pressure_percent: flat(1.0, seconds),
                    memory_pressure_percent: flat(0.0, seconds),
                    io_pressure_percent: flat(
                        if planted.contains(&Plant::InputStalls) { 35.0 } else { 0.5 },
                        seconds,
                    ),
                    io_read_bytes_s: flat(1e8, seconds),
                    io_write_bytes_s: flat(1e6, seconds),
                },
                sampler: SamplerCost::default(),
                file: None,
                notes: vec![],
            });
            if heard.application && !Plant::is_alone(planted) {
                report.application = Some(Application {
                    ranks: own.map(|(number, rank)| application(number, rank, run, heard)).collect(),
                    problems: vec![],
                });
            }
            if heard.nccl && !Plant::is_alone(planted) {
                report.communication = Some(communication(node, run));
            }
            report
        })
        .collect()
}

/// Node reports of two nodes with one rank on a slower clock, and that rank, from which larger jobs are made.
pub fn slow_clock() -> (Vec<NodeReport>, u32) {
    let run = run(&[Plant::SlowClock], &mut Chance(4));
    (nodes(&[Plant::SlowClock], &run, ALL), run.odd)
}

/// Node reports of two healthy nodes.
pub fn healthy() -> Vec<NodeReport> {
    parts_with(&[Plant::Healthy])
}

/// Node reports of two nodes with these faults planted.
pub fn parts_with(planted: Planted<'_>) -> Vec<NodeReport> {
    nodes(planted, &run(planted, &mut Chance(4)), ALL)
}

/// Makes collectives five times as long, at the expense of computing.
pub fn wait_for_the_network(nodes: &mut [NodeReport]) {
    let rows = nodes.iter_mut().flat_map(|node| &mut node.communication.as_mut().unwrap().collectives);
    rows.flat_map(|row| &mut row.by_rank).for_each(|rank| rank.gpu_s *= 5.0);
    for gpu in nodes.iter_mut().flat_map(|node| &mut node.usage.as_mut().unwrap().gpus) {
        let (sm, tensor, dram) =
            (&mut gpu.counters.sm_percent, &mut gpu.counters.tensor_percent, &mut gpu.counters.dram_percent);
        for (reading, value) in [(sm, 40.0), (tensor, 15.0), (dram, 12.0)] {
            *reading = flat(value, gpu.sampled_s);
        }
    }
}

const ALL: Heard = Heard { application: true, waits_told: true, nccl: true, gpm: true };

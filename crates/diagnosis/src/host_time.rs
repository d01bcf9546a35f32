//! What the host does while a GPU runs no kernel, from the driver's record of pauses and the CPU time of the GPU's processes.
//!
//! Reports of older releases have neither figure: everything here is unknown then.

use railgate_model::Reading;
use railgate_node_report::phases::PhaseKind;

use super::facts::{Facts, Unit, busy, mean_of, median};
use super::rules::idle_gpus::is_unused;

/// Below this share of the CPU time that they wanted, threads that lack a core do not stop their process.
const FEW_LACK: f64 = 0.25;

/// A process that polls for the end of its kernels uses the CPU for at least this share of the time with kernels.
const SPINS: f64 = 0.9;

/// Of one GPU, shares of the time that is judged, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HostTime {
    /// No kernel runs.
    pub(super) idle: f64,
    /// Its processes use the CPU, in cores.
    pub(super) cpu: f64,
    /// Threads of its processes could run and have no core, in cores.
    pub(super) wait: f64,
}

impl HostTime {
    /// `None` if a figure is unknown.
    pub(super) fn of(unit: &Unit<'_>) -> Option<Self> {
        let gpu = unit.gpu?;
        let known = |reading: &Reading<_>| mean_of(reading).known().copied();
        Some(HostTime {
            idle: 1.0 - (busy(gpu).known()? / 100.0).clamp(0.0, 1.0),
            cpu: known(&gpu.counters.process_cpu_percent)? / 100.0,
            wait: known(&gpu.counters.process_wait_percent)? / 100.0,
        })
    }

    /// Time in which no kernel runs and every thread of the GPU's processes sleeps. A lower bound: threads that run at
    /// the same time count twice as running.
    pub(super) fn asleep(&self) -> f64 {
        let awake = self.cpu + self.wait;
        let most = if self.spins() { 1.0 - awake } else { self.idle - awake };
        most.clamp(0.0, self.idle)
    }

    /// Whether a thread may be busy while kernels run, as in PyTorch, which polls for their end. JAX sleeps meanwhile, so that all of its CPU
    /// time may be in the time without kernels.
    fn spins(&self) -> bool {
        self.cpu + self.wait >= SPINS * (1.0 - self.idle)
    }

    /// Time in which no kernel runs and a thread waits for a core. Kernels are taken to cover as much of the waiting as of
    /// all time. While some of many threads wait a little, the others run.
    pub(super) fn starved(&self) -> f64 {
        let share = if self.lacks() < FEW_LACK { self.lacks() } else { self.wait };
        (share * self.idle).clamp(0.0, self.idle)
    }

    /// Share of the CPU time that the threads wanted and did not get. A program with many threads waits a little for each of
    /// them; one that lacks a core waits for most of its time.
    pub(super) fn lacks(&self) -> f64 {
        if self.wait > 0.0 { self.wait / (self.cpu + self.wait) } else { 0.0 }
    }

    /// Time in which no kernel runs and a thread computes. 0 if it is not known when the threads ran.
    pub(super) fn computes(&self) -> f64 {
        if self.spins() { (self.idle - self.asleep() - self.starved()).max(0.0) } else { 0.0 }
    }
}

/// Pauses of one GPU: no kernel for 0.4 s or longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pauses {
    /// Share of the time that is judged, 0 to 1.
    pub(super) share: f64,
    pub(super) count: f64,
    /// Mean length, seconds.
    pub(super) mean_s: f64,
}

impl Pauses {
    /// `None` if they are unknown. `seconds`: length of the time that is judged.
    pub(super) fn of(unit: &Unit<'_>, seconds: f64) -> Option<Self> {
        let counters = &unit.gpu?.counters;
        let share = mean_of(&counters.paused_percent).known()? / 100.0;
        let count = mean_of(&counters.pauses_per_minute).known()? / 60.0 * seconds;
        Some(Pauses { share, count, mean_s: if count > 0.0 { share * seconds / count } else { 0.0 } })
    }
}

/// The GPUs that a rank uses. A GPU that none uses waits for nothing (`idle-gpus`).
pub(super) fn used<'f, 'a>(facts: &'f Facts<'a>) -> impl Iterator<Item = &'f Unit<'a>> {
    facts.units.iter().filter(|unit| unit.gpu.is_some() && !is_unused(facts, unit))
}

/// The host's time for each used GPU; `None` if it is unknown for one, or no GPU is used.
pub(super) fn of_all<'f, 'a>(facts: &'f Facts<'a>) -> Option<Vec<(&'f Unit<'a>, HostTime)>> {
    let all: Option<Vec<_>> = used(facts).map(|unit| Some((unit, HostTime::of(unit)?))).collect();
    all.filter(|all| !all.is_empty())
}

/// Number of GPUs that one process drives and that may work in turn: the CPU time of each GPU's processes is then nearly all CPU time of the
/// job, where processes of their own have a part of it each, and all GPUs together are busy for no longer than the time.
pub(super) fn one_process_in_turn(facts: &Facts<'_>) -> Option<usize> {
    /// More than the larger one of two processes of the same work uses.
    const NEARLY_ALL: f64 = 0.75;
    let [usage] = facts.usages[..] else { return None };
    let cores = usage.host.cpu_cores.known()?.mean;
    let all = of_all(facts)?;
    let has_all = all.iter().all(|(_, host)| host.cpu >= NEARLY_ALL * cores);
    (cores > 0.0 && has_all && may_work_in_turn(facts)).then_some(all.len())
}

/// Whether all of several GPUs together are busy for no longer than the time; `false` if that is unknown of one.
pub(super) fn may_work_in_turn(facts: &Facts<'_>) -> bool {
    /// One GPU may begin before the other one has ended.
    const IN_TURN: f64 = 1.1;
    let Some(all) = of_all(facts).filter(|all| all.len() > 1) else { return false };
    all.iter().map(|(_, host)| 1.0 - host.idle).sum::<f64>() <= IN_TURN
}

/// CPU cores per used GPU that processes of the job use which use no GPU: data loaders, compilers. Median over the nodes.
pub(super) fn other_cores(facts: &Facts<'_>) -> Option<f64> {
    let of_nodes = facts.usages.iter().filter_map(|usage| {
        let own: Option<f64> = usage
            .gpus
            .iter()
            .map(|gpu| Some(mean_of(&gpu.counters.process_cpu_percent).known()? / 100.0))
            .sum();
        let gpus = f64::from(u32::try_from(usage.gpus.len()).ok()?);
        Some((usage.host.cpu_cores.known()?.mean - own?).max(0.0) / gpus)
    });
    median(of_nodes.collect())
}

/// The same where the CPU time of the GPUs' processes is not known: beyond the core that each keeps busy while it polls for the end of its
/// kernels. Over all nodes.
pub(super) fn cores_besides_polling(facts: &Facts<'_>) -> Option<f64> {
    const POLLING: f64 = 1.0;
    let cores: Option<f64> = facts.usages.iter().map(|usage| Some(usage.host.cpu_cores.known()?.mean)).sum();
    let gpus = u32::try_from(used(facts).count()).ok().filter(|gpus| *gpus > 0)?;
    Some(cores? / f64::from(gpus) - POLLING)
}

/// Whether the job keeps most of a core busy, over all nodes.
pub(super) fn keeps_a_core_busy(facts: &Facts<'_>) -> bool {
    const CORES: f64 = 0.8;
    let cores = facts.usages.iter().filter_map(|usage| Some(usage.host.cpu_cores.known()?.mean));
    cores.sum::<f64>() >= CORES
}

/// Seconds of all phases of a kind, and their number; median over the nodes.
pub(super) fn in_phases(facts: &Facts<'_>, kind: PhaseKind) -> (f64, f64) {
    let of = |list: &railgate_node_report::phases::Phases| {
        list.list
            .iter()
            .filter(|phase| phase.kind == kind)
            .map(|phase| (phase.seconds(), 1.0))
            .collect::<Vec<_>>()
    };
    let sums: Vec<(f64, f64)> = facts
        .phases()
        .map(|phases| of(phases).into_iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1)))
        .collect();
    let seconds = median(sums.iter().map(|sum| sum.0).collect());
    let count = median(sums.iter().map(|sum| sum.1).collect());
    (seconds.unwrap_or(0.0), count.unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::HostTime;

    /// PyTorch polls for the end of its kernels; JAX sleeps meanwhile, so that its CPU time may all be in the time without kernels.
    #[test]
    fn a_process_that_does_not_poll_may_compute_in_all_idle_time() {
        let of = |idle, cpu| {
            let host = HostTime { idle, cpu, wait: 0.0 };
            [host.asleep(), host.computes()].map(|share| (100.0 * share).round())
        };
        assert_eq!(of(0.45, 0.55), [45.0, 0.0]);
        assert_eq!(of(0.45, 1.0), [0.0, 45.0]);
        assert_eq!(of(0.85, 0.19), [81.0, 4.0]);
        assert_eq!(of(0.45, 0.48), [0.0, 0.0]);
        assert_eq!(of(0.45, 0.2), [25.0, 0.0]);
    }
}

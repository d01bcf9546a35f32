//! The phases of a job, from those of its nodes.

use std::collections::BTreeSet;

use railgate_node_report::NodeReport;
use railgate_node_report::phases::{Phase, PhaseKind, Phases};
use railgate_node_report::plain::float;
use serde::{Deserialize, Serialize};

/// Length of one kind of phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// What the job did.
    pub kind: PhaseKind,
    /// Which start of the step inside the attempt it belongs to.
    #[serde(default, skip_serializing_if = "is_first")]
    pub start_number: u32,
    /// Seconds, mean over the nodes that know their phases.
    pub seconds: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_first(start_number: &u32) -> bool {
    *start_number == 0
}

/// Length of each kind that occurs, by start and in the order of [`PhaseKind::ALL`].
pub(crate) fn times(nodes: &[NodeReport]) -> Vec<PhaseTime> {
    let known: Vec<&Phases> = nodes.iter().filter_map(|node| node.usage.as_ref()?.phases.as_ref()).collect();
    let count = float(u64::try_from(known.len()).unwrap_or(u64::MAX)).max(1.0);
    let all = || known.iter().flat_map(|phases| &phases.list);
    let starts: BTreeSet<u32> = all().map(|phase| phase.start_number).collect();
    let of = |start_number: u32, kind: PhaseKind| {
        let phases = all().filter(|phase| (phase.start_number, phase.kind) == (start_number, kind));
        PhaseTime { kind, start_number, seconds: phases.map(Phase::seconds).sum::<f64>() / count }
    };
    let of_start = |start: u32| PhaseKind::ALL.into_iter().map(move |kind| of(start, kind));
    starts.into_iter().flat_map(of_start).filter(|one| one.seconds > 0.0).collect()
}

/// Seconds in which the job trained.
pub fn trained_s(phases: &[PhaseTime]) -> f64 {
    phases.iter().filter(|one| one.kind.is_training()).map(|one| one.seconds).sum()
}

/// Share of the time of all phases in which the job trained, 0 to 1.
pub(crate) fn training_share(phases: &[PhaseTime]) -> f64 {
    let all: f64 = phases.iter().map(|one| one.seconds).sum();
    if all > 0.0 { trained_s(phases) / all } else { 1.0 }
}

/// Whether a GPU trained for much less of the time than its node: programs of their own, of which one began or ended earlier.
pub(crate) fn in_turns(nodes: &[NodeReport]) -> bool {
    const MUCH_LESS: f64 = 0.75;
    let in_turns = |phases: &Phases| {
        let trained = phases.list.iter().filter(|phase| phase.kind.is_training());
        let node_s: f64 = trained.map(Phase::seconds).sum();
        phases.gpus.iter().any(|gpu| {
            let own = gpu.iter().filter(|(kind, _)| kind.is_training());
            let own_s: f64 = own.map(|(_, seconds)| seconds).sum();
            own_s > 0.0 && own_s < MUCH_LESS * node_s
        })
    };
    nodes.iter().filter_map(|node| node.usage.as_ref()?.phases.as_ref()).any(in_turns)
}

/// Whether one program ran after the other: each has a start-up of its own.
pub(crate) fn in_series(nodes: &[NodeReport]) -> bool {
    let in_series = |phases: &Phases| {
        let starts = phases.list.chunk_by(|one, next| one.start_number == next.start_number);
        starts.into_iter().any(|start| {
            let mut trained = start.iter().skip_while(|phase| !phase.kind.is_training());
            trained.any(|phase| phase.kind == PhaseKind::StartUp)
        })
    };
    nodes.iter().filter_map(|node| node.usage.as_ref()?.phases.as_ref()).any(in_series)
}

#[cfg(test)]
pub(crate) mod tests {
    use railgate_model::{GpuCounters, GpuField, Reading};
    use railgate_node_report::Exit;
    use railgate_node_report::phases::{Training, TrainingGpu, TrainingHost};
    use railgate_node_report::usage::Spread;

    use super::*;
    use crate::simulator::{Plant, parts_with};
    use crate::{Analysis, Outcome, Rules, analyse};

    /// What a silent job without the plugin leaves behind: its phases in seconds, the means over all time, and those of
    /// its training, each as kernels, SMs, tensor, memory in percent.
    pub(crate) fn silent(phases: &[(PhaseKind, u64)], all: [f64; 4], training: [f64; 4]) -> Vec<NodeReport> {
        let mut nodes = parts_with(&[Plant::Healthy]);
        nodes.truncate(1);
        let node = nodes.first_mut().unwrap();
        (node.application, node.communication) = (None, None);
        let seconds: u64 = phases.iter().map(|(_, seconds)| seconds).sum();
        node.end = Some(node.start + 1000 * seconds);
        let flat = |mean: f64| Reading::Known(Spread { mean, min: mean, max: mean, over_s: float(seconds) });
        let usage = node.usage.as_mut().unwrap();
        usage.coverage.sampled_s = float(seconds);
        usage.gpus.truncate(2);
        let place = |field: GpuField| match field {
            GpuField::Graphics | GpuField::AnyKernel => Some(0),
            GpuField::Sm => Some(1),
            GpuField::Tensor => Some(2),
            GpuField::Dram => Some(3),
            _ => None,
        };
        for gpu in &mut usage.gpus {
            gpu.counters = GpuCounters::from_fn(|field| match (place(field), field) {
                (Some(at), _) => flat(all[at]),
                (None, GpuField::PcieTx | GpuField::PcieRx) => flat(0.0),
                _ => Reading::Unsupported,
            });
        }
        usage.host.cpu_cores = flat(31.0);
        let mut start = node.start;
        let list = phases.iter().map(|(kind, seconds)| {
            let phase = Phase { kind: *kind, start, end: start + 1000 * seconds, start_number: 0 };
            start = phase.end;
            phase
        });
        let list = list.collect();
        let gpu = TrainingGpu {
            counters: GpuCounters::from_fn(|field| match (place(field), field) {
                (Some(at), _) => Reading::Known(training[at]),
                (None, GpuField::PcieTx | GpuField::PcieRx) => Reading::Known(0.0),
                _ => Reading::Unsupported,
            }),
            busy_clock_mhz: Reading::Known(1700.0),
            tensor_fraction: Reading::Known(training[2] / 100.0),
        };
        let trained = phases.iter().filter(|(kind, _)| kind.is_training()).map(|(_, seconds)| seconds);
        let host = TrainingHost {
            cpu_cores: Reading::Known(4.0),
            cpu_pressure_percent: Reading::Known(1.0),
            memory_pressure_percent: Reading::Known(0.0),
            io_pressure_percent: Reading::Known(0.0),
        };
        let training = Training { seconds: float(trained.sum()), gpus: vec![gpu.clone(), gpu], host };
        usage.phases = Some(Phases { list, training: Some(training), ..Phases::default() });
        nodes
    }

    fn analysed(nodes: &[NodeReport], outcome: Outcome) -> Analysis {
        analyse(nodes, nodes[0].end, outcome, None, &Rules::DEFAULT).unwrap()
    }

    fn found(analysis: &Analysis) -> Vec<&str> {
        analysis.diagnoses.iter().map(|one| one.rule.as_str()).collect()
    }

    const GOOD: [f64; 4] = [99.0, 92.0, 60.0, 30.0];

    /// Two programs in one job, of which one begins when the other one has ended: each GPU is idle for half of the node's training.
    #[test]
    fn programs_that_train_at_different_times_are_not_judged_together() {
        let half = [50.0, 46.0, 30.0, 15.0];
        let mut nodes = silent(&[(PhaseKind::StartUp, 15), (PhaseKind::Steady, 60)], half, half);
        let analysis = analysed(&nodes, Outcome::Good);
        assert!(found(&analysis).contains(&"host-bound") && !analysis.in_turns);
        let gpus = |own: [f64; 2]| {
            own.map(|seconds| [(PhaseKind::Steady, seconds), (PhaseKind::Tail, 60.0 - seconds)].into())
                .to_vec()
        };
        let mut with = |own| {
            nodes[0].usage.as_mut().unwrap().phases.as_mut().unwrap().gpus = gpus(own);
            let analysis = analysed(&nodes, Outcome::Good);
            (analysis.in_turns, found(&analysis).is_empty())
        };
        assert_eq!(with([30.0, 30.0]), (true, true));
        assert_eq!(with([60.0, 30.0]), (true, true));
        assert_eq!(with([60.0, 50.0]), (false, false));
        // The second GPU was never used (`idle-gpus`).
        assert_eq!(with([60.0, 0.0]), (false, false));
    }

    /// What a program did before it failed is no loss of speed: two samples of training are the least that is judged.
    #[test]
    fn training_of_a_moment_is_not_judged() {
        let idle = [39.0, 34.0, 11.0, 22.0];
        let host_bound = |phases: &[(PhaseKind, u64)]| {
            let nodes = silent(phases, idle, idle);
            found(&analysed(&nodes, Outcome::Good)).contains(&"host-bound")
        };
        assert!(host_bound(&[(PhaseKind::StartUp, 15), (PhaseKind::Steady, 20)]));
        let mut nodes = silent(&[(PhaseKind::StartUp, 15), (PhaseKind::Steady, 9)], idle, idle);
        // Disks: a sign that needs no least time of its own.
        let of_all = |node: &mut NodeReport| {
            let usage = node.usage.as_mut().unwrap();
            usage.host.io_pressure_percent =
                Reading::Known(Spread { mean: 50.0, min: 50.0, max: 50.0, over_s: 9.0 });
            let training = usage.phases.as_mut().unwrap().training.as_mut().unwrap();
            training.host.io_pressure_percent = Reading::Known(50.0);
        };
        nodes.iter_mut().for_each(of_all);
        assert_eq!(found(&analysed(&nodes, Outcome::Failed)), Vec::<&str>::new());
        let phases = nodes[0].usage.as_mut().unwrap().phases.as_mut().unwrap();
        phases.list[1].end += 1000;
        assert_eq!(found(&analysed(&nodes, Outcome::Failed)), ["input-bound"]);
    }

    /// A rank ran out of memory, and the other waited in a collective until the job was cancelled: advice about small
    /// kernels was wrong.
    #[test]
    fn waiting_for_a_rank_that_is_gone_is_no_small_kernels() {
        let phases = [
            (PhaseKind::StartUp, 28),
            (PhaseKind::Steady, 20),
            (PhaseKind::Stalled, 83),
            (PhaseKind::Tail, 2),
        ];
        let mut nodes = silent(&phases, [79.0, 21.0, 9.0, 4.5], GOOD);
        nodes[0].exit = Some(Exit { status: 9, derived: None });
        for outcome in [Outcome::Failed, Outcome::CutOff] {
            let told = analysed(&nodes, outcome);
            assert_eq!(found(&told), ["hang"]);
            assert!(told.diagnoses[0].what.starts_with("no step for 1 min 25 s before the end"), "{told:?}");
            let shares = told.shares.known().unwrap();
            assert!(shares.compute > 30.0 && shares.launch == 0.0, "{shares:?}");
        }
        // Without phases it was this.
        nodes[0].usage.as_mut().unwrap().phases = None;
        assert_eq!(found(&analysed(&nodes, Outcome::Good)), ["launch-bound"]);
    }

    /// Start-up on all cores is no slow loader.
    #[test]
    fn start_up_is_not_waiting_for_input() {
        let phases = [(PhaseKind::StartUp, 40), (PhaseKind::Steady, 20)];
        let mut nodes = silent(&phases, [33.0, 30.0, 20.0, 10.0], GOOD);
        let told = analysed(&nodes, Outcome::Good);
        assert_eq!(found(&told), [""; 0]);
        let shares = told.shares.known().unwrap();
        assert!(shares.idle < 2.0, "{shares:?}");
        let training = told.training.unwrap();
        assert_eq!(training.busy_percent, Reading::Known(99.0));
        assert_eq!(told.hardware.known().unwrap().busy_percent, Reading::Known(33.0));
        nodes[0].usage.as_mut().unwrap().phases = None;
        assert_eq!(found(&analysed(&nodes, Outcome::Good)), ["input-bound"]);
    }

    /// A loss in the training is a smaller share of the whole job.
    #[test]
    fn costs_are_shares_of_the_whole_job() {
        let phases = [(PhaseKind::StartUp, 25), (PhaseKind::Steady, 75)];
        let nodes = silent(&phases, [75.0, 70.0, 7.5, 63.0], [99.0, 95.0, 10.0, 85.0]);
        let told = analysed(&nodes, Outcome::Good);
        assert_eq!(found(&told), ["memory-bound"]);
        let costs = told.diagnoses[0].costs.unwrap();
        assert!((costs - 0.75 * 0.75).abs() < 0.01, "{costs}");
    }
}

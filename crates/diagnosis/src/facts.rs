use std::collections::{BTreeMap, BTreeSet};

use railgate_model::{Reading, UnixMillis};
use railgate_node_report::application::RankApplication;
use railgate_node_report::comm::{Communicator, RankTime};
use railgate_node_report::phases::Phases;
use railgate_node_report::usage::{GpuUsage, Spread};
use railgate_node_report::{NodeReport, Usage};

use super::Rules;
use super::dependence::ranks_depend;
use super::ends::{RankEnd, rank_ends};

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With success, or it still runs.
    Good,
    Failed,
    /// By its time limit or a cancellation: all ranks at once.
    CutOff,
}

/// Node reports of one attempt, indexed by rank.
pub(crate) struct Facts<'a> {
    pub(super) nodes: &'a [NodeReport],
    /// The thresholds in force.
    pub(super) rules: &'a Rules,
    /// When the attempt ended; `None`: it runs.
    pub(super) end: Option<UnixMillis>,
    pub(super) outcome: Outcome,
    /// Highest step of earlier attempts.
    pub(super) before: Option<u64>,
    pub(super) units: Vec<Unit<'a>>,
    /// Usage of each node that has one: of the time that is judged.
    pub(super) usages: Vec<&'a Usage>,
    /// Whether `usages` and `units` have the figures of the training only, on at least one node.
    in_training: bool,
    pub(super) world: Option<u32>,
    /// Whether the ranks are known to wait for each other.
    pub(super) ranks_depend: bool,
    /// Rank in the job by process, from NCCL.
    job_ranks: BTreeMap<OneProcess<'a>, u32>,
    /// The newest start of the step: a launcher may start it several times inside one attempt. Ranks of earlier starts have ended,
    /// and no rank of this one waits for them.
    last_start: u32,
    /// What ranks reported in earlier starts, where the same rank reports in a later one.
    pub(super) earlier: Vec<&'a RankApplication>,
    /// Ranks of the newest start, and when their processes ended.
    pub(super) ends: Vec<RankEnd<'a>>,
    /// Each communicator rank with its node.
    pub(super) communicators: Vec<(&'a str, &'a Communicator)>,
}

/// A GPU and its rank; either may be unknown.
pub(super) struct Unit<'a> {
    pub(super) node: &'a str,
    pub(super) usage: Option<&'a Usage>,
    pub(super) gpu: Option<&'a GpuUsage>,
    pub(super) app: Option<&'a RankApplication>,
    /// Rank in the job, from the program or from NCCL.
    pub(super) rank: Option<u32>,
    pub(super) comm: Option<CommTime>,
}

/// Seconds in collectives, extrapolated from timed calls to all calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CommTime {
    /// Excess over the fastest rank in the same collectives.
    pub(super) wait_s: f64,
    pub(super) wire_s: f64,
    all: Weight,
    /// Collective signatures that were never timed; neither time includes them.
    untimed: Weight,
    /// Operations of several ranks were captured into CUDA graphs, whose replays are not timed.
    pub(super) in_graphs: bool,
}

/// Number and size of collectives, which determine how long they take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Weight {
    calls: f64,
    bytes: f64,
}

impl Weight {
    fn add(&mut self, other: &Weight) {
        self.calls += other.calls;
        self.bytes += other.bytes;
    }
}

impl CommTime {
    fn add(&mut self, other: &CommTime) {
        self.wait_s += other.wait_s;
        self.wire_s += other.wire_s;
        self.all.add(&other.all);
        self.untimed.add(&other.untimed);
        self.in_graphs |= other.in_graphs;
    }

    /// Whether calls were replayed unseen, or the untimed ones, or their bytes, are too large a share for the timed ones to represent
    /// the whole.
    pub(super) fn is_partial(&self) -> bool {
        self.in_graphs
            || self.untimed.calls > 0.1 * self.all.calls
            || self.untimed.bytes > 0.1 * self.all.bytes
    }
}

impl<'a> Facts<'a> {
    pub(super) fn new(
        nodes: &'a [NodeReport],
        end: Option<UnixMillis>,
        outcome: Outcome,
        before: Option<u64>,
    ) -> Self {
        let communicators: Vec<(&str, &Communicator)> = nodes
            .iter()
            .filter_map(|node| Some((node.node.as_str(), node.communication.as_ref()?)))
            .flat_map(|(node, comm)| comm.communicators.iter().map(move |one| (node, one)))
            .collect();
        let times = comm_times(nodes, &communicators);
        // A rank may have had several processes in sequence, since each step of the job starts its own.
        let mut by_node: BTreeMap<&str, BTreeMap<u32, CommTime>> = BTreeMap::new();
        for ((name, ..), (rank, time)) in &times {
            if let Some(rank) = rank {
                by_node.entry(*name).or_default().entry(*rank).or_default().add(time);
            }
        }
        let last_start = last_start(nodes, &communicators);
        let mut earlier = Vec::new();
        let job_ranks = times.iter().filter_map(|(process, (rank, _))| Some((*process, (*rank)?))).collect();
        let mut units = Vec::new();
        for node in nodes {
            let usage = node.usage.as_ref();
            let gpus = usage.map_or(&[][..], |usage| &usage.gpus);
            let mut apps: Vec<&RankApplication> =
                node.application.iter().flat_map(|told| &told.ranks).collect();
            let newest = apps.clone();
            apps.retain(|app| {
                let is_newer = |other: &&RankApplication| {
                    app.rank.is_some() && other.rank == app.rank && other.start_number > app.start_number
                };
                let over = newest.iter().any(is_newer);
                earlier.extend(over.then_some(*app));
                !over
            });
            let mut of_comm = by_node.get(node.node.as_str()).cloned().unwrap_or_default();
            // The ranks of a node follow the order of its GPUs unless the program reports otherwise.
            let in_order = of_comm.len() == gpus.len();
            for (place, gpu) in (0_u32..).zip(gpus) {
                let app = apps.iter().position(|app| app.local_rank == Some(place)).map(|at| apps.remove(at));
                let rank = match app {
                    Some(app) => app.rank,
                    None if in_order => of_comm.keys().next().copied(),
                    None => None,
                };
                let comm = rank.and_then(|rank| of_comm.remove(&rank));
                units.push(Unit { node: &node.node, usage, gpu: Some(gpu), app, rank, comm });
            }
            for app in apps {
                let comm = app.rank.and_then(|rank| of_comm.remove(&rank));
                units.push(Unit { node: &node.node, usage, gpu: None, app: Some(app), rank: app.rank, comm });
            }
            for (rank, comm) in of_comm {
                let comm = Some(comm);
                units.push(Unit { node: &node.node, usage, gpu: None, app: None, rank: Some(rank), comm });
            }
        }
        let told = nodes.iter().filter_map(|node| node.application.as_ref());
        let world = told.flat_map(|told| &told.ranks).filter_map(|rank| rank.world).max();
        let world = world.or_else(|| communicators.iter().map(|(_, one)| one.size).max());
        let usages = nodes.iter().filter_map(|node| node.usage.as_ref()).collect();
        let ranks_depend = ranks_depend(&units, &communicators);
        Facts {
            nodes,
            rules: &Rules::DEFAULT,
            end,
            outcome,
            before,
            units,
            usages,
            in_training: false,
            ranks_depend,
            world,
            last_start,
            ends: rank_ends(nodes, last_start),
            earlier,
            communicators,
            job_ranks,
        }
    }

    /// The same facts with the figures of the time in which the job trained, from [`training`], for nodes that know it.
    pub(super) fn in_training(mut self, training: &'a [Option<Usage>]) -> Self {
        let views: BTreeMap<&str, &'a Usage> = self
            .nodes
            .iter()
            .zip(training)
            .filter_map(|(node, view)| Some((node.node.as_str(), view.as_ref()?)))
            .collect();
        for unit in &mut self.units {
            let Some(view) = views.get(unit.node).copied() else { continue };
            unit.usage = Some(view);
            unit.gpu = unit
                .gpu
                .and_then(|gpu| view.gpus.iter().find(|one| one.uuid == gpu.uuid && one.index == gpu.index));
        }
        let of = |node: &'a NodeReport| views.get(node.node.as_str()).copied().or(node.usage.as_ref());
        self.usages = self.nodes.iter().filter_map(of).collect();
        self.in_training = !views.is_empty();
        self
    }

    /// Seconds of the time that is judged, if it is the training's; `None` if it is all time.
    pub(super) fn training_s(&self) -> Option<f64> {
        let known = self.units.iter().filter_map(|unit| Some(unit.usage?.coverage.sampled_s));
        median(known.collect()).filter(|_| self.in_training)
    }

    /// The phases of each node that knows them.
    pub(super) fn phases(&self) -> impl Iterator<Item = &'a Phases> {
        self.nodes.iter().filter_map(|node| node.usage.as_ref()?.phases.as_ref())
    }

    /// Whether idle GPUs show how fast the job was: what a program did before it failed is no loss of speed, and a job that was cut off
    /// may have hung before, which only the phases take off.
    pub(super) fn show_speed(&self) -> bool {
        match self.outcome {
            Outcome::Good => true,
            Outcome::CutOff => self.in_training,
            Outcome::Failed => false,
        }
    }

    /// The same facts with other thresholds.
    pub(super) fn under(self, rules: &'a Rules) -> Self {
        Facts { rules, ..self }
    }

    /// Ranks that report.
    pub(super) fn reporting(&self) -> impl Iterator<Item = (&Unit<'a>, &'a RankApplication)> {
        self.units.iter().filter_map(|unit| Some((unit, unit.app?)))
    }

    /// Ranks that report and belong to the newest start of the step.
    pub(super) fn reporting_last(&self) -> impl Iterator<Item = (&Unit<'a>, &'a RankApplication)> {
        self.reporting().filter(|(_, rank)| rank.start_number == self.last_start)
    }

    /// Communicator ranks of the newest start of the step, with their nodes.
    pub(super) fn communicators_last(&self) -> impl Iterator<Item = (&'a str, &'a Communicator)> {
        let of_last = |(_, one): &&(&str, &Communicator)| one.start_number == self.last_start;
        self.communicators.iter().filter(of_last).copied()
    }

    /// The newest start of the step, if a launcher started it more than once.
    pub(super) fn restarted(&self) -> Option<u32> {
        (self.last_start > 0).then_some(self.last_start)
    }

    /// Mean of a figure over the GPUs that have it; if none has, the reason of the first GPU.
    pub(super) fn mean(&self, of: impl Fn(&GpuUsage) -> Reading<f64>) -> Reading<f64> {
        self.mean_where(|_| true, of)
    }

    /// The same over some of the GPUs.
    pub(super) fn mean_where(
        &self,
        takes: impl Fn(&Unit<'_>) -> bool,
        of: impl Fn(&GpuUsage) -> Reading<f64>,
    ) -> Reading<f64> {
        let gpus = self.units.iter().filter(|unit| takes(unit)).filter_map(|unit| unit.gpu);
        let all: Vec<Reading<f64>> = gpus.map(of).collect();
        let known: Vec<f64> = all.iter().filter_map(|reading| reading.known().copied()).collect();
        if known.is_empty() {
            return all
                .into_iter()
                .next()
                .unwrap_or_else(|| Reading::Failed("no GPU was sampled".to_owned()));
        }
        Reading::Known(known.iter().sum::<f64>() / f64::from(u32::try_from(known.len()).unwrap_or(1)))
    }

    /// Rank of this process in the job; a communicator numbers its ranks independently.
    pub(super) fn job_rank(&self, node: &str, one: &Communicator) -> Option<u32> {
        self.job_ranks.get(&(node, one.start_number, one.pid)).copied()
    }

    /// Display name of a rank on a node, with its GPU if that is known.
    pub(super) fn name_of(&self, node: &str, rank: u32) -> String {
        let unit = self.units.iter().find(|unit| unit.node == node && unit.rank == Some(rank));
        unit.map_or_else(|| format!("{node} rank {rank}"), Unit::name)
    }

    /// Share of all time in which steps ran, 0 to 1; `None` if the rank of any GPU does not report.
    pub(super) fn in_steps(&self) -> Option<f64> {
        let of_gpus: Option<Vec<f64>> =
            self.units.iter().filter(|unit| unit.gpu.is_some()).map(Unit::in_steps).collect();
        median(of_gpus?).filter(|share| *share > 0.0)
    }

    /// Number of GPUs of the job, from samples, else from the epilogs' check runs.
    pub(super) fn gpus(&self) -> u32 {
        let sampled = self.units.iter().filter(|unit| unit.gpu.is_some()).count();
        let looked: usize =
            self.nodes.iter().map(|node| node.gpus.iter().filter(|gpu| gpu.own == Some(true)).count()).sum();
        u32::try_from(sampled.max(looked)).unwrap_or(u32::MAX)
    }

    /// Whether the job has only one GPU, and so no other rank to wait for.
    pub(super) fn alone(&self) -> bool {
        let [node] = self.nodes else { return false };
        self.units.len() == 1 && self.world.is_none_or(|world| world <= 1) && node.job.nodelist == node.node
    }

    pub(super) fn start(&self) -> Option<UnixMillis> {
        self.nodes.iter().map(|node| node.start).min()
    }
}

impl Unit<'_> {
    /// Display name, `n1 GPU 5 rank 13`.
    pub(super) fn name(&self) -> String {
        let gpu = self.gpu.map(|gpu| format!(" GPU {}", gpu.index)).unwrap_or_default();
        let rank = self.rank.map(|rank| format!(" rank {rank}")).unwrap_or_default();
        format!("{}{gpu}{rank}", self.node)
    }

    /// As [`Facts::in_steps`], of this GPU.
    pub(super) fn in_steps(&self) -> Option<f64> {
        let coverage = &self.usage?.coverage;
        // Steps also ran while no samples were taken.
        let whole = coverage.sampled_s + coverage.missing_s + coverage.yielded_s + coverage.suspended_s;
        (whole > 0.0).then_some((self.app?.step_s?.total / whole).clamp(0.0, 1.0))
    }

    pub(super) fn step_s(&self) -> Option<f64> {
        self.app?.step_s.map(|times| times.mean)
    }
}

/// The usage of each node while the job trained, in the order of the nodes; `None` where it is not known.
pub(super) fn training(nodes: &[NodeReport]) -> Vec<Option<Usage>> {
    nodes.iter().map(|node| node.usage.as_ref()?.while_training()).collect()
}

/// Mean over time.
pub(super) fn mean_of(spread: &Reading<Spread>) -> Reading<f64> {
    spread.clone().map(|spread| spread.mean)
}

/// Upper bound of the share of SMs, 0 to 1, that the program's own kernels used while they ran for `own`
/// percent of the time. `sm` is the percentage of active SMs over all time and includes NCCL's few.
pub(super) fn own_sms(sm: f64, own: f64) -> f64 {
    if own > 0.0 { (sm / own).min(1.0) } else { 1.0 }
}

/// Percent of time with any kernel: from GPM, which covers a whole sample, else from the driver, which covers a
/// moment before it.
pub(super) fn busy(gpu: &GpuUsage) -> Reading<f64> {
    match &gpu.counters.graphics_percent {
        Reading::Known(spread) => Reading::Known(spread.mean),
        _ => mean_of(&gpu.counters.any_kernel_percent),
    }
}

pub fn median(values: Vec<f64>) -> Option<f64> {
    let values = sorted(values);
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => values.get(odd / 2).copied(),
        even => Some(f64::midpoint(*values.get(even / 2 - 1)?, *values.get(even / 2)?)),
    }
}

/// The finite values in ascending order.
pub(super) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    values
}

/// Median of sorted values without one of them: a job can have thousands, each of which is compared with all others.
pub(super) fn median_of_others(sorted: &[f64], own: f64) -> Option<f64> {
    let own = sorted.partition_point(|value| *value < own);
    let other = |place: usize| sorted.get(place + usize::from(place >= own)).copied();
    match sorted.len().checked_sub(1)? {
        0 => None,
        odd if odd % 2 == 1 => other(odd / 2),
        even => Some(f64::midpoint(other(even / 2 - 1)?, other(even / 2)?)),
    }
}

/// Node, start and process id: in a container of its own, each start may have the same ids.
type OneProcess<'a> = (&'a str, u32, u64);
/// Collective signature, equal on all nodes: communicator, operation, size, datatype, algorithm, protocol.
type Row<'a> = (&'a str, &'a str, u64, &'a str, &'a str, &'a str);

/// The newest start of the step that any source knows.
fn last_start(nodes: &[NodeReport], communicators: &[(&str, &Communicator)]) -> u32 {
    let apps = nodes.iter().filter_map(|node| node.application.as_ref()).flat_map(|told| &told.ranks);
    let seen = nodes.iter().filter_map(|node| node.tasks.as_ref()).flat_map(|tasks| &tasks.starts);
    let comms = communicators.iter().map(|(_, one)| one.start_number);
    let all = comms.chain(apps.map(|app| app.start_number)).chain(seen.map(|start| start.start_number));
    all.max().unwrap_or(0)
}

/// Rank in the largest communicator and time in collectives, by node and process.
fn comm_times<'a>(
    nodes: &'a [NodeReport],
    communicators: &[(&'a str, &'a Communicator)],
) -> BTreeMap<OneProcess<'a>, (Option<u32>, CommTime)> {
    let largest = communicators.iter().map(|(_, one)| one.size).max().unwrap_or(0);
    let mut whose: BTreeMap<(&str, u32), OneProcess<'_>> = BTreeMap::new();
    let mut times: BTreeMap<OneProcess<'_>, (Option<u32>, CommTime)> = BTreeMap::new();
    let comms = nodes.iter().filter_map(|node| Some((node.node.as_str(), node.communication.as_ref()?)));
    let replays: BTreeSet<OneProcess<'_>> = comms
        .flat_map(|(node, comm)| comm.processes.iter().map(move |one| (node, one)))
        .filter(|(_, one)| one.captured > 0)
        .map(|(node, one)| (node, one.start_number, one.pid))
        .collect();
    for (node, one) in communicators {
        let process = (*node, one.start_number, one.pid);
        whose.insert((one.hash.as_str(), one.rank), process);
        let entry = times.entry(process).or_default();
        entry.1.in_graphs |= one.size > 1 && replays.contains(&process);
        if one.size == largest {
            entry.0.get_or_insert(one.rank);
        }
    }
    let mut rows: BTreeMap<Row<'_>, Vec<RankTime>> = BTreeMap::new();
    for row in nodes.iter().filter_map(|node| node.communication.as_ref()).flat_map(|comm| &comm.collectives)
    {
        let key = (
            row.communicator.as_str(),
            row.op.as_str(),
            row.from_bytes,
            row.datatype.as_str(),
            row.algorithm.as_str(),
            row.protocol.as_str(),
        );
        rows.entry(key).or_default().extend(row.by_rank.iter().copied());
    }
    for (key, ranks) in rows {
        let fastest = ranks.iter().filter_map(RankTime::mean_s).min_by(f64::total_cmp);
        for rank in ranks {
            let Some(process) = whose.get(&(key.0, rank.rank)) else { continue };
            let calls = railgate_node_report::plain::float(rank.calls);
            let all = Weight { calls, bytes: calls * railgate_node_report::plain::float(key.2) };
            let time = match rank.mean_s().zip(fastest) {
                Some((mean, fastest)) => CommTime {
                    wait_s: calls * (mean - fastest).max(0.0),
                    wire_s: calls * fastest,
                    all,
                    ..CommTime::default()
                },
                None => CommTime { all, untimed: all, ..CommTime::default() },
            };
            times.entry(*process).or_default().1.add(&time);
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulator::healthy;

    #[test]
    fn median_of_the_others_is_taken_from_sorted_values() {
        for ascending in [&[1.0, 2.0, 2.0, 5.0][..], &[1.0, 3.0, 4.0], &[7.0, 7.0], &[1.0], &[]] {
            for (place, own) in ascending.iter().enumerate() {
                let mut others = ascending.to_vec();
                others.remove(place);
                assert_eq!(median_of_others(ascending, *own), median(others), "{ascending:?} without {own}");
            }
        }
    }

    #[test]
    fn steps_ran_while_no_samples_were_taken() {
        let mut nodes = healthy();
        let in_steps = |nodes: &[NodeReport]| Facts::new(nodes, None, Outcome::Good, None).in_steps();
        let all = in_steps(&nodes).unwrap();
        for coverage in nodes.iter_mut().map(|node| &mut node.usage.as_mut().unwrap().coverage) {
            coverage.sampled_s /= 2.0;
            coverage.missing_s = coverage.sampled_s;
        }
        assert!((in_steps(&nodes).unwrap() - all).abs() < 1e-9);
        nodes[1].application = None;
        assert_eq!(in_steps(&nodes), None);
    }
}

use railgate_model::Reading;
use railgate_node_report::Usage;
use railgate_node_report::plain::float;
use railgate_node_report::usage::GpuUsage;

use super::hang::stood_still;
use super::{cpu_contention, pausing_rank, sleeping_rank};
use crate::facts::{Facts, Outcome, Unit, busy, mean_of, median, own_sms};
use crate::host_time;
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "launch-bound",
    about: "kernels are too small or are launched too late, so that GPUs run with few SMs at work or without a kernel",
    class: Class::Application,
    evidence: "SMs at work, tensor activity, memory traffic (GPM), time with any kernel and NCCL's own times: kernels that keep few
SMs at work. And, of a program that reports its steps and its waiting for input, the steps' time without a kernel on any GPU while
a core is busy for each GPU and little is copied: kernels that are launched too late. Of a program that does not report, the time
without a kernel counts if each GPU's process computes meanwhile and its kernels keep few SMs at work: medium confidence.",
    why: "the processor sets the pace: a faster GPU would not make the job faster.",
    look_alikes: "waiting in NCCL keeps as few SMs at work: without NCCL's times the confidence is low, and nothing is reported where many
operations have no time or another rule names the rank that the others wait for. Python that makes its own input, or runs an environment,
looks like Python that launches kernels. Waiting for input (`input-bound`) and copies leave GPUs idle: a program that does not report its waiting
is judged by its idle time only while its process computes and its kernels are small. Compilation and checkpoints that take a few long steps are taken off. A job that stood still belongs
to `hang`.",
    fix: "CUDA graphs, torch.compile, larger batches; look for a CPU thread at 100 %. Programs without batches (molecular dynamics, solvers): several \
          runs on one GPU (MPS), or more work per run",
    thresholds: Settings::KEYS,
    line: Line::Verdict,
    over: Over::Training,
    explains: Explains::ItsCosts,
    find,
};

thresholds! {
    tensor_percent: Number(20.0), 0.0 to 100.0, "%", "the tensor pipes are active for at most this share of the steps' time";
    dram_percent: Number(30.0), 0.0 to 100.0, "%", "at most this share of the memory bandwidth is used";
    own_percent: Number(20.0), 0.0 to 100.0, "%", "small kernels: the program's own kernels run for at least this much of the time";
    own_of_busy_percent: Number(30.0), 0.0 to 100.0, "%", "and are at least this much of the time with any kernel";
    sm_percent: Number(60.0), 0.0 to 100.0, "%", "and at most this share of the SMs is active over the steps' time";
    sm_running_percent: Number(70.0), 0.0 to 100.0, "%", "and at most this share while the program's own kernels run";
    gap_percent: Number(20.0), 0.1 to 100.0, "%", "late launches: each GPU runs no kernel for at least this share of the steps' time, without another known cause";
    least_steps: Number(20.0), 2.0 to 1000000.0, "steps", "and each rank has timed at least this many steps";
    copied_gb_s: Number(5.0), 0.0 to 1000.0, "GB/s", "and at most this rate of data is copied over PCIe, both directions together";
    cores_percent: Number(80.0), 0.0 to 100.0, "%", "and at least this much of a core is busy for each GPU";
}

/// For a job whose kernels may be NCCL's, which wait.
const PROFILER_FIX: &str = "`--railgate-profiler=on` tells the two apart in the next run: small kernels need CUDA graphs, torch.compile or larger batches";

/// The same for GPUs that are not known to work together.
const SWEEP_FIX: &str = "CUDA graphs, torch.compile or larger batches; programs that do not depend on each other can share a GPU (MPS); if they are ranks of \
    one program, `--railgate-profiler=on` shows how long they wait";

/// For a program that does not report, whose processes compute for longer than its small kernels run.
const BUSY_THREAD_FIX: &str = "in the next run, `py-spy dump --pid PID` on the node shows what the busy thread does: if it launches kernels, CUDA graphs, torch.compile or larger batches; \
    if it prepares input or runs an environment, do that in other processes; if it polls for requests, share the GPU (MPS, MIG) or send more";

/// The same where other processes of the job compute as well.
const BUSY_THREAD_OR_LOADERS_FIX: &str = "in the next run, `py-spy dump --pid PID` on the node shows what the process does: if its main thread launches kernels, CUDA graphs, torch.compile or \
    larger batches; if it waits for the other processes, more of them, or less work in each";

/// Cores that a process uses at most while it launches kernels; one that uses more computes on the CPU itself.
const LAUNCHING: f64 = 2.0;

/// Kernels use few SMs because they are too small or run one at a time, or no kernel runs because the next one
/// is launched late.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Found> {
    let means = Means::new(facts);
    let small = means.small();
    // Without the program's word on its input, idle time alone proves nothing.
    let silent = !facts.reporting().any(|(_, rank)| rank.input_s.is_some());
    let gap = if silent { means.silent_gap() } else { means.gap() };
    if small.is_none() && gap.is_none() {
        return Vec::new();
    }
    let within = means.steps;
    let whose = if within.is_some() { "the steps' time" } else { "the time" };
    let confidence = small.as_ref().map_or(if silent { "medium" } else { "low" }, |small| small.confidence);
    let or_waiting = if small.as_ref().is_some_and(|small| small.confidence == "low") {
        " or wait in NCCL (it reported no times)"
    } else {
        ""
    };
    let mut said = Vec::new();
    said.extend(small.as_ref().map(|small| {
        format!(
            "kernels are too small{or_waiting}: some kernel of the program runs {:.0} % of {whose}, but keeps {:.0} % \
             of the SMs at work",
            small.own,
            100.0 * small.sms
        )
    }));
    said.extend(gap.map(|gap| {
        format!(
            "no kernel runs {:.0} % of {whose}, while a core is busy for each GPU{}: the program launches them too late, \
             {}",
            100.0 * gap,
            if silent { " and the kernels that run keep few SMs at work" } else { "" },
            if silent {
                "computes on the CPU itself, or polls for requests or another process"
            } else {
                "or computes on the CPU itself"
            }
        )
    }));
    let mut found = Found::new(confidence, String::new(), said.join("; "));
    // CUDA graphs gain what is lost between kernels, larger batches what small ones leave; both together gain less than the sum.
    let of_small = small.map_or(0.0, |small| (1.0 - small.sms) * small.own / 100.0);
    let lost = of_small.max(gap.unwrap_or(0.0));
    found.costs = Some((lost * within.unwrap_or(1.0)).clamp(0.0, 1.0));
    // From outside, Python that launches kernels and Python that makes the input are the same.
    found.fix = match gap {
        Some(gap) if silent && gap > of_small => {
            let others = host_time::other_cores(facts);
            let compute = others.is_some_and(|cores| cores >= facts.rules.input_bound.loader_cores.get());
            Some(if compute { BUSY_THREAD_OR_LOADERS_FIX } else { BUSY_THREAD_FIX })
        }
        None if confidence == "low" && !facts.ranks_depend => Some(SWEEP_FIX),
        None if confidence == "low" => Some(PROFILER_FIX),
        _ => None,
    };
    vec![found]
}

/// Share of the steps' time, 0 to 1, in which no GPU of the job runs a kernel although the program waits for
/// nothing and CPU cores are busy. `None` if it is small or unknown: a GPU whose rank does not report, or a
/// program that does not report its waits for input.
pub(crate) fn gap(facts: &Facts<'_>) -> Option<f64> {
    Means::new(facts).gap()
}

struct Small {
    /// Percent of time with kernels of the program itself, and the share of SMs that they use, 0 to 1.
    own: f64,
    sms: f64,
    confidence: &'static str,
}

/// Over the job's GPUs.
struct Means<'a> {
    facts: &'a Facts<'a>,
    /// Share of all time in which steps ran, 0 to 1, if all kernels can have run in steps.
    steps: Option<f64>,
}

impl<'a> Means<'a> {
    fn new(facts: &'a Facts<'a>) -> Self {
        let busy = facts.mean(busy).known().copied();
        let steps = facts.in_steps().zip(busy);
        Means { facts, steps: steps.and_then(|(steps, busy)| (busy / 100.0 <= steps).then_some(steps)) }
    }

    /// Converts percent of all time to percent of the steps' time, if that is known.
    fn of_steps(&self, percent: f64) -> f64 {
        (percent / self.steps.unwrap_or(1.0)).min(100.0)
    }

    fn of(&self, figure: impl Fn(&GpuUsage) -> Reading<f64>) -> Option<f64> {
        Some(self.of_steps(*self.facts.mean(figure).known()?))
    }

    /// Whether the rule applies: neither tensor pipes nor memory limit the job, and it did not hang.
    fn can_be(&self) -> bool {
        let set = &self.facts.rules.launch_bound;
        let tensor = self.of(|gpu| mean_of(&gpu.counters.tensor_percent));
        let dram = self.of(|gpu| mean_of(&gpu.counters.dram_percent));
        // A hang distorts the means.
        stood_still(self.facts).is_none()
            && tensor.is_some_and(|tensor| tensor <= set.tensor_percent.get())
            && dram.is_some_and(|dram| dram <= set.dram_percent.get())
    }

    fn small(&self) -> Option<Small> {
        let facts = self.facts;
        // Kernels that wait in NCCL use as few SMs; only NCCL's times distinguish them.
        if !self.can_be() || facts.units.iter().any(|unit| unit.comm.is_some_and(|comm| comm.is_partial())) {
            return None;
        }
        let (busy, sm) = (self.of(busy)?, self.of(|gpu| mean_of(&gpu.counters.sm_percent))?);
        let own = median(facts.units.iter().filter_map(own).collect());
        let (own, confidence) = match own {
            Some(own) => (self.of_steps(own), "high"),
            None if facts.alone() => (busy, "high"),
            None if facts.outcome != Outcome::Good => return None,
            // The others' kernels wait for it.
            None if a_rank_is_late(facts) || ranks_pause(facts) => return None,
            None => (busy, "low"),
        };
        let sms = own_sms(sm, own);
        // The remainder of a small value is unreliable, because NCCL's times have errors too.
        let set = &facts.rules.launch_bound;
        let much = own >= (set.own_of_busy_percent.share() * busy).max(set.own_percent.get());
        let few = sm <= set.sm_percent.get() && sms <= set.sm_running_percent.share();
        (much && few).then_some(Small { own, sms, confidence })
    }

    /// Share of all time without a kernel while each GPU's process computes, for a program that does not report. Only with
    /// small kernels: a program that prepares large batches itself looks the same otherwise.
    fn silent_gap(&self) -> Option<f64> {
        let facts = self.facts;
        let set = &facts.rules.launch_bound;
        let all = host_time::of_all(facts).filter(|_| self.can_be())?;
        let seconds = facts.training_s()?;
        // Where the driver's record of pauses is missing.
        let late = pausing_rank::find(facts).iter().filter_map(|found| found.costs).fold(0.0, f64::max);
        let gaps = all.iter().map(|(unit, host)| {
            let gpu = unit.gpu?;
            let sms = own_sms(*mean_of(&gpu.counters.sm_percent).known()?, *busy(gpu).known()?);
            let copied = mean_of(&gpu.counters.pcie_tx_bytes_s).known()?
                + mean_of(&gpu.counters.pcie_rx_bytes_s).known()?;
            let launches = sms <= set.sm_running_percent.share()
                && copied <= 1e9 * set.copied_gb_s.get()
                && (set.cores_percent.share()..=LAUNCHING).contains(&host.cpu);
            let paused = match host_time::Pauses::of(unit, seconds) {
                Some(pauses) if pauses.count >= facts.rules.pauses.count.get() => pauses.share,
                // One or two are the edge of the training, as likely as not.
                Some(_) => 0.0,
                None => late,
            };
            launches.then(|| (host.computes() - paused).max(0.0))
        });
        let gaps: Option<Vec<f64>> = gaps.collect();
        gaps?.into_iter().min_by(f64::total_cmp).filter(|gap| *gap >= set.gap_percent.share())
    }

    /// As [`gap`].
    fn gap(&self) -> Option<f64> {
        let facts = self.facts;
        let set = &facts.rules.launch_bound;
        let gpus = || facts.units.iter().filter(|unit| unit.gpu.is_some());
        // While one GPU is idle because its rank is late, the others run NCCL kernels.
        let gaps: Option<Vec<f64>> = gpus().map(|unit| gap_of(unit, set.least_steps.get())).collect();
        let least = gaps?.into_iter().min_by(f64::total_cmp).filter(|gap| *gap >= set.gap_percent.share())?;
        // Copies need no kernel.
        let ways = [
            |gpu: &GpuUsage| mean_of(&gpu.counters.pcie_tx_bytes_s),
            |gpu: &GpuUsage| mean_of(&gpu.counters.pcie_rx_bytes_s),
        ];
        let copied: Option<f64> = ways.iter().map(|way| facts.mean(way).known().copied()).sum();
        let possible = self.can_be() && copied? <= 1e9 * set.copied_gb_s.get() * self.steps?;
        // The busy cores may be other processes'.
        let sleeps = |(_, host): &(&Unit<'_>, host_time::HostTime)| 2.0 * host.asleep() >= host.idle;
        if host_time::of_all(facts).is_some_and(|all| all.iter().any(sleeps)) {
            return None;
        }
        let busy = |usage: &&Usage| cores_are_busy(usage, set.cores_percent.share());
        (possible && facts.usages.len() == facts.nodes.len() && facts.usages.iter().all(busy))
            .then_some(least)
    }
}

/// Whether at least `share` of one core per GPU of the job is busy. A thread that waits for its GPU also keeps
/// one busy.
fn cores_are_busy(usage: &Usage, share: f64) -> bool {
    let gpus = float(u64::try_from(usage.gpus.len()).unwrap_or(u64::MAX));
    usage.host.cpu_cores.known().is_some_and(|cores| cores.mean >= share * gpus)
}

fn gap_of(unit: &Unit<'_>, least_steps: f64) -> Option<f64> {
    let (app, times) = (unit.app?, unit.app?.step_s?);
    let coverage = &unit.usage?.coverage;
    let steps = unit.in_steps().filter(|share| *share > 0.0)?;
    if float(times.count) < least_steps || coverage.missing_s + coverage.yielded_s > 0.1 * coverage.sampled_s
    {
        return None;
    }
    let busy = (busy(unit.gpu?).known()? / 100.0 / steps).min(1.0);
    // Excess of a few slow steps over the others has another cause: compilation, or a checkpoint that is not
    // reported.
    let of_few = (1.0 - times.p50 / times.mean).max(0.0);
    Some(1.0 - busy - app.input_s? / times.total - of_few)
}

/// Whether another rule names one rank that the others wait for.
fn a_rank_is_late(facts: &Facts<'_>) -> bool {
    let rules = [sleeping_rank::find, pausing_rank::find, cpu_contention::find];
    rules.iter().flat_map(|rule| rule(facts)).any(|found| !found.part.is_empty())
}

/// Whether a GPU pauses again and again while ranks depend on each other: the kernels of the others wait meanwhile.
fn ranks_pause(facts: &Facts<'_>) -> bool {
    let set = &facts.rules.pauses;
    let paused = |unit: &Unit<'_>| {
        let pauses = host_time::Pauses::of(unit, facts.training_s()?)?;
        Some(pauses.count >= set.count.get() && pauses.share >= set.share_percent.share())
    };
    facts.ranks_depend && facts.units.iter().any(|unit| paused(unit) == Some(true))
}

/// Percent of all time in which a GPU ran kernels other than NCCL's; `None` if NCCL's time is not known.
fn own(unit: &Unit<'_>) -> Option<f64> {
    let (gpu, comm, whole) = (unit.gpu?, unit.comm?, unit.usage?.coverage.sampled_s);
    let busy = *busy(gpu).known()?;
    (whole > 0.0).then(|| (busy - 100.0 * (comm.wait_s + comm.wire_s) / whole).max(0.0))
}

#[cfg(test)]
mod tests {
    use railgate_node_report::NodeReport;
    use railgate_node_report::comm::RankTime;

    use super::*;
    use crate::simulator::{self, Plant, parts_with};

    fn rules(nodes: &[NodeReport]) -> usize {
        find(&Facts::new(nodes, nodes[0].end, Outcome::Good, None)).len()
    }

    /// Two causes at once: the others wait for the straggler, and run small kernels in their remaining time.
    #[test]
    fn waiting_for_a_straggler_does_not_hide_small_kernels() {
        let of = |planted: &[Plant]| {
            let nodes = parts_with(planted);
            find(&Facts::new(&nodes, nodes[0].end, Outcome::Good, None))
        };
        let both = of(&[Plant::Sleeps, Plant::TinyKernels]);
        let [one] = both.as_slice() else { panic!("{both:?}") };
        assert!(one.confidence == "high" && one.costs.is_some_and(|costs| costs < 0.6), "{one:?}");
        assert_eq!(of(&[Plant::Sleeps]), []);
    }

    /// Steps cover a tenth of the time but kernels ran in most of it, so kernels also ran outside of steps.
    #[test]
    fn kernels_outside_of_steps_are_not_attributed_to_them() {
        let mut nodes = parts_with(&[Plant::TinyKernels]);
        for rank in nodes.iter_mut().flat_map(|node| &mut node.application.as_mut().unwrap().ranks) {
            rank.step_s.as_mut().unwrap().total /= 10.0;
        }
        let found = find(&Facts::new(&nodes, nodes[0].end, Outcome::Good, None));
        assert!(found[0].what.contains("% of the time, but"), "{found:?}");
    }

    /// A slow network: all ranks wait for half of the time on few SMs, and compute on all SMs in the other
    /// half.
    #[test]
    fn waiting_for_the_network_is_not_small_kernels() {
        let mut nodes = simulator::healthy();
        simulator::wait_for_the_network(&mut nodes);
        assert_eq!(rules(&nodes), 0);
    }

    #[test]
    fn untimed_collectives_may_explain_few_active_sms() {
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

    /// No straggler, no waiting, busy cores: if one of these is missing, the GPUs' idle time has another cause.
    #[test]
    fn late_launches_are_distinguished_from_other_idle_time() {
        let nodes = parts_with(&[Plant::LateLaunches]);
        let of = |nodes: &[NodeReport]| find(&Facts::new(nodes, nodes[0].end, Outcome::Good, None));
        let [one] = &of(&nodes)[..] else { panic!("{:?}", of(&nodes)) };
        assert!(
            one.what.contains("launches them too late") && one.costs.is_some_and(|costs| costs > 0.4),
            "{one:?}"
        );
        let without = |change: fn(&mut NodeReport)| {
            let mut changed = nodes.clone();
            changed.iter_mut().for_each(change);
            gap(&Facts::new(&changed, changed[0].end, Outcome::Good, None))
        };
        assert!(without(|_| ()).is_some());
        let silent = without(|node| node.application.as_mut().unwrap().ranks[0].input_s = None);
        let waiting = without(|node| {
            for rank in &mut node.application.as_mut().unwrap().ranks {
                rank.input_s = rank.step_s.map(|times| 0.7 * times.total);
            }
        });
        let resting = without(|node| {
            node.usage.as_mut().unwrap().host.cpu_cores =
                node.usage.as_ref().unwrap().rails[0].xmit_wait_s.clone();
        });
        let compiling = without(|node| {
            for rank in &mut node.application.as_mut().unwrap().ranks {
                rank.step_s.as_mut().unwrap().p50 /= 3.0;
            }
        });
        let one_is_busy = without(|node| {
            let gpu = &mut node.usage.as_mut().unwrap().gpus[3];
            gpu.counters.graphics_percent = gpu
                .counters
                .memory_used_mib
                .clone()
                .map(|spread| railgate_node_report::usage::Spread { mean: 95.0, ..spread });
        });
        let copying = without(|node| {
            for gpu in &mut node.usage.as_mut().unwrap().gpus {
                gpu.counters.pcie_rx_bytes_s = gpu.counters.nvlink_rx_bytes_s.clone();
            }
        });
        let unseen = without(|node| node.usage.as_mut().unwrap().coverage.missing_s = 200.0);
        assert_eq!([silent, waiting, resting, compiling, one_is_busy, copying, unseen], [None; 7]);
        let time = crate::shares::shares(&Facts::new(&nodes, nodes[0].end, Outcome::Good, None));
        let time = time.known().unwrap();
        assert!(time.launch > 50.0 && time.idle < 15.0, "{time:?}");
    }

    /// nccl-tests on four H200s: all_reduce_perf and alltoall_perf were two steps with separate processes.
    #[test]
    fn processes_of_a_rank_are_summed() {
        let mut nodes = parts_with(&[Plant::TinyKernels]);
        for comm in nodes.iter_mut().map(|node| node.communication.as_mut().unwrap()) {
            let later: Vec<_> = comm
                .communicators
                .iter()
                .map(|one| railgate_node_report::comm::Communicator {
                    pid: one.pid + 1000,
                    hash: "later".to_owned(),
                    ..one.clone()
                })
                .collect();
            comm.communicators.extend(later);
        }
        let with_later = Facts::new(&nodes, nodes[0].end, Outcome::Good, None);
        assert!(with_later.units.iter().all(|unit| unit.comm.is_some_and(|comm| comm.wire_s > 1.0)));
    }
}

use std::fmt::Write as _;

use railgate_model::Reading;
use railgate_node_report::usage::{HostUsage, Spread};

use super::idle_gpus::is_unused;
use super::{cpu_contention, saving};
use crate::facts::{Facts, Unit, busy, mean_of, median};
use crate::host_time::{self, HostTime, cores_besides_polling, other_cores};
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "input-bound",
    about: "GPUs are idle because the input of the next step is not ready",
    class: Class::Application,
    evidence: "the time in which the program waits for input, as it reports (docs/application-reports.md): high confidence. Without
a report: idle GPUs on nodes where processes wait for disks (I/O pressure, where
copies off the GPUs are known, and none has a quarter of a save's rate), or the GPUs' processes sleep while other processes of the job, as
data loaders, compute: medium confidence. Not where these processes compute for most of the time without a kernel. Where their CPU time is not
known: almost all of the job's cores are in use, more than the one per GPU on which its process polls.
Not while the job saves (`saving`), nor where the GPUs' processes wait for a core (`cpu-contention`).",
    why: "allocated GPUs wait for the data loaders.",
    look_alikes: "a program that computes on the CPU itself or launches kernels too late (`launch-bound`): only the
program's report distinguishes them. Evaluation, checkpoints and start-up also leave GPUs idle. Other processes that compute may also be
environments, scoring, or the client of a server, for which more loader workers do nothing. The kernel does not tell waits for data that is
read from waits for data that is written: where processes wait for disks, the finding names both.",
    fix: "more loader workers, prefetch, data on local disks or fewer small files",
    thresholds: Settings::KEYS,
    line: Line::Verdict,
    over: Over::Training,
    explains: Explains::Idle,
    find,
};

thresholds! {
    waiting_percent: Number(10.0), 0.0 to 100.0, "%", "the median rank waits for input at least this much of its steps' time";
    busy_percent: Number(75.0), 0.0 to 100.0, "%", "without the program's report: GPUs run kernels for at most this share of the time";
    sm_percent: Number(70.0), 0.0 to 100.0, "%", "and at most this share of their SMs is active";
    io_pressure_percent: Number(10.0), 0.0 to 100.0, "%", "and a process waits for disks for more than this share of the time";
    cpu_pressure_percent: Number(20.0), 0.0 to 100.0, "%", "unless a process waits for a CPU for more than this share of the time (`cpu-contention`)";
    cores_percent: Number(90.0), 0.0 to 100.0, "%", "or more than this share of the job's cores is busy";
    asleep_percent: Number(15.0), 0.1 to 100.0, "%", "or each GPU's processes sleep for at least this share of the time while it runs no kernel";
    loader_cores: Number(0.8), 0.1 to 1000.0, "cores", "and processes of the job that use no GPU use at least this many cores per GPU meanwhile";
}

/// For a job whose other processes compute while those of its GPUs sleep.
const FEEDERS_FIX: &str = "data loaders: as many workers as the job has cores, prefetch, data on local disks or fewer small files; environments, scoring or clients: run \
    more of them at once, or let them run while the GPUs work";

/// For such a job, if all of its cores are in use.
const CORES_FIX: &str = "all cores of the job are busy: ask for more cores per GPU (--cpus-per-task), or do less work per sample (decode on the GPU, prepare \
    the data once)";

/// For such a job, if they wait for cores and not all of its cores are known to be in use.
const BOUND_FIX: &str = "these processes share too few cores: `taskset -cp PID` on the node shows which ones they may use; do not set their affinity (worker_init_fn, \
    OMP_PROC_BIND, KMP_AFFINITY, --cpu-bind), or ask for more cores (--cpus-per-task)";

/// The kernel's figure of waits for disks does not tell reads from writes.
const DISKS_FIX: &str = "while the job runs, `cat /proc/PID/io` on the node, twice: where read_bytes or rchar grow, prefetch, data on local disks or fewer \
    small files; where write_bytes grow, write less often, or in a thread or process of its own";

/// If the job's memory is full as well.
const MEMORY_FIX: &str = "the job's memory is full, so that pages of its files are dropped and read again: more memory (--mem), fewer loader processes, or a smaller \
    cache; otherwise the disks are slow: data on local disks, or fewer small files";

/// For a job that copies its results off the GPUs.
const RESULTS_FIX: &str = "`py-spy dump --pid PID` on the node shows whether the GPU's process waits to hand over results or for input: results: a queue, more or \
    faster encoders and writers; input: more processes that prepare it";

pub(super) fn find(facts: &Facts<'_>) -> Vec<Found> {
    let set = &facts.rules.input_bound;
    let waited: Vec<f64> = facts
        .reporting()
        .filter_map(|(_, rank)| {
            let steps = rank.step_s?.total;
            (steps > 0.0).then(|| rank.input_s.map(|input| input / steps))?
        })
        .collect();
    if let Some(share) = median(waited.clone()) {
        if share < set.waiting_percent.share() {
            return Vec::new();
        }
        let what = format!("the program waits for its input {:.0} % of its steps' time", 100.0 * share);
        let mut found = Found::new("high", String::new(), what);
        found.costs = Some(share.min(1.0));
        found.fix = (cores_in_use(facts) > set.cores_percent.share()).then_some(CORES_FIX);
        return vec![found];
    }
    // If the program does not report, idle GPUs with busy disks or CPUs are a weaker sign.
    // A GPU that no rank uses waits for nothing (`idle-gpus`).
    let used = |unit: &Unit<'_>| !is_unused(facts, unit);
    let (Reading::Known(busy), Reading::Known(sm)) =
        (facts.mean_where(used, busy), facts.mean_where(used, |gpu| mean_of(&gpu.counters.sm_percent)))
    else {
        return Vec::new();
    };
    let io = of_hosts(facts, |host| mean(&host.io_pressure_percent)).unwrap_or(0.0);
    let full = of_hosts(facts, |host| mean(&host.memory_pressure_percent)).unwrap_or(0.0);
    let cpu = cores_in_use(facts);
    let all = host_time::of_all(facts);
    // Loaders that are more than the cores wait for each other: only the times of the GPUs' processes show whether these wait as well.
    let lacks_cores = match &all {
        Some(_) => !cpu_contention::find(facts).is_empty(),
        None => {
            let pressure = of_hosts(facts, |host| mean(&host.cpu_pressure_percent));
            pressure.is_some_and(|percent| percent > set.cpu_pressure_percent.get())
        }
    };
    if busy > set.busy_percent.get() || sm > set.sm_percent.get() {
        return Vec::new();
    }
    // Who waits for a core or for a checkpoint is not waiting for input, though disks and cores are busy.
    if lacks_cores || saving::explains_idle(facts) {
        return Vec::new();
    }
    if let Some(mut found) = loaders_compute(facts) {
        if cpu > set.cores_percent.share() {
            found.fix = found.fix.or(Some(CORES_FIX));
        } else if let Some(waits) = waits_for_cores(facts) {
            found.what.push_str(&waits);
            found.fix = Some(BOUND_FIX);
        } else {
            found.fix = found.fix.or(Some(FEEDERS_FIX));
        }
        return vec![found];
    }
    // A process that computes for most of the idle time waits for nothing; its threads may be loaders, or the program's own work on the
    // CPU (`host-bound`).
    if all.as_ref().is_some_and(|all| sleeps(all).is_none()) {
        return Vec::new();
    }
    // Where its CPU time is not known, it is taken to poll.
    let others_compute = || cores_besides_polling(facts).is_none_or(|cores| cores >= set.loader_cores.get());
    // Where copies off the GPUs are not known (MIG), or one of several programs saves, disks are perhaps busy with checkpoints.
    let copies_are_known = facts.mean(|gpu| mean_of(&gpu.counters.pcie_tx_bytes_s)).known().is_some();
    let saves = facts.units.iter().filter_map(|unit| unit.gpu).any(|gpu| saving::copies_off(facts, gpu));
    let waits_for_disks = io > set.io_pressure_percent.get() && copies_are_known && !saves;
    let why = if waits_for_disks {
        format!(
            "at least one process waits for disks {io:.0} % of the time: the GPUs probably wait for input, or for files that the job writes"
        )
    } else if cpu > set.cores_percent.share() && all.is_none() && others_compute() {
        format!("{:.0} % of the job's cores are busy: the GPUs probably wait for input", 100.0 * cpu)
    } else {
        return Vec::new();
    };
    let mut found = Found::new(
        "medium",
        String::new(),
        format!("GPUs are idle {:.0} % of the time and {why}", 100.0 - busy),
    );
    found.costs = Some((100.0 - busy) / 100.0);
    if waits_for_disks && full > set.io_pressure_percent.get() {
        write!(found.what, "; a process waits for memory {full:.0} % of the time").ok();
        found.fix = Some(MEMORY_FIX);
    } else if waits_for_disks {
        found.fix = Some(DISKS_FIX);
    }
    vec![found]
}

/// In words, that processes of the job wait for a core.
fn waits_for_cores(facts: &Facts<'_>) -> Option<String> {
    let pressure = of_hosts(facts, |host| mean(&host.cpu_pressure_percent))
        .filter(|percent| *percent > facts.rules.input_bound.cpu_pressure_percent.get())?;
    let cores = of_hosts(facts, |host| mean(&host.cpu_cores))?;
    let allowed = of_hosts(facts, |host| host.cpus_allowed.known().copied());
    let of = allowed.map_or_else(String::new, |allowed| format!(" of {allowed:.0}"));
    Some(format!(
        "; a process of the job waits for a CPU core {pressure:.0} % of the time, and {cores:.1}{of} cores are in use"
    ))
}

fn mean(reading: &Reading<Spread>) -> Option<f64> {
    reading.known().map(|spread| spread.mean)
}

/// A figure of the job's cgroup: median over the nodes.
fn of_hosts(facts: &Facts<'_>, of: impl Fn(&HostUsage) -> Option<f64>) -> Option<f64> {
    median(facts.usages.iter().filter_map(|usage| of(&usage.host)).collect())
}

/// Share of the job's cores that are busy, 0 to 1; 0 if it is not known.
fn cores_in_use(facts: &Facts<'_>) -> f64 {
    of_hosts(facts, |host| Some(host.cpu_cores.known()?.mean / host.cpus_allowed.known()?)).unwrap_or(0.0)
}

/// The least time in which no kernel runs and the processes of a GPU sleep, if that is most of the time without a kernel.
fn sleeps(all: &[(&Unit<'_>, HostTime)]) -> Option<f64> {
    let asleep = all.iter().map(|(_, host)| host.asleep()).min_by(f64::total_cmp)?;
    let idle = median(all.iter().map(|(_, host)| host.idle).collect())?;
    (2.0 * asleep >= idle).then_some(asleep)
}

/// The processes that use the GPUs sleep while other processes of the job compute.
fn loaders_compute(facts: &Facts<'_>) -> Option<Found> {
    let set = &facts.rules.input_bound;
    let all = host_time::of_all(facts)?;
    let asleep = sleeps(&all).filter(|asleep| *asleep >= set.asleep_percent.share())?;
    let cores = other_cores(facts).filter(|cores| *cores >= set.loader_cores.get())?;
    let gives_results =
        facts.units.iter().filter_map(|unit| unit.gpu).any(|gpu| saving::copies_off(facts, gpu));
    let which = if gives_results {
        "encoders or writers of its results, or data loaders"
    } else {
        "data loaders, environments, scoring, encoders"
    };
    let what = format!(
        "each GPU's process sleeps {:.0} % of the time while its GPU runs no kernel, and other processes of the job use {cores:.1} \
         CPU cores per GPU: the GPUs probably wait for those ({which})",
        100.0 * asleep
    );
    let mut found = Found::new("medium", String::new(), what);
    found.costs = Some(asleep);
    found.fix = gives_results.then_some(RESULTS_FIX);
    Some(found)
}

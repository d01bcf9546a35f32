use railgate_model::{Reading, UnixMillis};
use railgate_node_report::NodeReport;
use railgate_node_report::phases::PhaseKind;
use railgate_node_report::plain::{clock, float, span};
use railgate_node_report::usage::IdleTime;

use super::{
    Rules, cpu_contention, hang, input_bound, killed_rank, launch_bound, nan, pausing_rank, saving,
    sleeping_rank,
};
use crate::facts::{Facts, Outcome, Unit, busy};
use crate::host_time::{in_phases, keeps_a_core_busy};
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "idle-gpus",
    about: "the job holds GPUs that it does not use",
    class: Class::Application,
    evidence: "of each GPU the time with any kernel (GPM, else the driver), the samples without a kernel and the memory in use. Unused
GPUs: no kernel in any sample and no memory beyond the driver's own, while other GPUs of the job work, or on all GPUs of a job that
ended well. Idle GPUs: every GPU of the job is without a
kernel for most of the time. Idle at the end: a job that did not end well ran no kernel on any GPU for its last minutes, or a job that
ended well ran none for a large part of its time after the last one. Idle in between: no GPU worked in whole samples between two times
of work, and these and the end are a large part of the time.
Low use: kernels run for a small share of the time, and no rule knows a more specific cause. Idle at the start: the start-up of a job
that did not fail is a large part of the time, and more than half of what the GPUs are idle.
Suspended time, time in which the user paused the sampler (`railgate yield`) and time without samples do not count as idle; a job of
which more than a fifth was not sampled is not judged.",
    why: "no other job can use these GPUs, and they count towards the account's share. The finding states the idle GPU-hours.",
    look_alikes: "a debugging session, an inference server that waits for requests, data staging and a long compilation leave GPUs
idle on purpose or for a while. A rank that died (`killed-rank`), waiting for input (`input-bound`) or for a CPU core
(`cpu-contention`), saving (`saving`) and kernels that are launched too late (`launch-bound`) are named instead where the
measurements show them.",
    fix: "end the job when its work is done, or ask for fewer GPUs",
    thresholds: Settings::KEYS,
    line: Line::Verdict,
    over: Over::AllTime,
    explains: Explains::Nothing,
    find,
};

thresholds! {
    least: Time(600), 60 to 604800, "time", "each GPU was sampled for at least this long; idle GPUs were without a kernel for as long";
    unused: Time(30), 5 to 604800, "time", "unused GPUs: at least this long instead";
    memory_mib: Number(256.0), 0.0 to 65536.0, "MiB", "unused GPUs: never more memory in use than this";
    idle_percent: Number(50.0), 1.0 to 100.0, "%", "idle GPUs: on each GPU, samples without a kernel make up at least this share of the time";
    asleep_percent: Number(5.0), 0.0 to 100.0, "%", "and kernels run on each GPU for at most this share of the time";
    end: Time(120), 5 to 604800, "time", "idle at the end: no kernel on any GPU for at least this long before the end of a job that did not end well";
    tail: Time(20), 5 to 604800, "time", "or of a job that ended well: for at least this long, at the end or with the time in between";
    tail_percent: Number(20.0), 1.0 to 100.0, "%", "and at least this share of the time";
    start: Time(600), 5 to 604800, "time", "idle at the start: the start-up takes at least this long, and `tail_percent` of the time";
    low_percent: Number(10.0), 0.0 to 100.0, "%", "low use: kernels run for at most this share of the time, over all GPUs; a GPU works if they run for more";
}

/// Highest sample of a GPU without any kernel, percent: counters are rounded.
const NO_KERNEL: f64 = 0.1;
/// Share of the time that must have been sampled, 0 to 1.
const COVERED: f64 = 0.8;
/// Maximum number of GPUs named in one finding.
const MOST_NAMES: usize = 4;
const TAIL_FIX: &str = "look at what the program does after its last step (upload, conversion, waiting), and do it in a job without GPUs";
const BETWEEN_FIX: &str = "look at what the program does then (evaluation on the CPU, waiting for a person or a service), or divide the job there";
const START_FIX: &str = "look at what the program does before its first step (downloads, data, compilation): do it in a job without GPUs, and keep its \
    results for the next job";
const STARTS_FIX: &str = "look at what each program does before its first step, and at what the script does between them (imports, data, compilation, \
    work on the CPU): run several settings in one program, or divide the job there";
const LOW_FIX: &str = "find what the GPUs wait for (`py-spy dump --pid PID`; railgate.step() and railgate.waiting() in the loop), or ask for fewer GPUs; \
    work of the video engines (NVDEC, NVENC) is not counted";
/// For a job that computes without any GPU.
const CPU_FIX: &str = "the job computes on the CPU: check that its library sees the GPU (torch.cuda.is_available(), jax.devices(); a build without CUDA, \
    CUDA_VISIBLE_DEVICES); if it needs none, ask for no GPUs";
/// A job that was cut off may have stood still, or was not in use.
const CUT_OFF_FIX: &str = "it stood still (its log; `railgate report JOBID --live` or `py-spy dump --pid PID` while it runs), or it waited for a person or for requests: \
    end such a job when its use is over, or set a shorter time limit";
const UNUSED_FIX: &str = "start a process on every GPU, or ask for fewer GPUs";

/// One GPU, with all that the rule needs to know of it.
struct Gpu<'a> {
    unit: &'a Unit<'a>,
    /// Mean time with kernels, percent.
    busy: f64,
    idle: IdleTime,
    /// Time of the job that was not suspended, seconds.
    whole_s: f64,
    unused: bool,
}

impl Gpu<'_> {
    fn without_kernel_s(&self) -> f64 {
        without_kernel_s(&self.idle, self.busy)
    }
}

/// Sampled time without a kernel, however short the pauses between kernels are.
fn without_kernel_s(idle: &IdleTime, busy_percent: f64) -> f64 {
    idle.over_s * (1.0 - busy_percent.clamp(0.0, 100.0) / 100.0)
}

/// How a job used the GPUs that it holds, from its node reports so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IdleUse {
    /// Number of GPUs of which it is known; the other figures are of these.
    pub gpus: u32,
    /// Sampled time, summed over them, seconds.
    pub sampled_s: f64,
    /// Idle time, summed over them, seconds: of a job with low use all time without a kernel, of others the samples
    /// without one.
    pub idle_s: f64,
    /// Time with kernels, percent.
    pub busy_percent: f64,
    /// Since when none of the job's GPUs ran a kernel, up to the last sample; `None` if one did, or if a GPU is unknown.
    pub since: Option<UnixMillis>,
}

/// Sums up the idle time of a job's GPUs; `None` if it is not known of any of them.
pub fn idle_use<'n>(nodes: impl IntoIterator<Item = &'n NodeReport>, rules: &Rules) -> Option<IdleUse> {
    let (mut gpus, mut sampled_s, mut idle_s, mut none_s, mut busy_s) = (0, 0.0, 0.0, 0.0, 0.0);
    let mut since = Some(0);
    for usage in nodes.into_iter().map(|node| node.usage.as_ref()) {
        let Some(usage) = usage else {
            since = None;
            continue;
        };
        for gpu in &usage.gpus {
            let (Reading::Known(idle), Reading::Known(percent)) = (&gpu.idle, busy(gpu)) else {
                since = None;
                continue;
            };
            gpus += 1;
            sampled_s += idle.over_s;
            none_s += idle.idle_s;
            idle_s += without_kernel_s(idle, percent);
            busy_s += percent / 100.0 * idle.over_s;
            since = since.zip(idle.since).map(|(one, other)| one.max(other));
        }
    }
    if sampled_s <= 0.0 {
        return None;
    }
    let busy_percent = 100.0 * busy_s / sampled_s;
    let low = busy_percent <= rules.idle_gpus.low_percent.get();
    Some(IdleUse { gpus, sampled_s, idle_s: if low { idle_s } else { none_s }, busy_percent, since })
}

fn find(facts: &Facts<'_>) -> Vec<Found> {
    let set = &facts.rules.idle_gpus;
    let Some(gpus) = sampled(facts, set.unused.seconds().min(set.least.seconds())) else { return Vec::new() };
    let held_s: f64 = gpus.iter().map(|gpu| gpu.idle.over_s).sum();
    let long = gpus.iter().all(|gpu| gpu.idle.over_s >= set.least.seconds());
    // Nothing that delays a GPU's work explains a GPU that has none.
    let none_used_at_all = gpus.iter().all(|gpu| gpu.unused);
    let is_explained = || !none_used_at_all && has_another_cause(facts);
    let low = || asleep(facts, &gpus).or_else(|| low_use(facts, &gpus)).filter(|_| !is_explained());
    // A job of ten minutes whose start-up is a little shorter.
    let other = || low().map(|found| at_the_start(facts, &gpus, true).unwrap_or(found));
    let at_the_end = || at_the_end(facts, &gpus).filter(|_| !is_explained());
    let in_between = || in_between(facts, &gpus).filter(|_| !is_explained());
    let found = unused(facts, &gpus)
        .or_else(|| at_the_start(facts, &gpus, false))
        .or_else(|| if long { other() } else { none_used(facts, &gpus) })
        .or_else(at_the_end)
        .or_else(in_between);
    let told = found.map(|(mut found, idle_s)| {
        if none_used_at_all && keeps_a_core_busy(facts) {
            found.fix = Some(CPU_FIX);
        }
        found.costs = Some((idle_s / held_s).clamp(0.0, 1.0));
        found
    });
    told.into_iter().collect()
}

/// Whether no kernel ran on the GPU and its memory was not used, in any sample; `false` if that is not known.
pub(crate) fn is_unused(facts: &Facts<'_>, unit: &Unit<'_>) -> bool {
    let Some(gpu) = unit.gpu else { return false };
    let counters = &gpu.counters;
    let kernels = match (&counters.graphics_percent, &counters.any_kernel_percent) {
        (Reading::Known(gpm), Reading::Known(driver)) => Some(gpm.max.max(driver.max)),
        (Reading::Known(one), _) | (_, Reading::Known(one)) => Some(one.max),
        _ => None,
    };
    let memory = counters.memory_used_mib.known().map(|memory| memory.max);
    kernels.is_some_and(|percent| percent <= NO_KERNEL)
        && memory.is_some_and(|mib| mib <= facts.rules.idle_gpus.memory_mib.get())
}

/// All GPUs of the job; `None` if one of them was not sampled for long enough, or not for most of the time.
fn sampled<'a>(facts: &'a Facts<'a>, least_s: f64) -> Option<Vec<Gpu<'a>>> {
    if facts.nodes.iter().any(|node| node.usage.is_none()) {
        return None;
    }
    let gpu = |unit: &'a Unit<'a>| -> Option<Gpu<'a>> {
        let gpu = unit.gpu?;
        let coverage = &unit.usage?.coverage;
        let whole_s = coverage.sampled_s + coverage.missing_s + coverage.yielded_s;
        let idle = *gpu.idle.known()?;
        let enough = idle.over_s >= least_s && idle.over_s >= COVERED * whole_s;
        let busy = *busy(gpu).known()?;
        enough.then(|| Gpu { unit, busy, idle, whole_s, unused: is_unused(facts, unit) })
    };
    let gpus: Option<Vec<_>> = facts.units.iter().filter(|unit| unit.gpu.is_some()).map(gpu).collect();
    gpus.filter(|gpus| !gpus.is_empty())
}

/// GPUs that were never used while others worked.
fn unused(facts: &Facts<'_>, gpus: &[Gpu<'_>]) -> Option<(Found, f64)> {
    let low = facts.rules.idle_gpus.low_percent.get();
    let never: Vec<&Gpu<'_>> = gpus.iter().filter(|gpu| gpu.unused).collect();
    let first = never.first()?;
    let worked: Vec<f64> = gpus.iter().map(|gpu| gpu.busy).filter(|busy| *busy > low).collect();
    if worked.is_empty() {
        return None;
    }
    let idle_s: f64 = never.iter().map(|gpu| gpu.idle.over_s).sum();
    let part = names(&never);
    let which = match never.len() {
        1 => format!("{part} was never used"),
        some => format!("{some} of {} GPUs were never used ({part})", gpus.len()),
    };
    let memory = never.iter().filter_map(|gpu| gpu.unit.gpu?.counters.memory_used_mib.known());
    let memory = memory.map(|memory| memory.max).fold(0.0, f64::max);
    let what = format!(
        "{which}: no kernel and at most {memory:.0} MiB of memory in {}, while {} ran kernels {:.0} % of the time: {} \
         GPU-hours unused",
        span(first.idle.over_s),
        gpus_text(worked.len()),
        mean(&worked),
        hours(idle_s)
    );
    Some((Found { fix: Some(UNUSED_FIX), ..Found::new("high", part, what) }, idle_s))
}

/// A job that is too short for the other findings and touched none of its GPUs. One that failed had perhaps no time to.
fn none_used(facts: &Facts<'_>, gpus: &[Gpu<'_>]) -> Option<(Found, f64)> {
    if facts.outcome != Outcome::Good || !gpus.iter().all(|gpu| gpu.unused) {
        return None;
    }
    let idle_s: f64 = gpus.iter().map(|gpu| gpu.idle.over_s).sum();
    let what = format!(
        "the job never used its {}: no kernel in {}, {} GPU-hours unused",
        if gpus.len() == 1 { "GPU".to_owned() } else { gpus_text(gpus.len()) },
        span(gpus.iter().map(|gpu| gpu.idle.over_s).fold(0.0, f64::max)),
        hours(idle_s)
    );
    Some((Found { fix: Some(UNUSED_FIX), ..Found::new("high", String::new(), what) }, idle_s))
}

/// The start-up is a large part of the time, and of what the GPUs are idle. Causes that other rules find are of the training, so that
/// they do not explain it. `is_low`: kernels run for little of all time, so that a short start-up explains it as well.
fn at_the_start(facts: &Facts<'_>, gpus: &[Gpu<'_>], is_low: bool) -> Option<(Found, f64)> {
    let set = &facts.rules.idle_gpus;
    let (start_s, starts) = in_phases(facts, PhaseKind::StartUp);
    let whole_s = gpus.iter().map(|gpu| gpu.whole_s).fold(0.0, f64::max);
    let least_s = if is_low { 0.0 } else { set.start.seconds() };
    let long = start_s >= least_s.max(set.tail_percent.share() * whole_s);
    // A start-up may have kernels of its own, as while a compiler measures them.
    let (between_s, tail_s) = (in_phases(facts, PhaseKind::Idle).0, in_phases(facts, PhaseKind::Tail).0);
    let samples_s = |gpu: &Gpu<'_>| gpu.idle.idle_s - between_s - tail_s;
    // If all kernels of the job had run in it.
    let at_least_s = |gpu: &Gpu<'_>| start_s - gpu.idle.over_s * gpu.busy / 100.0;
    let idle_s = |gpu: &Gpu<'_>| {
        let idle_s = if is_low { samples_s(gpu).max(at_least_s(gpu)) } else { samples_s(gpu) };
        idle_s.clamp(0.0, start_s)
    };
    let mostly = |gpu: &Gpu<'_>| idle_s(gpu) >= 0.5 * start_s.max(gpu.without_kernel_s());
    if facts.outcome == Outcome::Failed || !long || !has_trained(facts) || !gpus.iter().all(mostly) {
        return None;
    }
    let all_s: f64 = gpus.iter().map(idle_s).sum();
    // Of several programs, or of one that a launcher started again, with what ran between them.
    let (which, fix) = if starts > 1.0 {
        (format!("the starts of the job's {starts:.0} programs, and the time between them,"), STARTS_FIX)
    } else {
        ("the job's start-up".to_owned(), START_FIX)
    };
    let what = format!(
        "{which} took {} of {}, and {} no kernel in most of it: {} GPU-hours idle",
        span(start_s),
        span(whole_s),
        if gpus.len() == 1 { "the GPU ran".to_owned() } else { format!("{} ran", gpus_text(gpus.len())) },
        hours(all_s)
    );
    Some((Found { fix: Some(fix), ..Found::new("high", String::new(), what) }, all_s))
}

/// Whether the job trained for a part of its time.
fn has_trained(facts: &Facts<'_>) -> bool {
    PhaseKind::ALL.into_iter().any(|kind| kind.is_training() && in_phases(facts, kind).0 > 0.0)
}

/// No GPU runs a kernel for most of the time.
fn asleep(facts: &Facts<'_>, gpus: &[Gpu<'_>]) -> Option<(Found, f64)> {
    let set = &facts.rules.idle_gpus;
    let sleeps = |gpu: &Gpu<'_>| {
        let least_s = (set.idle_percent.share() * gpu.whole_s).max(set.least.seconds());
        gpu.busy <= set.asleep_percent.get() && gpu.idle.idle_s >= least_s
    };
    if !gpus.iter().all(sleeps) {
        return None;
    }
    let idle_s: f64 = gpus.iter().map(Gpu::without_kernel_s).sum();
    let held_s: f64 = gpus.iter().map(|gpu| gpu.idle.over_s).sum();
    let none_s: f64 = gpus.iter().map(|gpu| gpu.idle.idle_s).sum();
    let busy: Vec<f64> = gpus.iter().map(|gpu| gpu.busy).collect();
    let what = format!(
        "the job holds {} and runs kernels {:.1} % of the time, none in {:.0} % of the samples: {} GPU-hours idle",
        gpus_text(gpus.len()),
        mean(&busy),
        100.0 * none_s / held_s,
        hours(idle_s)
    );
    let mut found = Found::new("high", String::new(), what);
    // Since when all of them are idle.
    let since: Option<Vec<_>> = gpus.iter().map(|gpu| gpu.idle.since).collect();
    found.since = since.and_then(|since| since.into_iter().max());
    Some((found, idle_s))
}

/// No kernel on any GPU for the last part of the job.
fn at_the_end(facts: &Facts<'_>, gpus: &[Gpu<'_>]) -> Option<(Found, f64)> {
    let end = facts.end?;
    let since: Option<Vec<_>> = gpus.iter().map(|gpu| gpu.idle.since).collect();
    let since = since?.into_iter().max()?;
    let seconds = float(end.saturating_sub(since)) / 1000.0;
    let set = &facts.rules.idle_gpus;
    let whole_s = gpus.iter().map(|gpu| gpu.whole_s).fold(0.0, f64::max);
    let ended_well = facts.outcome == Outcome::Good;
    let least_s = if ended_well {
        set.tail.seconds().max(set.tail_percent.share() * whole_s)
    } else {
        set.end.seconds()
    };
    if seconds < least_s {
        return None;
    }
    let idle_s = seconds * float(u64::try_from(gpus.len()).unwrap_or(u64::MAX));
    let what = format!(
        "no kernel ran on {} for the last {}, idle since {}: {} GPU-hours idle",
        any_of(gpus.len()),
        span(seconds),
        clock(since).get(..8).unwrap_or_default(),
        hours(idle_s)
    );
    let fix = Some(if ended_well {
        TAIL_FIX
    } else if facts.outcome == Outcome::CutOff {
        CUT_OFF_FIX
    } else {
        "check where the program stopped: its log; while it still runs, `railgate report JOBID --live` or `py-spy dump --pid PID`"
    });
    let mut found = Found { fix, ..Found::new("medium", String::new(), what) };
    found.since = Some(since);
    Some((found, idle_s))
}

/// No kernel on any GPU in a few long stretches between its work, and after it. Many are `pauses`.
fn in_between(facts: &Facts<'_>, gpus: &[Gpu<'_>]) -> Option<(Found, f64)> {
    let (between_s, count) = in_phases(facts, PhaseKind::Idle);
    // The end of a job that was cut off may be a hang.
    let tail_s = if facts.outcome == Outcome::Good { in_phases(facts, PhaseKind::Tail).0 } else { 0.0 };
    let set = &facts.rules.idle_gpus;
    let whole_s = gpus.iter().map(|gpu| gpu.whole_s).fold(0.0, f64::max);
    let least_s = set.tail.seconds().max(set.tail_percent.share() * whole_s);
    let several = count >= facts.rules.pauses.count.get();
    if facts.outcome == Outcome::Failed
        || !has_trained(facts)
        || several
        || count < 1.0
        || between_s + tail_s < least_s
    {
        return None;
    }
    let idle_s = (between_s + tail_s) * float(u64::try_from(gpus.len()).unwrap_or(u64::MAX));
    let stretches = if count > 1.0 { format!("{count:.0} stretches") } else { "1 stretch".to_owned() };
    let end = if tail_s > 0.0 { format!(" and for the last {}", span(tail_s)) } else { String::new() };
    let what = format!(
        "no kernel ran on {} for {} in {stretches} between its work{end}: {} GPU-hours idle",
        any_of(gpus.len()),
        span(between_s),
        hours(idle_s)
    );
    Some((Found { fix: Some(BETWEEN_FIX), ..Found::new("medium", String::new(), what) }, idle_s))
}

/// Kernels run for a small share of the time, however it is spread.
fn low_use(facts: &Facts<'_>, gpus: &[Gpu<'_>]) -> Option<(Found, f64)> {
    let busy: Vec<f64> = gpus.iter().map(|gpu| gpu.busy).collect();
    if mean(&busy) > facts.rules.idle_gpus.low_percent.get() {
        return None;
    }
    let idle_s: f64 = gpus.iter().map(Gpu::without_kernel_s).sum();
    let never: Vec<&Gpu<'_>> = gpus.iter().filter(|gpu| gpu.unused).collect();
    let never = match (never.is_empty(), never.len() < gpus.len()) {
        (false, true) => format!("; {} never", names(&never)),
        _ => String::new(),
    };
    let what = format!(
        "the job held {} for {} and used them {:.0} % of the time{never}: {} GPU-hours idle",
        gpus_text(gpus.len()),
        span(gpus.iter().map(|gpu| gpu.idle.over_s).fold(0.0, f64::max)),
        mean(&busy),
        hours(idle_s)
    );
    Some((Found { fix: Some(LOW_FIX), ..Found::new("medium", String::new(), what) }, idle_s))
}

/// Whether a rule names why the GPUs have nothing to do.
fn has_another_cause(facts: &Facts<'_>) -> bool {
    let rules = [
        nan::RULE,
        killed_rank::RULE,
        hang::RULE,
        pausing_rank::RULE,
        sleeping_rank::RULE,
        input_bound::RULE,
        cpu_contention::RULE,
        saving::RULE,
        launch_bound::RULE,
    ];
    rules.iter().any(|rule| !(rule.find)(facts).is_empty())
}

fn names(gpus: &[&Gpu<'_>]) -> String {
    let mut names: Vec<String> = gpus.iter().take(MOST_NAMES).map(|gpu| gpu.unit.name()).collect();
    let more = gpus.len().saturating_sub(MOST_NAMES);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

fn any_of(count: usize) -> String {
    if count == 1 { "the GPU".to_owned() } else { format!("any of {}", gpus_text(count)) }
}

fn gpus_text(count: usize) -> String {
    if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") }
}

fn hours(seconds: f64) -> String {
    let hours = seconds / 3600.0;
    if hours < 0.1 { format!("{hours:.2}") } else { format!("{hours:.1}") }
}

fn mean(values: &[f64]) -> f64 {
    let count = u32::try_from(values.len()).unwrap_or(u32::MAX);
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / f64::from(count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulator::{self, Plant, parts_with};

    fn found(nodes: &[NodeReport]) -> Vec<Found> {
        find(&Facts::new(nodes, nodes[0].end, Outcome::Good, None))
    }

    fn usages(nodes: &mut [NodeReport]) -> impl Iterator<Item = &mut railgate_node_report::Usage> {
        nodes.iter_mut().filter_map(|node| node.usage.as_mut())
    }

    #[test]
    fn an_unused_gpu_is_named_with_its_hours_and_is_no_straggler() {
        let nodes = parts_with(&[Plant::UnusedGpu]);
        let [one] = &found(&nodes)[..] else { panic!("{:?}", found(&nodes)) };
        let hours = nodes[0].usage.as_ref().unwrap().coverage.sampled_s / 3600.0;
        assert!(
            one.part.ends_with(" GPU 4") && one.what.contains(&format!(": {hours:.1} GPU-hours")),
            "{one:?}"
        );
        assert!((one.costs.unwrap() - 1.0 / 9.0).abs() < 1e-9, "{one:?}");
        let facts = Facts::new(&nodes, nodes[0].end, Outcome::Good, None);
        assert_eq!((sleeping_rank::RULE.find)(&facts), vec![]);
        // Kernels in a single sample, or a context of a program, are use.
        let touched = |change: fn(&mut railgate_node_report::usage::GpuUsage)| {
            let mut nodes = nodes.clone();
            let gpus = usages(&mut nodes).flat_map(|usage| &mut usage.gpus);
            gpus.filter(|gpu| gpu.index == 4).for_each(change);
            found(&nodes)
        };
        assert_eq!(touched(|_| ()).len(), 1);
        assert_eq!(touched(|gpu| gpu.counters.graphics_percent = gpu.counters.sm_clock_mhz.clone()), vec![]);
        assert_eq!(touched(|gpu| gpu.counters.memory_used_mib = gpu.counters.power_w.clone()), vec![]);
        let unknown = Reading::Failed("GPU is lost".to_owned());
        assert_eq!(touched(|gpu| gpu.counters.memory_used_mib = Reading::Unsupported), vec![]);
        let mut lost = nodes.clone();
        for gpu in usages(&mut lost).flat_map(|usage| &mut usage.gpus).filter(|gpu| gpu.index == 4) {
            gpu.idle = unknown.clone();
        }
        assert_eq!(found(&lost), vec![]);
    }

    /// One of two GPUs was never used, and processes wait for disks: the other GPU has no lack of input.
    #[test]
    fn an_unused_gpu_does_not_wait_for_input() {
        let mut nodes = parts_with(&[Plant::UnusedGpu]);
        for node in &mut nodes {
            node.application = None;
            let usage = node.usage.as_mut().unwrap();
            usage.gpus.retain(|gpu| gpu.index == 0 || gpu.index == 4);
            usage.host.io_pressure_percent = usage.gpus[0].counters.temperature_c.clone();
        }
        nodes.retain(|node| node.usage.as_ref().unwrap().gpus.len() == 2);
        let facts = Facts::new(&nodes, nodes[0].end, Outcome::Good, None);
        assert_eq!((input_bound::RULE.find)(&facts), vec![]);
        assert_eq!(found(&nodes).len(), 1);
    }

    #[test]
    fn many_unused_gpus_are_counted_and_few_are_named() {
        let mut nodes = parts_with(&[Plant::UnusedGpu]);
        let unused =
            usages(&mut nodes).flat_map(|usage| &usage.gpus).find(|gpu| gpu.index == 4).unwrap().clone();
        usages(&mut nodes).next().unwrap().gpus.extend((5..10).map(|index| {
            let mut one = unused.clone();
            (one.index, one.uuid) = (index, format!("GPU-{index}"));
            one
        }));
        let [one] = &found(&nodes)[..] else { panic!("{:?}", found(&nodes)) };
        assert!(
            one.what.starts_with("6 of 14 GPUs were never used (") && one.part.ends_with(" GPU 7, 2 more"),
            "{one:?}"
        );
    }

    #[test]
    fn a_sleeping_notebook_states_since_when() {
        let nodes = parts_with(&[Plant::Asleep]);
        let [one] = &found(&nodes)[..] else { panic!("{:?}", found(&nodes)) };
        assert!(one.what.contains("holds 8 GPUs and runs kernels 0.") && one.since.is_some(), "{one:?}");
        assert!(one.costs.unwrap() > 0.9 && one.part.is_empty(), "{one:?}");
        // One GPU at work: the job is not asleep.
        let mut nodes = nodes;
        usages(&mut nodes).next().unwrap().gpus[0].idle =
            Reading::Known(IdleTime { over_s: 10_800.0, ..IdleTime::default() });
        assert!(!found(&nodes).iter().any(|one| one.what.contains("runs kernels")));
    }

    /// A notebook whose person thinks between two cells.
    #[test]
    fn a_long_rest_between_two_times_of_work_is_idle() {
        use PhaseKind::{Idle, StartUp, Steady, Tail};
        let of = |phases: &[(PhaseKind, u64)], outcome| {
            let good = [99.0, 92.0, 60.0, 30.0];
            let mut nodes = crate::phases::tests::silent(phases, good, good);
            let seconds = phases.iter().map(|(_, seconds)| *seconds).sum();
            for gpu in usages(&mut nodes).flat_map(|usage| &mut usage.gpus) {
                gpu.idle = Reading::Known(IdleTime { over_s: float(seconds), ..IdleTime::default() });
            }
            let found = find(&Facts::new(&nodes, nodes[0].end, outcome, None));
            found.into_iter().map(|one| (one.what, one.costs.unwrap())).collect::<Vec<_>>()
        };
        let rest = [(StartUp, 10), (Steady, 60), (Idle, 40), (Steady, 60), (Tail, 20)];
        let told = of(&rest, Outcome::Good);
        let [(what, costs)] = told.as_slice() else { panic!("{told:?}") };
        assert!(
            what.starts_with("no kernel ran on any of 2 GPUs for 40.0 s in 1 stretch between its work and for the last 20.0 s: "),
            "{what}"
        );
        assert!((costs - 60.0 / 190.0).abs() < 1e-9, "{costs}");
        assert_eq!(of(&rest, Outcome::Failed), []);
        assert_eq!(of(&[(StartUp, 10), (Steady, 60), (Idle, 15), (Steady, 60)], Outcome::Good), []);
        assert_eq!(of(&[(StartUp, 10), (Idle, 100)], Outcome::Good), []);
        let pauses =
            [(Steady, 60), (Idle, 30), (Steady, 60), (Idle, 30), (Steady, 60), (Idle, 30), (Steady, 60)];
        assert_eq!(of(&pauses, Outcome::Good), []);
    }

    /// Ten minutes of preparation on the CPU before a training of half a minute: the advice was to end the job when its work is done.
    #[test]
    fn a_long_start_up_is_named_before_low_use() {
        use PhaseKind::{Idle, StartUp, Steady, Tail};
        let good = [99.0, 92.0, 60.0, 30.0];
        let of = |phases: &[(PhaseKind, u64)], in_start_up_s: u64, outcome| {
            let of_kind = |of: fn(PhaseKind) -> bool| -> u64 {
                phases.iter().filter(|(kind, _)| of(*kind)).map(|(_, seconds)| *seconds).sum()
            };
            let (all, trained) = (of_kind(|_| true), of_kind(PhaseKind::is_training));
            let idle = in_start_up_s + of_kind(|kind| matches!(kind, Idle | Tail));
            let busy = 100.0 * float(trained) / float(all);
            let mut nodes = crate::phases::tests::silent(phases, [busy, busy, 1.0, 1.0], good);
            for gpu in usages(&mut nodes).flat_map(|usage| &mut usage.gpus) {
                gpu.idle = Reading::Known(IdleTime { over_s: float(all), idle_s: float(idle), since: None });
            }
            // Busy cores would be a cause of their own.
            usages(&mut nodes).for_each(|usage| usage.host.cpu_cores = Reading::Unsupported);
            let found = find(&Facts::new(&nodes, nodes[0].end, outcome, None));
            found.into_iter().map(|one| (one.what, one.costs.unwrap())).collect::<Vec<_>>()
        };
        let long = [(StartUp, 620), (Steady, 30)];
        let told = of(&long, 600, Outcome::Good);
        let [(what, costs)] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!(
            what,
            "the job's start-up took 10 min 20 s of 10 min 50 s, and 2 GPUs ran no kernel in most of it: 0.3 GPU-hours idle"
        );
        assert!((costs - 600.0 / 650.0).abs() < 1e-9, "{costs}");
        assert_eq!(
            of(&long, 600, Outcome::Failed).iter().filter(|(what, _)| what.contains("start-up")).count(),
            0
        );
        let several = of(&[(StartUp, 320), (Steady, 60), (StartUp, 300), (Steady, 60)], 600, Outcome::Good);
        assert!(
            several[0].0.starts_with(
                "the starts of the job's 2 programs, and the time between them, took 10 min 20 s of"
            ),
            "{several:?}"
        );
        // Less than ten minutes, less than a fifth of the time, a start-up with kernels, and a job that idles longer later.
        assert_eq!(of(&[(StartUp, 590), (Steady, 300)], 590, Outcome::Good), []);
        assert_eq!(of(&[(StartUp, 620), (Steady, 3000)], 620, Outcome::Good), []);
        assert_eq!(of(&[(StartUp, 620), (Steady, 300)], 200, Outcome::Good), []);
        // With low use it may be shorter, and have short kernels.
        let short = of(&[(StartUp, 595), (Steady, 12)], 280, Outcome::Good);
        assert!(short[0].0.starts_with("the job's start-up took 9 min 55 s of 10 min 07 s"), "{short:?}");
        let later = of(&[(StartUp, 620), (Steady, 30), (Tail, 900)], 600, Outcome::Good);
        assert!(later.iter().all(|(what, _)| !what.contains("start-up")), "{later:?}");
    }

    #[test]
    fn suspended_yielded_and_unsampled_time_is_not_idle() {
        let hours = |change: fn(&mut railgate_node_report::Usage)| {
            let mut nodes = parts_with(&[Plant::Asleep]);
            usages(&mut nodes).for_each(change);
            let text = found(&nodes).into_iter().next()?.what;
            text.split_once(" of the samples: ")
                .and_then(|(_, rest)| rest.split(' ').next()?.parse::<f64>().ok())
        };
        let all = hours(|_| ()).unwrap();
        assert!((all - 8.0 * 3.0 * 0.996).abs() < 0.2, "{all}");
        assert_eq!(hours(|usage| usage.coverage.suspended_s = 36_000.0), Some(all));
        assert_eq!(hours(|usage| usage.coverage.yielded_s = 7_200.0), None);
        assert_eq!(hours(|usage| usage.coverage.missing_s = 7_200.0), None);
    }

    /// A list over many jobs has the figures of the finding.
    #[test]
    fn summed_idle_time_is_that_of_the_finding() {
        for plant in [Plant::Asleep, Plant::LowUse] {
            let nodes = parts_with(&[plant]);
            let all = idle_use(&nodes, &Rules::DEFAULT).unwrap();
            let said = format!(": {} GPU-hours idle", hours(all.idle_s));
            assert!(found(&nodes)[0].what.ends_with(&said), "{all:?} {:?}", found(&nodes));
            assert_eq!((all.gpus, all.since.is_some()), (8, plant == Plant::Asleep));
        }
        // Pauses between the kernels of a job at work are not idle time.
        let mut nodes = simulator::healthy();
        let all = idle_use(&nodes, &Rules::DEFAULT).unwrap();
        assert!(
            all.idle_s == 0.0 && (80.0..99.0).contains(&all.busy_percent) && all.since.is_none(),
            "{all:?}"
        );
        usages(&mut nodes).flat_map(|usage| &mut usage.gpus).for_each(|gpu| gpu.idle = Reading::Unsupported);
        assert_eq!(idle_use(&nodes, &Rules::DEFAULT), None);
        let mut asleep = parts_with(&[Plant::Asleep]);
        usages(&mut asleep).next().unwrap().gpus[0].idle = Reading::Unsupported;
        let part = idle_use(&asleep, &Rules::DEFAULT).unwrap();
        assert_eq!((part.gpus, part.since), (7, None));
    }

    /// A known cause of idle GPUs is better advice than their number.
    #[test]
    fn low_use_is_silent_where_a_cause_is_known() {
        let mut nodes = parts_with(&[Plant::LowUse]);
        let [one] = &found(&nodes)[..] else { panic!("{:?}", found(&nodes)) };
        assert!(
            one.what.contains("held 8 GPUs for 1 h 00 min and used them 7 % of the time: 7.4 GPU-hours"),
            "{one:?}"
        );
        let mut starved = nodes.clone();
        for usage in usages(&mut nodes) {
            usage.host.io_pressure_percent = usage.gpus[0].counters.temperature_c.clone();
        }
        assert_eq!(found(&nodes), vec![]);
        for usage in usages(&mut starved) {
            usage.host.cpu_pressure_percent = usage.gpus[0].counters.temperature_c.clone();
        }
        assert_eq!(found(&starved), vec![]);
    }

    #[test]
    fn short_jobs_and_older_reports_are_not_judged() {
        let mut short = parts_with(&[Plant::Asleep]);
        for gpu in usages(&mut short).flat_map(|usage| {
            usage.coverage.sampled_s = 590.0;
            &mut usage.gpus
        }) {
            gpu.idle = Reading::Known(IdleTime { over_s: 590.0, idle_s: 590.0, since: None });
        }
        assert_eq!(found(&short), vec![]);
        let mut older = parts_with(&[Plant::Asleep]);
        usages(&mut older).flat_map(|usage| &mut usage.gpus).for_each(|gpu| gpu.idle = Reading::Unsupported);
        assert_eq!(found(&older), vec![]);
        let mut silent = parts_with(&[Plant::Asleep]);
        silent[1].usage = None;
        assert_eq!(found(&silent), vec![]);
        assert_eq!(found(&simulator::healthy()), vec![]);
    }
}

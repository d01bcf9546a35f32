use super::hang::stood_still;
use super::idle_gpus::is_unused;
use super::{cpu_contention, pausing_rank, slow_clock};
use crate::facts::{Facts, Unit, busy, mean_of, median, median_of_others, sorted};
use crate::host_time::Pauses;
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "sleeping-rank",
    about: "a rank arrives late at the collectives of every step although its GPU is not slow",
    class: Class::Application,
    evidence: "the time that each rank waits in collectives (NCCL's profiler plugin): the straggler waits least, because the others
wait for it. The time that each GPU runs any kernel: the straggler's GPU is idle for longer, because waiting in NCCL counts as busy.
Both together give high confidence, one alone medium. Where most of the GPU's idle time is in pauses of 0.4 s or longer, the finding is that
the rank pauses now and then.",
    why: "all other ranks wait in every step, and their GPUs look busy meanwhile.",
    look_alikes: "a GPU on a low clock (`slow-clock` names it), a rank with more work (`uneven-work`), waiting that overlaps
with computation: the GPU of such a rank runs kernels for as long as the others', and the rank is not reported. A job without any
progress is reported by `hang`, rare pauses by `pausing-rank`. If more than a quarter of the ranks are late, none is reported. Of
several programs in one job, as in a sweep, none waits for another one: the rule needs NCCL's plugin, reports of the ranks or data over NVLink,
which show that the ranks depend on each other. A GPU with less work waits for the others without a kernel where they do not wait in NCCL
(`DataParallel`, layers that are split unevenly): its SMs are at work for less of the time as well, and it is not reported. Nor is a GPU with
another role, whose memory traffic for its tensor activity differs by a factor of three.",
    fix: "check that process: a busy or wrongly bound CPU, slow input, a debugger, a sleep",
    thresholds: Settings::KEYS,
    line: Line::Slow,
    over: Over::Training,
    explains: Explains::Idle,
    find,
};

thresholds! {
    least: Time(10), 0 to 3600, "time", "waits are judged after at least this much time in steps";
    waiting_percent: Number(5.0), 0.1 to 100.0, "%", "the median rank waits at least this much of the time";
    waits_percent: Number(30.0), 0.0 to 100.0, "%", "a straggler waits less than this much of what the median rank waits";
    alone_percent: Number(15.0), 0.0 to 100.0, "% of the time", "a rank whose GPU does not show it as well costs at least this much";
    busy_percent: Number(70.0), 0.0 to 100.0, "%", "the median of the other GPUs runs kernels for at least this share of the time";
    idle_percent: Number(10.0), 0.1 to 100.0, "% of the time", "a straggler's GPU runs kernels for a share of the time that is below theirs by more than this";
}

/// A GPU has less work than the others if its SMs lack this much of what its time with kernels lacks.
const LESS_WORK: f64 = 0.5;
/// A GPU has other work than the others if its memory traffic for its tensor activity differs by this factor.
const OTHER_ROLE: f64 = 3.0;
/// Pauses of 0.4 s or longer are the cause if they make up this much of that.
const PAUSES: f64 = 0.6;

/// The straggler's GPU is idle while the others wait for it inside NCCL, which counts as busy.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Found> {
    // A rank that stopped entirely is reported by `hang`.
    if !facts.ranks_depend || stood_still(facts).is_some() {
        return Vec::new();
    }
    let slow = slow_clock::find(facts);
    let contended = cpu_contention::find(facts);
    let pausing = pausing_rank::pausing(facts);
    let by_wait = waits(facts);
    let by_idle = idles(facts);
    let all_busy = sorted(facts.units.iter().filter_map(percent).collect());
    let seconds = facts.training_s().filter(|_| !by_idle.is_empty());
    let all_paused = facts.units.iter().filter_map(|unit| Some(Pauses::of(unit, seconds?)?.share));
    let all_paused = sorted(all_paused.collect());
    let mut found = Vec::new();
    for unit in &facts.units {
        let name = unit.name();
        if slow.iter().chain(&contended).any(|one| one.part == name) {
            continue;
        }
        let of =
            |list: &[(String, f64)]| list.iter().find(|(part, _)| *part == name).map(|(_, costs)| *costs);
        let (waited, idle) = (of(&by_wait), of(&by_idle));
        let confidence = match (waited, idle) {
            (Some(_), Some(_)) => "high",
            // Waiting that overlaps with computation costs nothing and proves nothing: a straggler has an idle
            // GPU.
            (Some(costs), None) if works_all_along(facts, unit, &all_busy, costs) => continue,
            // Of two ranks that are equally good, one always waits less than the other.
            (Some(costs), None) if costs < facts.rules.sleeping_rank.alone_percent.share() => continue,
            (Some(_), None) | (None, Some(_)) => "medium",
            (None, None) => continue,
        };
        // Waits of few timed calls are an estimate; an idle GPU was measured all the time.
        let costs = waited.unwrap_or(0.0).max(idle.unwrap_or(0.0));
        // Rare pauses that explain most of it.
        if pausing.as_ref().is_some_and(|one| one.part == name && one.costs >= 0.5 * costs) {
            continue;
        }
        let signs = match (waited.is_some(), idle.is_some()) {
            (true, true) => "its GPU is idle and the others wait for it in NCCL",
            (true, false) => "the others wait for it in NCCL",
            _ => "its GPU is idle while the others are busy",
        };
        // Without NCCL's plugin `pausing-rank` does not know them.
        let rare = seconds
            .and_then(|seconds| pauses(facts, unit, seconds, &all_paused))
            .filter(|(share, _)| idle.is_some_and(|idle| *share >= PAUSES * idle));
        let what = match rare {
            Some((_, mean_s)) => format!(
                "{name} pauses now and then, {mean_s:.1} s at a time (GPU clock normal): its GPU is idle while the others wait for it"
            ),
            None => format!("{name} arrives late in every step (GPU clock normal): {signs}"),
        };
        let mut one = Found::new(confidence, name, what);
        one.fix = rare.map(|_| pausing_rank::RULE.fix);
        one.costs = Some(costs.clamp(0.0, 1.0));
        found.push(one);
    }
    // If many are late, no single rank is the cause.
    if found.len() * 4 > facts.units.len().max(4) { Vec::new() } else { found }
}

/// Ranks that wait far less than the median of the others, with the others' waiting as a share of the time. In
/// a short job only a few timed operations exist, and no GPU sample that could contradict them.
pub(super) fn waits(facts: &Facts<'_>) -> Vec<(String, f64)> {
    let set = &facts.rules.sleeping_rank;
    let known: Vec<(&Unit<'_>, f64)> =
        facts.units.iter().filter_map(|unit| Some((unit, unit.comm?.wait_s))).collect();
    let time = at_work_s(facts);
    let Some(typical) = median(known.iter().map(|(_, wait)| *wait).collect()) else { return Vec::new() };
    let little = set.waiting_percent.share() * time;
    if time < set.least.seconds() || known.len() < 2 || typical < little {
        return Vec::new();
    }
    let late = known.iter().filter(|(_, wait)| *wait < set.waits_percent.share() * typical);
    late.map(|(unit, wait)| (unit.name(), ((typical - wait) / time).min(1.0))).collect()
}

/// Seconds in steps as the program reports, else of the training as samples show it, else of the allocation.
fn at_work_s(facts: &Facts<'_>) -> f64 {
    let time = facts.units.iter().filter_map(|unit| Some(unit.app?.step_s?.total)).fold(0.0, f64::max);
    let allocated = facts
        .start()
        .zip(facts.end)
        .map_or(0.0, |(start, end)| railgate_node_report::plain::float(end.saturating_sub(start)) / 1000.0);
    if time > 0.0 { time } else { facts.training_s().unwrap_or(allocated) }
}

/// Whether its GPU runs kernels for as much of the time as the others', where a delay of this cost would show
/// as idle time.
/// `all_busy`: what all GPUs do, in ascending order.
fn works_all_along(facts: &Facts<'_>, unit: &Unit<'_>, all_busy: &[f64], costs: f64) -> bool {
    let Some(own) = percent(unit) else { return false };
    let Some(typical) = median_of_others(all_busy, own) else { return false };
    let sampled_s = unit.gpu.map_or(0.0, |gpu| gpu.sampled_s);
    let late = 100.0 * costs * (at_work_s(facts) / sampled_s.max(1.0)).min(1.0);
    own > typical - 0.5 * late
}

/// Time in which a unit's GPU runs kernels, percent.
fn percent(unit: &Unit<'_>) -> Option<f64> {
    busy(unit.gpu?).known().copied()
}

/// Memory traffic for each percent of tensor activity, which is alike for ranks of one program.
fn role(unit: &Unit<'_>) -> Option<f64> {
    let counters = &unit.gpu?.counters;
    let (dram, tensor) = (mean_of(&counters.dram_percent), mean_of(&counters.tensor_percent));
    Some(dram.known()? / tensor.known().filter(|percent| **percent >= 1.0)?)
}

/// SMs at work, percent of all time.
fn sms(unit: &Unit<'_>) -> Option<f64> {
    mean_of(&unit.gpu?.counters.sm_percent).known().copied()
}

/// How much longer the GPU pauses than the others, as a share of the time, and the mean length of its pauses, seconds.
/// `seconds`: length of the training; `all_paused`: shares of all GPUs, in ascending order.
fn pauses(facts: &Facts<'_>, unit: &Unit<'_>, seconds: f64, all_paused: &[f64]) -> Option<(f64, f64)> {
    let own = Pauses::of(unit, seconds).filter(|own| own.count >= facts.rules.pauses.count.get())?;
    Some((own.share - median_of_others(all_paused, own.share)?, own.mean_s))
}

/// GPUs that are busy for far less of the time than the median of the others.
fn idles(facts: &Facts<'_>) -> Vec<(String, f64)> {
    // In a hang all GPUs but one are busy; without the program's report that cannot be distinguished from
    // lateness.
    if !facts.show_speed() && facts.reporting().next().is_none() {
        return Vec::new();
    }
    let known: Vec<(&Unit<'_>, f64)> = facts
        .units
        .iter()
        // No rank runs there that could be late.
        .filter(|unit| !is_unused(facts, unit))
        .filter_map(|unit| Some((unit, percent(unit)?)))
        .collect();
    let all = sorted(known.iter().map(|(_, busy)| *busy).collect());
    let all_sms = sorted(known.iter().filter_map(|(unit, _)| sms(unit)).collect());
    let set = &facts.rules.sleeping_rank;
    let all_roles = sorted(known.iter().filter_map(|(unit, _)| role(unit)).collect());
    // One GPU may generate text for those that train, and wait for them.
    let has_another_role = |unit: &Unit<'_>| {
        let other = role(unit).and_then(|own| Some((own, median_of_others(&all_roles, own)?)));
        other.is_some_and(|(own, typical)| own > OTHER_ROLE * typical || typical > OTHER_ROLE * own)
    };
    // A straggler does the same work in more time; a GPU with less work waits for the others, if they do not wait inside of NCCL.
    let has_less_work = |unit: &Unit<'_>, late: f64| {
        let less = sms(unit).and_then(|own| Some(median_of_others(&all_sms, own)? - own));
        less.is_some_and(|less| less >= LESS_WORK * late)
    };
    let late = known.iter().filter_map(|(unit, busy)| {
        // With its own, the median of two GPUs would be their mean.
        let typical = median_of_others(&all, *busy).filter(|typical| *typical >= set.busy_percent.get())?;
        let is_late = *busy < typical - set.idle_percent.get();
        let is_late = is_late && !has_less_work(unit, typical - busy) && !has_another_role(unit);
        is_late.then(|| (unit.name(), (typical - busy) / 100.0))
    });
    late.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Outcome;
    use crate::simulator;
    use railgate_model::Reading;

    /// Its pauses explain the wait, so it is not late in every step.
    #[test]
    fn rank_that_pauses_now_and_then_is_no_straggler() {
        let mut rules = crate::Rules::DEFAULT;
        rules.sleeping_rank.alone_percent = crate::register::Number::new(0.0);
        let mut nodes = simulator::parts_with(&[simulator::Plant::Pauses]);
        let found = |nodes: &[railgate_node_report::NodeReport]| {
            find(&Facts::new(nodes, nodes[0].end, Outcome::Good, None).under(&rules)).len()
        };
        assert_eq!(found(&nodes), 0);
        nodes.iter_mut().for_each(|node| node.communication.as_mut().unwrap().pauses = None);
        assert_eq!(found(&nodes), 1);
    }

    /// FSDP on four H200s: the slowest GPU under its power cap (4 % below the fastest) waited least. The
    /// others' kernels waited while computing, and no GPU was idle.
    #[test]
    fn rank_that_waits_little_but_is_never_idle_is_no_straggler() {
        let mut nodes = simulator::healthy();
        let found = |nodes: &[railgate_node_report::NodeReport]| {
            find(&Facts::new(nodes, nodes[0].end, Outcome::Good, None))
        };
        assert_eq!(found(&nodes), vec![]);
        for row in nodes.iter_mut().flat_map(|node| &mut node.communication.as_mut().unwrap().collectives) {
            for rank in row.by_rank.iter_mut().filter(|rank| rank.rank != 3) {
                rank.gpu_s *= 3.0;
            }
        }
        assert_eq!(found(&nodes), vec![]);
        for gpu in nodes.iter_mut().flat_map(|node| &mut node.usage.as_mut().unwrap().gpus) {
            gpu.counters.any_kernel_percent = Reading::Unsupported;
            gpu.counters.graphics_percent = Reading::Unsupported;
        }
        let without_the_gpus = found(&nodes);
        assert_eq!(without_the_gpus.len(), 1);
        assert!(without_the_gpus[0].what.contains("rank 3 arrives late"), "{without_the_gpus:?}");
        // A job on two H200s that ended after one second of steps: 61 operations of each rank were timed.
        for rank in nodes.iter_mut().flat_map(|node| &mut node.application.as_mut().unwrap().ranks) {
            rank.step_s.as_mut().unwrap().total *= 1e-3;
        }
        for row in nodes.iter_mut().flat_map(|node| &mut node.communication.as_mut().unwrap().collectives) {
            row.by_rank.iter_mut().for_each(|rank| rank.gpu_s *= 1e-3);
        }
        assert_eq!(found(&nodes), vec![]);
    }
}

use railgate_model::Reading;

use crate::facts::{Facts, Unit, busy, median};
use crate::host_time::{HostTime, of_all};
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "cpu-contention",
    about: "GPUs are idle while processes of the job wait for a CPU core",
    class: Class::Application,
    evidence: "the time in which threads of the processes that use a GPU could run and had no core (`schedstat` of the kernel), and GPUs
without a kernel in the time in which the job trained: it names the rank. Where these times are unknown, the CPU pressure of the
job's cgroup (`/proc/pressure`: the share of time in which some process could run and had no core).",
    why: "a process that launches kernels and gets no core launches them late, and all ranks wait for it.",
    look_alikes: "data loaders that use every core (`input-bound`): the pressure is the same, and more cores help both. One core with
several processes bound to it looks like too few cores for all: then far fewer cores are in use than the job has, as the finding shows.",
    fix: "give each process its own cores (--cpus-per-task, --cpu-bind; torchrun and loaders inherit the binding), or start fewer threads",
    thresholds: Settings::KEYS,
    line: Line::Verdict,
    over: Over::Training,
    explains: Explains::Idle,
    find,
};

thresholds! {
    pressure_percent: Number(20.0), 0.1 to 100.0, "%", "a process waits for a core for at least this share of the time (where its own times are known, also of the CPU time that it wanted)";
    busy_percent: Number(75.0), 0.0 to 100.0, "%", "and its GPU (without the processes' times: the mean GPU) runs kernels for at most this share of the time";
}

pub(super) fn find(facts: &Facts<'_>) -> Vec<Found> {
    if let Some(all) = of_all(facts) {
        return by_process(facts, &all);
    }
    let set = &facts.rules.cpu_contention;
    let Reading::Known(busy) = facts.mean(busy) else { return Vec::new() };
    let pressure =
        facts.usages.iter().filter_map(|usage| Some(usage.host.cpu_pressure_percent.known()?.mean));
    let Some(pressure) = median(pressure.collect()) else { return Vec::new() };
    if pressure < set.pressure_percent.get() || busy > set.busy_percent.get() {
        return Vec::new();
    }
    let cores = facts.usages.iter().filter_map(|usage| Some(usage.host.cpu_cores.known()?.mean));
    let allowed = facts.usages.iter().filter_map(|usage| usage.host.cpus_allowed.known().copied());
    let used = match (median(cores.collect()), median(allowed.collect())) {
        (Some(cores), Some(allowed)) => format!(" ({cores:.1} of the job's {allowed:.0} cores in use)"),
        _ => String::new(),
    };
    let what = format!(
        "a process of the job waits for a CPU core {pressure:.0} % of the time{used}, and GPUs are idle {:.0} % of it",
        100.0 - busy
    );
    let mut found = Found::new("medium", String::new(), what);
    found.costs = Some((100.0 - busy) / 100.0);
    vec![found]
}

/// By the times of the processes that use the GPUs.
fn by_process(facts: &Facts<'_>, all: &[(&Unit<'_>, HostTime)]) -> Vec<Found> {
    let set = &facts.rules.cpu_contention;
    let starved = |(_, host): &&(&Unit<'_>, HostTime)| {
        let pressure = set.pressure_percent.share();
        host.wait >= pressure && host.lacks() >= pressure && 1.0 - host.idle <= set.busy_percent.share()
    };
    let found: Vec<&(&Unit<'_>, HostTime)> = all.iter().filter(starved).collect();
    let worst = found.iter().max_by(|(_, one), (_, other)| one.starved().total_cmp(&other.starved()));
    let Some((unit, host)) = worst else { return Vec::new() };
    // A rank that lacks a core for far longer than the others delays them all; they lack one while they wait for it.
    let others = all.iter().filter(|(other, _)| !std::ptr::eq(*other, *unit)).map(|(_, host)| host.starved());
    let usual = median(others.collect());
    let one = usual.is_some_and(|usual| host.starved() >= 2.0 * usual);
    let (whose, part) = match one {
        true => (format!("the process of {}", unit.name()), unit.name()),
        false => ("each GPU's process".to_owned(), String::new()),
    };
    let others = if one { ", while the other GPUs are busy or wait for it" } else { "" };
    let what = format!(
        "{whose} waits for a CPU core {:.0} % of the time, and its GPU runs no kernel {:.0} % of it{others}",
        100.0 * host.wait.min(1.0),
        100.0 * host.idle
    );
    let mut said = Found::new("high", part, what);
    said.costs = Some(host.starved() - usual.filter(|_| one).unwrap_or(0.0));
    vec![said]
}

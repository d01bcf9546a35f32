use railgate_model::Reading;

use super::idle_gpus::is_unused;
use super::{RULES, hang, pauses};
use crate::facts::{Facts, Unit, busy, mean_of, median};
use crate::host_time::{HostTime, of_all, one_process_in_turn, used};
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "host-bound",
    about: "GPUs are often without a kernel, and no measurement shows why the host is late",
    class: Class::Unknown,
    evidence: "GPUs without a kernel in the time in which the job trained, where no other rule explains it: no process waits for disks or
for a CPU core, little is copied off the GPUs, and no rank is late. Data that is copied over PCIe nearly as fast as it can be for all of
that time shows that they wait for copies. Otherwise the CPU time of the GPUs' processes shows whether they compute or sleep meanwhile.
Data that is copied as fast as one core copies, while the process computes, may come from memory that is not pinned. If the CPU time of each
GPU's processes is nearly all of the job's, one process drives them all.",
    why: "the GPUs wait for the host; which part of it decides what helps, and a guess would cost days.",
    look_alikes: "a slow data loader, kernels that are launched late by Python, an inference server that waits for requests, evaluation
and other pauses between steps: from outside all of them are GPUs without a kernel. A program that reports its waiting for input
(docs/application-reports.md) is judged by `input-bound` and `launch-bound` instead.",
    fix: "put railgate.waiting() around the data loader and railgate.step() into the loop: the next report separates input from launches",
    thresholds: Settings::KEYS,
    line: Line::Verdict,
    over: Over::Training,
    explains: Explains::Nothing,
    find,
};

/// For a job whose process may copy from memory that is not pinned.
const PAGEABLE_FIX: &str = "if the batches are in ordinary memory, pin it (pin_memory=True of the DataLoader, non_blocking=True of the copy), and copy \
    less (bytes or bf16 instead of fp32); railgate.waiting() around the data loader shows how long it waits for input";

/// For GPUs that one process drives.
const TURNS_FIX: &str = "one process for each GPU (torchrun with DDP or FSDP), or tensor parallelism; for layers split over the GPUs several \
    micro-batches in flight (pipeline parallelism)";

/// For a job that waits for copies.
const COPIES_FIX: &str = "keep the data on the GPU, copy less (bytes or bf16 instead of fp32), or copy from pinned memory on a stream of its own \
    while kernels run";

thresholds! {
    least: Time(10), 0 to 3600, "time", "the job trained for at least this long, as samples show";
    busy_percent: Number(60.0), 0.0 to 100.0, "%", "each GPU runs kernels for at most this share of the time in which the job trained";
    copied_gb_s: Number(40.0), 0.1 to 1000.0, "GB/s", "it waits for copies if this much is copied for each second without a kernel, both directions together; 40 is three quarters of PCIe 5.0 x16, 19 of PCIe 4.0 x16";
    copied_by_a_core_gb_s: Number(5.0), 0.1 to 1000.0, "GB/s", "and at least this much, while its process computes, suggests memory that is not pinned: one core copies 5 to 15 GB/s";
}

fn find(facts: &Facts<'_>) -> Vec<Found> {
    // A GPU that no rank uses waits for nothing (`idle-gpus`).
    let is_used = |unit: &Unit<'_>| !is_unused(facts, unit);
    let Reading::Known(percent) = facts.mean_where(is_used, busy) else { return Vec::new() };
    let set = &facts.rules.host_bound;
    // One program of several may be at work while another one still starts.
    let works = |unit: &Unit<'_>| {
        unit.gpu.is_some_and(|gpu| busy(gpu).known().is_some_and(|percent| *percent > set.busy_percent.get()))
    };
    if facts.training_s().is_none_or(|seconds| seconds < set.least.seconds())
        || !facts.show_speed()
        || used(facts).any(works)
        || hang::stood_still(facts).is_some()
    {
        return Vec::new();
    }
    let idle = (100.0 - percent) / 100.0;
    if is_explained(facts, idle) {
        return Vec::new();
    }
    let of_process = of_all(facts).and_then(|all| {
        let of = |get: fn(&HostTime) -> f64| median(all.iter().map(|(_, host)| get(host)).collect());
        Some((of(HostTime::asleep)?, of(HostTime::computes)?))
    });
    let copied = copied_gb_s(facts, idle);
    let fast = copied.filter(|rate| *rate >= set.copied_gb_s.get());
    let by_a_core = copied.filter(|rate| *rate >= set.copied_by_a_core_gb_s.get());
    let mut fix = None;
    let (lost, pace) = match (fast, by_a_core, of_process) {
        (Some(rate), ..) => {
            fix = Some(COPIES_FIX);
            let pace = "are copied between the host and each GPU meanwhile, and it waits for these copies";
            (idle, format!("{rate:.0} GB/s {pace}"))
        }
        _ if let Some(gpus) = one_process_in_turn(facts) => {
            fix = Some(TURNS_FIX);
            let pace = "they may work in turn, as layers that are split over GPUs do, or wait for that process; railgate cannot tell which";
            (idle, format!("one process drives {gpus} GPUs: {pace}"))
        }
        (.., Some((asleep, _))) if 2.0 * asleep >= idle => {
            fix = Some(pauses::ASLEEP_FIX);
            let pace = format!(
                "each GPU's process sleeps {:.0} % of it: it waits for input, requests, storage or another process, and railgate \
                 cannot tell which",
                100.0 * asleep
            );
            (asleep, pace)
        }
        (_, Some(rate), Some((_, computes))) if 2.0 * computes >= idle => {
            fix = Some(PAGEABLE_FIX);
            let pace = "are copied between the host and each GPU while its process computes on the CPU, as in copies from \
                memory that is not pinned; Python or input beside faster copies looks the same";
            (idle, format!("{rate:.0} GB/s {pace}"))
        }
        (.., Some((_, computes))) if 2.0 * computes >= idle => (
            idle,
            "each GPU's process computes on the CPU meanwhile: Python, kernel launches, input that it prepares itself, or polling for \
             another process; railgate cannot tell which"
                .to_owned(),
        ),
        _ => (
            idle,
            "the host sets the pace (input, requests, Python, or kernel launches), and railgate cannot tell which".to_owned(),
        ),
    };
    let what = format!("no kernel runs {:.0} % of the time in which the job trains: {pace}", 100.0 * idle);
    let mut found = Found::new("low", String::new(), what);
    found.fix = fix;
    found.costs = Some(lost);
    vec![found]
}

/// Whether another rule explains this share of the time without a kernel, or most of it.
fn is_explained(facts: &Facts<'_>, idle: f64) -> bool {
    RULES.iter().any(|rule| match rule.explains {
        Explains::Nothing => false,
        Explains::Idle => !(rule.find)(facts).is_empty(),
        Explains::ItsCosts => {
            (rule.find)(facts).iter().any(|one| one.costs.is_none_or(|costs| 2.0 * costs >= idle))
        }
    })
}

/// Data that is copied over PCIe in both directions, in GB for each second without a kernel: a bound of the rate of these copies, if they do
/// not overlap with kernels. Median over the GPUs.
fn copied_gb_s(facts: &Facts<'_>, idle: f64) -> Option<f64> {
    let of = |unit: &Unit<'_>| {
        let counters = &unit.gpu?.counters;
        let ways = [&counters.pcie_tx_bytes_s, &counters.pcie_rx_bytes_s];
        ways.into_iter().map(|way| mean_of(way).known().copied()).sum::<Option<f64>>()
    };
    let rates: Option<Vec<f64>> = used(facts).map(of).collect();
    Some(median(rates?)? / 1e9 / idle.max(f64::MIN_POSITIVE))
}

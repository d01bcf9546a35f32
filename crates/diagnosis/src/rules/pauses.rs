use railgate_node_report::phases::PhaseKind;

use super::{cpu_contention, hang, input_bound, pausing_rank, saving, sleeping_rank};
use crate::facts::{Facts, busy, median};
use crate::host_time::{HostTime, Pauses, in_phases, may_work_in_turn, one_process_in_turn, used};
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "pauses",
    about: "every GPU pauses, again and again",
    class: Class::Application,
    evidence: "the driver's record of each GPU's utilisation in windows of 0.2 s: times of 0.4 s or longer without any kernel while the job
trained, on every GPU that it uses; and longer times in which no GPU worked. Their mean length must exceed what gaps around short
steps look like. The CPU time of the GPUs' processes shows whether they computed or slept meanwhile. Kernels that are launched late
and a loader that is a little too slow leave shorter gaps.",
    why: "a GPU does nothing in these times, and a mean over the whole job hides them.",
    look_alikes: "evaluation on the CPU, checkpoints of a program that does not report them, garbage collection, input that comes in bursts
and requests that come rarely all look the same from outside, and so does a server that polls for them. A copy off the GPUs at the same
time is named by `saving`, waiting for disks by `input-bound`; as much off the GPUs as onto them goes with work on the host. GPUs that one
process drives may work in turn, so that none of them pauses for the others (`host-bound`); those of several processes may, too.",
    fix: "report checkpoints and input (railgate.checkpoint(), railgate.waiting()); move evaluation off the loop or make it rarer; run several settings in \
          one program",
    thresholds: Settings::KEYS,
    line: Line::Verdict,
    over: Over::Training,
    explains: Explains::Idle,
    find,
};

thresholds! {
    share_percent: Number(5.0), 0.1 to 100.0, "%", "each GPU pauses for at least this share of the time in which the job trained";
    count: Number(3.0), 1.0 to 1000000.0, "pauses", "and has at least this many pauses";
    mean_s: Number(0.8), 0.4 to 3600.0, "s", "of this mean length or more: four windows, since gaps around short steps can look like one long pause";
}

/// For a job whose processes sleep.
pub(super) const ASLEEP_FIX: &str = "requests or a person: share the GPU (MPS, MIG), or end the job between uses; input or storage: read ahead, or keep the data on \
    local disks; another program that the job started: go on with the work meanwhile; railgate.waiting() in the loop shows how long it waits for input";

/// For GPUs of which one may wait while another one works.
const TURN_FIX: &str = "GPUs that work in turn: let the two parts overlap, or run both on each GPU; requests or a person: share the GPUs (MPS, MIG); input or storage: \
    read ahead, or keep the data on local disks";

/// For a job that copies as much off its GPUs as onto them.
const HOST_FIX: &str = "keep gradients and optimizer states on the GPUs (NCCL instead of Gloo), or copy less and while kernels run; railgate.step() in \
    the loop shows whether each step pauses";

/// The same for a job with one GPU.
const ALONE_FIX: &str = "optimizer states on the GPU; decode and encode in other processes; copy less (bytes or bf16 instead of fp32), and while kernels run; \
    railgate.step() in the loop shows whether each step pauses";

/// Share of the time without a kernel.
const MOST_OF_IT: f64 = 0.7;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Found> {
    let known = [input_bound::find, cpu_contention::find];
    // A rank that ends a common pause a little later than the others explains none of it.
    let of_a_rank = [pausing_rank::find, sleeping_rank::find];
    let Some(seconds) = facts.training_s().filter(|seconds| *seconds > 0.0) else { return Vec::new() };
    let all: Option<Vec<Pauses>> = used(facts).map(|unit| Pauses::of(unit, seconds)).collect();
    let least = all.and_then(|all| all.into_iter().min_by(|one, other| one.share.total_cmp(&other.share)));
    let Some(least) = least else { return Vec::new() };
    let set = &facts.rules.pauses;
    let (idle_s, idle_phases) = in_phases(facts, PhaseKind::Idle);
    // One or two long stretches are no pauses of the length of the others (`idle-gpus`).
    let alike = idle_phases >= set.count.get();
    // The samples beside them hold a part of them.
    let beside = if alike { 0.0 } else { 2.0 * idle_phases };
    let (idle_s, idle_phases) = if alike { (idle_s, idle_phases) } else { (0.0, 0.0) };
    let (paused_s, count) = (least.share * seconds + idle_s, least.count + idle_phases);
    if paused_s < set.share_percent.share() * (seconds + idle_s)
        || count < set.count.get() + beside
        || paused_s < set.mean_s.get() * count
        || !facts.show_speed()
        || hang::stood_still(facts).is_some()
        || saving::explains_idle(facts)
        || known.iter().any(|rule| !rule(facts).is_empty())
        || of_a_rank
            .iter()
            .flat_map(|rule| rule(facts))
            .any(|one| one.costs >= Some(0.5 * paused_s / seconds))
        || one_process_in_turn(facts).is_some()
    {
        return Vec::new();
    }
    if short_of_the_idle_time(facts, paused_s, seconds, idle_s) {
        return Vec::new();
    }
    let every_s = (seconds + idle_s) / count;
    let of = |get: fn(&HostTime) -> f64| {
        median(used(facts).filter_map(HostTime::of).map(|host| get(&host)).collect())
    };
    // What the processes do in the idle time of the training is what they do in pauses that are most of it; what they do in whole
    // samples without work is not known.
    let mut fix = None;
    let meanwhile = match (of(HostTime::asleep), of(HostTime::computes)) {
        (Some(asleep), Some(computes)) if asleep > 2.0 * computes => {
            let waits = "the GPUs are idle while their processes sleep: they wait for requests, input, storage, another process or a person";
            if may_work_in_turn(facts) {
                fix = Some(TURN_FIX);
                format!("{waits}, or work in turn for each other, as training and generation")
            } else {
                fix = Some(ASLEEP_FIX);
                waits.to_owned()
            }
        }
        (Some(asleep), Some(computes)) if computes > 2.0 * asleep && idle_s <= 0.5 * paused_s => match saving::copies_both_ways(facts) {
            Some((off, onto)) => {
                let (work, advice) = if used(facts).count() > 1 {
                    ("sums of gradients or an optimizer on the host, or other work on data of the GPUs", HOST_FIX)
                } else {
                    ("an optimizer on the host, batches that it decodes and results that it encodes, or other work on data of the GPU", ALONE_FIX)
                };
                fix = Some(advice);
                format!(
                    "the processes compute on the CPU meanwhile, while {off:.0} MB/s are copied off each GPU and {onto:.0} MB/s onto it: {work}"
                )
            }
            None => "the processes compute on the CPU meanwhile: evaluation, input, an environment, saving, garbage collection, polling for \
                     requests or another process, the start of another program or other work between steps"
                .to_owned(),
        },
        _ => "evaluation, saving, input, requests, the start of another program or other work between steps".to_owned(),
    };
    // Of several GPUs it is not known whether they pause at the same moments.
    let which = if used(facts).count() > 1 { "each GPU runs no kernel" } else { "no kernel runs on any GPU" };
    let what = format!(
        "{which} for {:.1} s at a time, about every {every_s:.1} s ({paused_s:.0} s in {count:.0} pauses): {meanwhile}",
        paused_s / count
    );
    let mut found = Found::new("medium", String::new(), what);
    (found.costs, found.fix) = (Some(paused_s / seconds), fix);
    vec![found]
}

/// Whether these pauses are the smaller part of what `host-bound` would name as a whole.
fn short_of_the_idle_time(facts: &Facts<'_>, paused_s: f64, seconds: f64, idle_s: f64) -> bool {
    let percents = used(facts).filter_map(|unit| busy(unit.gpu?).known().copied());
    let Some(percent) = median(percents.collect()) else { return false };
    let without_kernel_s = (1.0 - percent / 100.0) * seconds + idle_s;
    percent <= facts.rules.host_bound.busy_percent.get() && paused_s < MOST_OF_IT * without_kernel_s
}

use railgate_model::Reading;
use railgate_node_report::usage::GpuUsage;

use crate::facts::{Facts, busy, mean_of, median};
use crate::host_time::{Pauses, used};
use crate::register::{Class, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "saving",
    about: "GPUs are idle while the job saves checkpoints",
    class: Class::Application,
    evidence: "the time in checkpoints as the program reports it (docs/application-reports.md): high confidence. Without a report: GPUs
without a kernel in the time in which the job trained, and data that is copied off the GPUs over PCIe and not onto them: medium
confidence.",
    why: "all ranks wait while a checkpoint is copied and written.",
    look_alikes: "results that a program copies from its GPUs for other reasons (predictions, metrics). Offloading copies onto the GPUs
as well and is not reported.",
    fix: "save asynchronously or sharded over the ranks, or less often; docs/resume.md says how often is worth it",
    thresholds: Settings::KEYS,
    line: Line::Verdict,
    over: Over::Training,
    explains_idle: true,
    find,
};

thresholds! {
    told_percent: Number(10.0), 0.1 to 100.0, "%", "the median rank reports at least this share of the time in checkpoints";
    busy_percent: Number(80.0), 0.0 to 100.0, "%", "without a report: GPUs run kernels for at most this share of the time";
    copied_mb_s: Number(200.0), 1.0 to 1000000.0, "MB/s", "and at least this rate is copied off each GPU";
    copied_times: Number(4.0), 1.0 to 1000.0, "times", "and this many times as much as onto it";
}

pub(super) fn find(facts: &Facts<'_>) -> Vec<Found> {
    let set = &facts.rules.saving;
    let told = facts.reporting().filter_map(|(unit, rank)| {
        let seconds = unit.usage?.coverage.sampled_s;
        (rank.checkpoints > 0 && seconds > 0.0).then_some(rank.checkpoint_s / seconds)
    });
    if let Some(share) = median(told.collect()) {
        if share < set.told_percent.share() {
            return Vec::new();
        }
        let what = format!("the program saves checkpoints {:.0} % of the time", 100.0 * share.min(1.0));
        let mut found = Found::new("high", String::new(), what);
        found.costs = Some(share.min(1.0));
        return vec![found];
    }
    let (Reading::Known(busy), Reading::Known(off), Reading::Known(onto)) = (
        facts.mean(busy),
        facts.mean(|gpu| mean_of(&gpu.counters.pcie_tx_bytes_s)),
        facts.mean(|gpu| mean_of(&gpu.counters.pcie_rx_bytes_s)),
    ) else {
        return Vec::new();
    };
    if busy > set.busy_percent.get() || !is_saved(set, off, onto) {
        return Vec::new();
    }
    let (idle, at_a_time) = match longest_pauses(facts) {
        Some(pauses) => (pauses.share, format!(", {:.1} s at a time", pauses.mean_s)),
        None => ((100.0 - busy) / 100.0, String::new()),
    };
    let what = format!(
        "GPUs are idle {:.0} % of the time{at_a_time}, and {:.0} MB/s are copied off each of them: the job probably saves \
         checkpoints meanwhile",
        100.0 * idle,
        off / 1e6
    );
    let mut found = Found::new("medium", String::new(), what);
    found.costs = Some(idle);
    vec![found]
}

/// Whether much more is copied off a GPU than onto it.
pub(super) fn copies_off(facts: &Facts<'_>, gpu: &GpuUsage) -> bool {
    let (off, onto) = (mean_of(&gpu.counters.pcie_tx_bytes_s), mean_of(&gpu.counters.pcie_rx_bytes_s));
    off.known().zip(onto.known()).is_some_and(|(off, onto)| is_saved(&facts.rules.saving, *off, *onto))
}

/// Whether data leaves a GPU as while a checkpoint is saved. Bytes per second off the GPU and onto it.
fn is_saved(set: &Settings, off: f64, onto: f64) -> bool {
    off >= 1e6 * set.copied_mb_s.get() && off >= set.copied_times.get() * onto
}

/// The pauses of the GPU that pauses longest: where one rank saves, the others wait for it in NCCL with busy GPUs.
fn longest_pauses(facts: &Facts<'_>) -> Option<Pauses> {
    let seconds = facts.training_s()?;
    let all = used(facts).filter_map(|unit| Pauses::of(unit, seconds));
    all.max_by(|one, other| one.share.total_cmp(&other.share)).filter(|pauses| pauses.count >= 1.0)
}

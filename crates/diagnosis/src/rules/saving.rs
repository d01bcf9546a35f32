use railgate_model::Reading;
use railgate_node_report::phases::{Phase, PhaseKind, Phases};
use railgate_node_report::usage::GpuUsage;

use crate::facts::{Facts, busy, mean_of, median};
use crate::host_time::{Pauses, used};
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "saving",
    about: "GPUs are idle while the job saves checkpoints",
    class: Class::Application,
    evidence: "the time in checkpoints as the program reports it (docs/application-reports.md): high confidence. Without a report: GPUs
without a kernel in the time in which the job trained, and data that is copied off the GPUs over PCIe and not onto them; and whole samples
between two of the training, or after it, in which no GPU works while data is copied off the GPUs or, between two, written to disks:
medium confidence. Where the driver records pauses, at least two fifths of the idle time must be in pauses of 0.4 s or longer: a copy
in each step is no save.",
    why: "all ranks wait while a checkpoint is copied and written.",
    look_alikes: "results that a program copies from its GPUs or writes for other reasons (predictions, metrics, a data set that is prepared
between epochs): the finding names both. The start of a second program, which reads and writes, and the last checkpoint of each program of
a script. Offloading and parts of a model that are swapped are copied onto the GPUs as well and are not reported.",
    fix: "save asynchronously or sharded over the ranks, or less often; docs/resume.md says how often is worth it",
    thresholds: Settings::KEYS,
    line: Line::Verdict,
    over: Over::Training,
    explains: Explains::ItsCosts,
    find,
};

thresholds! {
    told_percent: Number(10.0), 0.1 to 100.0, "%", "the median rank reports at least this share of the time in checkpoints";
    busy_percent: Number(80.0), 0.0 to 100.0, "%", "without a report: GPUs run kernels for at most this share of the time";
    copied_mb_s: Number(200.0), 1.0 to 1000000.0, "MB/s", "and at least this rate is copied off each GPU";
    copied_times: Number(4.0), 1.0 to 1000.0, "times", "and this many times as much as onto it";
    long_percent: Number(10.0), 0.1 to 100.0, "%", "or whole samples without work, while data is written or copied off, have this share of the training with them";
    alone: Time(10), 0 to 86400, "time", "a single such pause counts only after the last work, and from this length on";
}

/// From outside, a checkpoint and results that are copied off the GPU are the same.
const PROBABLY: &str = "the job probably saves checkpoints or copies its results to the host";
const SILENT_FIX: &str = "checkpoints: save asynchronously or sharded over the ranks, or less often (docs/resume.md says how often is worth it); results: reduce \
    them on the GPU, and copy to pinned memory while the next batch runs";

/// Least share of the idle time in pauses of 0.4 s or longer if the job saves in it.
const IN_PAUSES: f64 = 0.4;

/// Milliseconds of work between two saves.
const APART_MS: u64 = 10_000;

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
    let short = in_training(facts);
    let long = in_whole_samples(facts, short.is_none());
    let what = match (&short, &long) {
        (None, None) => return Vec::new(),
        (Some((_, short)), None) => format!("{short}: {PROBABLY} meanwhile"),
        (None, Some((_, long))) => format!("no GPU works for {long}: {PROBABLY}"),
        (Some((_, short)), Some((_, long))) => {
            format!("{short}: {PROBABLY} meanwhile; no GPU works for another {long}")
        }
    };
    let mut found = Found::new("medium", String::new(), what);
    found.costs = Some([short, long].into_iter().flatten().map(|(share, _)| share).sum());
    found.fix = Some(SILENT_FIX);
    vec![found]
}

/// Whether saves explain why GPUs are idle in the time in which the job trained. Those that fill whole samples are no part of that time.
pub(super) fn explains_idle(facts: &Facts<'_>) -> bool {
    let told = facts.reporting().any(|(_, rank)| rank.checkpoints > 0);
    if told { !find(facts).is_empty() } else { in_training(facts).is_some() }
}

/// Idle GPUs in the time in which the job trained, while data is copied off them: as a share of that time, and in words.
fn in_training(facts: &Facts<'_>) -> Option<(f64, String)> {
    let set = &facts.rules.saving;
    let (Reading::Known(busy), Reading::Known(off), Reading::Known(onto)) = (
        facts.mean(busy),
        facts.mean(|gpu| mean_of(&gpu.counters.pcie_tx_bytes_s)),
        facts.mean(|gpu| mean_of(&gpu.counters.pcie_rx_bytes_s)),
    ) else {
        return None;
    };
    if busy > set.busy_percent.get() || !is_saved(set, off, onto) {
        return None;
    }
    let all_idle = (100.0 - busy) / 100.0;
    let (idle, at_a_time) = match longest_pauses(facts) {
        // A copy in each step is no save.
        Some(pauses) if pauses.count < 1.0 || pauses.share < IN_PAUSES * all_idle => return None,
        Some(pauses) => (pauses.share, format!(", {:.1} s at a time", pauses.mean_s)),
        None => (all_idle, String::new()),
    };
    let copied = off / 1e6;
    let idle_percent = 100.0 * idle;
    let what = format!(
        "GPUs are idle {idle_percent:.0} % of the time{at_a_time}, and {copied:.0} MB/s are copied off each of them"
    );
    Some((idle, what))
}

/// Phases of their own, between two of the training or after it: in shares of the training's time, which has none of them, and in words.
/// `only`: no other saves are known.
fn in_whole_samples(facts: &Facts<'_>, only: bool) -> Option<(f64, String)> {
    let trained_s = facts.training_s().filter(|seconds| *seconds > 0.0)?;
    // Where GPUs of several programs differ, the phases of the node are of none of them.
    if !facts.ranks_depend && facts.phases().any(|phases| !phases.gpus.is_empty()) {
        return None;
    }
    let set = &facts.rules.saving;
    let of_nodes: Vec<Vec<f64>> = facts.phases().map(|phases| lengths_of_saves(phases, set)).collect();
    let seconds = median(of_nodes.iter().map(|saves| saves.iter().sum()).collect()).unwrap_or(0.0);
    let count = median(of_nodes.iter().map(|saves| saves.iter().map(|_| 1.0).sum()).collect()).unwrap_or(0.0);
    let least_s = set.long_percent.share() * (trained_s + seconds);
    // One between two stretches of work may be the start of another program, which reads and writes as well.
    let alone = only && saves(facts) <= 1;
    if alone && !at_the_end(facts) {
        return None;
    }
    let least_s = if alone { least_s.max(set.alone.seconds()) } else { least_s };
    let what = || {
        let pauses = if count > 1.0 { format!("{count:.0} pauses") } else { "1 pause".to_owned() };
        format!("{seconds:.0} s in {pauses} while data is written to disks or copied off the GPUs")
    };
    (seconds > 0.0 && seconds >= least_s).then(|| (seconds / trained_s, what()))
}

/// Seconds of each save. The last save of a program that another program follows counts as a single one does.
fn lengths_of_saves(phases: &Phases, set: &Settings) -> Vec<f64> {
    let next = phases.list.iter().skip(1).map(|next| Some(next.kind)).chain([None]);
    let saves = phases.list.iter().zip(next).filter(|(phase, _)| phase.kind == PhaseKind::Saving);
    let counts = |(phase, next): &(&Phase, Option<PhaseKind>)| {
        *next != Some(PhaseKind::StartUp) || phase.seconds() >= set.alone.seconds()
    };
    saves.filter(counts).map(|(phase, _)| phase.seconds()).collect()
}

/// Whether each node saves last.
fn at_the_end(facts: &Facts<'_>) -> bool {
    facts.phases().filter_map(|phases| phases.list.last()).all(|last| last.kind == PhaseKind::Saving)
}

/// Most saves of a node: pauses with less than [`APART_MS`] between them are one.
fn saves(facts: &Facts<'_>) -> usize {
    let of = |phases: &Phases| {
        let saves: Vec<&Phase> = phases.list.iter().filter(|phase| phase.kind == PhaseKind::Saving).collect();
        saves.chunk_by(|one, next| next.start < one.end.saturating_add(APART_MS)).count()
    };
    facts.phases().map(of).max().unwrap_or(0)
}

/// Whether much more is copied off a GPU than onto it, at a quarter of a save's rate or more: a part of the time may be a save's.
pub(super) fn copies_off(facts: &Facts<'_>, gpu: &GpuUsage) -> bool {
    let (off, onto) = (mean_of(&gpu.counters.pcie_tx_bytes_s), mean_of(&gpu.counters.pcie_rx_bytes_s));
    off.known()
        .zip(onto.known())
        .is_some_and(|(off, onto)| is_saved(&facts.rules.saving, 4.0 * off, 4.0 * onto))
}

/// Data that goes off each GPU and onto it, MB/s, if it goes both ways at the rate of a save: work on the host needs it.
pub(super) fn copies_both_ways(facts: &Facts<'_>) -> Option<(f64, f64)> {
    let set = &facts.rules.saving;
    let rate = |way: fn(&GpuUsage) -> Reading<f64>| facts.mean(way).known().map(|bytes_s| bytes_s / 1e6);
    let off = rate(|gpu| mean_of(&gpu.counters.pcie_tx_bytes_s))?;
    let onto = rate(|gpu| mean_of(&gpu.counters.pcie_rx_bytes_s))?;
    let times = set.copied_times.get();
    (off.min(onto) >= set.copied_mb_s.get() && off < times * onto && onto < times * off)
        .then_some((off, onto))
}

/// Whether data leaves a GPU as while a checkpoint is saved. Bytes per second off the GPU and onto it.
fn is_saved(set: &Settings, off: f64, onto: f64) -> bool {
    off >= 1e6 * set.copied_mb_s.get() && off >= set.copied_times.get() * onto
}

/// The pauses of the GPU that pauses longest: where one rank saves, the others wait for it in NCCL with busy GPUs.
fn longest_pauses(facts: &Facts<'_>) -> Option<Pauses> {
    let seconds = facts.training_s()?;
    let all = used(facts).filter_map(|unit| Pauses::of(unit, seconds));
    all.max_by(|one, other| one.share.total_cmp(&other.share))
}

#[cfg(test)]
mod tests {
    use crate::phases::tests::silent;
    use crate::{Outcome, Rules, analyse};
    use railgate_node_report::phases::PhaseKind::{self, Idle, Saving, StartUp, Steady};

    const GOOD: [f64; 4] = [99.0, 92.0, 60.0, 30.0];

    fn found(phases: &[(PhaseKind, u64)]) -> Vec<(String, f64, String)> {
        let nodes = silent(phases, GOOD, GOOD);
        let all = analyse(&nodes, nodes[0].end, Outcome::Good, None, &Rules::DEFAULT).unwrap();
        all.diagnoses.into_iter().map(|one| (one.rule, one.costs.unwrap(), one.what)).collect()
    }

    /// Saves that fill whole samples are not part of the training, so that their time was in no finding.
    #[test]
    fn saves_of_whole_samples_are_named_with_their_share_of_the_job() {
        let told =
            found(&[(StartUp, 20), (Steady, 60), (Saving, 30), (Steady, 60), (Saving, 30), (Steady, 60)]);
        let [(rule, costs, what)] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!(rule, "saving");
        assert!((costs - 60.0 / 260.0).abs() < 1e-6, "{costs}");
        assert!(what.starts_with("no GPU works for 60 s in 2 pauses while data is written"), "{what}");
        // A tenth is the least that is named, and pauses without such data are no saves.
        assert_eq!(found(&[(StartUp, 20), (Steady, 95), (Saving, 20), (Steady, 95)]), []);
        assert_eq!(found(&[(StartUp, 20), (Steady, 60), (Idle, 30), (Steady, 60)]), []);
        // One between two stretches of work may be the start of another program, also in two parts.
        assert_eq!(found(&[(StartUp, 20), (Steady, 60), (Saving, 30), (Steady, 60)]), []);
        assert_eq!(
            found(&[(StartUp, 20), (Steady, 60), (Saving, 15), (Steady, 5), (Saving, 15), (Steady, 60)]),
            []
        );
        // The last checkpoint of a short job.
        assert_eq!(found(&[(StartUp, 12), (Steady, 15), (Saving, 3)]), []);
        assert_eq!(found(&[(StartUp, 12), (Steady, 15), (Saving, 12)]).len(), 1);
    }
}

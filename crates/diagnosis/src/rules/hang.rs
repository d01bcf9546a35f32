use std::collections::{BTreeMap, BTreeSet};

use railgate_model::{ProcessExit, UnixMillis};
use railgate_node_report::comm::{Communicator, LastOp, newest_launch, numbered};
use railgate_node_report::phases::PhaseKind;
use railgate_node_report::plain::{clock, float, span};
use railgate_node_report::{Hang, HangKind, Usage};

use crate::facts::{Facts, Outcome, median};
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "hang",
    about: "no rank made progress for a long time before the job ended",
    class: Class::Unknown,
    evidence: "the last step of each rank (docs/application-reports.md); without it the last operation that any rank submitted to NCCL.
The sampler watches the process of each rank and takes its exit code or signal from the kernel: a rank whose process ended while at least
as many others ran on, without progress, is the rank that they waited for. Otherwise the guard (docs/guard.md) names the rank that was
stopped, asleep or blocked while the GPUs of the others waited. Otherwise
NCCL's profiler plugin counts the operations of each rank: the rank that submitted fewer than most others is the rank that they
waited for. Samples of the GPUs show it earlier: until the end kernels run without a pause on few SMs, with no tensor activity and
almost no memory traffic, as NCCL's do while they wait, and no GPU of the node works. GPUs before Hopper do not show this: while they are
busy, a rank whose process ended is named only if the job used NCCL until then, without CUDA graphs, and the others submitted nothing more. Only jobs that did not succeed are judged, and
none that stood still for less than `standstill` while a rank reported that it saves a checkpoint (except a rank that ended, or that the guard named).",
    why: "all GPUs were allocated and did nothing useful until the end. The rank that is named stopped first; the others only waited.",
    look_alikes: "an evaluation, a compilation or a checkpoint that the program does not report. A rank that ends early on purpose while others
continue. While GPUs work, as GPM shows, a program that reports no step is taken to do something else: so does one whose kernel never ends,
unless it is NCCL's. Without the plugin the rank is not known unless its process ended.",
    fix: "check that rank's log and stack; suspect its node first if the node had an error",
    thresholds: Settings::KEYS,
    line: Line::Verdict,
    over: Over::AllTime,
    explains: Explains::Nothing,
    find,
};

thresholds! {
    stall: Time(10), 1 to 86400, "time", "ranks wait until the end for at least this long, as samples of their GPUs or the end of another rank's process show: a standstill without further evidence";
    standstill: Time(120), 1 to 86400, "time", "the job made no progress for at least this long before its end";
    standstill_steps: Number(10.0), 0.0 to 10000.0, "steps", "and for at least this many mean steps";
    assumed_step: Time(30), 1 to 3600, "time", "length of a step if the program does not report any";
    same_time: Time(60), 1 to 3600, "time", "a destroyed communicator belongs to the standstill if its last operation was at most this long before the last operation of the job";
}

/// Names the rank that submitted the fewest operations.
fn find(facts: &Facts<'_>) -> Vec<Found> {
    let Some((since, seconds)) = stood_still(facts) else { return Vec::new() };
    let named =
        || gone(facts).map(|gone| gone.told(facts)).or_else(|| guarded(facts).map(|one| one.told(facts)));
    let mut found = named().or_else(|| behind(facts)).unwrap_or_else(|| {
        if facts.alone() {
            return Found::new("low", String::new(), "its only rank stopped".to_owned());
        }
        let what = "the rank that the others waited for is not known".to_owned();
        let fix = facts
            .communicators
            .is_empty()
            .then_some("`--railgate-profiler=on` in the next run: NCCL's counts name the rank");
        Found { fix, ..Found::new("low", String::new(), what) }
    });
    let start = facts.restarted().map(|number| format!(" of start {number}")).unwrap_or_default();
    found.what = format!("no step for {} before the end{start}: {}", span(seconds), found.what);
    found.since = Some(since);
    vec![found]
}

/// Start and duration (seconds) of the period in which no rank made progress; `None` if a rank did, or if that
/// is unknown.
pub(crate) fn stood_still(facts: &Facts<'_>) -> Option<(UnixMillis, f64)> {
    let set = &facts.rules.hang;
    let end = facts.end.filter(|_| facts.outcome != Outcome::Good)?;
    let told: Vec<_> = facts.reporting_last().collect();
    let saving = told.iter().any(|(_, rank)| rank.in_checkpoint);
    if let Some(stall) =
        last_stall(facts, end).filter(|(_, seconds)| !saving || *seconds >= set.standstill.seconds())
    {
        return Some(stall);
    }
    if let Some(Guarded { hang, .. }) = guarded(facts) {
        return Some((hang.since, float(end.saturating_sub(hang.since)) / 1000.0));
    }
    if let Some(gone) = gone(facts) {
        return Some((gone.time, gone.seconds));
    }
    // Without the program's report, the last submitted operation of any rank marks the start of the standstill.
    let last = told.iter().filter_map(|(_, rank)| Some(rank.last_step?.max(rank.last_seen))).max();
    let last_op = || newest_launch(facts.communicators_last().map(|(_, one)| one));
    // The last part of a program may report no steps, and CUDA graphs replay operations that NCCL does not see.
    let since = last.or_else(last_op)?.max(worked_until(facts).unwrap_or(0));
    let step_s = median(told.iter().filter_map(|(unit, _)| unit.step_s()).collect())
        .unwrap_or(set.assumed_step.seconds());
    let seconds = float(end.saturating_sub(since)) / 1000.0;
    let least = (set.standstill_steps.get() * step_s).max(set.standstill.seconds());
    (seconds >= least && !saving).then_some((since, seconds))
}

/// The wait until the end that samples show: every node that was sampled to its end saw its GPUs wait or stand idle, and at
/// least one saw them wait. `None` if an operation was submitted during it, or if no other rank exists.
fn last_stall(facts: &Facts<'_>, end: UnixMillis) -> Option<(UnixMillis, f64)> {
    let mut since: Option<UnixMillis> = None;
    for phases in facts.phases() {
        let last = phases.list.last()?;
        if last.kind.is_training() || last.kind == PhaseKind::Evaluating {
            return None;
        }
        if let Some(stall) = phases.last_stall() {
            since = Some(since.map_or(stall.start, |since| since.min(stall.start)));
        }
    }
    let since = since.filter(|_| !facts.alone())?;
    let seconds = float(end.saturating_sub(since)) / 1000.0;
    let stall = facts.rules.hang.stall;
    // A sample may hold the last operation and the beginning of the wait.
    let submitted = newest_launch(facts.communicators_last().map(|(_, one)| one));
    let goes_on = submitted.is_some_and(|time| time > since.saturating_add(stall.millis()));
    (seconds >= stall.seconds() && !goes_on).then_some((since, seconds))
}

/// A hang that the guard found while the job ran, and that lasted until its end.
struct Guarded<'a> {
    node: &'a str,
    hang: &'a Hang,
}

/// The one that names a rank, else the first one.
fn guarded<'a>(facts: &Facts<'a>) -> Option<Guarded<'a>> {
    facts.end.filter(|_| facts.outcome != Outcome::Good)?;
    let open = facts.nodes.iter().filter_map(|node| {
        let hang = node.hangs.as_ref()?.list.last()?;
        (hang.over.is_none() && hang.kind.is_hang()).then_some(Guarded { node: &node.node, hang })
    });
    open.min_by_key(|one| (one.hang.culprits.is_empty(), one.hang.since))
}

impl Guarded<'_> {
    fn told(&self, facts: &Facts<'_>) -> Found {
        let hang = self.hang;
        let confidence = if hang.culprits.is_empty() { "medium" } else { "high" };
        let at = clock(hang.named);
        let what = format!("{} (seen at {})", hang.sentence(), at.get(..8).unwrap_or_default());
        let part = match hang.culprits.as_slice() {
            [one] => facts.name_of(self.node, one.rank),
            _ => self.node.to_owned(),
        };
        Found { fix: Some(hang.fix()), ..Found::new(confidence, part, what) }
    }
}

/// A rank whose process ended while others ran on and made no progress.
struct Gone<'a> {
    node: &'a str,
    rank: u32,
    time: UnixMillis,
    exit: ProcessExit,
    /// From then to the end of the job.
    seconds: f64,
    /// Ranks that ran on.
    others: usize,
}

/// The rank that was gone first. `None` if fewer ranks ran on than had ended: those may only have been slower to end.
fn gone<'a>(facts: &Facts<'a>) -> Option<Gone<'a>> {
    let end = facts.end.filter(|_| facts.outcome != Outcome::Good)?;
    let first = facts
        .ends
        .iter()
        .filter(|one| one.ended.is_some())
        .min_by_key(|one| one.ended.map(|(time, _)| time))?;
    let (time, exit) = first.ended?;
    let until = time.saturating_add(facts.rules.hang.stall.millis());
    let others = facts.ends.iter().filter(|one| one.runs_at(until)).count();
    let progress = facts.reporting_last().filter_map(|(_, rank)| Some(rank.last_step?.max(rank.last_seen)));
    let launched = newest_launch(facts.communicators_last().map(|(_, one)| one));
    let goes_on = progress.chain(launched).any(|time| time > until)
        || works_to_the_end(facts, stopped_submitting(facts, time));
    let is_gone = end >= until && others > 0 && 2 * others >= facts.ends.len() && !goes_on;
    is_gone.then(|| Gone {
        node: first.node,
        rank: first.rank,
        time,
        exit,
        seconds: float(end.saturating_sub(time)) / 1000.0,
        others,
    })
}

/// Whether NCCL's counts are complete, and were in use until a rank ended at `time`. Replays of CUDA graphs are not counted.
fn stopped_submitting(facts: &Facts<'_>, time: UnixMillis) -> bool {
    let comms = facts.nodes.iter().filter_map(|node| node.communication.as_ref());
    let complete = comms
        .flat_map(|comm| &comm.processes)
        .all(|one| one.captured == 0 && one.limit.is_empty() && one.mode.as_deref() != Some("off"));
    let of_several = facts.communicators_last().map(|(_, one)| one).filter(|one| one.size > 1);
    let since = time.saturating_sub(facts.rules.hang.same_time.millis());
    complete && newest_launch(of_several).is_some_and(|newest| newest >= since)
}

/// When the GPUs of a node worked last, as samples show; `None` without GPM, where a GPU that waits looks as if it worked.
fn worked_until(facts: &Facts<'_>) -> Option<UnixMillis> {
    let usages = facts.nodes.iter().filter_map(|node| node.usage.as_ref()).filter(|usage| shows_waits(usage));
    let phases = usages.filter_map(|usage| usage.phases.as_ref()).flat_map(|phases| &phases.list);
    phases.filter(|phase| phase.kind.is_training()).map(|phase| phase.end).max()
}

/// Whether samples show the GPUs of a node at work when the job ended. Without GPM they may as well wait: NCCL's counts decide, if they
/// show that the job used NCCL until then (`counted`).
fn works_to_the_end(facts: &Facts<'_>, counted: bool) -> bool {
    let usages = facts.nodes.iter().filter_map(|node| node.usage.as_ref());
    let phases =
        usages.filter(|usage| !counted || shows_waits(usage)).filter_map(|usage| usage.phases.as_ref());
    phases.filter_map(|phases| phases.list.last()).any(|last| last.kind.is_training())
}

/// Whether samples distinguish a GPU that waits in NCCL from one that works.
fn shows_waits(usage: &Usage) -> bool {
    usage.gpus.iter().all(|gpu| gpu.counters.tensor_percent.known().is_some())
}

impl Gone<'_> {
    fn told(&self, facts: &Facts<'_>) -> Found {
        let waits = self.waits(facts);
        let confidence = if waits.is_some() { "high" } else { "medium" };
        let ran_on = || match self.others {
            1 => "another rank ran on".to_owned(),
            many => format!("{many} ranks ran on"),
        };
        let what = format!(
            "rank {}'s process {} at {}, {} before the end; {}",
            self.rank,
            self.exit,
            clock(self.time).get(..8).unwrap_or_default(),
            span(self.seconds),
            waits.unwrap_or_else(ran_on)
        );
        let fix = Some(HangKind::Gone.advice());
        Found { fix, ..Found::new(confidence, facts.name_of(self.node, self.rank), what) }
    }

    /// The collective that the others waited in: the newest one of the communicator that was used last.
    fn waits(&self, facts: &Facts<'_>) -> Option<String> {
        let is_other = |(node, one): &(&str, &Communicator)| {
            one.size > 1 && facts.job_rank(node, one).is_some_and(|rank| rank != self.rank)
        };
        let others: Vec<_> = facts.communicators_last().filter(is_other).collect();
        let (node, one) =
            others.iter().max_by_key(|(_, one)| (one.last.as_ref().map(|last| last.time), one.ops))?;
        let LastOp { op, seq, .. } = one.last.as_ref()?;
        let op = seq.map_or_else(|| op.clone(), |seq| numbered(op, seq));
        let alike = others.iter().filter(|(_, other)| (&other.hash, other.ops) == (&one.hash, one.ops));
        Some(match alike.count() {
            1 => format!("rank {} waited in {op}", facts.job_rank(node, one)?),
            many => format!("{many} ranks waited in {op}"),
        })
    }
}

/// Per communicator: the rank behind all others, if most have submitted an operation that it has not. With two
/// ranks it is the one behind, at lower confidence, since the other may have submitted one operation too many.
pub(super) fn behind(facts: &Facts<'_>) -> Option<Found> {
    let mut groups: BTreeMap<&str, Vec<Member<'_>>> = BTreeMap::new();
    for (node, one) in facts.communicators_last().filter(|(_, one)| one.size > 1) {
        groups.entry(&one.hash).or_default().push((node, one));
    }
    let messages = with_messages(facts);
    let newest = groups.values().filter_map(|ranks| newest(ranks)).max()?;
    let since = newest.saturating_sub(facts.rules.hang.same_time.millis());
    let lags = groups.into_iter().filter_map(|(hash, ranks)| lag(ranks, !messages.contains(hash), since));
    lags.max_by_key(|lag| lag.weight).map(|lag| lag.told(facts))
}

/// A rank of a communicator, with its node.
type Member<'a> = (&'a str, &'a Communicator);

/// Lag within one communicator.
struct Lag<'a> {
    slowest: Member<'a>,
    /// Last operation of the waiting ranks.
    waiting: Option<&'a LastOp>,
    waits: usize,
    ranks: usize,
    /// Whether most ranks wait, and by how many operations one is behind.
    weight: (bool, u64),
}

/// `alike`: all ranks submit the same operations, unlike messages, which go to some. Communicators last used
/// before `since` are ignored, as they were abandoned earlier.
fn lag(mut ranks: Vec<Member<'_>>, alike: bool, since: UnixMillis) -> Option<Lag<'_>> {
    // PyTorch's watchdog aborts the communicator of a rank that waits too long, which destroys it. One that was
    // aborted before the job continued is unrelated.
    let lately = newest(&ranks).is_some_and(|newest| newest >= since);
    ranks.retain(|(_, one)| (alike && lately) || !one.destroyed);
    let most = ranks.iter().map(|(_, one)| one.ops).max()?;
    let (late, waiting): (Vec<Member<'_>>, Vec<Member<'_>>) =
        ranks.iter().partition(|(_, one)| one.ops < most);
    let slowest = *late.iter().min_by_key(|(_, one)| one.ops)?;
    let by_most = late.len() < waiting.len();
    let of_two = alike && slowest.1.size == 2;
    (by_most || of_two).then(|| Lag {
        slowest,
        waiting: waiting.first().and_then(|(_, one)| one.last.as_ref()),
        waits: waiting.len(),
        ranks: ranks.len(),
        weight: (by_most, most - slowest.1.ops),
    })
}

fn newest(ranks: &[Member<'_>]) -> Option<UnixMillis> {
    ranks.iter().filter_map(|(_, one)| Some(one.last.as_ref()?.time)).max()
}

/// Communicators that carried point-to-point messages.
fn with_messages<'a>(facts: &Facts<'a>) -> BTreeSet<&'a str> {
    let comms = facts.nodes.iter().filter_map(|node| node.communication.as_ref());
    let counted = comms
        .flat_map(|comm| &comm.collectives)
        .filter(|row| matches!(row.op.as_str(), "Send" | "Recv" | "P2pGroup"))
        .map(|row| row.communicator.as_str());
    let is_message = |one: &Communicator| one.last.as_ref().is_some_and(|last| last.seq.is_none());
    let last = facts.communicators.iter().filter(|(_, one)| is_message(one));
    counted.chain(last.map(|(_, one)| one.hash.as_str())).collect()
}

impl Lag<'_> {
    fn told(&self, facts: &Facts<'_>) -> Found {
        let (node, slowest) = self.slowest;
        let op = match self.waiting {
            Some(LastOp { op, seq: Some(seq), .. }) => numbered(op, *seq),
            Some(last) => last.op.clone(),
            None => "an operation".to_owned(),
        };
        let last = slowest.last.as_ref();
        let when = last.map_or_else(String::new, |last| {
            let or_later = if last.time_is_earliest { " or later" } else { "" };
            format!(" (last operation {}{or_later})", clock(last.time).get(..8).unwrap_or_default())
        });
        let rank = facts.job_rank(node, slowest);
        let whose = rank.map_or_else(|| format!("process {}", slowest.pid), |rank| format!("rank {rank}"));
        let part = rank.map_or_else(|| format!("{node} {whose}"), |rank| facts.name_of(node, rank));
        let what = format!(
            "{whose} stopped before {op}{when}; {} of {} ranks waited for it",
            self.waits, self.ranks
        );
        let confidence = if self.weight.0 { "high" } else { "medium" };
        let mut found = Found::new(confidence, part, what);
        found.since = last.filter(|last| !last.time_is_earliest).map(|last| last.time);
        found
    }
}

#[cfg(test)]
mod tests {
    use railgate_node_report::comm::NcclProcess;
    use railgate_node_report::phases::{Phase, Phases};
    use railgate_node_report::{NodeReport, TaskRank, Tasks};

    use super::*;
    use crate::simulator::{Plant, parts_with};

    fn named(nodes: &[NodeReport]) -> Vec<(String, String)> {
        let found = find(&Facts::new(nodes, nodes[0].end, Outcome::Failed, None));
        found.into_iter().map(|one| (one.part, one.confidence.to_owned())).collect()
    }

    fn communicators(nodes: &mut [NodeReport]) -> impl Iterator<Item = &mut Communicator> {
        nodes.iter_mut().flat_map(|node| &mut node.communication.as_mut().unwrap().communicators)
    }

    /// A program that evaluates at its end, and reports no steps there, is cut off by its time limit.
    #[test]
    fn gpus_that_work_without_steps_do_not_hang() {
        let mut nodes = parts_with(&[Plant::Hang]);
        nodes.iter_mut().for_each(|node| node.communication = None);
        let said = |nodes: &[NodeReport]| {
            let found = find(&Facts::new(nodes, nodes[0].end, Outcome::CutOff, None));
            found.into_iter().map(|one| one.what).collect::<Vec<_>>()
        };
        let stopped =
            ["no step for 10 min 00 s before the end: the rank that the others waited for is not known"];
        assert_eq!(said(&nodes), stopped);
        let end = nodes[0].end.unwrap();
        let works_until = |nodes: &mut [NodeReport], until| {
            let phase = Phase { kind: PhaseKind::Steady, start: nodes[0].start, end: until, start_number: 0 };
            let usage = nodes[0].usage.as_mut().unwrap();
            usage.phases = Some(Phases { list: vec![phase], ..Phases::default() });
        };
        works_until(&mut nodes, end - 60_000);
        assert_eq!(said(&nodes), [""; 0]);
        works_until(&mut nodes, end - 300_000);
        let later =
            ["no step for 5 min 00 s before the end: the rank that the others waited for is not known"];
        assert_eq!(said(&nodes), later);
        // Without GPM a GPU that waits in NCCL looks as if it worked.
        works_until(&mut nodes, end);
        let gpus = nodes.iter_mut().flat_map(|node| &mut node.usage.as_mut().unwrap().gpus);
        gpus.for_each(|gpu| gpu.counters.tensor_percent = railgate_model::Reading::Unsupported);
        assert_eq!(said(&nodes), stopped);
        // A job of one GPU has no others.
        nodes.truncate(1);
        let node = &mut nodes[0];
        node.job.nodelist = node.node.clone();
        node.usage.as_mut().unwrap().gpus.truncate(1);
        let told = node.application.as_mut().unwrap();
        told.ranks.truncate(1);
        told.ranks[0].world = Some(1);
        assert_eq!(said(&nodes), ["no step for 10 min 00 s before the end: its only rank stopped"]);
    }

    /// PyTorch on two H200s: the watchdog aborted the communicator of the waiting rank and ended the job.
    #[test]
    fn aborted_communicator_does_not_accuse_the_waiting_rank() {
        let mut nodes = parts_with(&[Plant::Hang]);
        let told = named(&nodes);
        assert_eq!(told[0].1, "high");
        let most = communicators(&mut nodes).map(|one| one.ops).max().unwrap();
        communicators(&mut nodes).filter(|one| one.ops == most).for_each(|one| one.destroyed = true);
        assert_eq!(named(&nodes), told);
        communicators(&mut nodes).for_each(|one| one.destroyed = true);
        assert_eq!(named(&nodes), told);
        let nobody = [(String::new(), "low".to_owned())];
        // torchrun restarted the program with another communicator, in which no rank is behind.
        let mut again = nodes.clone();
        for comm in again.iter_mut().map(|node| node.communication.as_mut().unwrap()) {
            let mut others = comm.communicators.clone();
            for one in &mut others {
                (one.hash, one.ops, one.destroyed) = ("later".to_owned(), 9, false);
                one.last.as_mut().unwrap().time += 100_000;
            }
            comm.communicators.extend(others);
        }
        assert_eq!(named(&again), nobody);
        // Pipeline stages send different numbers of messages, even in a job that ended normally with a barrier.
        let comm = nodes[0].communication.as_mut().unwrap();
        let messages =
            railgate_node_report::comm::Collective { op: "Send".to_owned(), ..comm.collectives[0].clone() };
        comm.collectives.push(messages);
        assert_eq!(named(&nodes), nobody);
    }

    /// Rank 1 of a pair is rank 6 of the job.
    #[test]
    fn rank_of_a_pair_is_reported_as_rank_of_the_job() {
        let mut nodes = parts_with(&[Plant::Hang]);
        for comm in nodes.iter_mut().map(|node| node.communication.as_mut().unwrap()) {
            let pair = comm.communicators.iter().filter(|one| [2, 6].contains(&one.rank)).cloned();
            let pair: Vec<_> = pair
                .map(|one| Communicator {
                    hash: "pair".to_owned(),
                    size: 2,
                    rank: u32::from(one.rank == 6),
                    ops: if one.rank == 6 { 10 } else { 11 },
                    ..one
                })
                .collect();
            comm.communicators.iter_mut().for_each(|one| one.ops = 7);
            comm.communicators.extend(pair);
        }
        assert_eq!(named(&nodes), [("n1 GPU 2 rank 6".to_owned(), "medium".to_owned())]);
    }

    /// After a long loop and a pause the plugin only knows a lower bound of the launch time.
    #[test]
    fn launch_time_with_only_a_lower_bound_is_no_hang() {
        let mut nodes = parts_with(&[Plant::Hang]);
        nodes.iter_mut().for_each(|node| node.application = None);
        let [(part, _)] = &named(&nodes)[..] else { panic!("{:?}", named(&nodes)) };
        assert!(part.contains("rank"), "{part}");
        let newest = communicators(&mut nodes).filter_map(|one| Some(one.last.as_ref()?.time)).max().unwrap();
        let mut later = |time: u64| {
            let last = communicators(&mut nodes).filter_map(|one| one.last.as_mut());
            last.for_each(|op| (op.time, op.time_is_earliest) = (time.min(op.time), true));
            let one = communicators(&mut nodes).next().unwrap().last.as_mut().unwrap();
            (one.time, one.time_is_earliest) = (newest, time == newest);
            named(&nodes).len()
        };
        // Either one of them is known and no other is known to be newer, or none is known.
        assert_eq!([later(newest - 1), later(newest)], [1, 0]);
    }

    /// Rank 1 leaves so many seconds before the end, of two ranks.
    fn leaves(ago_s: u64, exit: ProcessExit) -> Vec<NodeReport> {
        let mut nodes = parts_with(&[Plant::Hang]);
        nodes.truncate(1);
        let node = &mut nodes[0];
        node.application = None;
        let ended = node.end.unwrap() - 1000 * ago_s;
        let rank = |rank| TaskRank { rank, gpu: true, ..TaskRank::default() };
        let gone = TaskRank { ended: Some(ended), exit: Some(exit), ..rank(1) };
        node.tasks = Some(Tasks { ranks: vec![rank(0), gone], ..Tasks::default() });
        let comms = &mut node.communication.as_mut().unwrap().communicators;
        comms.truncate(2);
        for one in comms {
            (one.size, one.ops) = (2, if one.rank == 0 { 801 } else { 800 });
            let last = one.last.as_mut().unwrap();
            (last.time, last.seq) = (ended + 100, Some(one.ops));
        }
        nodes
    }

    fn said(nodes: &[NodeReport], outcome: Outcome) -> String {
        let found = find(&Facts::new(nodes, nodes[0].end, outcome, None));
        found.into_iter().map(|one| format!("{} {}: {}", one.part, one.confidence, one.what)).collect()
    }

    #[test]
    fn a_rank_that_left_is_named_with_the_exit_of_its_process() {
        let mut nodes = leaves(43, ProcessExit::Code(0));
        let end = clock(nodes[0].end.unwrap() - 43_000);
        let what = format!(
            "n0 rank 1 high: no step for 43.0 s before the end: rank 1's process ended with exit code 0 at {}, \
             43.0 s before the end; rank 0 waited in AllReduce number 802",
            &end[..8]
        );
        assert_eq!(said(&nodes, Outcome::CutOff), what);
        assert_eq!(said(&nodes, Outcome::Good), "");
        let killed = said(&leaves(15, ProcessExit::Signal(9)), Outcome::Failed);
        assert!(killed.contains("rank 1's process was ended by SIGKILL (signal 9) at "), "{killed}");
        // Before the threshold, and where the other rank goes on.
        assert_eq!(said(&leaves(9, ProcessExit::Code(0)), Outcome::CutOff), "");
        let last = nodes[0].communication.as_mut().unwrap().communicators[0].last.as_mut().unwrap();
        last.time += 20_000;
        assert_eq!(said(&nodes, Outcome::CutOff), "");
        // An A100 that waits in NCCL looks as if it worked; NCCL's counts show that it does not.
        let at_work = |node: &mut NodeReport| {
            let end = node.end.unwrap();
            let working = Phase { kind: PhaseKind::Steady, start: end - 60_000, end, start_number: 0 };
            node.usage.as_mut().unwrap().phases = Some(Phases { list: vec![working], ..Phases::default() });
        };
        let mut waits = leaves(43, ProcessExit::Code(0));
        at_work(&mut waits[0]);
        assert_eq!(said(&waits, Outcome::CutOff), "", "its GPU works");
        let gpus = &mut waits[0].usage.as_mut().unwrap().gpus;
        gpus.iter_mut().for_each(|gpu| gpu.counters.tensor_percent = railgate_model::Reading::Unsupported);
        assert_eq!(said(&waits, Outcome::CutOff), what);
        // It may replay graphs, or have used NCCL only at its start.
        let mut replays = waits.clone();
        replays[0].communication.as_mut().unwrap().processes =
            vec![NcclProcess { captured: 3, ..NcclProcess::default() }];
        assert_eq!(said(&replays, Outcome::CutOff), "");
        let comms = &mut waits[0].communication.as_mut().unwrap().communicators;
        comms.iter_mut().filter_map(|one| one.last.as_mut()).for_each(|last| last.time -= 90_000);
        assert_eq!(said(&waits, Outcome::CutOff), "");
        // Without NCCL's counts the end of the process is the only sign.
        nodes[0].communication = None;
        let alone = said(&nodes, Outcome::CutOff);
        assert!(
            alone.starts_with("n0 rank 1 medium: ") && alone.ends_with("; another rank ran on"),
            "{alone}"
        );
        at_work(&mut nodes[0]);
        assert_eq!(said(&nodes, Outcome::CutOff), "", "its GPU works");
        // Most ranks are done, and the last one takes longer.
        let mut nodes = leaves(43, ProcessExit::Code(0));
        let ranks = &mut nodes[0].tasks.as_mut().unwrap().ranks;
        ranks.extend([2, 3].map(|rank| TaskRank { rank, ..ranks[1].clone() }));
        let most = said(&nodes, Outcome::CutOff);
        assert!(!most.contains("process"), "{most}");
    }

    /// A launcher started the step again inside the attempt: rank 1 of the first start hung, the second start is sound.
    #[test]
    fn ranks_of_an_ended_start_are_not_waited_for() {
        let mut nodes = parts_with(&[Plant::Hang]);
        let told = named(&nodes);
        assert_eq!(told.len(), 1);
        let sound = parts_with(&[Plant::Healthy]);
        for (node, second) in nodes.iter_mut().zip(sound) {
            let (end, later) = (node.end.unwrap(), |time: u64| time + 2_000_000);
            node.end = second.end.map(later);
            assert!(node.end > Some(end));
            let comm = node.communication.as_mut().unwrap();
            // The second start may even have the same process ids.
            let mut again = second.communication.unwrap().communicators;
            for one in &mut again {
                (one.start_number, one.hash) = (1, "later".to_owned());
                one.last.as_mut().unwrap().time += 2_000_000;
            }
            comm.communicators.extend(again);
            let mut again = second.application.unwrap().ranks;
            for rank in &mut again {
                rank.start_number = 1;
                rank.started = later(rank.started);
                (rank.last_seen, rank.last_step) = (later(rank.last_seen), rank.last_step.map(later));
            }
            node.application.as_mut().unwrap().ranks.extend(again);
        }
        let analysed = |nodes: &[NodeReport]| {
            let told = crate::analyse(nodes, nodes[0].end, Outcome::Failed, None, &crate::Rules::DEFAULT);
            told.unwrap()
        };
        let both = analysed(&nodes);
        let ended = |rule: &str| rule == "hang" || rule == "killed-rank";
        let about: Vec<_> = both.diagnoses.iter().filter(|one| ended(&one.rule)).collect();
        assert!(about.is_empty(), "{about:?}");
        assert_eq!((both.starts, both.ranks), (Some(2), 8));
        // Only the numbers tell the starts apart.
        communicators(&mut nodes).for_each(|one| one.start_number = 0);
        let apps = nodes.iter_mut().flat_map(|node| &mut node.application.as_mut().unwrap().ranks);
        apps.for_each(|rank| rank.start_number = 0);
        assert!(analysed(&nodes).diagnoses.iter().any(|one| ended(&one.rule)));
    }

    /// The second start hangs in its turn: its rank is named, with the number.
    #[test]
    fn a_hang_in_a_later_start_names_the_start() {
        let mut nodes = parts_with(&[Plant::Hang]);
        communicators(&mut nodes).for_each(|one| one.start_number = 2);
        let apps = nodes.iter_mut().flat_map(|node| &mut node.application.as_mut().unwrap().ranks);
        apps.for_each(|rank| rank.start_number = 2);
        let found = find(&Facts::new(&nodes, nodes[0].end, Outcome::Failed, None));
        assert!(found[0].what.contains("before the end of start 2: rank 1 stopped"), "{found:?}");
        assert_eq!(found[0].confidence, "high");
    }

    #[test]
    fn rank_without_any_operation_is_the_one_waited_for() {
        let mut nodes = parts_with(&[Plant::Hang]);
        let least = communicators(&mut nodes).map(|one| one.ops).min().unwrap();
        let told = named(&nodes);
        for one in communicators(&mut nodes) {
            (one.destroyed, one.ops) = (one.ops > least, one.ops - least);
            one.last = one.last.take().filter(|_| one.destroyed);
        }
        assert_eq!(named(&nodes), told);
    }

    /// With two of eight ranks known, the one behind may be one of many.
    #[test]
    fn with_two_ranks_the_one_behind_is_the_one_waited_for() {
        let mut nodes = parts_with(&[Plant::Hang]);
        let odd = communicators(&mut nodes).min_by_key(|one| one.ops).unwrap().rank;
        for node in &mut nodes {
            let ours = &mut node.communication.as_mut().unwrap().communicators;
            ours.retain(|one| one.rank == odd || one.rank == (odd + 1) % 8);
        }
        assert_eq!(named(&nodes)[0].1, "low");
        communicators(&mut nodes).for_each(|one| one.size = 2);
        let [(part, confidence)] = &named(&nodes)[..] else { panic!("{:?}", named(&nodes)) };
        assert!(part.ends_with(&format!("rank {odd}")) && confidence == "medium", "{part} {confidence}");
        communicators(&mut nodes).for_each(|one| one.last.as_mut().unwrap().seq = None);
        assert_eq!(named(&nodes)[0].1, "low");
    }
}

use std::collections::BTreeMap;

use railgate_model::UnixMillis;
use railgate_node_report::NodeReport;
use railgate_node_report::comm::{Pause, PauseSum, numbered};
use railgate_node_report::phases::PhaseKind;
use railgate_node_report::plain::{float, span};

use super::{cpu_contention, saving};
use crate::facts::Facts;
use crate::host_time::{Pauses, in_phases, used};
use crate::phases;
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "pausing-rank",
    about: "one rank pauses now and then, or several in turn, and the others wait in a collective",
    class: Class::Application,
    evidence: "the operations that each rank has enqueued, which the sampler reads from NCCL's profiler plugin ten times a second. In a
pause no rank enqueues one for at least 0.4 s and twice as long as usual. The rank with the fewest operations is the one that the others
wait for. It must be the same rank in most pauses; ranks that pause in turn are reported together, with medium confidence. Pauses of all nodes
are compared. Nothing is timed, so waits are seen that NCCL's few timed calls miss.",
    why: "all other ranks wait meanwhile, and their GPUs look busy.",
    look_alikes: "evaluation, saving, input and logging on one rank; of ranks that pause in turn also late input and Python's garbage collection. Only the program
knows which it is. Pauses in which no rank is behind (all ranks evaluate) are not reported. The rank is not known where ranks exchange messages
(pipelines, experts), with CUDA graphs, and with NCCL 2.27. A delay in every step does not count as a pause; `sleeping-rank` reports it.",
    fix: "find out what that process does during the pauses (evaluation, saving, input, logging), then divide that work among the ranks, \
          move it to the background, or do it less often",
    thresholds: Settings::KEYS,
    line: Line::Slow,
    over: Over::Training,
    explains: Explains::Idle,
    find,
};

thresholds! {
    least: Number(3.0), 1.0 to 1000000.0, "pauses", "the same rank is behind in at least this many pauses";
    lost_percent: Number(2.0), 0.1 to 100.0, "%", "these pauses take at least this share of the time in which the job trained";
    same_percent: Number(70.0), 50.0 to 100.0, "%", "and at least this share of the time of all pauses in which ranks are behind";
    in_turn_percent: Number(5.0), 0.1 to 100.0, "%", "ranks that pause in turn, each with at least `least` pauses, lose together at least this share of the time in which the job trained";
}

/// Ranks that are named of those that pause in turn.
const MOST_NAMED: usize = 3;

const IN_TURN_FIX: &str = "find out what each process does in its pauses. Input that comes late: read ahead, or keep the data on local disks. Garbage collection, evaluation and \
    logging: at the same step on all ranks (gc.disable(), and gc.collect() every so many steps)";

/// Pauses of the rank that the others wait for.
pub(super) struct Pausing<'a> {
    /// [`Unit::name`](crate::facts::Unit::name) of that rank.
    pub(super) part: String,
    /// Share of the time that is judged; above 1 if the rests are longer than the training.
    pub(super) costs: f64,
    /// How often and how long, in words.
    words: String,
    /// Share of the time of all pauses with a rank behind.
    same: f64,
    count: u64,
    lost_s: f64,
    /// Its longest pauses.
    longest: Vec<&'a Pause>,
    node: &'a str,
}

pub(super) fn find(facts: &Facts<'_>) -> Vec<Found> {
    let all = Behind::of_each(facts);
    let Some(one) = pausing_of(&all, facts) else { return in_turn(&all, facts).into_iter().collect() };
    if explained(facts, one.costs, Some(&one.part)) {
        return Vec::new();
    }
    let saves = one.saves(facts);
    let also = if saves { "; it probably saves checkpoints meanwhile" } else { "" };
    let what =
        format!("{} pauses while the others wait: {}{}{also}", one.part, one.words, one.example(facts));
    let confidence = if one.same >= 0.9 && one.count >= 5 { "high" } else { "medium" };
    let fix = saves.then_some(saving::RULE.fix);
    let since = one.longest.iter().map(|pause| pause.start).min();
    vec![Found { costs: Some(one.costs), since, fix, ..Found::new(confidence, one.part, what) }]
}

/// Whether a rule knows the cause: of the pauses of this rank, or of any.
fn explained(facts: &Facts<'_>, costs: f64, part: Option<&str>) -> bool {
    let contended = cpu_contention::find(facts);
    contended.iter().any(|found| part.is_none_or(|part| found.part == part))
        || saving::find(facts).iter().any(|found| found.costs >= Some(costs))
}

/// The rank that is behind in most pauses, if they are long enough to matter.
pub(super) fn pausing<'a>(facts: &Facts<'a>) -> Option<Pausing<'a>> {
    pausing_of(&Behind::of_each(facts), facts)
}

fn pausing_of<'a>(all: &BTreeMap<Vec<Member<'a>>, Behind<'a>>, facts: &Facts<'a>) -> Option<Pausing<'a>> {
    let set = &facts.rules.pausing_rank;
    let time = judged_s(facts).filter(|time| *time > 0.0)?;
    let lost_s: f64 = all.values().map(|behind| behind.lost_s).sum();
    // A rank is in several communicators, and has others in the next program of a script.
    let mut by_name: BTreeMap<String, (&str, Behind<'a>)> = BTreeMap::new();
    let mut together_s: f64 = 0.0;
    for (who, behind) in all {
        match who[..] {
            [Member { node, hash, rank }] => {
                by_name
                    .entry(name(facts, node, hash, rank))
                    .or_insert((node, Behind::default()))
                    .1
                    .add(behind);
            }
            _ => together_s = together_s.max(behind.lost_s),
        }
    }
    let (part, (node, most)) = by_name.into_iter().max_by(|a, b| a.1.1.lost_s.total_cmp(&b.1.1.lost_s))?;
    if most.lost_s < together_s {
        return None;
    }
    let enough = float(most.count) >= set.least.get()
        && most.lost_s >= set.lost_percent.share() * time
        && most.lost_s >= set.same_percent.share() * lost_s;
    enough.then(|| Pausing {
        part,
        costs: most.lost_s / time,
        words: words(most.count, most.lost_s, with_rests_s(facts, time)),
        same: most.lost_s / lost_s,
        count: most.count,
        lost_s: most.lost_s,
        longest: most.longest,
        node,
    })
}

fn words(count: u64, lost_s: f64, time: f64) -> String {
    format!("{count} times, {} each, {} of {}", span(lost_s / float(count)), span(lost_s), span(time))
}

/// Pauses of different ranks of one communicator, one at a time: all of its ranks wait for each of them.
fn in_turn<'a>(all: &BTreeMap<Vec<Member<'a>>, Behind<'a>>, facts: &Facts<'a>) -> Option<Found> {
    let set = &facts.rules.pausing_rank;
    let time = judged_s(facts).filter(|time| *time > 0.0 && facts.ranks_depend)?;
    let mut of: BTreeMap<&str, Vec<(Member<'a>, &Behind<'a>)>> = BTreeMap::new();
    for (who, behind) in all {
        if let [member] = who[..]
            && float(behind.count) >= set.least.get()
        {
            of.entry(member.hash).or_default().push((member, behind));
        }
    }
    let lost =
        |ranks: &[(Member<'a>, &Behind<'a>)]| ranks.iter().map(|(_, behind)| behind.lost_s).sum::<f64>();
    let mut ranks = of.into_values().max_by(|one, other| lost(one).total_cmp(&lost(other)))?;
    let lost_s = lost(&ranks);
    let count: u64 = ranks.iter().map(|(_, behind)| behind.count).sum();
    let of_all: f64 = all.values().map(|behind| behind.lost_s).sum();
    let enough = lost_s >= set.in_turn_percent.share() * time && lost_s >= set.same_percent.share() * of_all;
    let costs = lost_s / time;
    if ranks.len() < 2 || !enough || pause_together(facts, time, costs) || explained(facts, costs, None) {
        return None;
    }
    ranks.sort_by(|(_, one), (_, other)| other.lost_s.total_cmp(&one.lost_s));
    let each = |(Member { node, hash, rank }, behind): &(Member<'a>, &Behind<'a>)| {
        format!("{}: {}", name(facts, node, hash, *rank), behind.count)
    };
    let most: Vec<String> = ranks.iter().take(MOST_NAMED).map(each).collect();
    let more = if ranks.len() > MOST_NAMED { ", …" } else { "" };
    let what = format!(
        "{} ranks pause in turn, and the others wait for each: {} ({}{more})",
        ranks.len(),
        words(count, lost_s, with_rests_s(facts, time)),
        most.join(", ")
    );
    let since = ranks.iter().flat_map(|(_, behind)| behind.longest.iter().map(|pause| pause.start)).min();
    Some(Found {
        costs: Some(costs),
        since,
        fix: Some(IN_TURN_FIX),
        ..Found::new("medium", String::new(), what)
    })
}

/// Whether every GPU pauses for longer than this share of the time: ranks that pause together end at slightly different moments.
fn pause_together(facts: &Facts<'_>, time: f64, costs: f64) -> bool {
    used(facts).all(|unit| Pauses::of(unit, time).is_some_and(|pauses| pauses.share >= costs))
}

/// Seconds of the training, else of the allocation. Pauses are seen at all times of the training, so it is all of its phases and
/// not just the whole samples in them.
fn judged_s(facts: &Facts<'_>) -> Option<f64> {
    let allocated = || Some(float(facts.end?.saturating_sub(facts.start()?)) / 1000.0);
    let of_phases = |sampled_s: f64| sampled_s.max(phases::trained_s(&phases::times(facts.nodes)));
    facts.training_s().map(of_phases).or_else(allocated)
}

/// The training, of which this is the length, with the rests in it that fill whole samples: they hold pauses as well.
fn with_rests_s(facts: &Facts<'_>, trained_s: f64) -> f64 {
    let rests = [PhaseKind::Evaluating, PhaseKind::Stalled, PhaseKind::Saving, PhaseKind::Idle];
    trained_s + rests.into_iter().map(|kind| in_phases(facts, kind).0).sum::<f64>()
}

/// A rank of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Member<'a> {
    node: &'a str,
    hash: &'a str,
    rank: u32,
}

/// Pauses in which the same ranks are behind.
#[derive(Default)]
struct Behind<'a> {
    count: u64,
    lost_s: f64,
    longest: Vec<&'a Pause>,
}

impl<'a> Behind<'a> {
    /// Of each set of ranks that are behind together.
    fn of_each(facts: &Facts<'a>) -> BTreeMap<Vec<Member<'a>>, Self> {
        let mut of: BTreeMap<Vec<Member<'a>>, Behind<'a>> = BTreeMap::new();
        for group in &groups(facts) {
            let Some((who, pause)) = group.behind(facts) else { continue };
            let behind = of.entry(who).or_default();
            behind.count += 1;
            behind.lost_s += pause.lost_s;
            behind.longest.push(pause);
        }
        for (who, behind) in &mut of {
            behind.complete(who, facts);
        }
        of
    }

    fn add(&mut self, other: &Behind<'a>) {
        self.count += other.count;
        self.lost_s += other.lost_s;
        self.longest.extend(&other.longest);
    }

    /// A node keeps only its longest pauses, and sums of all.
    fn complete(&mut self, who: &[Member<'_>], facts: &Facts<'_>) {
        let Some(first) = who.first() else { return };
        let ranks: Vec<u32> = who.iter().map(|member| member.rank).collect();
        let same = |sum: &&PauseSum| sum.communicator == first.hash && sum.behind == ranks;
        let node = facts.nodes.iter().find(|node| node.node == first.node);
        let sum = node.and_then(|node| node.communication.as_ref()?.pauses.as_ref()?.sums.iter().find(same));
        if let Some(sum) = sum.filter(|sum| sum.pauses > self.count) {
            (self.count, self.lost_s) = (sum.pauses, self.lost_s.max(sum.lost_s));
        }
    }
}

/// Pauses of several nodes at the same time in the same communicator.
struct Group<'a>(Vec<(&'a str, &'a Pause)>);

fn groups<'a>(facts: &Facts<'a>) -> Vec<Group<'a>> {
    let of = |node: &'a NodeReport| {
        let pauses = node.communication.as_ref().and_then(|comm| comm.pauses.as_ref());
        pauses.into_iter().flat_map(|pauses| &pauses.longest).map(move |pause| (node.node.as_str(), pause))
    };
    let mut all: Vec<(&str, &Pause)> = facts.nodes.iter().flat_map(of).collect();
    all.sort_by_key(|(node, pause)| (&pause.communicator, pause.start, *node));
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (node, pause) in all {
        match groups.last_mut() {
            Some(group) if group.takes(node, pause) => group.0.push((node, pause)),
            _ => groups.push(Group(vec![(node, pause)])),
        }
    }
    groups
}

impl<'a> Group<'a> {
    /// The wait of another node begins up to a step later, and ends as much later.
    fn takes(&self, node: &str, pause: &Pause) -> bool {
        let Some((_, first)) = self.0.first() else { return false };
        let both = first.end().min(pause.end()).saturating_sub(first.start.max(pause.start));
        let shorter = first.end().saturating_sub(first.start).min(pause.end().saturating_sub(pause.start));
        first.communicator == pause.communicator
            && 2 * both > shorter
            && self.0.iter().all(|(other, _)| *other != node)
    }

    /// The ranks with the fewest operations, and the pause of their node; `None` if no rank has more.
    fn behind(&self, facts: &Facts<'a>) -> Option<(Vec<Member<'a>>, &'a Pause)> {
        let fewest = self.0.iter().map(|(_, pause)| pause.fewest).min()?;
        if self.0.iter().all(|(_, pause)| pause.most == fewest) {
            return None;
        }
        let last: Vec<&(&str, &Pause)> = self.0.iter().filter(|(_, pause)| pause.fewest == fewest).collect();
        let (node, pause) = *last.iter().max_by(|a, b| a.1.lost_s.total_cmp(&b.1.lost_s))?;
        let hash = pause.communicator.as_str();
        let own = || facts.communicators.iter().filter(|(of, one)| of == node && one.hash == hash);
        let ranks = match (last.len() > 1, pause.behind.is_empty()) {
            // Several nodes are not one rank.
            (true, _) => Vec::new(),
            // All of a node, if none of them is ahead.
            (false, true) => own().map(|(_, one)| one.rank).collect(),
            (false, false) => pause.behind.clone(),
        };
        Some((ranks.into_iter().map(|rank| Member { node, hash, rank }).collect(), pause))
    }
}

/// Name of a rank of a communicator: of its GPU and its rank in the job, if they are known.
fn name(facts: &Facts<'_>, node: &str, hash: &str, rank: u32) -> String {
    match job_rank(facts, hash, rank) {
        Some(job_rank) => facts.name_of(node, job_rank),
        None => format!("{node} rank {rank} of communicator {hash}"),
    }
}

fn job_rank(facts: &Facts<'_>, hash: &str, rank: u32) -> Option<u32> {
    let (node, one) = facts.communicators.iter().find(|(_, one)| one.hash == hash && one.rank == rank)?;
    facts.job_rank(node, one)
}

impl Pausing<'_> {
    /// The operation of which it is certain that another rank had enqueued it first.
    fn example(&self, facts: &Facts<'_>) -> String {
        let here = self.longest.iter().filter(|pause| !pause.behind.is_empty());
        let Some(pause) = here.max_by(|a, b| a.lost_s.total_cmp(&b.lost_s)) else { return String::new() };
        let ahead = job_rank(facts, &pause.communicator, pause.ahead).unwrap_or(pause.ahead);
        match pause.seq {
            Some(seq) => format!("; it had not enqueued {} that rank {ahead} had", numbered(&pause.op, seq)),
            None => format!("; it was {} operations behind rank {ahead}", pause.most - pause.fewest),
        }
    }

    /// Whether samples or the program show that the job saved checkpoints during most of these pauses, or data was copied off
    /// the rank's GPU at the rate of `saving`.
    fn saves(&self, facts: &Facts<'_>) -> bool {
        let unit = facts.units.iter().find(|unit| unit.name() == self.part);
        if unit.and_then(|unit| unit.gpu).is_some_and(|gpu| saving::copies_off(facts, gpu)) {
            return true;
        }
        if unit.and_then(|unit| unit.app).is_some_and(|app| app.checkpoint_s >= 0.5 * self.lost_s) {
            return true;
        }
        let node = facts.nodes.iter().find(|node| node.node == self.node);
        let Some(phases) = node.and_then(|node| node.usage.as_ref()?.phases.as_ref()) else { return false };
        let saving = || phases.list.iter().filter(|phase| phase.kind == PhaseKind::Saving);
        let within = |time: UnixMillis| saving().any(|phase| phase.start <= time && time < phase.end);
        let middle = |pause: &&&Pause| within(u64::midpoint(pause.start, pause.end()));
        2 * self.longest.iter().filter(middle).count() > self.longest.len()
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::Reading;
    use railgate_node_report::comm::Communicator;
    use railgate_node_report::usage::Spread;

    use super::*;
    use crate::facts::Outcome;
    use crate::simulator::{Plant, parts_with};

    fn found(nodes: &[NodeReport]) -> Vec<Found> {
        find(&Facts::new(nodes, nodes[0].end, Outcome::Good, None))
    }

    fn pauses(nodes: &mut [NodeReport]) -> impl Iterator<Item = &mut railgate_node_report::comm::Pauses> {
        nodes.iter_mut().filter_map(|node| node.communication.as_mut()?.pauses.as_mut())
    }

    #[test]
    fn the_rank_behind_is_named_from_the_counts_of_all_nodes() {
        let nodes = parts_with(&[Plant::Pauses]);
        let [one] = &found(&nodes)[..] else { panic!("{:?}", found(&nodes)) };
        assert!(one.what.contains("pauses while the others wait: 20 times, "), "{one:?}");
        assert!(one.what.contains("; it had not enqueued AllReduce number "), "{one:?}");
        assert_eq!((one.confidence, one.part.contains(" rank ")), ("high", true));
        // A node keeps the longest pauses and sums of all.
        let mut cut = nodes.clone();
        pauses(&mut cut).for_each(|pauses| pauses.longest.truncate(5));
        assert!(found(&cut)[0].what.contains("wait: 20 times, "), "{:?}", found(&cut));
        // The only rank of its node has no other one beside it that is ahead.
        let mut alone = nodes.clone();
        for pause in pauses(&mut alone).flat_map(|pauses| &mut pauses.longest) {
            if !pause.behind.is_empty() {
                (pause.most, pause.behind) = (pause.fewest, vec![]);
            }
        }
        let rank: u32 = one.part.rsplit(' ').next().unwrap().parse().unwrap();
        for node in &mut alone {
            let ours = &mut node.communication.as_mut().unwrap().communicators;
            if ours.iter().any(|one| one.rank == rank) {
                ours.retain(|one| one.rank == rank);
            }
        }
        let told = found(&alone);
        assert_eq!((told.len(), &told[0].part), (1, &one.part), "{told:?}");
        // Alone, it may have waited as well.
        alone.retain(|node| one.part.starts_with(node.node.as_str()));
        assert_eq!(found(&alone), vec![]);
        // Four ranks of that node with the same count: which of them is not known.
        let mut all = nodes.clone();
        for pause in pauses(&mut all).flat_map(|pauses| &mut pauses.longest) {
            if !pause.behind.is_empty() {
                (pause.most, pause.behind) = (pause.fewest, vec![]);
            }
        }
        assert_eq!(found(&all), vec![]);
        // A rank of the other node was behind it.
        let mut lower = nodes;
        let other = pauses(&mut lower).find(|pauses| pauses.longest[0].behind.is_empty()).unwrap();
        other
            .longest
            .iter_mut()
            .for_each(|pause| (pause.fewest, pause.behind) = (0, vec![if rank == 6 { 1 } else { 6 }]));
        assert_ne!(found(&lower)[0].part, one.part);
    }

    /// The 20 pauses are of so many ranks in turn.
    fn in_turn_of(ranks: u32) -> Vec<NodeReport> {
        let mut nodes = parts_with(&[Plant::Pauses]);
        for pauses in pauses(&mut nodes) {
            pauses.sums.clear();
            for (at, pause) in (0..).zip(&mut pauses.longest).filter(|(_, pause)| !pause.behind.is_empty()) {
                pause.behind = vec![at % ranks];
            }
        }
        nodes
    }

    #[test]
    fn ranks_that_take_turns_are_named_together_and_pauses_of_all_are_no_finding() {
        let nodes = in_turn_of(2);
        let told = found(&nodes);
        assert!(
            told[0].what.starts_with("2 ranks pause in turn, and the others wait for each: 20 times, "),
            "{told:?}"
        );
        assert_eq!((told.len(), told[0].part.as_str(), told[0].fix), (1, "", Some(IN_TURN_FIX)));
        assert!(told[0].what.contains("rank 1: 10, ") && told[0].what.contains("rank 0: 10)"), "{told:?}");
        // Each of ten ranks has two.
        assert_eq!(found(&in_turn_of(10)), vec![]);
        // A rank of each node is behind by the same.
        let mut nodes = parts_with(&[Plant::Pauses]);
        for pause in
            pauses(&mut nodes).flat_map(|pauses| &mut pauses.longest).filter(|one| one.behind.is_empty())
        {
            (pause.fewest, pause.behind) = (pause.fewest - 1, vec![pause.ahead + 1]);
        }
        assert_eq!(found(&nodes), vec![]);
        let mut nodes = parts_with(&[Plant::Pauses]);
        for pause in pauses(&mut nodes).flat_map(|pauses| &mut pauses.longest) {
            (pause.fewest, pause.behind) = (pause.most, vec![]);
        }
        assert_eq!(found(&nodes), vec![]);
    }

    #[test]
    fn a_rank_is_one_in_all_of_its_communicators() {
        let mut nodes = parts_with(&[Plant::Pauses]);
        let alone = found(&nodes);
        for node in &mut nodes {
            let comm = node.communication.as_mut().unwrap();
            let more: Vec<_> = comm.communicators.clone();
            comm.communicators
                .extend(more.into_iter().map(|one| Communicator { hash: "other".to_owned(), ..one }));
        }
        for pauses in pauses(&mut nodes) {
            pauses.sums.clear();
            pauses.longest.iter_mut().step_by(2).for_each(|pause| pause.communicator = "other".to_owned());
        }
        let told = found(&nodes);
        assert_eq!((told.len(), &told[0].part), (1, &alone[0].part), "{told:?}");
        assert!(told[0].what.contains("pauses while the others wait: 20 times, "), "{told:?}");
    }

    #[test]
    fn ranks_that_pause_together_do_not_pause_in_turn() {
        let mut nodes = in_turn_of(2);
        assert_eq!(found(&nodes).len(), 1);
        for gpu in nodes.iter_mut().flat_map(|node| &mut node.usage.as_mut().unwrap().gpus) {
            let flat = |mean| Reading::Known(Spread { mean, min: mean, max: mean, over_s: 100.0 });
            (gpu.counters.paused_percent, gpu.counters.pauses_per_minute) = (flat(20.0), flat(6.0));
        }
        assert_eq!(found(&nodes), vec![]);
    }

    #[test]
    fn saving_is_named_where_it_is_known() {
        use railgate_node_report::phases::{Phase, Phases};
        let mut nodes = parts_with(&[Plant::Pauses]);
        let plain = found(&nodes).remove(0);
        assert_eq!((plain.fix, plain.what.contains("checkpoint")), (None, false));
        let is_it = |node: &&mut NodeReport| plain.part.starts_with(node.node.as_str());
        let mut sampled = nodes.clone();
        let node = sampled.iter_mut().find(is_it).unwrap();
        let paused = node.communication.as_ref().unwrap().pauses.as_ref().unwrap().longest.iter();
        let list = paused
            .map(|one| Phase { kind: PhaseKind::Saving, start: one.start, end: one.end(), start_number: 0 })
            .collect();
        node.usage.as_mut().unwrap().phases = Some(Phases { list, training: None, gpus: Vec::new() });
        let told = &found(&sampled)[0];
        assert!(told.what.ends_with("; it probably saves checkpoints meanwhile"), "{told:?}");
        assert_eq!(told.fix, Some(saving::RULE.fix));
        // Its report says how long; with a tenth of the time, `saving` has the finding.
        let seconds = nodes[0].usage.as_ref().unwrap().coverage.sampled_s;
        for rank in nodes.iter_mut().flat_map(|node| &mut node.application.as_mut().unwrap().ranks) {
            (rank.checkpoints, rank.checkpoint_s) = (20, 0.08 * seconds);
        }
        assert!(found(&nodes)[0].what.contains("saves checkpoints"), "{:?}", found(&nodes));
        for rank in nodes.iter_mut().flat_map(|node| &mut node.application.as_mut().unwrap().ranks) {
            rank.checkpoint_s = 0.2 * seconds;
        }
        assert_eq!(found(&nodes), vec![]);
    }
}

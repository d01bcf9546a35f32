use railgate_model::ProcessExit;
use railgate_node_report::application::{AppEventKind, RankApplication};
use railgate_node_report::plain::{clock, float, span};

use super::hang::{behind, stood_still};
use crate::ends::RankEnd;
use crate::facts::{Facts, Outcome, Unit, median};
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "killed-rank",
    about: "one rank ended before the others in a job that failed",
    class: Class::Unknown,
    evidence: "the end of each rank's process, which the sampler takes from the kernel with the exit code or signal: the rank that ended with an
error before all others. Without it, which ranks reported their end, and when each reported last (docs/application-reports.md): one rank without an end
among ranks with one, one rank that ended alone, or one rank that stopped reporting while the others continued. Without such a rank, and only
if the job ended with an error: the rank that stopped before a collective of the others (NCCL's profiler plugin). A job that stood
still before its end belongs to `hang`.",
    why: "the other ranks fail because of this one: their error messages are consequences. The cause is in the log of this rank.",
    look_alikes: "a launcher that ends all ranks as soon as one fails (torchrun): all stop reporting at the same time, and the rank
behind in NCCL is named with medium or low confidence. NCCL's counts are not used for a job that was cancelled or that ran into its
time limit.",
    fix: FIX,
    thresholds: Settings::KEYS,
    line: Line::Verdict,
    over: Over::AllTime,
    explains: Explains::Nothing,
    find,
};

thresholds! {
    silent: Time(5), 1 to 3600, "time", "a rank stopped reporting at least this long before the median of the ranks";
    silent_steps: Number(3.0), 0.0 to 1000.0, "steps", "and at least this many of its own mean steps before it";
}

fn find(facts: &Facts<'_>) -> Vec<Found> {
    let told: Vec<_> = facts.reporting_last().collect();
    // A long standstill is a case for `hang`.
    if facts.outcome == Outcome::Good || stood_still(facts).is_some() {
        return Vec::new();
    }
    if let Some(found) = ended_first(facts) {
        return vec![found];
    }
    let (unit, how, confidence) = if let Some(found) = alone(&told) {
        found
    } else if let Some(found) = earlier(facts, &told) {
        found
    } else if let Some(lag) = behind(facts).filter(|_| facts.outcome == Outcome::Failed) {
        let what = format!("{}; the job ended soon after, so this rank probably died first", lag.what);
        // A rank that is killed with the others may be one operation behind by chance.
        let confidence = if lag.confidence == "high" { "medium" } else { "low" };
        let mut found = Found::new(confidence, lag.part, what);
        found.since = lag.since;
        return vec![found];
    } else {
        return Vec::new();
    };
    let rank = unit.app.map(|rank| (rank.steps, rank.last_seen)).unwrap_or_default();
    let when = clock(rank.1);
    let number = unit.rank.map_or_else(|| "?".to_owned(), |rank| rank.to_string());
    let what = format!(
        "rank {number} {how} (after {} steps, last seen {})",
        rank.0,
        when.get(..8).unwrap_or_default()
    );
    let mut found = Found::new(confidence, unit.name(), what);
    found.since = Some(rank.1);
    vec![found]
}

const FIX: &str = "look in the job's log for the reason that this rank ended: out of memory, a signal, or an error of the program";

/// By so much the first process must end before the others, milliseconds, if these were not ended by a launcher: ranks that fail for
/// the same reason end within less.
const AHEAD_MS: u64 = 500;

/// SIGKILL and SIGTERM, with which launchers and Slurm end the other ranks.
fn is_of_launcher(exit: ProcessExit) -> bool {
    matches!(exit, ProcessExit::Signal(9 | 15))
}

/// The rank whose process ended with an error before those of the others.
fn ended_first(facts: &Facts<'_>) -> Option<Found> {
    let end = facts.end.filter(|_| facts.outcome == Outcome::Failed)?;
    let ended = |one: &RankEnd<'_>| one.ended.map(|(time, _)| time);
    let first = facts.ends.iter().filter(|one| one.ended.is_some()).min_by_key(|one| ended(one))?;
    let (time, exit) = first.ended?;
    let others = || facts.ends.iter().filter(|one| *one != first);
    let next = others().filter_map(ended).min().unwrap_or(end);
    let ahead = next.checked_sub(time)?;
    let ended_by_launcher = others().all(|one| one.ended.is_none_or(|(_, exit)| is_of_launcher(exit)));
    let is_certain = ahead > 0 && ended_by_launcher && !is_of_launcher(exit);
    let is_first = ahead >= AHEAD_MS || is_certain;
    if !exit.is_error() || others().next().is_none() || !is_first {
        return None;
    }
    let what = format!(
        "rank {}'s process {exit} at {}, {} before any other rank's",
        first.rank,
        clock(time).get(..8).unwrap_or_default(),
        span(float(ahead) / 1000.0)
    );
    let mut found = Found::new("high", facts.name_of(first.node, first.rank), what);
    found.since = Some(time);
    Some(found)
}

type Gone<'a> = (&'a Unit<'a>, &'static str, &'static str);

fn ended(rank: &RankApplication) -> bool {
    rank.events.last().is_some_and(|event| event.what == AppEventKind::End)
}

/// The only rank that reported no normal end while the others did, or the reverse.
fn alone<'a>(told: &[(&'a Unit<'a>, &'a RankApplication)]) -> Option<Gone<'a>> {
    let (orderly, silent): (Vec<_>, Vec<_>) = told.iter().partition(|(_, rank)| ended(rank));
    match (orderly.as_slice(), silent.as_slice()) {
        ([_, ..], [(unit, _)]) => {
            Some((unit, "stopped without reporting its end, unlike the others", "high"))
        }
        ([(unit, _)], [_, ..]) => Some((unit, "ended alone", "high")),
        _ => None,
    }
}

/// The one that stopped reporting while the others continued.
fn earlier<'a>(facts: &Facts<'_>, told: &[(&'a Unit<'a>, &'a RankApplication)]) -> Option<Gone<'a>> {
    let middle = median(told.iter().map(|(_, rank)| float(rank.last_seen)).collect())?;
    let (unit, rank) = told.iter().min_by_key(|(_, rank)| (rank.steps, rank.last_seen))?;
    let gone_s = (middle - float(rank.last_seen)) / 1000.0;
    let set = &facts.rules.killed_rank;
    let steps_s = set.silent_steps.get() * unit.step_s().unwrap_or(0.0);
    let many = gone_s > steps_s.max(set.silent.seconds());
    (told.len() > 1 && many).then_some((unit, "stopped reporting while the others continued", "medium"))
}

#[cfg(test)]
mod tests {
    use railgate_node_report::{NodeReport, TaskRank, Tasks};

    use super::*;
    use crate::simulator::{Plant, parts_with};

    /// Reports of two ranks whose processes ended at these times, milliseconds before the end of the job.
    fn with_ends(ends: [Option<(u64, ProcessExit)>; 2]) -> Vec<NodeReport> {
        let mut nodes = parts_with(&[Plant::Killed]);
        nodes.truncate(1);
        let (end, ranks) = (nodes[0].end.unwrap(), (0..).zip(ends));
        let ranks = ranks.map(|(rank, ended)| TaskRank {
            rank,
            ended: ended.map(|(ago, _)| end - ago),
            exit: ended.map(|(_, exit)| exit),
            ..TaskRank::default()
        });
        nodes[0].tasks = Some(Tasks { ranks: ranks.collect(), ..Tasks::default() });
        (nodes[0].application, nodes[0].communication) = (None, None);
        nodes
    }

    #[test]
    fn the_process_that_ended_first_with_an_error_is_named_with_its_exit() {
        let said = |ends, outcome| -> Option<String> {
            let nodes = with_ends(ends);
            let found = find(&Facts::new(&nodes, nodes[0].end, outcome, None));
            found.into_iter().next().map(|one| format!("{} {} {}", one.part, one.confidence, one.what))
        };
        let failed = |first, second| said([first, second], Outcome::Failed);
        let (kill, term, code) = (ProcessExit::Signal(9), ProcessExit::Signal(15), ProcessExit::Code);
        let named = failed(Some((200, term)), Some((4_000, kill))).unwrap();
        assert!(
            named.starts_with("n0 rank 1 high rank 1's process was ended by SIGKILL (signal 9) at "),
            "{named}"
        );
        assert!(named.ends_with(", 3.8 s before any other rank's"), "{named}");
        // torchrun ends the others at once.
        let named = failed(Some((90, term)), Some((100, code(3)))).unwrap();
        assert!(named.contains("rank 1's process ended with exit code 3"), "{named}");
        assert!(failed(None, Some((4_000, code(1)))).is_some(), "the other one ran until the end");
        // Both fail for the same reason, both are ended from outside, one is done, or how it ended is not known.
        assert_eq!(failed(Some((90, code(1))), Some((100, code(1)))), None);
        assert_eq!(failed(Some((90, kill)), Some((100, kill))), None);
        assert_eq!(failed(Some((90, term)), Some((4_000, code(0)))), None);
        assert_eq!(failed(Some((90, term)), Some((4_000, ProcessExit::Unknown))), None);
        assert_eq!(said([Some((200, term)), Some((4_000, kill))], Outcome::CutOff), None);
    }

    /// torchrun kills the other rank within its step: both stop reporting at once, and one is behind in NCCL.
    #[test]
    fn of_two_ranks_the_one_behind_is_named_with_low_confidence() {
        let mut nodes = parts_with(&[Plant::Killed]);
        nodes.truncate(1);
        let node = &mut nodes[0];
        node.usage.as_mut().unwrap().gpus.truncate(2);
        let comm = node.communication.as_mut().unwrap();
        comm.communicators.truncate(2);
        comm.communicators.iter_mut().for_each(|one| one.size = 2);
        comm.communicators[0].ops = comm.communicators[1].ops + 1;
        let told = &mut node.application.as_mut().unwrap().ranks;
        told.truncate(2);
        let (steps, last_seen) = (told[0].steps, told[0].last_seen);
        told.iter_mut()
            .for_each(|rank| (rank.world, rank.steps, rank.last_seen) = (Some(2), steps, last_seen));
        let found = find(&Facts::new(&nodes, Some(last_seen + 500), Outcome::Failed, None));
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((one.part.as_str(), one.confidence), ("n0 GPU 1 rank 1", "low"));
        let cancelled = Facts::new(&nodes, Some(last_seen + 500), Outcome::CutOff, None);
        assert_eq!(find(&cancelled), []);
        nodes[0].communication.as_mut().unwrap().communicators[0].ops -= 1;
        assert_eq!(find(&Facts::new(&nodes, Some(last_seen + 500), Outcome::Failed, None)), []);
    }
}

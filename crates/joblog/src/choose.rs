//! Which of many errors was the first that counted.

use std::collections::{BTreeMap, BTreeSet};

use crate::events::{Event, Read, shown};
use crate::rule::{Class, Hardware, Kind};
use crate::rules::{
    ERROR_LINE, EXCEPTION, LACKING, MPI_ERROR, NCCL_ERROR, NCCL_WARN, NODE_FAILURE, NOT_LOADED, PEER_CLOSED,
    SHELL_COMMAND, SHELL_COMMAND_MISSING, SLURM_END,
};
use crate::traceback::Place;
use crate::{FirstError, Found, Log};

/// Ordinary lines that a process may print between its error and its end, and between errors of one failure: clean-up, a summary.
const AFTER: usize = 30;
/// A process that reports so many further steps after an error had caught it.
const STEPS: usize = 2;
/// If any process of a program reports so many further steps after an error, the program had survived it. One more than for the process
/// itself: other ranks may still be on their way to the next collective.
const STEPS_OF_ALL: usize = 3;
/// An error that each process printed so often was caught before, and ends it only if no other one does.
const CAUGHT: usize = 3;
/// Of PyTorch's watchdog.
const TIMEOUT: &str = "Watchdog caught collective operation timeout";
/// What each rank prints between the timeout of a collective and its end: stacks of the watchdog, a table of the launcher.
const LINES_OF_A_TIMEOUT: usize = 300;
/// An error in so many lines from the start of a cut log may have been preceded by another one.
const AT_THE_START: usize = 5;

pub(crate) fn choose(logs: &[Read], sources: &[Log<'_>], ranks: u32) -> Found {
    let candidates: Vec<(usize, &Event)> = logs
        .iter()
        .enumerate()
        .flat_map(|(log, read)| {
            let failures = without_ends_by_timeout(last_failures(read, ranks).collect(), ranks);
            failures.into_iter().map(move |event| (log, event))
        })
        .collect();
    let steps: Vec<usize> = logs.iter().map(|log| log.steps_of_all).collect();
    let candidates = without_survived(without_aborts(candidates), &steps);
    let candidates = without_weak(without_weaker_evidence(candidates));
    let consequences =
        logs.iter().flat_map(|log| &log.events).filter(|event| event.rule.kind == Kind::Consequence).count();
    let of = |kind: Kind| candidates.iter().filter(move |(_, event)| event.rule.kind == kind);
    // If nothing else is known, why Slurm ended the job says more than what ended with it.
    let end = || of(Kind::Consequence).filter(|(_, event)| ends_the_job(event)).copied().reduce(earlier);
    let earliest = |kind| of(kind).copied().reduce(earlier);
    // The only rank has no peer: its exception about a closed connection is an error of its own.
    let is_alone = ranks <= 1 && candidates.iter().all(|(_, event)| event.rank.is_none_or(|rank| rank == 0));
    let is_own = |event: &Event| is_alone && event.rule.id == PEER_CLOSED && event.uncaught == Some(true);
    let own = || of(Kind::Consequence).filter(|(_, event)| is_own(event)).copied().reduce(earlier);
    let first = earliest(Kind::Cause)
        .or_else(own)
        .or_else(|| earliest(Kind::Exit))
        .or_else(end)
        .or_else(|| earliest(Kind::Consequence));
    let Some((log, event)) = first else { return Found { consequences, ..Found::default() } };
    let rule = if is_own(event) { EXCEPTION } else { event.rule };
    let key = likeness(&event.text);
    let same: BTreeSet<u32> = of(event.rule.kind)
        .filter(|(_, other)| likeness(&other.text) == key)
        .filter_map(|(_, other)| other.rank)
        .collect();
    let rank =
        event.rank.or_else(|| rank_of_exit(&candidates)).filter(|_| same.len() < 2 || event.rank.is_some());
    let next = candidates
        .iter()
        .filter(|(_, other)| other.rank.is_some() && other.rank != rank)
        .filter_map(|(_, other)| other.when);
    let ahead_s = event
        .when
        .and_then(|when| next.map(|next| next - when).filter(|&ahead| ahead >= 0.0).reduce(f64::min))
        .filter(|_| rank.is_some());
    let cut = sources.get(log).is_some_and(|log| log.cut);
    Found {
        may_lie_before: cut && (event.line <= AT_THE_START || rule.kind == Kind::Consequence),
        first: Some(FirstError {
            rule,
            text: shown(&event.text),
            from: event.from.as_deref().map(shown),
            place: event.place.clone(),
            rank,
            ranks: same.len().max(1),
            ahead_s,
            when: event.when.or(event.after),
            exact: event.when.is_some(),
            line: event.line,
            log,
        }),
        consequences,
    }
}

/// The earlier of two: by their lines in one log, else by their times, or those of the last lines before them.
fn earlier<'e>(a: (usize, &'e Event), b: (usize, &'e Event)) -> (usize, &'e Event) {
    let later = if a.0 == b.0 {
        b.1.line < a.1.line
    } else {
        match (a.1.when.or(a.1.after), b.1.when.or(b.1.after)) {
            (Some(a), Some(b)) => b < a,
            _ => false,
        }
    };
    if later { b } else { a }
}

/// The errors that belong to the last failure of their process: it did not continue to work after them.
fn last_failures(read: &Read, ranks: u32) -> impl Iterator<Item = &Event> {
    let mut by_stream: BTreeMap<usize, Vec<&Event>> = BTreeMap::new();
    for event in &read.events {
        by_stream.entry(event.stream).or_default().push(event);
    }
    let ranks = usize::try_from(ranks).unwrap_or(1);
    by_stream.into_iter().flat_map(move |(stream, events)| {
        // Where lines have no label, other ranks' clean-up lies between, and their steps.
        let is_labelled = read.is_labelled.get(stream) == Some(&true);
        let gap = if is_labelled { AFTER } else { AFTER + 4 * ranks };
        let mut upto = read.ordinary.get(stream).copied().unwrap_or(0);
        let mut steps = read.steps.get(stream).copied().unwrap_or(0);
        let mut kept = Vec::new();
        let is_one = is_labelled || ranks == 1;
        let often = caught_often(&events, if is_one { CAUGHT } else { CAUGHT.saturating_mul(ranks) });
        for event in events.into_iter().rev() {
            if often.contains(&(likeness(&event.text), event.place.as_ref())) {
                continue;
            }
            // A port's or a GPU's error may take effect some steps later.
            let is_caught =
                is_one && event.rule.points_at.is_none() && steps.saturating_sub(event.steps) >= STEPS;
            if is_caught || upto.saturating_sub(event.ordinary) > gap {
                break;
            }
            // Programs print such lines while they work, too: they connect no earlier error with the end.
            if event.rule.id != ERROR_LINE {
                (upto, steps) = (event.ordinary, event.steps);
            }
            kept.push(event);
        }
        kept.reverse();
        without_caught(kept)
    })
}

/// Removes exceptions that a program had caught and printed, if one that nothing caught ended it later, and the later one does not follow from
/// them by its text.
fn without_caught(events: Vec<&Event>) -> Vec<&Event> {
    let ends = |event: &&&Event| event.rule.kind == Kind::Cause && event.uncaught == Some(true);
    let Some(last) = events.iter().rev().find(ends).copied() else { return events };
    let is_caught = |event: &Event| {
        event.line < last.line
            && event.rule.kind == Kind::Cause
            && event.rule.points_at.is_none()
            && event.uncaught == Some(false)
            && !may_follow(&last.text, &event.text)
    };
    events.into_iter().filter(|event| !is_caught(event)).collect()
}

/// Whether an exception may follow from an earlier one that the program had caught: a value is missing, the program gives up, or both name the same
/// thing.
fn may_follow(later: &str, earlier: &str) -> bool {
    const LACKS: [&str; 10] = [
        "NoneType",
        "UnboundLocalError",
        "is not defined",
        "is None",
        "see above",
        "giving up",
        "retries",
        "attempts",
        "too many",
        "CUDA error",
    ];
    // Names of files, hosts, variables and shards; not the names of the exceptions.
    let names = |text: &str| -> BTreeSet<String> {
        let message = text.split_once(": ").map_or("", |(_, message)| message);
        let words = message.split(|c: char| c.is_whitespace() || "'\"`()[]{},;=<>".contains(c));
        let words = words.map(|word| word.trim_matches(['.', ':', '!', '?']));
        let is_name = |word: &&str| {
            word.len() >= 4
                && word.contains(['/', '.', '_', '-', '@'])
                && word.contains(|c: char| c.is_ascii_alphabetic())
        };
        words.filter(is_name).map(str::to_owned).collect()
    };
    LACKS.iter().any(|words| later.contains(words)) || !names(later).is_disjoint(&names(earlier))
}

/// Without reports of processes that ended after a collective had timed out: the watchdog aborts each rank that waited. A rank that ended
/// by itself before is reported before; a closed connection, on the other hand, may be noticed before the report.
fn without_ends_by_timeout(mut events: Vec<&Event>, ranks: u32) -> Vec<&Event> {
    let far = LINES_OF_A_TIMEOUT.saturating_mul(usize::try_from(ranks.max(1)).unwrap_or(usize::MAX));
    let timeouts = events.iter().filter(|event| event.text.contains(TIMEOUT));
    let timeouts: Vec<usize> = timeouts.map(|event| event.line).collect();
    let follows = |end: &Event| timeouts.iter().any(|at| *at < end.line && end.line - at <= far);
    events.retain(|event| event.rule.kind != Kind::Exit || !follows(event));
    events
}

/// Without aborted processes in one log, if a collective timed out in the log of a rank: nothing tells which came first, and it is the
/// watchdog that aborts.
fn without_aborts(candidates: Vec<(usize, &Event)>) -> Vec<(usize, &Event)> {
    const ABORTED: [&str; 4] = ["Aborted", "SIGABRT", "(exitcode: -6)", "exit code 134"];
    let timed_out: BTreeSet<usize> =
        candidates.iter().filter(|(_, event)| event.text.contains(TIMEOUT)).map(|(log, _)| *log).collect();
    let is_abort = |event: &Event| {
        event.rule.kind == Kind::Exit && ABORTED.iter().any(|words| event.text.contains(words))
    };
    let in_another = |log: &usize| timed_out.iter().any(|other| other != log);
    candidates.into_iter().filter(|(log, event)| !(is_abort(event) && in_another(log))).collect()
}

/// Removes errors after which the job continued to train, if another error follows in the same log. An error after which a launcher reports
/// the end of a process stays: tasks of a step may be independent of each other.
fn without_survived<'e>(candidates: Vec<(usize, &'e Event)>, steps: &[usize]) -> Vec<(usize, &'e Event)> {
    let after = |log: usize, event: &Event| {
        steps.get(log).map_or(0, |steps| steps.saturating_sub(event.steps_of_all))
    };
    let late = candidates
        .iter()
        .filter(|(log, event)| event.rule.kind == Kind::Cause && after(*log, event) < STEPS_OF_ALL);
    let last = lines(late.map(|(log, event)| (*log, event.line)), usize::max);
    let ends: BTreeSet<(usize, usize)> = candidates
        .iter()
        .filter(|(_, event)| event.rule.kind == Kind::Exit && event.rule.id != ERROR_LINE)
        .map(|(log, event)| (*log, event.steps_of_all))
        .collect();
    let is_survived = |log: usize, event: &Event| {
        let until = event.steps_of_all.saturating_add(STEPS_OF_ALL);
        event.rule.kind == Kind::Cause
            && event.rule.points_at.is_none()
            && after(log, event) >= STEPS_OF_ALL
            && last.get(&log).is_some_and(|last| *last > event.line)
            && ends.range((log, event.steps_of_all)..(log, until)).next().is_none()
    };
    candidates.iter().copied().filter(|(log, event)| !is_survived(*log, event)).collect()
}

/// Removes errors that another one explains:
/// - the program reports that it continued without the part that failed, and another error follows in the same log;
/// - Slurm had ended the job before, by the same log;
/// - NCCL warned, no error of NCCL is in any log, and another error follows in the same log;
/// - a peer could not be reached, and Slurm lost a node of the job;
/// - a transfer of MPI failed, and a task of the step crashed;
/// - a transfer over InfiniBand or RoCE failed, and a rank reports that its GPU did;
/// - a module or conda environment was not available, another error follows in the same log, and no library or command was missing after it.
fn without_weaker_evidence(candidates: Vec<(usize, &Event)>) -> Vec<(usize, &Event)> {
    let causes = || candidates.iter().filter(|(_, event)| event.rule.kind == Kind::Cause);
    let lost_a_node = causes().any(|(_, event)| event.rule.id == NODE_FAILURE);
    let crashed = candidates.iter().any(|(_, event)| event.rule.kind == Kind::Exit && has_crashed(event));
    let lost_a_gpu = causes().any(|(_, event)| event.rule.points_at == Some(Hardware::Gpu));
    let of_nccl = causes().any(|(_, event)| event.rule.id == NCCL_ERROR);
    let explains =
        |event: &Event| !event.survived && event.rule.id != NCCL_WARN && !NOT_LOADED.contains(&event.rule.id);
    let explaining = || causes().filter(|(_, event)| explains(event));
    let lacking = causes().filter(|(_, event)| LACKING.contains(&event.rule.id));
    let ends = candidates.iter().filter(|(_, event)| ends_the_job(event));
    let in_log = |(log, event): &(usize, &Event)| (*log, event.line);
    let last = lines(explaining().map(in_log), usize::max);
    let last_of_stream =
        lines(explaining().map(|(log, event)| ((*log, event.stream), event.line)), usize::max);
    let last_lacking = lines(lacking.map(in_log), usize::max);
    let ended = lines(ends.map(in_log), usize::min);
    let is_explained = |log: usize, event: &Event| {
        let is_followed = last_of_stream.get(&(log, event.stream)).is_some_and(|last| *last > event.line);
        let ended_before = ended.get(&log).is_some_and(|end| *end < event.line);
        let lacks = last_lacking.get(&log).is_some_and(|last| *last > event.line);
        ended_before
            || NOT_LOADED.contains(&event.rule.id) && is_followed && !lacks
            || event.survived && last.get(&log).is_some_and(|last| *last > event.line)
            || event.rule.id == NCCL_WARN && !of_nccl && is_followed
            || crashed && event.rule.id == MPI_ERROR && event.text.contains("Other MPI error")
            || lost_a_gpu && event.rule.points_at == Some(Hardware::Port)
            || lost_a_node && event.rule.class == Class::Network && event.rule.kind == Kind::Cause
    };
    candidates.iter().copied().filter(|(log, event)| !is_explained(*log, event)).collect()
}

/// The first or the last line of the events of each key. A log may have many thousand events: each is looked up once.
fn lines<K: Ord>(
    events: impl Iterator<Item = (K, usize)>,
    which: fn(usize, usize) -> usize,
) -> BTreeMap<K, usize> {
    let mut all = BTreeMap::new();
    for (key, line) in events {
        all.entry(key).and_modify(|known| *known = which(*known, line)).or_insert(line);
    }
    all
}

/// Whether Slurm reports that it ended the job. A step may also be cancelled because one of its tasks failed.
fn ends_the_job(event: &Event) -> bool {
    event.rule.id == SLURM_END || event.text.contains("*** JOB ") && event.text.contains(" CANCELLED AT ")
}

/// Whether a launcher reports that a process crashed, or was ended for its memory: neither follows from the end of a peer.
fn has_crashed(event: &Event) -> bool {
    const CRASHES: [&str; 5] =
        ["Segmentation fault", "Bus error", "Illegal instruction", "Floating point", "Out Of Memory"];
    CRASHES.iter().any(|words| event.text.contains(words))
}

/// Without commands of the script that failed or do not exist, and lines that a program calls an error, if there is anything else: most
/// scripts and programs continue after them. A script that ended with a missing command has exit code 127. A launcher that reports another
/// code, and no signal, says less than a program's own line.
fn without_weak(candidates: Vec<(usize, &Event)>) -> Vec<(usize, &Event)> {
    const MISSING: [&str; 2] = ["exit code 127", "exitcode: 127"];
    const SIGNALS: [&str; 7] =
        ["Killed", "Aborted", "trap", "signal ", "SIG", "exitcode: -", "return code = -"];
    let says = |event: &Event, words: &[&str]| words.iter().any(|words| event.text.contains(words));
    let is_missing = candidates.iter().any(|(_, event)| says(event, &MISSING));
    let is_report = |event: &Event| {
        event.rule.kind == Kind::Consequence
            || event.rule.kind == Kind::Exit && !has_crashed(event) && !says(event, &SIGNALS)
            || event.rule.id == ERROR_LINE
    };
    let only_reports = candidates.iter().all(|(_, event)| is_report(event));
    let was_ended = candidates.iter().any(|(_, event)| ends_the_job(event));
    let is_weak = |event: &Event| match event.rule.id {
        SHELL_COMMAND => true,
        SHELL_COMMAND_MISSING => !is_missing,
        ERROR_LINE => !only_reports || was_ended,
        _ => false,
    };
    if candidates.iter().all(|(_, event)| is_weak(event)) {
        return candidates;
    }
    candidates.into_iter().filter(|(_, event)| !is_weak(event)).collect()
}

/// The exceptions that were printed at least so often, if another error was printed as well. One kernel prints a line for each of its threads.
fn caught_often<'e>(events: &[&'e Event], often: usize) -> BTreeSet<(String, Option<&'e Place>)> {
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    // A port's or a GPU's error may be printed often before it takes effect.
    let is_cause = |event: &&&Event| event.rule.kind == Kind::Cause && event.rule.points_at.is_none();
    for event in events.iter().filter(is_cause) {
        *counts.entry((likeness(&event.text), event.place.as_ref())).or_default() += 1;
    }
    if counts.values().all(|count| *count >= often) {
        return BTreeSet::new();
    }
    // What a launcher started again and again ends each time with the same error.
    if let Some(last) = events.iter().rev().find(|event| is_cause(event)) {
        counts.remove(&(likeness(&last.text), last.place.as_ref()));
    }
    let is_caught =
        |((_, place), count): &((String, Option<&'e Place>), usize)| place.is_some() && *count >= often;
    counts.into_iter().filter(is_caught).map(|(error, _)| error).collect()
}

/// The rank that a launcher names first among ended ones.
fn rank_of_exit(candidates: &[(usize, &Event)]) -> Option<u32> {
    let exit = candidates.iter().filter(|(_, event)| event.rule.kind == Kind::Exit);
    exit.filter_map(|(_, event)| event.rank).next()
}

/// A message without its numbers: what many ranks write alike.
fn likeness(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).take(120).collect()
}

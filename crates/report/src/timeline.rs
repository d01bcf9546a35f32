use std::collections::BTreeSet;

use railgate_model::xid_catalogue::{Owner, explain};
use railgate_model::{PREFLIGHT_CHECK, ProcessExit, UnixMillis};
use railgate_node_report::plain::{float, plain, span};
use railgate_node_report::{ActKind, HangActKind, NodeReport};
use serde::{Deserialize, Serialize};

use crate::clocks::{clock_errors, corrected};
use crate::exits::ending;
use crate::why::decided;
use crate::{Attempt, EndKind, MOST_STARTS};

/// Importance of an event in the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// A regular event of the job.
    Step,
    /// An act of railgate.
    Act,
    /// A problem.
    Warn,
    /// A failure.
    Fail,
}

/// One event of the timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Time of the event.
    pub time: UnixMillis,
    /// `time` is an upper bound.
    #[serde(default)]
    pub by_then: bool,
    /// Attempt number.
    pub attempt: u32,
    /// Node name; `controller` for the controller.
    pub node: String,
    /// Importance.
    pub weight: Weight,
    /// Description.
    pub what: String,
}

/// Slurm kills what is left of a job some 30 s (`KillWait`) after it has asked it to end, milliseconds.
const AT_THE_END: UnixMillis = 60_000;
/// With more nodes than this, regular events are summed up.
const FEW_NODES: usize = 4;

/// Events of all attempts, in time order.
pub(crate) fn timeline(attempts: &[Attempt]) -> Vec<Event> {
    let mut events = Vec::new();
    for attempt in attempts {
        ordinary(attempt, &mut events);
        let wrong = clock_errors(&attempt.nodes);
        for node in &attempt.nodes {
            let first = events.len();
            remarkable(attempt.attempt, node, &mut events);
            if let Some(error) = wrong.get(node.node.as_str()) {
                let of_node = events.get_mut(first..).unwrap_or_default();
                of_node.iter_mut().for_each(|event| event.time = corrected(event.time, *error));
                events.push(wrong_clock(attempt.attempt, node, *error));
            }
        }
        if let Some(decision) = &attempt.decision {
            events.push(Event {
                time: decision.time,
                by_then: false,
                attempt: attempt.attempt,
                node: "controller".to_owned(),
                weight: Weight::Act,
                what: format!("{}: {}", decision.what.title(), decided(attempt, decision)),
            });
        }
    }
    events.sort_by_key(|event| (event.attempt, event.time));
    events
}

fn wrong_clock(attempt: u32, node: &NodeReport, error: i64) -> Event {
    let seconds = span(float(error.unsigned_abs()) / 1000.0);
    let side = if error > 0 { "ahead of" } else { "behind" };
    Event {
        time: corrected(node.start, error),
        by_then: false,
        attempt,
        node: node.node.clone(),
        weight: Weight::Warn,
        what: format!(
            "the clock is {seconds} {side} those of the job's other nodes; times of this node are corrected here"
        ),
    }
}

fn ordinary(attempt: &Attempt, events: &mut Vec<Event>) {
    let mut push = |time, node: String, what: String| {
        let weight = Weight::Step;
        events.push(Event { time, by_then: false, attempt: attempt.attempt, node, weight, what });
    };
    let fitness = |node: &NodeReport| match &node.prolog {
        Some(look) => look.verdict.fitness.to_string(),
        None => "not judged".to_owned(),
    };
    let wrong = clock_errors(&attempt.nodes);
    let of = |node: &NodeReport| wrong.get(node.node.as_str()).copied().unwrap_or(0);
    if attempt.nodes.len() <= FEW_NODES {
        for node in &attempt.nodes {
            // A running or dead node has only its start report.
            let what = match &node.prolog {
                None if node.end.is_none() => "the job begins".to_owned(),
                _ => format!("prolog: {}", fitness(node)),
            };
            push(corrected(node.start, of(node)), node.node.clone(), what);
        }
    } else if let Some(start) = attempt.nodes.iter().map(|node| corrected(node.start, of(node))).min() {
        let mut counts = std::collections::BTreeMap::<String, usize>::new();
        for node in &attempt.nodes {
            *counts.entry(fitness(node)).or_default() += 1;
        }
        let counts: Vec<String> =
            counts.iter().map(|(fitness, count)| format!("{count} {fitness}")).collect();
        push(start, format!("{} nodes", attempt.nodes.len()), format!("prologs: {}", counts.join(", ")));
    }
    let own_end = |node: &NodeReport| node.end.map(|end| corrected(end, of(node)));
    let end = if wrong.is_empty() { attempt.end } else { attempt.nodes.iter().filter_map(own_end).max() };
    if let Some(end) = end {
        // A job that is completing in order to be requeued has an end, too.
        let what = match attempt.ended.kind {
            EndKind::Running | EndKind::Waiting => "the epilogs have begun".to_owned(),
            _ => format!("the job ended: {}", ending(attempt)),
        };
        push(
            end,
            if attempt.nodes.len() == 1 { attempt.nodes[0].node.clone() } else { "all nodes".to_owned() },
            what,
        );
    }
}

fn remarkable(attempt: u32, node: &NodeReport, events: &mut Vec<Event>) {
    let mut push = |time, by_then, weight, what| {
        events.push(Event { time, by_then, attempt, node: node.node.clone(), weight, what });
    };
    for xid in &node.kernel.xids {
        let (owner, meaning) = explain(xid.code, &xid.text);
        let gpu = xid.gpu.map_or_else(|| "a GPU".to_owned(), |gpu| gpu.to_string());
        let index = node.gpus.iter().find(|line| {
            let place = |pci: railgate_model::PciAddress| (pci.domain, pci.bus, pci.device);
            line.pci.known().copied().map(place) == xid.gpu.map(place)
        });
        let of_others = index.is_some_and(|line| line.own == Some(false));
        let gpu = match index {
            Some(line) if of_others => {
                format!("GPU {} ({gpu}), which this job does not use", line.index)
            }
            Some(line) => format!("GPU {} ({gpu})", line.index),
            None => gpu,
        };
        let (weight, meaning) = match owner {
            Owner::Hardware => (Weight::Fail, meaning),
            Owner::Application if of_others => {
                (Weight::Step, "a program of another job failed there; the GPU is fine")
            }
            Owner::Application | Owner::Other => (Weight::Warn, meaning),
        };
        let pid = xid.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
        push(xid.time, false, weight, format!("Xid {} on {gpu}{pid}: {meaning}", xid.code));
    }
    for item in &node.evidence {
        let known = item.time.is_some_and(|time| node.kernel.xids.iter().any(|xid| xid.time == time));
        if let (Some(time), false) = (item.time.or(node.end), known) {
            let (weight, what) = match item.finding.check == PREFLIGHT_CHECK {
                true => (Weight::Warn, format!("reported by the job's own preflight: {}", item.finding.what)),
                false => (Weight::Fail, format!("{}: {}", item.finding.subject(), item.finding.what)),
            };
            push(time, item.time.is_none(), weight, what);
        }
    }
    let ranks = node.tasks.iter().flat_map(|tasks| &tasks.ranks);
    // Slurm ends all processes of a job with these at its end.
    let by_slurm = |exit| matches!(exit, ProcessExit::Signal(9 | 15));
    let last = node.end.unwrap_or(UnixMillis::MAX).saturating_sub(AT_THE_END);
    let failed = ranks
        .filter_map(|rank| Some((rank, rank.ended?, rank.exit.filter(|exit| exit.is_error())?)))
        .filter(|(_, time, exit)| !by_slurm(*exit) || *time < last);
    // A shell ends with its program's exit code, just after it.
    let mut told = BTreeSet::new();
    for (rank, time, exit) in failed {
        if told.insert((rank.start_number, rank.step.as_str(), rank.rank)) {
            push(time, false, Weight::Fail, format!("the process of rank {} {exit}", rank.rank));
        }
    }
    for hang in node.hangs.iter().flat_map(|hangs| &hangs.list) {
        let what = if hang.kind.is_hang() { "the job hangs" } else { "the job waits" };
        push(hang.since, false, Weight::Fail, format!("{what}: {}", plain(&hang.sentence())));
        if let Some(act) = &hang.act {
            let weight = if act.what == HangActKind::Ended { Weight::Act } else { Weight::Warn };
            push(act.time, false, weight, plain(&act.sentence()));
        }
        if let Some(over) = hang.over {
            let was_ended = hang.act.as_ref().is_some_and(|act| act.what == HangActKind::Ended);
            let what =
                if was_ended { "GPUs work again, after the steps were ended" } else { "the ranks continue" };
            push(over, false, Weight::Step, what.to_owned());
        }
    }
    // Self-reported by launch on the node of the batch script.
    let starts = node.launched.as_ref().map_or(&[][..], |launched| &launched.starts);
    let older = starts.len().saturating_sub(MOST_STARTS);
    for start in starts.iter().skip(older).filter(|_| starts.len() > 1) {
        let words = format!("launch: start {} on {}", start.number, start.nodes);
        push(start.began, false, Weight::Act, plain(&words));
        if let Some((ended, code)) = start.ended.zip(start.code) {
            let why = start.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let words = format!("launch: start {} ended with exit code {code}{why}", start.number);
            push(ended, false, Weight::Step, plain(&words));
        }
    }
    for act in &node.acts {
        let weight = match act.what {
            ActKind::Drained | ActKind::Notified => Weight::Act,
            ActKind::Refused => Weight::Fail,
            ActKind::WouldDrain
            | ActKind::Breaker
            | ActKind::ForeignReason
            | ActKind::Pending
            | ActKind::Failed => Weight::Warn,
        };
        push(act.time, false, weight, act.sentence());
    }
}

#[cfg(test)]
mod tests {
    use railgate_node_report::{Hang, HangAct, Hangs};

    use super::*;

    #[test]
    fn what_follows_a_hang_depends_on_whether_its_steps_were_ended() {
        for (what, expected) in [
            (HangActKind::NotEnded, "the ranks continue"),
            (HangActKind::Ended, "GPUs work again, after the steps were ended"),
        ] {
            let mut attempt = crate::testing::story().attempts.remove(0);
            let since = attempt.nodes[0].start + 10_000;
            let act = HangAct { time: since + 60_000, what, why: "--railgate-hang=end".to_owned() };
            let hang = Hang {
                over: Some(since + 90_000),
                act: Some(act),
                ..railgate_node_report::testing::hang(since)
            };
            attempt.nodes[0].hangs = Some(Hangs { list: vec![hang], more: 0 });
            let events = timeline(&[attempt]);
            let last = events.iter().find(|event| event.time == since + 90_000).map(|event| &event.what);
            assert_eq!(last.map(String::as_str), Some(expected));
        }
    }
}

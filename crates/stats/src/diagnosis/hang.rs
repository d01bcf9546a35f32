use std::collections::BTreeMap;

use railgate_node::UnixMillis;

use super::Diagnosis;
use super::facts::{Facts, Unit, median};
use crate::comm::Communicator;
use crate::plain::{clock, float, span};

/// Nobody got on for long before the end. The culprit is the rank that handed over fewest operations.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Diagnosis> {
    let Some((since, seconds)) = stood_still(facts) else { return Vec::new() };
    let mut found = behind(facts).unwrap_or_else(|| {
        let what = "which rank the others waited for cannot be told".to_owned();
        let fix = "NCCL's profiler plugin names the rank where it is loaded";
        Diagnosis::new("unknown", "low", String::new(), what, fix)
    });
    found.what = format!("no step for {} before the end: {}", span(seconds), found.what);
    found.since = Some(since);
    vec![found]
}

/// Since when nobody got on, and for how long, seconds; `None` where somebody did, or that is not known.
pub(super) fn stood_still(facts: &Facts<'_>) -> Option<(UnixMillis, f64)> {
    let end = facts.end.filter(|_| facts.failed)?;
    let told: Vec<_> = facts.reporting().collect();
    // Without a word of the program, the last operation that anybody handed over says when it stood still.
    let last = told.iter().filter_map(|(_, rank)| Some(rank.last_step?.max(rank.last_seen))).max();
    let last_op = || facts.communicators.iter().filter_map(|(_, one)| Some(one.last.as_ref()?.time)).max();
    let since = last.or_else(last_op)?;
    let step_s = median(told.iter().filter_map(|(unit, _)| unit.step_s()).collect()).unwrap_or(30.0);
    let seconds = float(end.saturating_sub(since)) / 1000.0;
    let saving = told.iter().any(|(_, rank)| rank.in_checkpoint);
    (seconds >= (10.0 * step_s).max(120.0) && !saving).then_some((since, seconds))
}

/// By communicator: the rank behind all others, where most have handed over the operation that it has not; of two the one behind.
pub(super) fn behind(facts: &Facts<'_>) -> Option<Diagnosis> {
    let mut groups: BTreeMap<&str, Vec<(&str, &Communicator)>> = BTreeMap::new();
    for (node, one) in facts.communicators.iter().filter(|(_, one)| !one.destroyed && one.size > 1) {
        groups.entry(&one.hash).or_default().push((node, one));
    }
    let mut best: Option<(u64, Diagnosis)> = None;
    for ranks in groups.into_values() {
        let most = ranks.iter().map(|(_, one)| one.ops).max()?;
        let late: Vec<_> = ranks.iter().filter(|(_, one)| one.ops < most).collect();
        let (Some(&&(node, slowest)), true) =
            (late.iter().min_by_key(|(_, one)| one.ops), late.len() * 2 < ranks.len() || ranks.len() == 2)
        else {
            continue;
        };
        let waiting = ranks.iter().find(|(_, one)| one.ops == most).and_then(|(_, one)| one.last.as_ref());
        let op = match waiting {
            Some(last) => match last.seq {
                Some(seq) => format!("{} number {seq}", last.op),
                None => last.op.clone(),
            },
            None => "an operation".to_owned(),
        };
        let when = slowest.last.as_ref().map_or_else(String::new, |last| {
            format!(", its last one at {}", clock(last.time).get(..8).unwrap_or_default())
        });
        let unit = facts.units.iter().find(|unit| unit.node == node && unit.rank == Some(slowest.rank));
        let part = unit.map_or_else(|| format!("{node} rank {}", slowest.rank), Unit::name);
        let what = format!(
            "{} of {} ranks waited in {op} for rank {}, which never came to it{when}",
            ranks.len() - late.len(),
            ranks.len(),
            slowest.rank
        );
        let fix = "look at that rank's log and stack; its node is the first suspect where it had an error of its own";
        let distance = most - slowest.ops;
        if best.as_ref().is_none_or(|(most, _)| distance > *most) {
            let mut found = Diagnosis::new("unknown", "high", part, what, fix);
            found.since = slowest.last.as_ref().map(|last| last.time);
            best = Some((distance, found));
        }
    }
    best.map(|(_, found)| found)
}

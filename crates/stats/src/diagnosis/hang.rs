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

/// By communicator: the rank behind all others, where most have handed over the operation that it has not. Of two it is the one
/// behind, and less sure: the other's operation may be the one too many.
pub(super) fn behind(facts: &Facts<'_>) -> Option<Diagnosis> {
    let mut groups: BTreeMap<&str, Vec<(&str, &Communicator)>> = BTreeMap::new();
    for (node, one) in facts.communicators.iter().filter(|(_, one)| one.size > 1) {
        groups.entry(&one.hash).or_default().push((node, one));
    }
    let mut best: Option<((bool, u64), Diagnosis)> = None;
    for mut ranks in groups.into_values() {
        // All ranks hand over the same collectives, also those that were given up (PyTorch's watchdog aborts what waits too
        // long, which destroys it); messages go to some.
        let collective = |one: &Communicator| one.last.as_ref().is_none_or(|last| last.seq.is_some());
        let alike = ranks.iter().all(|(_, one)| collective(one));
        ranks.retain(|(_, one)| alike || !one.destroyed);
        let of_two = alike && ranks.iter().all(|(_, one)| one.size == 2);
        let most = ranks.iter().map(|(_, one)| one.ops).max().unwrap_or(0);
        let late: Vec<_> = ranks.iter().filter(|(_, one)| one.ops < most).collect();
        let by_most = late.len() * 2 < ranks.len();
        let (Some(&&(node, slowest)), true) = (late.iter().min_by_key(|(_, one)| one.ops), by_most || of_two)
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
        let weight = (by_most, most - slowest.ops);
        if best.as_ref().is_none_or(|(most, _)| weight > *most) {
            let confidence = if by_most { "high" } else { "medium" };
            let mut found = Diagnosis::new("unknown", confidence, part, what, fix);
            found.since = slowest.last.as_ref().map(|last| last.time);
            best = Some((weight, found));
        }
    }
    best.map(|(_, found)| found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeReport;
    use crate::diagnosis::simulator::{Plant, parts_with};

    fn named(nodes: &[NodeReport]) -> Vec<(String, String)> {
        let found = find(&Facts::new(nodes, nodes[0].end, true, None));
        found.into_iter().map(|one| (one.part, one.confidence)).collect()
    }

    fn communicators(nodes: &mut [NodeReport]) -> impl Iterator<Item = &mut Communicator> {
        nodes.iter_mut().flat_map(|node| &mut node.communication.as_mut().unwrap().communicators)
    }

    /// PyTorch on two H200s: its watchdog gave up the communicator of the rank that waited, and ended the job.
    #[test]
    fn who_gives_up_is_not_who_never_came() {
        let mut nodes = parts_with(&[Plant::Hang]);
        let told = named(&nodes);
        assert_eq!(told[0].1, "high");
        let most = communicators(&mut nodes).map(|one| one.ops).max().unwrap();
        communicators(&mut nodes).filter(|one| one.ops == most).for_each(|one| one.destroyed = true);
        assert_eq!(named(&nodes), told);
        communicators(&mut nodes).for_each(|one| one.destroyed = true);
        assert_eq!(named(&nodes), told);
        // A pipeline's stages send different numbers of messages, also in one that ended in good order.
        communicators(&mut nodes).for_each(|one| one.last.as_mut().unwrap().seq = None);
        assert_eq!(named(&nodes), [(String::new(), "low".to_owned())]);
    }

    #[test]
    fn who_has_not_begun_never_came() {
        let mut nodes = parts_with(&[Plant::Hang]);
        let least = communicators(&mut nodes).map(|one| one.ops).min().unwrap();
        let told = named(&nodes);
        for one in communicators(&mut nodes) {
            (one.destroyed, one.ops) = (one.ops > least, one.ops - least);
            one.last = one.last.take().filter(|_| one.destroyed);
        }
        assert_eq!(named(&nodes), told);
    }

    /// Of two that are known of eight, the one behind may be one of many.
    #[test]
    fn of_two_the_one_behind_never_came() {
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

//! How often what followed a drain confirmed the check that asked for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::blame::Blame;
use crate::cost::Bounds;
use crate::event::Cause;
use crate::history::{History, Node};
use crate::judgement::Judgement;
use crate::settings::{Settings, hours};

/// Standard normal quantile of a two-sided interval of 90 %.
const Z: f64 = 1.645;
/// Fewer drains that are decided have no share.
const FEWEST: usize = 5;

/// What followed the drains that a check asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckRecord {
    /// Id of the check, for example `gpu-lost`.
    pub check: String,
    /// Drains after a finding of this check. A drain after findings of two checks counts for both.
    pub drains: usize,
    /// Of these, confirmed: a job had ended with the node, a self-test failed, a repair was entered, or the same check failed again within
    /// [`Settings::probation_hours`] of service.
    pub confirmed: usize,
    /// Of these, not confirmed: the node worked [`Settings::probation_hours`] without any of these.
    pub unconfirmed: usize,
    /// Share of the confirmed ones among the decided ones, lower and upper end of the 90 % interval (Wilson's score interval). `None` below five
    /// decided drains.
    pub share: Option<Bounds>,
}

impl CheckRecord {
    /// Drains of nodes that are still out of service, or have not worked long enough since.
    pub fn undecided(&self) -> usize {
        self.drains - self.confirmed - self.unconfirmed
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Confirmed,
    Unconfirmed,
    Undecided,
}

/// Returns the record of each check after which a node was taken out of service, by its id. Nodes that were down count for no check.
///
/// An unconfirmed drain is not a false one: a reboot can have mended the node, and a repair that was not entered is not known. So the share is
/// a lower bound of the check's precision.
pub fn confirmed_drains(history: &History, judgement: &Judgement, settings: &Settings) -> Vec<CheckRecord> {
    let mut ended: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (attempt, blame) in history.attempts().iter().zip(&judgement.blames) {
        if let (Blame::Node { node, .. }, Some((end, _))) = (blame, &attempt.end) {
            ended.entry(node).or_default().push(*end);
        }
    }
    let mut records: BTreeMap<&str, CheckRecord> = BTreeMap::new();
    for node in &history.nodes {
        let ends = ended.get(node.name.as_str()).map_or(&[][..], Vec::as_slice);
        for (check, outcome) in drains(node, ends, history.now(), settings) {
            let record = records
                .entry(check)
                .or_insert_with(|| CheckRecord { check: check.to_owned(), ..CheckRecord::default() });
            record.drains += 1;
            match outcome {
                Outcome::Confirmed => record.confirmed += 1,
                Outcome::Unconfirmed => record.unconfirmed += 1,
                Outcome::Undecided => {}
            }
        }
    }
    let with_share = |record: CheckRecord| CheckRecord {
        share: share(record.confirmed, record.confirmed + record.unconfirmed),
        ..record
    };
    records.into_values().map(with_share).collect()
}

/// Each drain of a node with each check that had found something when it began.
fn drains<'a>(
    node: &'a Node,
    ends: &[u64],
    now: u64,
    settings: &Settings,
) -> impl Iterator<Item = (&'a str, Outcome)> {
    let mut found = Vec::new();
    for (index, (from, to)) in node.out.iter().enumerate() {
        let near = from.saturating_sub(settings.before_end)..=from + settings.after_end;
        let mut checks: Vec<&str> = node
            .observed
            .iter()
            .filter(|seen| near.contains(&seen.time) && seen.cause != Cause::Down)
            .map(|seen| seen.check.as_str())
            .collect();
        checks.sort_unstable();
        checks.dedup();
        let is_in_service = *to < now;
        // Service counts until the next time out of service, which can have another reason.
        let until = node.out.get(index + 1).map_or(now, |(next, _)| *next);
        let worked = if is_in_service { hours(until - to) } else { 0.0 };
        let probation = *to..=until;
        let repaired = node.repairs.iter().any(|(time, _)| {
            let is_resume = node.lemon_resumed.contains(time);
            !is_resume && (*from..=until).contains(time)
        });
        let failed_test = node.tested.iter().any(|(time, passed)| !passed && (*from..=*to).contains(time));
        let ended_job = ends.iter().any(|end| near.contains(end));
        for check in checks {
            let again = is_in_service
                && node.observed.iter().any(|seen| {
                    seen.check == check
                        && seen.time > *to
                        && probation.contains(&seen.time)
                        && hours(seen.time - to) <= settings.probation_hours
                });
            let outcome = if ended_job || repaired || failed_test || again {
                Outcome::Confirmed
            } else if worked >= settings.probation_hours {
                Outcome::Unconfirmed
            } else {
                Outcome::Undecided
            };
            found.push((check, outcome));
        }
    }
    found.into_iter()
}

/// Wilson's score interval of a share, 90 %.
fn share(confirmed: usize, decided: usize) -> Option<Bounds> {
    if decided < FEWEST {
        return None;
    }
    let (hits, count) = (confirmed as f64, decided as f64);
    let share = hits / count;
    let scale = 1.0 + Z * Z / count;
    let middle = (share + Z * Z / (2.0 * count)) / scale;
    let half = Z * (share * (1.0 - share) / count + Z * Z / (4.0 * count * count)).sqrt() / scale;
    Some(Bounds { low: (middle - half).max(0.0), high: (middle + half).min(1.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_share_is_wilsons() {
        assert_eq!(share(4, 4), None, "below five no share");
        for (confirmed, decided, low, high) in
            [(5, 5, 0.649, 1.0), (0, 10, 0.0, 0.213), (9, 10, 0.653, 0.977), (50, 100, 0.419, 0.581)]
        {
            let found = share(confirmed, decided).unwrap();
            assert!((found.low - low).abs() < 0.001 && (found.high - high).abs() < 0.001, "{found:?}");
        }
    }
}

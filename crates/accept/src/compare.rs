//! What changed since an earlier run.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::figures::{Better, Figure};
use crate::report::{Item, Report};

/// A median that changed by less is not shown: repetitions of one run differ as much.
const LEAST_PERCENT: f64 = 2.0;

/// A difference between two runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// What differs.
    pub what: String,
    /// Its value in the earlier run.
    pub before: String,
    /// Its value in this run.
    pub now: String,
    /// Whether it is better now; `None`: neither.
    pub better: Option<bool>,
}

/// Returns what differs, in the order nodes, checklist, inventory, figures.
pub fn compare(before: &Report, now: &Report) -> Vec<Change> {
    let mut changes = Vec::new();
    let names = |report: &Report| report.nodes.iter().cloned().collect::<BTreeSet<_>>();
    let (old, new) = (names(before), names(now));
    for (nodes, was, is) in [(&old - &new, "in the plan", "absent"), (&new - &old, "absent", "in the plan")] {
        changes.extend(nodes.into_iter().map(|node| Change {
            what: format!("node {node}"),
            before: was.to_owned(),
            now: is.to_owned(),
            better: None,
        }));
    }
    items(before, now, &mut changes);
    for one in &now.inventory {
        let earlier = before.inventory.iter().find(|old| old.key == one.key && old.machine == one.machine);
        if let Some(old) = earlier.filter(|old| old.values != one.values) {
            let what = format!("{} of {}", one.key, one.machine);
            changes.push(Change { what, before: old.words(), now: one.words(), better: None });
        }
    }
    for figure in &now.figures {
        let earlier = before.figures.iter().find(|old| old.id == figure.id && old.unit == figure.unit);
        changes.extend(earlier.and_then(|old| change(old, figure)));
    }
    changes
}

fn items(before: &Report, now: &Report, changes: &mut Vec<Change>) {
    let by_id = |report: &Report| {
        let pair = |item: &Item| (item.id.clone(), item.clone());
        report.items.iter().map(pair).collect::<BTreeMap<_, _>>()
    };
    let (old, new) = (by_id(before), by_id(now));
    let ids: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for id in ids {
        let (was, is) = (old.get(id), new.get(id));
        let word = |item: Option<&Item>| item.map_or("not in the report", Item::word).to_owned();
        if word(was) == word(is) {
            continue;
        }
        let better = match (was, is) {
            (Some(was), Some(is)) if was.outcome != is.outcome => Some(is.outcome < was.outcome),
            _ => None,
        };
        changes.push(Change { what: id.clone(), before: word(was), now: word(is), better });
    }
}

fn change(old: &Figure, new: &Figure) -> Option<Change> {
    let percent = (new.median - old.median) / old.median.abs() * 100.0;
    if !percent.is_finite() || percent.abs() < LEAST_PERCENT {
        return None;
    }
    Some(Change {
        what: format!("{}, median", new.id),
        before: format!("{:.4} {}", old.median, old.unit),
        now: format!("{:.4} {} ({percent:+.1} %)", new.median, new.unit),
        better: match new.better {
            Better::Higher => Some(percent > 0.0),
            Better::Lower => Some(percent < 0.0),
            Better::Neither => None,
        },
    })
}

use railgate_node::Reading;

use super::Diagnosis;
use super::facts::{Facts, Unit, busy, median};
use super::hang::stood_still;
use super::slow_clock;

/// One rank comes late to every step although its GPU is no slower: its own GPU stands idle while the others' wait
/// for it inside NCCL, which looks busy.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Diagnosis> {
    // The one that never came is the hang's affair.
    if stood_still(facts).is_some() {
        return Vec::new();
    }
    let slow = slow_clock::find(facts);
    let by_wait = waits(facts);
    let by_idle = idles(facts);
    let mut found = Vec::new();
    for unit in &facts.units {
        let name = unit.name();
        if slow.iter().any(|one| one.part == name) {
            continue;
        }
        let of =
            |list: &[(String, f64)]| list.iter().find(|(part, _)| *part == name).map(|(_, costs)| *costs);
        let (waited, idle) = (of(&by_wait), of(&by_idle));
        let confidence = match (waited, idle) {
            (Some(_), Some(_)) => "high",
            (Some(_), None) | (None, Some(_)) => "medium",
            (None, None) => continue,
        };
        let costs = waited.or(idle).unwrap_or(0.0);
        let signs = match (waited.is_some(), idle.is_some()) {
            (true, true) => "its GPU stands idle and the others wait for it in NCCL",
            (true, false) => "the others wait for it in NCCL",
            _ => "its GPU stands idle while the others are busy",
        };
        let what = format!("{name} comes late to every step at a normal clock: {signs}");
        let fix = "look at that process: a busy or wrongly bound CPU, slow input, a debugger, a sleep";
        let mut one = Diagnosis::new("application", confidence, name, what, fix);
        one.costs = Some(costs.clamp(0.0, 1.0));
        found.push(one);
    }
    // Where many are late nobody in particular is.
    if found.len() * 4 > facts.units.len().max(4) { Vec::new() } else { found }
}

/// Ranks that wait far less than the median of the others, and what share of the time the others wait.
fn waits(facts: &Facts<'_>) -> Vec<(String, f64)> {
    let known: Vec<(&Unit<'_>, f64)> =
        facts.units.iter().filter_map(|unit| Some((unit, unit.comm?.wait_s))).collect();
    let time = facts.units.iter().filter_map(|unit| Some(unit.app?.step_s?.total)).fold(0.0, f64::max);
    let allocated = facts
        .start()
        .zip(facts.end)
        .map_or(0.0, |(start, end)| crate::plain::float(end.saturating_sub(start)) / 1000.0);
    let time = if time > 0.0 { time } else { allocated };
    let Some(typical) = median(known.iter().map(|(_, wait)| *wait).collect()) else { return Vec::new() };
    if time <= 0.0 || known.len() < 2 || typical < 0.05 * time {
        return Vec::new();
    }
    let late = known.iter().filter(|(_, wait)| *wait < 0.3 * typical);
    late.map(|(unit, wait)| (unit.name(), ((typical - wait) / time).min(1.0))).collect()
}

/// GPUs that are busy for far less of the time than the median of the others.
fn idles(facts: &Facts<'_>) -> Vec<(String, f64)> {
    // In a hang all but one are busy: without the program's word that cannot be told from lateness.
    if facts.failed && facts.reporting().next().is_none() {
        return Vec::new();
    }
    let known: Vec<(&Unit<'_>, f64)> = facts
        .units
        .iter()
        .filter_map(|unit| match busy(unit.gpu?) {
            Reading::Known(percent) => Some((unit, percent)),
            _ => None,
        })
        .collect();
    let Some(typical) = median(known.iter().map(|(_, busy)| *busy).collect()) else { return Vec::new() };
    if known.len() < 2 || typical < 70.0 {
        return Vec::new();
    }
    let idle = known.iter().filter(|(_, busy)| *busy < typical - 10.0);
    idle.map(|(unit, busy)| (unit.name(), (typical - busy) / 100.0)).collect()
}

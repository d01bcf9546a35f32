//! Nodes that fail more often than the fleet, with the uncertainty. [`mod@crate::discovery`] decides which ones are named.
//!
//! The rate of a node as a multiple of the fleet's rate has a gamma distribution over the fleet, with the mean 1. Its shape comes
//! from the fleet's own counts (empirical Bayes). With k faults where the fleet expects e, the posterior of that multiple is
//! a gamma distribution with the shape a + k and the rate a + e.

use std::collections::{BTreeMap, BTreeSet};

use railgate_model::{UnixMillis, gamma_quantile, ln_gamma};
use serde::{Deserialize, Serialize};

use crate::discovery::{Tested, discover};
use crate::event::Cause;
use crate::exposure::{Exposure, Rates};
use crate::fault::Fault;
use crate::history::{History, Node};
use crate::parallel;
use crate::settings::{DAY, Settings, hours};

/// Shapes that are tried, from 2^-6 to 2^6: a fleet in which few nodes cause nearly all faults, to one of equal nodes.
const SHAPES: std::ops::RangeInclusive<i32> = -24..=24;

/// Fewest faults of the fleet from which the shape is estimated.
const FEWEST_FOR_SHAPE: usize = 10;

/// Where a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It worked no hour in the window: nothing is known.
    Unknown,
    /// Nothing to propose.
    Ordinary,
    /// It was repaired, or resumed after a drain as a lemon, and has not yet worked long enough without a fault.
    Probation,
    /// It fails more often than the fleet.
    Lemon,
}

/// A multiple of the fleet's rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Mean.
    pub mean: f64,
    /// Lower end of the interval with [`Settings::credible`] inside.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// What the history says about a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node.
    pub node: String,
    /// Where it stands.
    pub standing: Standing,
    /// Faults that count.
    pub faults: usize,
    /// Faults that a node of the fleet would have had in the same service.
    pub expected: f64,
    /// Hours of service in which they were counted.
    pub hours: f64,
    /// Its rate as a multiple of the fleet's.
    pub ratio: Ratio,
    /// Faults in incidents, with jobs that took their nodes with them, or beside a node that proof names. They do not count.
    pub set_aside: usize,
    /// When it was repaired last within the window, or resumed after a drain as a lemon.
    pub repaired: Option<UnixMillis>,
    /// Whether it takes no jobs now.
    pub out_of_service: bool,
    /// Whether it is in an incident that has not ended.
    pub in_incident: bool,
    /// The reasons, one sentence each. With faults, the first one has their number and the rate.
    pub reasons: Vec<String>,
}

impl NodeRecord {
    /// Returns whether to propose a drain.
    pub fn proposes_drain(&self) -> bool {
        self.standing == Standing::Lemon && !self.out_of_service && !self.in_incident
    }

    /// Returns what an admin should do with a lemon. `drains`: railgate-fleet drains lemons itself (`[fleet] lemons = "drain"`).
    pub fn proposal(&self, drains: bool) -> &'static str {
        if self.in_incident && !self.out_of_service {
            "none until the open incident ends"
        } else if self.out_of_service {
            "test it with railgate readmit, and repair what fails, before it is resumed"
        } else if drains {
            "none: railgate-fleet drains it within [breaker] and max_lemons; its log has the reason if it does not"
        } else {
            "drain it after a self-test confirms a fault"
        }
    }
}

/// What is given to [`records`].
pub(crate) struct Case<'a> {
    pub(crate) history: &'a History,
    pub(crate) settings: &'a Settings,
    pub(crate) faults: &'a [Fault],
    /// Faults that count against their nodes.
    pub(crate) alone: &'a [usize],
    pub(crate) exposure: &'a Exposure,
    pub(crate) rates: &'a Rates,
    /// Nodes of incidents that have not ended.
    pub(crate) in_incident: &'a BTreeSet<usize>,
}

/// What counts against a node.
#[derive(Clone, Debug, Default)]
struct Count {
    faults: Vec<usize>,
    expected: f64,
    hours: f64,
    repaired: Option<UnixMillis>,
    /// The repair did not help: the fault came back.
    came_back: bool,
    /// Faults that came with a card from another node.
    with_card: BTreeSet<usize>,
}

/// The records of all nodes, by name.
pub(crate) fn records(case: &Case<'_>) -> Vec<NodeRecord> {
    let from = case.history.now.saturating_sub(case.settings.window);
    let mut of_node: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut of_card: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for index in case.alone.iter().filter(|index| case.faults[**index].time >= from) {
        let fault = &case.faults[*index];
        of_node.entry(fault.node).or_default().push(*index);
        if let Some(card) = &fault.card {
            of_card.entry(card).or_default().push(*index);
        }
    }
    let nodes: Vec<usize> = (0..case.history.nodes.len()).collect();
    let counts = parallel::map(&nodes, |node| count(case, *node, from, &of_node, &of_card));
    let shape = shape(&counts);
    let named = discover(&tested(case, &counts), case.settings.false_lemons);
    let mut set_aside = vec![0; case.history.nodes.len()];
    let alone: BTreeSet<usize> = case.alone.iter().copied().collect();
    for (index, fault) in case.faults.iter().enumerate() {
        if fault.time >= from && !alone.contains(&index) {
            set_aside[fault.node] += 1;
        }
    }
    // Many nodes have the same number of faults, on which the quantiles depend.
    let mut of_faults: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    let tail = (1.0 - case.settings.credible) / 2.0;
    let by_name = case.history.by_name.iter();
    by_name
        .map(|node| {
            let count = &counts[*node];
            let posterior = shape + count.faults.len() as f64;
            let quantiles = || (gamma_quantile(posterior, tail), gamma_quantile(posterior, 1.0 - tail));
            let (low, high) = *of_faults.entry(count.faults.len()).or_insert_with(quantiles);
            let rate = shape + count.expected;
            let ratio = Ratio { mean: posterior / rate, low: low / rate, high: high / rate };
            record(case, *node, count, ratio, named[*node], set_aside[*node])
        })
        .collect()
}

fn count(
    case: &Case<'_>,
    node: usize,
    from: UnixMillis,
    of_node: &BTreeMap<usize, Vec<usize>>,
    of_card: &BTreeMap<&str, Vec<usize>>,
) -> Count {
    let known = &case.history.nodes[node];
    let mut count = Count::default();
    let own: Vec<usize> = of_node.get(&node).cloned().unwrap_or_default();
    // A card that left the node took its faults with it: what remains is the node's own, or of a card that is still there.
    let left = |fault: &Fault| fault.card.as_deref().and_then(|card| case.history.left(node, card));
    let stayed: Vec<usize> =
        own.iter().copied().filter(|index| left(&case.faults[*index]).is_none()).collect();
    let swapped = own.iter().filter_map(|index| left(&case.faults[*index])).max();
    let repairs = known.repairs.iter().filter(|(time, _)| *time >= from);
    let repaired = |fault: &Fault| {
        let mends = |card: &Option<String>| card.is_none() || *card == fault.card;
        known
            .repairs
            .iter()
            .filter(|(time, card)| *time > fault.last && mends(card))
            .map(|(time, _)| *time)
            .max()
    };
    count.repaired = repairs.map(|(time, _)| *time).chain(swapped).max();
    let (before, after): (Vec<usize>, Vec<usize>) =
        stayed.into_iter().partition(|index| repaired(&case.faults[*index]).is_some());
    // The same card again, or the same cause on probation: the repair was none.
    let is_again = |later: &usize| {
        let later = &case.faults[*later];
        before.iter().any(|earlier| {
            let earlier = &case.faults[*earlier];
            let since = repaired(earlier).unwrap_or(earlier.last);
            let is_same_card = earlier.card.is_some() && earlier.card == later.card;
            let on_probation = || worked(case, node, since, later.time) < case.settings.probation_hours;
            is_same_card || (earlier.cause == later.cause && on_probation())
        })
    };
    count.came_back = after.iter().any(is_again);
    count.faults = after;
    if count.came_back {
        count.faults.extend(&before);
    }
    // Faults of other parts from before the repair still count, with the time in which they occurred.
    let is_cleared = !count.came_back && (!before.is_empty() || swapped.is_some());
    let is_later = |time: UnixMillis| count.faults.iter().all(|index| case.faults[*index].time >= time);
    let since = count.repaired.filter(|time| is_cleared && is_later(*time)).unwrap_or(from);
    add_service(case, &mut count, node, since, case.history.now);
    let is_here = |card: &&String| case.history.left(node, card).is_none();
    for card in known.cards().into_iter().flatten().filter(is_here) {
        let elsewhere = of_card.get(card.as_str()).into_iter().flatten();
        let elsewhere: Vec<usize> =
            elsewhere.copied().filter(|index| case.faults[*index].node != node).collect();
        let came = known.since(card).unwrap_or(case.history.now);
        let brought: Vec<usize> =
            elsewhere.into_iter().filter(|index| case.faults[*index].time <= came).collect();
        for host in brought.iter().map(|index| case.faults[*index].node).collect::<BTreeSet<usize>>() {
            let until = case.history.left(host, card).unwrap_or(came);
            add_service(case, &mut count, host, from, until);
        }
        count.with_card.extend(brought);
    }
    count.faults.extend(&count.with_card);
    count
}

fn add_service(case: &Case<'_>, count: &mut Count, node: usize, from: UnixMillis, to: UnixMillis) {
    let hours = case.exposure.hours(node, from, to);
    count.expected += case.rates.expected(&hours);
    count.hours += hours.iter().sum::<f64>();
}

fn worked(case: &Case<'_>, node: usize, from: UnixMillis, to: UnixMillis) -> f64 {
    case.exposure.hours(node, from, to).iter().sum()
}

/// What the search for lemons needs of each node: its faults by what they have in common.
fn tested(case: &Case<'_>, counts: &[Count]) -> Vec<Tested> {
    let of = |(node, count): (usize, &Count)| {
        let mut of_card: BTreeMap<&str, usize> = BTreeMap::new();
        let mut of_cause: BTreeMap<Cause, usize> = BTreeMap::new();
        for index in &count.faults {
            let fault = &case.faults[*index];
            match &fault.card {
                Some(card) => *of_card.entry(card).or_default() += 1,
                None => *of_cause.entry(fault.cause).or_default() += 1,
            }
        }
        Tested {
            expected: count.expected,
            faults: count.faults.len(),
            cards: case.history.nodes[node].cards().map_or(0, BTreeSet::len),
            of_card: of_card.into_values().collect(),
            of_cause,
        }
    };
    counts.iter().enumerate().map(of).collect()
}

/// The shape with the largest likelihood of the fleet's counts, which have a negative binomial distribution.
fn shape(counts: &[Count]) -> f64 {
    if counts.iter().map(|count| count.faults.len()).sum::<usize>() < FEWEST_FOR_SHAPE {
        return 1.0;
    }
    let likelihood = |shape: f64| -> f64 {
        let of = |count: &Count| {
            let (k, e) = (count.faults.len() as f64, count.expected);
            let faults = if k > 0.0 && e > 0.0 { k * (e / (shape + e)).ln() } else { 0.0 };
            ln_gamma(shape + k) - ln_gamma(shape) + shape * (shape / (shape + e)).ln() + faults
        };
        counts.iter().map(of).sum()
    };
    let shapes = SHAPES.map(|quarter| f64::from(quarter) / 4.0).map(f64::exp2);
    let mut best = (1.0, f64::NEG_INFINITY);
    for shape in shapes {
        let value = likelihood(shape);
        if value > best.1 {
            best = (shape, value);
        }
    }
    best.0
}

fn record(
    case: &Case<'_>,
    node: usize,
    count: &Count,
    ratio: Ratio,
    named: bool,
    set_aside: usize,
) -> NodeRecord {
    let (history, settings) = (case.history, case.settings);
    let known = &history.nodes[node];
    let faults = count.faults.len();
    let last = count.faults.iter().map(|index| case.faults[*index].time).max();
    // A fault during the probation starts it again.
    let since = count
        .repaired
        .map(|repaired| last.filter(|_| !count.came_back).map_or(repaired, |last| last.max(repaired)));
    let clean = since.map(|since| worked(case, node, since, history.now));
    let standing = if count.hours <= 0.0 && faults == 0 && !known.is_out(history.now) {
        Standing::Unknown
    } else if named && faults >= settings.fewest_faults && ratio.low > settings.times {
        Standing::Lemon
    } else if clean.is_some_and(|clean| clean < settings.probation_hours) {
        Standing::Probation
    } else {
        Standing::Ordinary
    };
    let mut record = NodeRecord {
        node: known.name.clone(),
        standing,
        faults,
        expected: count.expected,
        hours: count.hours,
        ratio,
        set_aside,
        repaired: count.repaired,
        out_of_service: known.is_out(history.now),
        in_incident: case.in_incident.contains(&node),
        reasons: Vec::new(),
    };
    record.reasons = reasons(case, known, &record, count, clean);
    record
}

fn reasons(
    case: &Case<'_>,
    known: &Node,
    record: &NodeRecord,
    count: &Count,
    clean: Option<f64>,
) -> Vec<String> {
    let mut reasons = Vec::new();
    if record.faults > 0 {
        reasons.push(format!(
            "{} in {:.0} h of service, where a node of this fleet has {:.2}: {:.1} times its rate ({:.0} % between {:.1} and {:.1})",
            counted(record.faults, "fault"),
            record.hours,
            record.expected,
            record.ratio.mean,
            100.0 * case.settings.credible,
            record.ratio.low,
            record.ratio.high
        ));
        let mut causes: BTreeMap<String, usize> = BTreeMap::new();
        for index in &count.faults {
            let fault = &case.faults[*index];
            let part = fault.card.as_ref().map_or_else(String::new, |card| format!(" on card {card}"));
            *causes.entry(format!("{}{part}", fault.cause)).or_insert(0) += 1;
        }
        let mut causes: Vec<(usize, String)> =
            causes.into_iter().map(|(cause, times)| (times, cause)).collect();
        causes.sort_by(|one, other| (other.0, &one.1).cmp(&(one.0, &other.1)));
        let causes: Vec<String> =
            causes.into_iter().map(|(times, cause)| format!("{times} x {cause}")).collect();
        reasons.push(causes.join(", "));
    }
    if !count.with_card.is_empty() {
        let hosts: BTreeSet<&str> =
            count.with_card.iter().map(|index| case.history.name(case.faults[*index].node)).collect();
        let hosts = hosts.into_iter().collect::<Vec<&str>>().join(", ");
        reasons.push(format!("{} came with a card from {hosts}", counted(count.with_card.len(), "fault")));
    }
    if let Some(repaired) = count.repaired {
        let days = hours(case.history.now.saturating_sub(repaired)) / hours(DAY);
        let done = if known.lemon_resumed.contains(&repaired) {
            "resumed after a drain as a lemon"
        } else {
            "repaired"
        };
        let text = match (count.came_back, clean) {
            (true, _) => format!(
                "{done} {days:.1} days ago, and the fault came back: the faults before it count again"
            ),
            (false, Some(clean)) if record.standing == Standing::Probation => format!(
                "{done} {days:.1} days ago, on probation: {clean:.0} of {:.0} h without a fault",
                case.settings.probation_hours
            ),
            _ => format!("{done} {days:.1} days ago"),
        };
        reasons.push(text);
    }
    if record.set_aside > 0 {
        reasons.push(format!(
            "{} in incidents or by jobs that failed several nodes, not counted",
            counted(record.set_aside, "fault")
        ));
    }
    if let Some((_, false)) = known.tested.last() {
        reasons.push("the last self-test failed".to_owned());
    }
    if record.standing == Standing::Lemon && record.in_incident {
        reasons.push("in an incident that has not ended: no drain is proposed".to_owned());
    }
    reasons
}

fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

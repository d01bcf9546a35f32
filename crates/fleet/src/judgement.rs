//! The judgement of a whole history.

use std::collections::{BTreeMap, BTreeSet};

use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

use crate::blame::{Blame, blames, killers};
use crate::event::Cause;
use crate::exposure::{Exposure, stratum};
use crate::fault::{Fault, faults};
use crate::history::History;
use crate::incident::{Incident, incidents};
use crate::lemon::{Case, NodeRecord, records};
use crate::settings::Settings;

/// What follows from a history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// By start.
    pub incidents: Vec<Incident>,
    /// Why each attempt ended, in the order of [`History::attempts`].
    pub blames: Vec<Blame>,
    /// All nodes, by name.
    pub nodes: Vec<NodeRecord>,
    /// All faults, by start and node.
    pub faults: Vec<NodeFault>,
}

/// One episode on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFault {
    /// The node.
    pub node: String,
    /// First observation.
    pub time: UnixMillis,
    /// What failed.
    pub cause: Cause,
    /// Whether it counts against the node. Faults in incidents, of jobs that failed their nodes, and beside a node with proof do not.
    pub counts: bool,
}

/// How many faults have one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Those that count against their nodes.
    pub counted: usize,
    /// Those that are set aside: [`NodeFault::counts`].
    pub aside: usize,
}

impl Judgement {
    /// Returns the number of faults of each cause that occurred.
    pub fn faults_by_cause(&self) -> BTreeMap<Cause, FaultCounts> {
        let mut causes: BTreeMap<Cause, FaultCounts> = BTreeMap::new();
        for NodeFault { cause, counts, .. } in &self.faults {
            let of_cause = causes.entry(*cause).or_default();
            *if *counts { &mut of_cause.counted } else { &mut of_cause.aside } += 1;
        }
        causes
    }

    /// Returns the record of a node.
    pub fn node(&self, name: &str) -> Option<&NodeRecord> {
        let index = self.nodes.binary_search_by(|record| record.node.as_str().cmp(name)).ok()?;
        self.nodes.get(index)
    }
}

/// Judges a history: the same for any order in which its events arrived.
pub fn judge(history: &History, settings: &Settings) -> Judgement {
    let exposure = Exposure::new(history);
    let faults = faults(history, settings);
    let found = incidents(history, settings, &faults);
    let mut alone: Vec<usize> = (0..faults.len())
        .filter(|fault| found.of_fault[*fault].is_none() && !found.collateral.contains(fault))
        .collect();
    let whole = exposure.rates(&strata(&faults, &alone, history.begin), history.begin, history.now);
    let killers = killers(history, settings, &faults, &alone, &exposure, &whole);
    alone.retain(|fault| !killers.contains(fault));
    let from = history.now.saturating_sub(settings.window);
    let rates = exposure.rates(&strata(&faults, &alone, from), from, history.now);
    let open = found.incidents.iter().filter(|incident| incident.end.is_none());
    let in_incident: BTreeSet<usize> =
        open.flat_map(|incident| &incident.nodes).filter_map(|node| history.find(node)).collect();
    let case = Case {
        history,
        settings,
        faults: &faults,
        alone: &alone,
        exposure: &exposure,
        rates: &rates,
        in_incident: &in_incident,
    };
    let nodes = records(&case);
    let blames = blames(history, settings, &faults, &found, &killers);
    let counted: BTreeSet<usize> = alone.iter().copied().collect();
    let mut of_nodes: Vec<NodeFault> = faults
        .iter()
        .enumerate()
        .map(|(index, fault)| NodeFault {
            node: history.name(fault.node).to_owned(),
            time: fault.time,
            cause: fault.cause,
            counts: counted.contains(&index),
        })
        .collect();
    // The order of the indices depends on the order in which nodes became known.
    of_nodes.sort_by(|one, other| (one.time, &one.node).cmp(&(other.time, &other.node)));
    Judgement { incidents: found.incidents, blames, nodes, faults: of_nodes }
}

/// Strata of the faults since a time.
fn strata(faults: &[Fault], of: &[usize], from: u64) -> Vec<usize> {
    of.iter()
        .map(|index| &faults[*index])
        .filter(|fault| fault.time >= from)
        .map(|fault| stratum(fault.job_nodes))
        .collect()
}

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use railgate_model::UnixMillis;
use railgate_text::{clip, shorten};
use serde::{Deserialize, Serialize};

/// Longest key, characters.
const MAX_KEY: usize = 200;
/// Longest title, characters.
const MAX_TITLE: usize = 200;
/// Longest details, characters.
const MAX_DETAILS: usize = 1000;
/// Longest name of a node, a check or a reservation, characters.
const MAX_NAME: usize = 100;

/// How soon a person should react. `P0` is the highest one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Priority {
    /// Within days: it costs capacity, and no job is affected now.
    #[default]
    P2,
    /// Within the working day: jobs of one node or one user are affected.
    P1,
    /// At once, also at night: jobs of many nodes are affected.
    P0,
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Priority::P0 => "P0",
            Priority::P1 => "P1",
            Priority::P2 => "P2",
        })
    }
}

/// Something that is wrong now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Condition {
    /// Identifies it in all observations, for example `incident/leaf-switch/sw12`.
    pub key: String,
    /// Priority.
    pub priority: Priority,
    /// One line for a person.
    pub title: String,
    /// Further text; may be empty.
    pub details: String,
    /// The check that found it, for silences.
    pub check: Option<String>,
    /// The nodes, and the reservations of each, for silences.
    pub nodes: BTreeMap<String, BTreeSet<String>>,
    /// Since when; `None` if it is not known. Messages then have the time of its first observation.
    pub since: Option<UnixMillis>,
}

impl Condition {
    /// Adds the reservation that each node is in, for silences.
    pub fn add_reservations(&mut self, reservations: &BTreeMap<String, String>) {
        for (node, of_node) in &mut self.nodes {
            of_node.extend(reservations.get(node).cloned());
        }
    }

    /// The same within limits and without characters that are not printable: parts of it can be text that users wrote.
    pub(crate) fn within_limits(&self) -> Condition {
        let name = |text: &String| clip(text, MAX_NAME);
        Condition {
            key: clip(&self.key, MAX_KEY),
            priority: self.priority,
            title: shorten(self.title.trim(), MAX_TITLE),
            details: shorten(self.details.trim(), MAX_DETAILS),
            check: self.check.as_ref().map(name),
            nodes: self
                .nodes
                .iter()
                .map(|(node, reservations)| (name(node), reservations.iter().map(name).collect()))
                .collect(),
            since: self.since,
        }
    }

    /// Adds another observation of the same key. The result does not depend on the order.
    pub(crate) fn merge(&mut self, other: Condition) {
        let (mut upper, lower) = if *self < other { (other, self.clone()) } else { (self.clone(), other) };
        upper.since = [upper.since, lower.since].into_iter().flatten().min();
        for (node, reservations) in lower.nodes {
            upper.nodes.entry(node).or_default().extend(reservations);
        }
        *self = upper;
    }
}

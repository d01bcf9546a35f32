//! Values over time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Values of the cards of each node over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Title with the unit.
    pub title: String,
    /// What was read, and when.
    pub source: String,
    /// The nodes that have values.
    pub rows: Vec<ChartRow>,
    /// Readings that gave no value.
    pub unknown: usize,
}

/// The values of a node, in the order of their times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChartRow {
    /// Name of the node.
    pub name: String,
    /// One point for each time.
    pub points: Vec<Point>,
}

/// The values of all cards of a node at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Milliseconds since 1970, by the clock of the node.
    pub at: u64,
    /// The lowest value.
    pub lowest: f64,
    /// The highest value.
    pub highest: f64,
}

/// A chart while samples are read.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    nodes: BTreeMap<String, BTreeMap<u64, (f64, f64)>>,
    unknown: usize,
}

impl Samples {
    /// Adds the value of a card. `None` or a value that is not finite: it could not be read.
    pub(crate) fn add(&mut self, node: &str, at: u64, value: Option<f64>) {
        let Some(value) = value.filter(|value| value.is_finite()) else {
            self.unknown = self.unknown.saturating_add(1);
            return;
        };
        let of_node = self.nodes.entry(node.to_owned()).or_default();
        let (lowest, highest) = of_node.entry(at).or_insert((value, value));
        (*lowest, *highest) = (lowest.min(value), highest.max(value));
    }

    pub(crate) fn chart(self, title: &str, source: &str) -> Chart {
        let point = |(at, (lowest, highest))| Point { at, lowest, highest };
        let row = |(name, of): (String, BTreeMap<u64, (f64, f64)>)| ChartRow {
            name,
            points: of.into_iter().map(point).collect(),
        };
        Chart {
            title: title.to_owned(),
            source: source.to_owned(),
            rows: self.nodes.into_iter().map(row).collect(),
            unknown: self.unknown,
        }
    }
}

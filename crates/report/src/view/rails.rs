//! Rails of the nodes of an attempt: the map of one node, and the differences of other nodes.

use railgate_model::{LeftOut, Rail, RailMap};
use railgate_node_report::plain::{cell, port_state};
#[cfg(test)]
use serde::Serialize;

use super::Sentence;
use crate::Attempt;

/// Maximum number of differing nodes that are named.
const MOST_DIFFER: usize = 8;

/// Rail map of one node.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Rails {
    /// Node that the map belongs to.
    pub(crate) node: String,
    /// Earlier attempt with the same map.
    pub(crate) as_in: Option<u32>,
    /// Source of the map: `pci tree`.
    pub(crate) method: String,
    pub(crate) rows: Vec<Row>,
    /// Sentence for a node without rails.
    pub(crate) none: Option<Sentence>,
    /// Nodes whose rails differ from `rows`.
    pub(crate) differ: Option<Sentence>,
    pub(crate) notes: Vec<Sentence>,
    /// Ports that are not rails.
    pub(crate) left_out: Vec<LeftOut>,
}

/// One rail.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Row {
    pub(crate) number: usize,
    /// GPUs that use the rail, and their distance: `0 (PIX), 1 (PXB)`.
    pub(crate) gpus: String,
    pub(crate) hca: String,
    pub(crate) port: u32,
    pub(crate) pci: String,
    /// Link rate, `400 Gb/s`.
    pub(crate) rate: String,
    pub(crate) numa: String,
    pub(crate) state: String,
}

pub(super) fn rails(earlier: &[Attempt], attempt: &Attempt) -> Option<Rails> {
    let (node, map) = attempt.nodes.iter().find_map(|node| Some((node, node.rail_map.as_ref()?)))?;
    let same = |other: &&Attempt| other.nodes.iter().any(|other| other.rail_map.as_ref() == Some(map));
    let devices =
        |map: &RailMap| map.rails.iter().map(|rail| (rail.number, rail.hca.clone())).collect::<Vec<_>>();
    let of_this = devices(map);
    let differ: Vec<&str> = attempt
        .nodes
        .iter()
        .filter(|other| other.rail_map.as_ref().is_some_and(|other| devices(other) != of_this))
        .map(|node| node.node.as_str())
        .take(MOST_DIFFER)
        .collect();
    let differ =
        (!differ.is_empty()).then(|| format!("other device names or rails on {}", differ.join(", ")));
    Some(Rails {
        node: node.node.clone(),
        as_in: earlier.iter().find(same).map(|same| same.attempt),
        method: map.method.clone(),
        rows: map.rails.iter().enumerate().map(|(index, rail)| row(map, index, rail)).collect(),
        none: map.rails.is_empty().then(|| "no RDMA rails on this node".to_owned().into()),
        differ: differ.map(Sentence::from),
        notes: map.notes.iter().cloned().map(Sentence::from).collect(),
        left_out: map.left_out.clone(),
    })
}

fn row(map: &RailMap, index: usize, rail: &Rail) -> Row {
    let gpus: Vec<String> = map
        .gpus
        .iter()
        .filter(|gpu| gpu.rail == Some(index))
        .map(|gpu| match gpu.distance {
            Some(distance) => format!("{} ({distance})", gpu.index),
            None => gpu.index.to_string(),
        })
        .collect();
    Row {
        number: rail.number,
        gpus: gpus.join(", "),
        hca: rail.hca.clone(),
        port: rail.port,
        pci: cell(&rail.pci, ToString::to_string),
        rate: cell(&rail.rate_gbps, |rate| format!("{rate} Gb/s")),
        numa: cell(&rail.numa_node, u32::to_string),
        state: port_state(&rail.state),
    }
}

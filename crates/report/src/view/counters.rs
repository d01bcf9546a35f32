//! Changes of counters of GPUs and ports during an attempt.

use railgate_model::{Access, Reading};
use railgate_node_report::plain::{byte_rate, bytes, cell, energy, float, port_state, span, stamp};
use railgate_node_report::{Counter, GpuUse, NodeReport, PortUse, Window};
#[cfg(test)]
use serde::Serialize;

use super::{Sentence, more_nodes};
use crate::Attempt;

/// With more nodes than this, only those with anomalies are listed, up to this number.
const MOST_NODES: usize = 64;

/// Counters of the nodes of an attempt.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Counters {
    /// Energy of the GPUs and traffic of the rails.
    pub(crate) totals: Sentence,
    /// If none of many nodes has anomalies, only the first one.
    pub(crate) nodes: Vec<NodeCounters>,
    /// Number of nodes without anomalies that are not listed.
    pub(crate) more: usize,
    /// The same of nodes with anomalies.
    pub(crate) more_odd: usize,
}

impl Counters {
    /// What is said of the nodes that are not listed; `None` if all are.
    pub(crate) fn rest(&self, is_listed: impl Fn(&NodeCounters) -> bool) -> Option<String> {
        let hidden =
            |is_odd: bool| self.nodes.iter().filter(|node| node.is_odd == is_odd && !is_listed(node)).count();
        let (odd, quiet) = (hidden(true) + self.more_odd, hidden(false) + self.more);
        let odd = (odd > 0).then(|| format!("{} with unusual counters", more_nodes(odd)));
        let quiet = (quiet > 0).then(|| format!("{}, nothing unusual in the counters", more_nodes(quiet)));
        let parts: Vec<String> = odd.into_iter().chain(quiet).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// Counters of one node.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct NodeCounters {
    pub(crate) node: String,
    /// Period, `over 1 h 00 min from 2027-01-15 08:00:00 UTC`.
    pub(crate) window: String,
    /// Whether a counter differs from that of a healthy node.
    pub(crate) is_odd: bool,
    pub(crate) gpus: Vec<GpuRow>,
    /// RDMA ports, with the traffic of all jobs on the node.
    pub(crate) ports: Vec<PortRow>,
}

/// A counter before and after, and its increase.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Count {
    pub(crate) before: String,
    pub(crate) after: String,
    pub(crate) grew: String,
}

/// One GPU.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct GpuRow {
    pub(crate) index: u32,
    pub(crate) pci: String,
    /// Whether the job held it; `None` if not known.
    pub(crate) own: Option<bool>,
    pub(crate) access: Access,
    pub(crate) energy: String,
    /// Mean power over the window.
    pub(crate) power: String,
    pub(crate) ecc_uncorrected: Count,
    pub(crate) ecc_corrected: Count,
    pub(crate) rows_remapped: Count,
    pub(crate) pcie_replays: Count,
    pub(crate) nvlink_sent: String,
    pub(crate) nvlink_received: String,
    pub(crate) nvlinks_up: Count,
    /// Temperature after the attempt.
    pub(crate) temperature: String,
}

/// One RDMA port.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct PortRow {
    /// Rail number; `-` for a port that is not on a rail.
    pub(crate) rail: String,
    pub(crate) hca: String,
    pub(crate) port: u32,
    pub(crate) state_before: String,
    pub(crate) state_after: String,
    pub(crate) rate: String,
    pub(crate) sent: String,
    pub(crate) sent_rate: String,
    pub(crate) received: String,
    pub(crate) received_rate: String,
    pub(crate) link_downs: Count,
    /// Error counters with their increase.
    pub(crate) errors: Vec<(String, String)>,
}

pub(super) fn counters(attempt: &Attempt) -> Option<Counters> {
    let counted: Vec<&NodeReport> =
        attempt.nodes.iter().filter(|node| !node.gpus.is_empty() || !node.ports.is_empty()).collect();
    let first = counted.first()?;
    let mut listed = counted.clone();
    if counted.len() > MOST_NODES {
        listed.retain(|node| is_odd(node));
        listed.truncate(MOST_NODES);
        if listed.is_empty() {
            listed.push(first);
        }
    }
    let odd = |nodes: &[&NodeReport]| nodes.iter().filter(|node| is_odd(node)).count();
    let more_odd = odd(&counted) - odd(&listed);
    Some(Counters {
        totals: totals(attempt).into(),
        more: counted.len() - listed.len() - more_odd,
        more_odd,
        nodes: listed.into_iter().map(of_node).collect(),
    })
}

fn is_odd(node: &NodeReport) -> bool {
    let grew = |counter: &Counter<u64>| counter.delta.known().is_some_and(|delta| *delta > 0);
    node.gpus
        .iter()
        .any(|gpu| gpu.access != Access::Ok || grew(&gpu.ecc_uncorrected) || grew(&gpu.rows_remapped))
        || node.ports.iter().any(|port| port.rail.is_some() && grew(&port.link_downed))
        || !node.evidence.is_empty()
}

/// Whether it is not known which of the node's GPUs the job held.
pub(super) fn has_unclear_gpus(node: &NodeReport) -> bool {
    node.gpus.iter().any(|gpu| gpu.own.is_none())
}

fn totals(attempt: &Attempt) -> String {
    let own = || attempt.nodes.iter().flat_map(|node| &node.gpus).filter(|gpu| gpu.own == Some(true));
    let joules: f64 = own().filter_map(|gpu| gpu.energy_j.delta.known()).sum();
    let unread = own().filter(|gpu| gpu.energy_j.delta.known().is_none()).count();
    let rails = || attempt.nodes.iter().flat_map(|node| &node.ports).filter(|port| port.rail.is_some());
    let sum = |pick: &dyn Fn(&PortUse) -> Option<u64>| rails().filter_map(pick).map(float).sum::<f64>();
    let count = own().count();
    let unclear = attempt.nodes.iter().filter(|node| has_unclear_gpus(node)).count();
    let gpus = if count == 1 { "GPU".to_owned() } else { format!("{count} GPUs") };
    let mut line = match count {
        0 if unclear > 0 => "it is not known which GPUs the job held".to_owned(),
        0 => "the job held no GPU".to_owned(),
        _ if unread == count => format!("energy of the job's {gpus} unknown"),
        _ => format!("the job's {gpus} drew {}", energy(joules)),
    };
    if (1..count).contains(&unread) {
        line.push_str(&format!(" ({unread} of them unknown)"));
    }
    if count > 0 && unclear > 0 {
        let nodes = if unclear == 1 { "1 node".to_owned() } else { format!("{unclear} nodes") };
        line.push_str(&format!("; which GPUs it held on {nodes} is not known"));
    }
    if rails().next().is_some() {
        let sent = sum(&|port| port.tx_bytes.delta.known().copied());
        let received = sum(&|port| port.rx_bytes.delta.known().copied());
        let (sent, received) = (bytes(sent), bytes(received));
        line.push_str(&format!("; the rails of its nodes sent {sent} and received {received}"));
    }
    line
}

fn of_node(node: &NodeReport) -> NodeCounters {
    let seconds = node.window.and_then(Window::seconds);
    let window = match (node.window, seconds) {
        (Some(window), Some(seconds)) => format!("over {} from {}", span(seconds), stamp(window.start)),
        _ => "over an unknown period".to_owned(),
    };
    NodeCounters {
        node: node.node.clone(),
        window,
        is_odd: is_odd(node),
        gpus: node.gpus.iter().map(|gpu| gpu_row(gpu, seconds)).collect(),
        ports: node.ports.iter().map(|port| port_row(port, seconds)).collect(),
    }
}

fn count<T: ToString>(counter: &Counter<T>) -> Count {
    Count {
        before: cell(&counter.before, T::to_string),
        after: cell(&counter.after, T::to_string),
        grew: cell(&counter.delta, T::to_string),
    }
}

fn gpu_row(gpu: &GpuUse, seconds: Option<f64>) -> GpuRow {
    let power = match (&gpu.energy_j.delta, seconds) {
        (Reading::Known(joules), Some(seconds)) => format!("{:.0} W", joules / seconds),
        _ => "?".to_owned(),
    };
    GpuRow {
        index: gpu.index,
        pci: cell(&gpu.pci, ToString::to_string),
        own: gpu.own,
        access: gpu.access.clone(),
        energy: cell(&gpu.energy_j.delta, |joules| energy(*joules)),
        power,
        ecc_uncorrected: count(&gpu.ecc_uncorrected),
        ecc_corrected: count(&gpu.ecc_corrected),
        rows_remapped: count(&gpu.rows_remapped),
        pcie_replays: count(&gpu.pcie_replays),
        nvlink_sent: cell(&gpu.nvlink_tx_bytes.delta, |sent| bytes(float(*sent))),
        nvlink_received: cell(&gpu.nvlink_rx_bytes.delta, |received| bytes(float(*received))),
        nvlinks_up: count(&gpu.nvlinks_up),
        temperature: cell(&gpu.temperature_c, |degrees| format!("{degrees} °C")),
    }
}

fn port_row(port: &PortUse, seconds: Option<f64>) -> PortRow {
    let rate = |counter: &Counter<u64>| match (&counter.delta, seconds) {
        (Reading::Known(delta), Some(seconds)) => byte_rate(float(*delta) / seconds),
        _ => "?".to_owned(),
    };
    let errors = port.errors.iter().map(|(name, counter)| (name.clone(), count(counter).grew));
    PortRow {
        rail: port.rail.map_or_else(|| "-".to_owned(), |rail| rail.to_string()),
        hca: port.hca.clone(),
        port: port.port,
        state_before: port_state(&port.state_before),
        state_after: port_state(&port.state_after),
        rate: cell(&port.rate_gbps, |rate| format!("{rate} Gb/s")),
        sent: cell(&port.tx_bytes.delta, |sent| bytes(float(*sent))),
        sent_rate: rate(&port.tx_bytes),
        received: cell(&port.rx_bytes.delta, |received| bytes(float(*received))),
        received_rate: rate(&port.rx_bytes),
        link_downs: count(&port.link_downed),
        errors: errors.collect(),
    }
}

//! Which variables railgate sets, when and why: one row each.

use std::collections::BTreeSet;

use railgate_node::{LinkLayer, PciAddress, Rail, RailMap, Reading, Snapshot};
use serde::Serialize;

use crate::config::{RailsConfig, TopologyFile};
use crate::environment::speaks;
use crate::job_shape::{JobGpus, JobShape};
use crate::topology::topology_needed;

/// What a rule may look at.
pub(crate) struct Context<'a> {
    pub(crate) map: &'a RailMap,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) config: &'a RailsConfig,
    pub(crate) shape: &'a JobShape,
}

/// One variable that railgate sets under a condition.
#[derive(Clone, Copy, Serialize)]
pub struct Rule {
    /// Stable name, kebab-case.
    pub id: &'static str,
    /// What it sets.
    pub variable: &'static str,
    /// When, in words.
    pub when: &'static str,
    /// Why this value.
    pub why: &'static str,
    /// Where that comes from.
    pub source: &'static str,
    #[serde(skip)]
    pub(crate) value: fn(&Context<'_>) -> Option<String>,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rule").field("id", &self.id).field("variable", &self.variable).finish_non_exhaustive()
    }
}

/// The rules, in the order in which the variables are set.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ib-hca",
        variable: "NCCL_IB_HCA",
        when: "the node has active compute ports",
        why: "the compute ports only, in rail order, the same list for every rank of the node; NCCL itself \
              gives each GPU its rail. Storage ports and other jobs' rails stay out of it",
        source: "NCCL src/transport/net_ib/init.cc (exact names by '=', ports written out); NVIDIA/nccl#1478 \
                 (never one HCA per rank)",
        value: ib_hca,
    },
    Rule {
        id: "socket-interface",
        variable: "NCCL_SOCKET_IFNAME",
        when: "the job spans nodes, and the interface is configured or the default route's is known",
        why: "bootstrap over the network that every node reaches; left alone NCCL takes the first that looks right",
        source: "NCCL src/misc/socket.cc (order of choice; no match is an error, so only a name that exists)",
        value: socket_interface,
    },
    Rule {
        id: "ras-port",
        variable: "NCCL_RAS_ADDR",
        when: "always, unless [rails] ras = false",
        why: "a port for each job: on the default one a second job of the node would answer in the first one's place",
        source: "NCCL src/ras (SO_REUSEPORT), from 2.24 on; older releases do not read it",
        value: ras_port,
    },
    Rule {
        id: "traffic-class",
        variable: "NCCL_IB_TC",
        when: "[rails] traffic_class, and every rail is RoCE",
        why: "the site's lossless class; without it RoCE traffic takes the best-effort queue",
        source: "NCCL src/transport/net_ib/connect.cc (acts on Ethernet only)",
        value: |context| number(context.config.traffic_class, speaks(context.map, &LinkLayer::Ethernet)),
    },
    Rule {
        id: "service-level",
        variable: "NCCL_IB_SL",
        when: "[rails] service_level, and every rail is InfiniBand",
        why: "the service level that the site's subnet manager routes adaptively",
        source: "NCCL src/transport/net_ib/connect.cc",
        value: |context| number(context.config.service_level, speaks(context.map, &LinkLayer::InfiniBand)),
    },
    Rule {
        id: "queue-pairs",
        variable: "NCCL_IB_QPS_PER_CONNECTION",
        when: "[rails] queue_pairs, and every rail is RoCE",
        why: "more flows for each connection, so that ECMP can spread them; InfiniBand routes adaptively instead",
        source: "NCCL src/transport/net_ib/connect.cc (both sides take the greater value)",
        value: |context| number(context.config.queue_pairs, speaks(context.map, &LinkLayer::Ethernet)),
    },
    Rule {
        id: "cross-nic",
        variable: "NCCL_CROSS_NIC",
        when: "[rails] cross_nic, with more than one rail",
        why: "whether traffic may leave a node on another rail than it came by",
        source: "NCCL src/graph/search.cc (0 only where rails are not connected)",
        value: |context| number(context.config.cross_nic, context.map.rails.len() > 1),
    },
    Rule {
        id: "topology-file",
        variable: "NCCL_TOPO_FILE",
        when: "a file was written: a virtual machine hides the PCI switches and the machine profile knows the \
               wiring, or [rails] topology_file = \"always\"",
        why: "NCCL sees every HCA equally far from every GPU, and would neither use GPUDirect nor the right rail",
        source: "NCCL src/graph/topo.cc; on bare metal the real tree is better than any file",
        value: topology_file,
    },
];

fn number(value: Option<u32>, when: bool) -> Option<String> {
    value.filter(|_| when).map(|value| value.to_string())
}

/// The card that a port sits on: two ports, or two functions, of one HCA.
fn card(rail: &Rail) -> Option<PciAddress> {
    rail.pci.known().map(|address| PciAddress { function: 0, ..*address })
}

fn ib_hca(context: &Context<'_>) -> Option<String> {
    let (rails, gpus) = (&context.map.rails, &context.map.gpus);
    if rails.is_empty() {
        return None;
    }
    let mine: Vec<_> = gpus.iter().filter(|gpu| context.shape.gpus.has(gpu.index)).collect();
    // A GPU without a rail of its own (its port is down, the wiring is unknown) may need any of them, and so
    // may one that the snapshot does not have.
    let known = match &context.shape.gpus {
        JobGpus::Indices(indices) => mine.len() == indices.iter().collect::<BTreeSet<_>>().len(),
        JobGpus::All | JobGpus::None => false,
    };
    let every = !known || mine.len() == gpus.len() || mine.iter().any(|gpu| gpu.rail.is_none());
    let wanted: BTreeSet<usize> = if every {
        (0..rails.len()).collect()
    } else {
        let own: BTreeSet<usize> =
            mine.iter().filter_map(|gpu| gpu.rail).filter(|rail| *rail < rails.len()).collect();
        // The second port of a card is nobody's own, and as near as the first.
        let beside = |index: usize| {
            card(&rails[index]).is_some()
                && gpus.iter().all(|gpu| gpu.rail != Some(index))
                && own.iter().any(|mine| card(&rails[*mine]) == card(&rails[index]))
        };
        (0..rails.len()).filter(|index| own.contains(index) || beside(*index)).collect()
    };
    let ports: Vec<String> =
        wanted.into_iter().map(|rail| format!("{}:{}", rails[rail].hca, rails[rail].port)).collect();
    (!ports.is_empty()).then(|| format!("={}", ports.join(",")))
}

fn topology_file(context: &Context<'_>) -> Option<String> {
    let wanted = match context.config.topology_file {
        TopologyFile::Never => false,
        TopologyFile::Auto => topology_needed(context.map, context.snapshot),
        TopologyFile::Always => true,
    };
    context.shape.topology_file.as_ref().filter(|_| wanted)?.to_str().map(str::to_owned)
}

fn socket_interface(context: &Context<'_>) -> Option<String> {
    if context.shape.nodes == Some(1) {
        return None;
    }
    if let Some(interface) = &context.config.socket_ifname {
        return Some(format!("={interface}"));
    }
    let host = context.snapshot.host.data()?;
    let Reading::Known(interface) = &host.default_interface else { return None };
    // NCCL takes a name without an address for "no interface", which is an error.
    let usable = interface.len() > 1 && host.addresses.iter().any(|(name, _)| name == interface);
    usable.then(|| format!("={interface}"))
}

/// Below the ephemeral ports, and not NCCL's own 28028.
const RAS_PORTS: std::ops::Range<u32> = 20_000..28_000;

fn ras_port(context: &Context<'_>) -> Option<String> {
    let span = RAS_PORTS.end - RAS_PORTS.start;
    context.config.ras.then(|| format!("localhost:{}", RAS_PORTS.start + context.shape.job_id % span))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::name_ok;

    #[test]
    fn the_table_is_whole() {
        let mut ids: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), RULES.len());
        for rule in RULES {
            assert!(name_ok(rule.variable) && !rule.why.is_empty() && !rule.source.is_empty());
        }
    }
}

//! Which variables railgate sets and why, one row each; and which it must not set, one row each.

use railgate_node::{RailMap, Reading, Snapshot};
use serde::Serialize;

use crate::config::RailsConfig;
use crate::environment::{JobShape, is_roce};

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
        when: "[rails] traffic_class, on RoCE",
        why: "the site's lossless class; without it RoCE traffic takes the best-effort queue",
        source: "NCCL src/transport/net_ib/connect.cc (acts on Ethernet only)",
        value: |context| {
            context.config.traffic_class.filter(|_| is_roce(context.map)).map(|class| class.to_string())
        },
    },
    Rule {
        id: "service-level",
        variable: "NCCL_IB_SL",
        when: "[rails] service_level, where there are rails",
        why: "the service level that the site's subnet manager routes adaptively",
        source: "NCCL src/transport/net_ib/connect.cc",
        value: |context| {
            context
                .config
                .service_level
                .filter(|_| !context.map.rails.is_empty())
                .map(|level| level.to_string())
        },
    },
    Rule {
        id: "queue-pairs",
        variable: "NCCL_IB_QPS_PER_CONNECTION",
        when: "[rails] queue_pairs, where there are rails",
        why: "more flows for each connection, so that ECMP can spread them",
        source: "NCCL src/transport/net_ib/connect.cc (both sides take the greater value)",
        value: |context| {
            context
                .config
                .queue_pairs
                .filter(|_| !context.map.rails.is_empty())
                .map(|pairs| pairs.to_string())
        },
    },
    Rule {
        id: "cross-nic",
        variable: "NCCL_CROSS_NIC",
        when: "[rails] cross_nic, with more than one rail",
        why: "whether traffic may leave a node on another rail than it came by",
        source: "NCCL src/graph/search.cc (0 only where rails are not connected)",
        value: |context| {
            context.config.cross_nic.filter(|_| context.map.rails.len() > 1).map(|value| value.to_string())
        },
    },
    Rule {
        id: "topology-file",
        variable: "NCCL_TOPO_FILE",
        when: "a virtual machine hides the PCI switches and the machine profile knows the wiring",
        why: "NCCL sees every HCA equally far from every GPU, and would neither use GPUDirect nor the right rail",
        source: "NCCL src/graph/topo.cc; on bare metal the real tree is better than any file",
        value: |context| context.shape.topology_file.clone(),
    },
];

fn ib_hca(context: &Context<'_>) -> Option<String> {
    let rails = &context.map.rails;
    if rails.is_empty() {
        return None;
    }
    let mut wanted: Vec<usize> = match &context.shape.gpus {
        None => Vec::new(),
        Some(gpus) => context
            .map
            .gpus
            .iter()
            .filter(|gpu| gpus.contains(&gpu.index))
            .filter_map(|gpu| gpu.rail)
            .filter(|rail| *rail < rails.len())
            .collect(),
    };
    wanted.sort_unstable();
    wanted.dedup();
    let all_gpus = context
        .shape
        .gpus
        .as_ref()
        .is_none_or(|gpus| context.map.gpus.iter().all(|gpu| gpus.contains(&gpu.index)));
    // A job whose GPUs have no rail of their own (its port is down, the tree tells nothing) still needs one.
    if wanted.is_empty() || all_gpus {
        wanted = (0..rails.len()).collect();
    }
    let ports: Vec<String> =
        wanted.into_iter().map(|rail| format!("{}:{}", rails[rail].hca, rails[rail].port)).collect();
    Some(format!("={}", ports.join(",")))
}

fn socket_interface(context: &Context<'_>) -> Option<String> {
    if context.shape.nodes == 1 {
        return None;
    }
    if let Some(interface) = &context.config.socket_interface {
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
    context.config.ras.then(|| format!("localhost:{}", RAS_PORTS.start + context.shape.job % span))
}

/// A variable that railgate never sets by itself, although it stands in many launch scripts.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct NotSet {
    /// The variable.
    pub variable: &'static str,
    /// Why not.
    pub why: &'static str,
    /// Where that comes from.
    pub source: &'static str,
}

/// Folklore: variables that railgate leaves alone, and why.
pub static NOT_SET: &[NotSet] = &[
    NotSet {
        variable: "NCCL_IB_GID_INDEX",
        why: "NCCL finds the RoCEv2 GID itself from 2.21 on; one number for all HCAs is right on one host and an \
              error on the next, and InfiniBand does not use it",
        source: "NCCL src/transport/net_ib/connect.cc; NVIDIA/nccl#890",
    },
    NotSet {
        variable: "NCCL_NET_GDR_LEVEL",
        why: "the default (PXB) is what the wiring supports; 5 means SYS, forces GPUDirect across sockets and \
              hides a wrong topology. Misspelt words are ignored without a message",
        source: "NCCL src/graph/paths.cc",
    },
    NotSet {
        variable: "NCCL_ALGO",
        why: "NCCL's tuner knows size and topology of each collective; a fixed list is wrong for some, and an \
              unknown word is an error from 2.24 on",
        source: "NCCL src/graph/tuning.cc",
    },
    NotSet {
        variable: "NCCL_PROTO",
        why: "as NCCL_ALGO; LL128 where the machine does not support it corrupts data",
        source: "NCCL src/graph/tuning.cc",
    },
    NotSet {
        variable: "NCCL_MIN_NCHANNELS",
        why: "takes streaming multiprocessors away from the model; a habit from 2018",
        source: "NCCL src/graph/connect.cc",
    },
    NotSet {
        variable: "NCCL_NTHREADS",
        why: "the default is the most there is",
        source: "NCCL src/graph/tuning.cc",
    },
    NotSet {
        variable: "NCCL_PXN_DISABLE",
        why: "PXN is how one list of rails serves every GPU of the node; without it traffic crosses rails",
        source: "NCCL src/graph/paths.cc",
    },
    NotSet {
        variable: "NCCL_P2P_DISABLE",
        why: "turns NVLink off; a test, never a tuning",
        source: "NCCL src/transport/p2p.cc",
    },
    NotSet {
        variable: "NCCL_SHM_DISABLE",
        why: "with NCCL_P2P_DISABLE it sends traffic within the node through the HCAs: a loopback test",
        source: "NCCL src/transport/shm.cc",
    },
    NotSet {
        variable: "NCCL_IB_DISABLE",
        why: "falls back to TCP and hides that the fabric is broken",
        source: "NCCL src/transport/net_ib/init.cc",
    },
    NotSet {
        variable: "NCCL_IB_TIMEOUT",
        why: "the default (20, about 30 s with 7 retries) outlives a flap; more delays the detection of a dead \
              peer, 0 and 32 or more never end. A site that needs more says so in [rails] set",
        source: "NCCL src/transport/net_ib, docs env.rst",
    },
    NotSet {
        variable: "NCCL_NET",
        why: "IB makes a wrong HCA list fatal rather than slow, and shuts out every external network plugin; \
              only the site knows whether one is used",
        source: "NCCL src/plugin/net.cc",
    },
    NotSet {
        variable: "NCCL_IB_PCI_RELAXED_ORDERING",
        why: "the default is automatic; 1 and 2 are treated alike",
        source: "NCCL src/transport/net_ib/init.cc",
    },
    NotSet {
        variable: "NCCL_IGNORE_CPU_AFFINITY",
        why: "hides a wrong CPU binding of the job instead of mending it",
        source: "NCCL src/graph/topo.cc",
    },
    NotSet {
        variable: "CUDA_VISIBLE_DEVICES",
        why: "Slurm's; a GPU that a task cannot see loses its peers' NVLink paths",
        source: "NVIDIA/nccl#1066",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::name_ok;

    #[test]
    fn the_tables_are_whole_and_do_not_contradict_each_other() {
        let mut ids: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), RULES.len());
        for rule in RULES {
            assert!(name_ok(rule.variable) && !rule.why.is_empty() && !rule.source.is_empty());
            assert!(!NOT_SET.iter().any(|not| not.variable == rule.variable), "{}", rule.variable);
        }
    }
}

//! The variables that railgate sets, with condition and reason: one row each.

mod healing;
mod ports;

use railgate_model::{JobGpus, LinkLayer, Net, RailMap, Reading, Snapshot};
use serde::Serialize;

use crate::config::{DEBUG, LATENCY, RailsConfig, THROUGHPUT, TopologyFile};
use crate::environment::speaks;
use crate::job_shape::JobShape;
use crate::topology::topology_needed;
use crate::{NcclRange, NcclVersion};

pub use healing::{NotSet, not_set};
use ports::{card, ports};

/// The input of a rule.
pub(crate) struct Context<'a> {
    pub(crate) map: &'a RailMap,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) config: &'a RailsConfig,
    pub(crate) shape: &'a JobShape,
}

impl Context<'_> {
    /// Whether the job holds only part of the node's GPUs.
    pub(crate) fn part_of_the_node(&self) -> bool {
        let gpus = &self.map.gpus;
        matches!(self.shape.gpus, JobGpus::These { .. })
            && gpus.iter().any(|gpu| self.shape.gpus.has(gpu.index) == Some(false))
    }

    fn roce(&self) -> bool {
        speaks(self.map, &LinkLayer::Ethernet)
    }

    fn infiniband(&self) -> bool {
        speaks(self.map, &LinkLayer::InfiniBand)
    }
}

/// A variable that railgate sets under a condition.
#[derive(Clone, Copy, Serialize)]
pub struct Rule {
    /// Stable id in kebab-case.
    pub id: &'static str,
    /// The variable.
    pub variable: &'static str,
    /// The condition, in words.
    pub when: &'static str,
    /// The reason for this value.
    pub why: &'static str,
    /// Source of the reason.
    pub source: &'static str,
    /// NCCL releases for which the value is right.
    pub nccl: NcclRange,
    /// Network plugins for which the value is set; empty: all. Other plugins have settings of their own.
    pub nets: &'static [Net],
    /// Only for jobs with this `--railgate-profile`, unless the site has a profile of the same name.
    pub profile: Option<&'static str>,
    /// Only if railgate sets this variable as well.
    pub with: Option<&'static str>,
    #[serde(skip)]
    pub(crate) value: fn(&Context<'_>) -> Option<String>,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rule").field("id", &self.id).field("variable", &self.variable).finish_non_exhaustive()
    }
}

/// NCCL's own transport and HPC-X's plugin, which read the same variables.
const VERBS: &[Net] = &[Net::Ib, Net::Sharp];
/// NCCL's own transport only.
const OWN: &[Net] = &[Net::Ib];
/// First tagged release with rail numbers in `NCCL_IB_HCA`.
const RAIL_NUMBERS: NcclVersion = NcclVersion::new(2, 30, 7);
/// First tagged releases of port failover, and of the return to a port.
const PORT_FAILOVER: NcclVersion = NcclVersion::new(2, 29, 7);
/// See [`PORT_FAILOVER`].
const PORT_RECOVERY: NcclVersion = NcclVersion::new(2, 30, 3);

/// Defaults of a row: every release, every network plugin, all jobs.
const ANY: Rule = Rule {
    id: "",
    variable: "",
    when: "",
    why: "",
    source: "",
    nccl: NcclRange::ALL,
    nets: &[],
    profile: None,
    with: None,
    value: |_| None,
};

/// The rules, in the order in which their variables are set.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ib-hca",
        variable: "NCCL_IB_HCA",
        when: "the node has active compute ports",
        why: "the compute ports only, in rail order, the same list for every rank of the node; NCCL itself \
              gives each GPU its rail. Storage ports and other jobs' rails stay out of it",
        source: "NCCL src/transport/net_ib/init.cc (exact names by '=', ports written out); NVIDIA/nccl#1478 \
                 (never one HCA per rank)",
        nets: VERBS,
        value: |context| port_list(context, false),
        ..ANY
    },
    Rule {
        id: "rail-numbers",
        variable: "NCCL_IB_HCA",
        when: "[rails] cross_nic = 0, with more than one rail",
        why: "the same list with each port's rail: NCCL then tells rails by their number, and not by the card, which is \
              another one on every node of an NVLink domain",
        source: "NCCL src/misc/utils.cc, src/graph/search.cc (ncclTopoSearchCheckNet); first tagged in 2.30.7",
        nccl: NcclRange::since(RAIL_NUMBERS),
        nets: OWN,
        value: |context| {
            cross_nic(context).filter(|value| value == "0").and_then(|_| port_list(context, true))
        },
        ..ANY
    },
    Rule {
        id: "socket-interface",
        variable: "NCCL_SOCKET_IFNAME",
        when: "the job spans nodes, and the interface is configured or the default route's is known",
        why: "bootstrap over the network that every node reaches; by default NCCL takes the first suitable one",
        source: "NCCL src/misc/socket.cc (order of choice; no match is an error, so only a name that exists)",
        value: socket_interface,
        ..ANY
    },
    Rule {
        id: "ras-port",
        variable: "NCCL_RAS_ADDR",
        when: "always, unless [rails] ras = false",
        why: "each job gets its own port: on the default port, another job on the same node could answer instead",
        source: "NCCL src/ras (SO_REUSEPORT), from 2.24 on; older releases do not read it",
        value: ras_port,
        ..ANY
    },
    Rule {
        id: "flight-recorder-size",
        variable: "TORCH_FR_BUFFER_SIZE",
        when: "[rails] flight_recorder = true",
        why: "the last collectives of each rank; some releases of PyTorch record none by default",
        source: "PyTorch torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp; measured with 2.11",
        value: |context| recorder_file(context, "").map(|_| "2000".to_owned()),
        ..ANY
    },
    Rule {
        id: "flight-recorder-pipe",
        variable: "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        when: "[rails] flight_recorder = true, and the job has a place of its own on the node",
        why: "a pipe for each rank, <value><rank>.pipe; when the job hangs, a line in it makes PyTorch write the record",
        source: "PyTorch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp; measured with 2.11",
        value: |context| recorder_file(context, RECORDER_PIPE),
        ..ANY
    },
    Rule {
        id: "flight-recorder-file",
        variable: "TORCH_FR_DUMP_TEMP_FILE",
        when: "railgate set TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        why: "the record is written to the job's own place on the node, <value><rank>, and not to a shared /tmp",
        source: "PyTorch torch/csrc/distributed/c10d/FlightRecorder.cpp; measured with 2.11",
        with: Some("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
        value: |context| recorder_file(context, RECORDER_DUMP),
        ..ANY
    },
    Rule {
        id: "traffic-class",
        variable: "NCCL_IB_TC",
        when: "[rails] traffic_class, and every rail is RoCE",
        why: "the site's lossless class; without it RoCE traffic takes the best-effort queue",
        source: "NCCL src/transport/net_ib/connect.cc (acts on Ethernet only)",
        nets: VERBS,
        value: |context| number(context.config.traffic_class, context.roce()),
        ..ANY
    },
    Rule {
        id: "control-traffic-class",
        variable: "NCCL_IB_FIFO_TC",
        when: "[rails] control_traffic_class, and every rail is RoCE",
        why: "NCCL's small control messages in a class of their own do not wait behind the data",
        source: "NCCL src/transport/net_ib/connect.cc, from 2.22 on; older releases do not read it",
        nets: OWN,
        value: |context| number(context.config.control_traffic_class, context.roce()),
        ..ANY
    },
    Rule {
        id: "service-level",
        variable: "NCCL_IB_SL",
        when: "[rails] service_level, and every rail is InfiniBand",
        why: "the service level that the site's subnet manager routes adaptively",
        source: "NCCL src/transport/net_ib/connect.cc",
        nets: VERBS,
        value: |context| number(context.config.service_level, context.infiniband()),
        ..ANY
    },
    Rule {
        id: "queue-pairs",
        variable: "NCCL_IB_QPS_PER_CONNECTION",
        when: "[rails] queue_pairs, and every rail is RoCE",
        why: "more flows for each connection, so that ECMP can spread them; InfiniBand routes adaptively instead",
        source: "NCCL src/transport/net_ib/connect.cc (both sides take the greater value)",
        nets: VERBS,
        value: |context| number(context.config.queue_pairs, context.roce()),
        ..ANY
    },
    Rule {
        id: "adaptive-routing",
        variable: "NCCL_IB_ADAPTIVE_ROUTING",
        when: "[rails] adaptive_routing, where NCCL's own guess is the other: true on RoCE, false on InfiniBand",
        why: "packets of one message may overtake one another only where NCCL knows of it; where nothing routes \
              adaptively, it need not send a message of its own after each large one",
        source: "NCCL src/transport/net_ib/init.cc, from 2.16 on (yes on InfiniBand, no on RoCE)",
        nets: VERBS,
        value: adaptive_routing,
        ..ANY
    },
    Rule {
        id: "gid-range",
        variable: "NCCL_IB_ADDR_RANGE",
        when: "[rails] gid_range, and every rail is RoCE",
        why: "which address of a port with several is the fabric's; NCCL finds its index on each HCA by itself",
        source: "NCCL src/transport/net_ib/connect.cc, from 2.21 on; older releases do not read it",
        nets: VERBS,
        value: |context| {
            context.config.gid_network().filter(|_| context.roce()).map(|(text, _)| text.to_owned())
        },
        ..ANY
    },
    Rule {
        id: "gid-family",
        variable: "NCCL_IB_ADDR_FAMILY",
        when: "[rails] gid_range is a network of IPv6, and every rail is RoCE",
        why: "otherwise NCCL uses IPv4, and the range would match nothing",
        source: "NCCL src/transport/net_ib/connect.cc, from 2.21 on",
        nets: VERBS,
        value: |context| {
            let (_, address) = context.config.gid_network().filter(|_| context.roce())?;
            address.is_ipv6().then(|| "AF_INET6".to_owned())
        },
        ..ANY
    },
    Rule {
        id: "ib-timeout",
        variable: "NCCL_IB_TIMEOUT",
        when: "[rails] ib_timeout, and there are rails",
        why: "how long a link may be away before the job dies of it: longer rides out a flap, and must end before the \
              framework's watchdog ([rails] watchdog) does, which names no link",
        source: "NCCL user guide, NCCL_IB_TIMEOUT (4.096 us x 2^timeout x retries; default 20 from 2.23 on, 18 before)",
        nets: VERBS,
        value: |context| number(context.config.ib_timeout, !context.map.rails.is_empty()),
        ..ANY
    },
    Rule {
        id: "ib-retries",
        variable: "NCCL_IB_RETRY_CNT",
        when: "[rails] ib_retries, and there are rails",
        why: "as the timeout, of which it is the multiple",
        source: "NCCL user guide, NCCL_IB_RETRY_CNT (default 7, which is the most)",
        nets: VERBS,
        value: |context| number(context.config.ib_retries, !context.map.rails.is_empty()),
        ..ANY
    },
    Rule {
        id: "port-failover",
        variable: "NCCL_IB_RESILIENCY_PORT_FAILOVER",
        when: "[rails] port_failover, and each of the job's ports has a second one on its card, with the same link layer",
        why: "when a port fails, NCCL moves its traffic to the other port of the merged device and the job continues with \
              less bandwidth. It moves after all retries (NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT), only after an error that they end \
              with, and only if one port of the device failed",
        source: "NCCL src/transport/net_ib/p2p_resiliency.cc, from 2.29.7 on (default 0, not in the user guide); NVIDIA/nccl#2192 \
                 (a device of one port cannot fail over; some channels use single ports where NICs are merged by hand)",
        nccl: NcclRange::since(PORT_FAILOVER),
        nets: OWN,
        value: healing::failover,
        ..ANY
    },
    Rule {
        id: "port-recovery",
        variable: "NCCL_IB_RESILIENCY_PORT_RECOVERY",
        when: "[rails] port_recovery, where port_failover is set, and every rail is InfiniBand",
        why: "a port that returns carries traffic again. NCCL tries five times (NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX), \
              some 20 s in all; a port that is down for longer stays unused until the job starts again",
        source: "NCCL src/transport/net_ib/p2p_resiliency_recovery.cc, from 2.30.3 on (default 0, not in the user guide); \
                 NVIDIA/nccl PR #2183 (RoCE: the GID's index is not read again), #2157, #2323 (limit of attempts)",
        nccl: NcclRange::since(PORT_RECOVERY),
        nets: OWN,
        value: healing::recovery,
        ..ANY
    },
    Rule {
        id: "cross-nic",
        variable: "NCCL_CROSS_NIC",
        when: "[rails] cross_nic, with more than one rail; 0 not for jobs of several nodes with a part of this one",
        why: "whether traffic may leave a node on another rail than it came by. Nodes of a job with other GPUs have \
              other rails: with 0 there would be no way between them",
        source: "NCCL src/graph/search.cc (0 only where rails are not connected); user guide, NCCL_CROSS_NIC",
        nets: VERBS,
        value: cross_nic,
        ..ANY
    },
    Rule {
        id: "gdr-level",
        variable: "NCCL_NET_GDR_LEVEL",
        when: "[rails] gdr_level, and there are rails",
        why: "the site measured GPUDirect at this distance; NCCL's own limit (PXB) is right where it did not",
        source: "NCCL src/graph/paths.cc",
        nets: VERBS,
        value: |context| context.config.gdr_level.clone().filter(|_| !context.map.rails.is_empty()),
        ..ANY
    },
    Rule {
        id: "split-ports",
        variable: "NCCL_NET_MERGE_LEVEL",
        when: "[rails] split_ports, and a card has two rails",
        why: "NCCL bundles the ports of a card into one device, whose halves would then be on different rails",
        source: "NCCL src/graph/topo.cc, from 2.24 on; older releases do not read it",
        nets: OWN,
        value: split_ports,
        ..ANY
    },
    Rule {
        id: "topology-file",
        variable: "NCCL_TOPO_FILE",
        when: "a file was written: a virtual machine hides the PCI switches and the machine profile knows the \
               wiring, or [rails] topology_file = \"always\"",
        why: "NCCL sees every HCA equally far from every GPU, and would neither use GPUDirect nor the right rail",
        source: "NCCL src/graph/topo.cc; on bare metal the real tree is better than any file. aws-ofi-nccl brings its own",
        nets: VERBS,
        value: topology_file,
        ..ANY
    },
    Rule {
        id: "profiler",
        variable: "NCCL_PROFILER_PLUGIN",
        when: "[rails] profiler, else [stats] nccl_profiler where it takes the job and the plugin is installed",
        why: "the plugin that counts the job's collectives for its report",
        source: "NCCL src/plugin/profiler.cc, from 2.23 on; a library that NCCL cannot use is left alone",
        value: profiler,
        ..ANY
    },
    Rule {
        id: "latency-queue-pairs",
        variable: "NCCL_IB_QPS_PER_CONNECTION",
        when: "--railgate-profile=latency, and every rail is RoCE",
        why: "small messages take one flow anyway, and further queue pairs only cost",
        source: "NCCL src/transport/net_ib/connect.cc (default 1; both sides take the greater value)",
        nets: VERBS,
        profile: Some(LATENCY),
        value: |context| number(Some(1), context.roce()),
        ..ANY
    },
    Rule {
        id: "latency-profiler",
        variable: "NCCL_PROFILER_PLUGIN",
        when: "--railgate-profile=latency, and there would be a profiler",
        why: "timing kernels costs a collective about one microsecond inside NCCL, 5 to 6 percent of a small one",
        source: "measured: all_reduce_perf on eight H200, NCCL 2.28.3, 8 bytes to 256 KiB",
        profile: Some(LATENCY),
        value: |context| profiler(context).map(|_| "none".to_owned()),
        ..ANY
    },
    Rule {
        id: "throughput-queue-pairs",
        variable: "NCCL_IB_QPS_PER_CONNECTION",
        when: "--railgate-profile=throughput, and every rail is RoCE; not below [rails] queue_pairs",
        why: "large messages over four flows, so that ECMP can spread them. On InfiniBand nothing is set: NCCL's \
              defaults are made for throughput",
        source: "NCCL src/transport/net_ib/connect.cc (both sides take the greater value)",
        nets: VERBS,
        profile: Some(THROUGHPUT),
        value: |context| number(Some(context.config.queue_pairs.unwrap_or_default().max(4)), context.roce()),
        ..ANY
    },
    Rule {
        id: "debug-level",
        variable: "NCCL_DEBUG",
        when: "--railgate-profile=debug",
        why: "NCCL prints no warning at all unless it is asked",
        source: "NCCL src/debug.cc",
        profile: Some(DEBUG),
        value: |_| Some("WARN".to_owned()),
        ..ANY
    },
    Rule {
        id: "debug-file",
        variable: "NCCL_DEBUG_FILE",
        when: "--railgate-profile=debug, where railgate set NCCL_DEBUG and the job has a place of its own on the node",
        why: "a file for each process instead of lines in the job's output. Who asked NCCL for its log themselves finds \
              it where they look for it",
        source: "NCCL src/debug.cc (%h, %p; the directory must exist)",
        profile: Some(DEBUG),
        with: Some("NCCL_DEBUG"),
        value: debug_file,
        ..ANY
    },
];

/// Not in the table, because it depends on the result of all rules.
pub(crate) static ENV_PLUGIN: Rule = Rule {
    id: "env-plugin",
    variable: "NCCL_ENV_PLUGIN",
    when: "a value depends on NCCL's release, and [rails] env_plugin is installed",
    why: "only NCCL itself knows its release; the plugin answers with the values for it",
    source: "NCCL src/plugin/env.cc, from 2.28.7 on; older releases do not read it",
    value: |context| context.shape.env_plugin.as_ref()?.to_str().map(str::to_owned),
    ..ANY
};

fn profiler(context: &Context<'_>) -> Option<String> {
    let ours = || context.shape.profiler.as_ref()?.to_str().map(str::to_owned);
    context.config.profiler.clone().or_else(ours)
}

fn number(value: Option<u32>, when: bool) -> Option<String> {
    value.filter(|_| when).map(|value| value.to_string())
}

fn port_list(context: &Context<'_>, numbers: bool) -> Option<String> {
    let rails = &context.map.rails;
    let ports: Vec<String> = ports(context)
        .into_iter()
        .map(|place| {
            let rail = &rails[place];
            let number = if numbers { format!(":{}", rail.number) } else { String::new() };
            format!("{}:{}{number}", rail.hca, rail.port)
        })
        .collect();
    (!ports.is_empty()).then(|| format!("={}", ports.join(",")))
}

fn cross_nic(context: &Context<'_>) -> Option<String> {
    let apart = context.shape.nodes != Some(1) && context.part_of_the_node();
    let value = context.config.cross_nic.filter(|value| !(*value == 0 && apart));
    number(value, context.map.rails.len() > 1)
}

fn adaptive_routing(context: &Context<'_>) -> Option<String> {
    match context.config.adaptive_routing? {
        true => context.roce().then(|| "1".to_owned()),
        false => context.infiniband().then(|| "0".to_owned()),
    }
}

fn split_ports(context: &Context<'_>) -> Option<String> {
    let rails = &context.map.rails;
    let shared = |place: usize| {
        card(&rails[place]).is_some() && rails[..place].iter().any(|other| card(other) == card(&rails[place]))
    };
    (context.config.split_ports && (0..rails.len()).any(shared)).then(|| "LOC".to_owned())
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
    // If an interface has no address, NCCL finds no interface and fails.
    let usable = interface.len() > 1 && host.addresses.iter().any(|(name, _)| name == interface);
    usable.then(|| format!("={interface}"))
}

/// Below the ephemeral ports, and without NCCL's default 28028.
const RAS_PORTS: std::ops::Range<u32> = 20_000..28_000;

fn ras_port(context: &Context<'_>) -> Option<String> {
    let span = RAS_PORTS.end - RAS_PORTS.start;
    context.config.ras.then(|| format!("localhost:{}", RAS_PORTS.start + context.shape.job_id % span))
}

/// Beginnings of the names of the flight recorder's pipes and files, in the job's place on the node.
const RECORDER_PIPE: &str = "fr-";
/// See [`RECORDER_PIPE`].
const RECORDER_DUMP: &str = "fr-dump-";

fn recorder_file(context: &Context<'_>, name: &str) -> Option<String> {
    let dir =
        context.shape.user_dir.to_str().filter(|dir| !dir.is_empty() && context.config.flight_recorder)?;
    Some(format!("{}/{name}", dir.trim_end_matches('/')))
}

/// Without a directory of its own, the job keeps the lines in its output.
fn debug_file(context: &Context<'_>) -> Option<String> {
    let dir = context.shape.user_dir.to_str().filter(|dir| !dir.is_empty())?;
    Some(format!("{}/nccl.%h.%p", dir.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BUILT_IN, name_ok};

    #[test]
    fn every_row_of_the_table_is_complete() {
        let mut ids: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), RULES.len());
        for rule in RULES.iter().chain([&ENV_PLUGIN]) {
            assert!(name_ok(rule.variable) && !rule.why.is_empty() && !rule.source.is_empty(), "{rule:?}");
            assert!(rule.profile.is_none_or(|name| BUILT_IN.contains(&name)), "{rule:?}");
            let about_verbs = rule.variable.starts_with("NCCL_IB_");
            assert!(!about_verbs || !rule.nets.is_empty(), "{rule:?}: for every plugin?");
        }
    }
}

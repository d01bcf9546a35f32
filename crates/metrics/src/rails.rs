use railgate_model::{Port, PortState, RailMap, Reading, Snapshot};

use super::page::{Kind, Metric, Series, count, flag, page};

/// A node's RDMA ports at one moment.
#[derive(Clone, Debug)]
pub struct RailState {
    /// Snapshot of the check run, of which only the fabric is read.
    pub snapshot: Snapshot,
    /// Ports that are rails, with their numbers.
    pub rails: Option<RailMap>,
}

/// Contents of `railgate-rails.prom`.
pub fn rail_page(state: &RailState) -> String {
    page(RAIL_METRICS, state, &[])
}

/// Counters of bad links, lost packets and congestion. The kernel has many more, and each would be one series
/// per port of every node.
const TROUBLE: &[&str] = &[
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "np_cnp_sent",
    "rp_cnp_handled",
];

fn each_port(state: &RailState, mut put: impl FnMut(&Port, &[&str])) {
    for hca in state.snapshot.fabric.data().map_or(&[][..], |fabric| &fabric.hcas) {
        for port in &hca.ports {
            let rail = state.rails.as_ref().and_then(|map| {
                map.rails.iter().find(|rail| rail.hca == hca.name && rail.port == port.number)
            });
            let rail = rail.map(|rail| rail.number.to_string()).unwrap_or_default();
            put(port, &[&rail, &hca.name, &port.number.to_string()]);
        }
    }
}

fn counter(state: &RailState, series: &mut Series, name: &str, by: u64) {
    each_port(state, |port, labels| {
        let value = port.counters.get(name).unwrap_or(&Reading::Unsupported);
        series.put_known(labels, value, |value: u64| count(value) * count(by));
    });
}

const PORT: &[&str] = &["rail", "hca", "port"];

/// The rows of `railgate-rails.prom`.
pub const RAIL_METRICS: &[Metric<RailState>] = &[
    Metric {
        name: "railgate_rail_up",
        kind: Kind::Gauge,
        labels: PORT,
        help: "1 if the port is active. `rail` is empty for a port that is not a rail.",
        read: |state, series| {
            each_port(state, |port, labels| {
                if let Some(active) = port.state.known().map(|state| *state == PortState::Active) {
                    series.put(labels, flag(active));
                }
            });
        },
    },
    Metric {
        name: "railgate_rail_speed_bytes",
        kind: Kind::Gauge,
        labels: PORT,
        help: "Speed of the port in one direction, bytes per second.",
        read: |state, series| {
            each_port(state, |port, labels| {
                series.put_known(labels, &port.rate_gbps, |gbps: f64| gbps * 1e9 / 8.0);
            });
        },
    },
    Metric {
        name: "railgate_rail_transmit_bytes_total",
        kind: Kind::Counter,
        labels: PORT,
        help: "Bytes sent (`port_xmit_data` times four).",
        read: |state, series| counter(state, series, "port_xmit_data", 4),
    },
    Metric {
        name: "railgate_rail_receive_bytes_total",
        kind: Kind::Counter,
        labels: PORT,
        help: "Bytes received (`port_rcv_data` times four).",
        read: |state, series| counter(state, series, "port_rcv_data", 4),
    },
    Metric {
        name: "railgate_rail_link_downed_total",
        kind: Kind::Counter,
        labels: PORT,
        help: "Number of times the link went down.",
        read: |state, series| counter(state, series, "link_downed", 1),
    },
    Metric {
        name: "railgate_rail_transmit_wait_ticks_total",
        kind: Kind::Counter,
        labels: PORT,
        help: "Ticks of the port with data to send and no credits (`port_xmit_wait`): compare rails with each other.",
        read: |state, series| counter(state, series, "port_xmit_wait", 1),
    },
    Metric {
        name: "railgate_rail_errors_total",
        kind: Kind::Counter,
        labels: &["rail", "hca", "port", "counter"],
        help: "The kernel's counters of bad links, lost packets and congestion, by their names.",
        read: |state, series| {
            each_port(state, |port, labels| {
                for name in TROUBLE {
                    if let Some(value) = port.counters.get(*name) {
                        series.put_known(&[labels, &[name]].concat(), value, count);
                    }
                }
            });
        },
    },
];

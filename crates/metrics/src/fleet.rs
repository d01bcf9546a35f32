use std::collections::BTreeMap;

use super::page::{Kind, Metric, Series, count, page};

/// Lower and upper bound.
pub type Between = (f64, f64);

/// The fleet after a reading of all sources. `None`: not known yet, or nothing to divide by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetNow {
    /// Open incidents by kind of their reason, for example `leaf-switch`.
    pub incidents: BTreeMap<String, u64>,
    /// Nodes that fail more often than the fleet.
    pub lemons: u64,
    /// Nodes that take no jobs.
    pub out_of_service: u64,
    /// Faults by cause: those that count against a node, and those set aside.
    pub faults: BTreeMap<String, (u64, u64)>,
    /// GPU-seconds lost, by cause.
    pub lost_gpu_s: BTreeMap<String, Between>,
    /// Productive time of all jobs over their wall-clock time.
    pub ettr: Option<Between>,
    /// Productive GPU time over GPU time of jobs.
    pub goodput: Option<Between>,
    /// Unix time of the last reading in which all sources answered, seconds.
    pub complete_s: Option<f64>,
    /// Events taken in since the program started.
    pub events: u64,
}

/// Contents of `railgate-fleet.prom`.
pub fn fleet_page(fleet: &FleetNow) -> String {
    page(FLEET_METRICS, fleet, &[])
}

fn bounds(series: &mut Series, labels: &[&str], between: Option<Between>) {
    if let Some((lower, upper)) = between {
        series.put(&[labels, &["lower"]].concat(), lower);
        series.put(&[labels, &["upper"]].concat(), upper);
    }
}

/// The rows of `railgate-fleet.prom`.
pub const FLEET_METRICS: &[Metric<FleetNow>] = &[
    Metric {
        name: "railgate_fleet_open_incidents",
        kind: Kind::Gauge,
        labels: &["kind"],
        help: "Incidents that have not ended, by what the failed nodes share: leaf-switch, rail, pdu, rack, cooling-row, file-server, driver-version, image, job, user.",
        read: |fleet, series| {
            for (kind, number) in &fleet.incidents {
                series.put(&[kind], count(*number));
            }
        },
    },
    Metric {
        name: "railgate_fleet_lemons",
        kind: Kind::Gauge,
        labels: &[],
        help: "Nodes that fail more often than the fleet.",
        read: |fleet, series| series.put(&[], count(fleet.lemons)),
    },
    Metric {
        name: "railgate_fleet_nodes_out_of_service",
        kind: Kind::Gauge,
        labels: &[],
        help: "Nodes that take no jobs now.",
        read: |fleet, series| series.put(&[], count(fleet.out_of_service)),
    },
    Metric {
        name: "railgate_fleet_faults",
        kind: Kind::Gauge,
        labels: &["cause", "counts"],
        help: "Faults of nodes in the history, by cause. counts: true if they count against their nodes, false if they are set aside. A gauge: faults that `[fleet] retention_days` removes are no longer in it.",
        read: |fleet, series| {
            for (cause, (counted, aside)) in &fleet.faults {
                series.put(&[cause, "true"], count(*counted));
                series.put(&[cause, "false"], count(*aside));
            }
        },
    },
    Metric {
        name: "railgate_fleet_lost_gpu_seconds",
        kind: Kind::Gauge,
        labels: &["why", "bound"],
        help: "GPU-seconds (a GPU-hour has 3600) that ended attempts in the history lost, by cause: lower and upper bound.",
        read: |fleet, series| {
            for (why, lost) in &fleet.lost_gpu_s {
                bounds(series, &[why], Some(*lost));
            }
        },
    },
    Metric {
        name: "railgate_fleet_ettr_ratio",
        kind: Kind::Gauge,
        labels: &["bound"],
        help: "Productive time over wall-clock time of all jobs in the history, the wait in the queue included: lower and upper bound.",
        read: |fleet, series| bounds(series, &[], fleet.ettr),
    },
    Metric {
        name: "railgate_fleet_goodput_ratio",
        kind: Kind::Gauge,
        labels: &["bound"],
        help: "Productive GPU time over the GPU time of all jobs in the history: lower and upper bound.",
        read: |fleet, series| bounds(series, &[], fleet.goodput),
    },
    Metric {
        name: "railgate_fleet_complete_timestamp_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Last reading in which all sources answered, Unix time. Absent until there is one.",
        read: |fleet, series| series.put_some(&[], fleet.complete_s),
    },
    Metric {
        name: "railgate_fleet_events_total",
        kind: Kind::Counter,
        labels: &[],
        help: "New events taken in since railgate-fleet started.",
        read: |fleet, series| series.put(&[], count(fleet.events)),
    },
];

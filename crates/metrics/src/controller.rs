use std::collections::BTreeMap;

use super::page::{Kind, Metric, count, page};

/// Number of the controller's decisions about jobs, by (decision, check).
pub type Decisions = BTreeMap<(String, String), u64>;

/// Contents of `railgate-controller.prom`.
pub fn controller_page(decisions: &Decisions) -> String {
    page(CONTROLLER_METRICS, decisions, &[])
}

/// The rows of `railgate-controller.prom`.
pub const CONTROLLER_METRICS: &[Metric<Decisions>] = &[Metric {
    name: "railgate_job_decisions_total",
    kind: Kind::Counter,
    labels: &["event", "check"],
    help: "Jobs on bad nodes, by outcome: requeued (by railgate), moved (the gate refused the node before the start), held, left (ended, without consent or evidence for a restart), node-fail (Slurm requeued it when the node died), by-others, restarted (by `railgate launch` inside the allocation, self-reported by its owner; once for each attempt). `check` is empty if no check caused it.",
    read: |decisions, series| {
        for ((event, check), times) in decisions {
            series.put(&[event, check], count(*times));
        }
    },
}];

use std::collections::BTreeMap;

use super::page::{Kind, Metric, count, page};

/// What became of jobs, on the controller: how often, by what happened and the check that it is about.
pub type Decisions = BTreeMap<(String, String), u64>;

/// Everything in `railgate-controller.prom`.
pub fn controller_page(decisions: &Decisions) -> String {
    page(CONTROLLER_METRICS, decisions, &[])
}

/// The rows of `railgate-controller.prom`.
pub const CONTROLLER_METRICS: &[Metric<Decisions>] = &[Metric {
    name: "railgate_job_decisions_total",
    kind: Kind::Counter,
    labels: &["event", "check"],
    help: "Jobs on bad nodes, by outcome: requeued (by railgate), moved (the gate refused the node before the start), held, left (ended, without consent or evidence for a restart), node-fail (Slurm put it back when the node died), by-others. `check` is empty if no check caused it.",
    read: |decisions, series| {
        for ((event, check), times) in decisions {
            series.put(&[event, check], count(*times));
        }
    },
}];

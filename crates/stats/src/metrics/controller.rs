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
    help: "What became of jobs that met a bad node: requeued (by railgate), moved (the gate refused the node before the start), held, left (ended, for want of consent or evidence), node-fail (Slurm put it back when the node died), by-others. `check` is empty where no check is to blame.",
    read: |decisions, series| {
        for ((event, check), times) in decisions {
            series.put(&[event, check], count(*times));
        }
    },
}];

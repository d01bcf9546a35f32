//! Metrics for operators: files for the textfile collector of Prometheus' node_exporter.
//!
//! One table row is one metric: its name, its meaning and the source of its value. `docs/metrics.md` is
//! generated from the tables. Unknown values have no sample, never a zero.
//!
//! The collector refuses a series that occurs in two files, so each series is in one file: `railgate.prom` has
//! the gate and the health of GPUs and HCAs, `railgate-rails.prom` the ports (they are not split between jobs,
//! so every writer writes the same), `railgate-job-<id>.prom` the GPUs of a job, and on the controller only
//! `railgate-controller.prom` the decisions about jobs, and `railgate-fleet.prom` the figures of the whole fleet.

mod config;
mod controller;
mod fleet;
mod job;
mod job_file;
mod node;
mod page;
mod place;
mod private;
mod rails;
#[cfg(test)]
mod tests;
mod work;

pub use config::MetricsConfig;
pub use controller::{CONTROLLER_METRICS, Decisions, controller_page};
pub use fleet::{Between, FLEET_METRICS, FleetNow, fleet_page};
pub use job::{GpuNow, HangNow, JOB_METRICS, JobLabel, JobNow, job_page};
pub use job_file::JobFile;
pub use node::{CheckCounts, NODE_METRICS, NodeState, OpenFinding, node_page};
pub use page::{Kind, Metric, Series};
pub use place::{CONTROLLER_FILE, FLEET_FILE, NODE_FILE, RAILS_FILE, TextfileDir, job_file};
pub use private::{PRIVATE_DATA, shown};
pub use rails::{RAIL_METRICS, RailState, rail_page};
pub use work::{CollectiveNow, WorkNow};

/// Generates `docs/metrics.md`.
pub fn metrics_markdown() -> String {
    let mut text = String::from(include_str!("head.md"));
    for (title, file, table) in [
        ("The node", NODE_FILE, page::rows(NODE_METRICS)),
        ("Rails", RAILS_FILE, page::rows(RAIL_METRICS)),
        ("Jobs", "railgate-job-<id>.prom", page::rows(JOB_METRICS)),
        ("The controller", CONTROLLER_FILE, page::rows(CONTROLLER_METRICS)),
        ("The fleet", FLEET_FILE, page::rows(FLEET_METRICS)),
    ] {
        text.push_str(&format!(
            "\n## {title}\n`{file}`\n\n| metric | type | labels | what |\n|---|---|---|---|\n{table}"
        ));
    }
    text
}

use std::path::PathBuf;
use std::time::Duration;

use railgate_node_report::SlurmView;
use railgate_store::{Query, ReportConfig, load_job};

use crate::JobReport;

/// Time limit for interactive readers, in multiples of `[report] deadline`: enough for the largest job and a
/// slow file server.
const PATIENT: u32 = 12;

/// A job's report from the shared directory and the local one of this machine, for a person who may read it: with the first
/// error of the job's logs, where the caller is the job's owner or root.
///
/// `expand` turns a node list into names. `dirs` replaces the configured directories unless it is empty.
pub fn load(
    config: &ReportConfig,
    dirs: &[PathBuf],
    cluster: Option<&str>,
    job: u32,
    uid: Option<u32>,
    slurm: Option<SlurmView>,
    expand: &dyn Fn(&str) -> Option<Vec<String>>,
) -> JobReport {
    let query = Query { cluster, job, uid, known: None, logs: true };
    load_known(config, dirs, &query, config.deadline * PATIENT, slurm, expand)
}

/// As [`load`], with the known nodes of an attempt. `deadline` is for each directory of each component.
pub fn load_known(
    config: &ReportConfig,
    dirs: &[PathBuf],
    query: &Query<'_>,
    deadline: Duration,
    slurm: Option<SlurmView>,
    expand: &dyn Fn(&str) -> Option<Vec<String>>,
) -> JobReport {
    let (job, parts) = load_job(config, dirs, query, deadline);
    let named = parts.nodes.first().map(|node| node.cluster.clone());
    let cluster = query.cluster.map(str::to_owned).or(named).unwrap_or_default();
    JobReport::merge(&cluster, job, parts, slurm, expand, config)
}

//! Summarizes a job's report in one line, in a child with bounded memory and time: users can write the node reports.

use std::path::PathBuf;
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use railgate_child::{Task, ask};
use railgate_node_report::SlurmView;
use railgate_report::{JobReport, load_known, summary};
use railgate_slurm::hostlist;
use railgate_store::{Query, ReportConfig};
use serde::{Deserialize, Serialize};

const NAME: &str = "sum-up-report";
pub(crate) const TASK: Task = Task::new(NAME, task);

/// Limit of the address space, to which an amount per node is added: twice the need of a node report with eight GPUs.
const MEMORY: u64 = 160 << 20;
const MEMORY_PER_NODE: u64 = 1 << 20;
const MOST_MEMORY: u64 = 2 << 30;
/// Time limit for merging the reports after reading.
const MERGE: Duration = Duration::from_secs(5);
/// Longest line of a summary, bytes.
const MOST_LINE: usize = 2048;

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    config: ReportConfig,
    cluster: Option<String>,
    dirs: Vec<PathBuf>,
    job: u32,
    uid: u32,
    attempt: u32,
    nodes: Vec<String>,
    time: Duration,
    view: Option<SlurmView>,
}

/// Identifies a job's report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Of<'a> {
    /// The cluster's name, if known.
    pub(crate) cluster: Option<&'a str>,
    /// Directories with reports of the job; empty: all directories of the configuration.
    pub(crate) dirs: &'a [PathBuf],
    /// The job.
    pub(crate) job: u32,
    /// Its owner.
    pub(crate) uid: u32,
    /// Its last attempt.
    pub(crate) attempt: u32,
    /// The nodes of that attempt.
    pub(crate) nodelist: &'a str,
}

/// Result of the child.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Summed {
    /// Whether every node of the last attempt has written its final report.
    pub(crate) whole: bool,
    /// `None` if the report adds nothing to what Slurm shows.
    pub(crate) line: Option<String>,
}

/// Reads and summarizes the report of a job whose last attempt ran on the nodes of `nodelist`.
///
/// # Errors
/// The report could not be read within the limits.
pub(crate) fn summed(config: &ReportConfig, of: &Of<'_>, view: Option<SlurmView>) -> Result<Summed, String> {
    let nodes = hostlist::expand(of.nodelist).map_err(|why| why.to_string())?;
    let time = config.time_for(u32::try_from(nodes.len()).unwrap_or(u32::MAX));
    let order = Order {
        config: config.clone(),
        cluster: of.cluster.map(str::to_owned),
        dirs: of.dirs.to_vec(),
        job: of.job,
        uid: of.uid,
        attempt: of.attempt,
        nodes,
        time,
        view,
    };
    let input = serde_json::to_vec(&order).map_err(|why| why.to_string())?;
    let reply = ask(NAME, &input, order.time + MERGE)?;
    let summed: Summed = serde_json::from_slice(&reply).map_err(|why| format!("answer: {why}"))?;
    if summed
        .line
        .as_ref()
        .is_some_and(|line| line.len() > MOST_LINE || !line.chars().all(railgate_text::is_printable))
    {
        return Err("the summary exceeds its limits".to_owned());
    }
    Ok(summed)
}

fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: Order = serde_json::from_slice(input).map_err(|why| format!("order: {why}"))?;
    let nodes = u64::try_from(order.nodes.len()).unwrap_or(u64::MAX);
    let memory = nodes.saturating_mul(MEMORY_PER_NODE).saturating_add(MEMORY).min(MOST_MEMORY);
    let _ = setrlimit(Resource::RLIMIT_AS, memory, memory);
    let query = Query {
        cluster: order.cluster.as_deref(),
        job: order.job,
        uid: Some(order.uid),
        known: Some((order.attempt, &order.nodes)),
        // Accounting is read by others than the job's owner.
        logs: false,
    };
    let expand = |list: &str| hostlist::expand(list).ok();
    let report = load_known(&order.config, &order.dirs, &query, order.time, order.view, &expand);
    let summed = Summed { whole: whole(&report), line: summary(&report) };
    serde_json::to_vec(&summed).map_err(|why| why.to_string())
}

/// Whether every node of the last attempt has written its final report.
fn whole(report: &JobReport) -> bool {
    report.attempts.last().is_some_and(|attempt| {
        attempt.silent_nodes.is_empty() && attempt.nodes.iter().all(|node| node.end.is_some())
    })
}

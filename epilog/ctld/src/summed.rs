//! A job's report reduced to one line, in a child whose memory and time are bounded: its parts are the user's.

use std::path::PathBuf;
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use railgate_child::{Task, ask};
use railgate_slurm::hostlist;
use railgate_stats::store::{Query, load_known};
use railgate_stats::{JobReport, ReportConfig, SlurmView, summary};
use serde::{Deserialize, Serialize};

const NAME: &str = "sum-up-report";
pub(crate) const TASK: Task = Task::new(NAME, task);

/// Address space, and more for each node: what a part of eight GPUs takes, twice.
const MEMORY: u64 = 160 << 20;
const MEMORY_PER_NODE: u64 = 1 << 20;
const MOST_MEMORY: u64 = 2 << 30;
/// To merge what was read.
const MERGE: Duration = Duration::from_secs(5);
/// Longer than any line that is made of a report, bytes.
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

/// Whose report, and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Of<'a> {
    /// The cluster's name, where it is known.
    pub(crate) cluster: Option<&'a str>,
    /// The directories that have reports of the job; empty: all that the configuration names.
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

/// What is to be known of a job's report.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Summed {
    /// Every node of the last attempt has written its last word.
    pub(crate) whole: bool,
    /// `None` where the report says nothing that Slurm does not know.
    pub(crate) line: Option<String>,
}

/// Reads and sums up the report of a job whose last attempt ran on the nodes of `nodelist`.
///
/// # Errors
/// It could not be read within its bounds.
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
        return Err("the summary breaks its bounds".to_owned());
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
    };
    let expand = |list: &str| hostlist::expand(list).ok();
    let report = load_known(&order.config, &order.dirs, &query, order.time, order.view, &expand);
    let summed = Summed { whole: whole(&report), line: summary(&report) };
    serde_json::to_vec(&summed).map_err(|why| why.to_string())
}

/// Every node of the last attempt has written its last word.
fn whole(report: &JobReport) -> bool {
    report.attempts.last().is_some_and(|attempt| {
        attempt.silent_nodes.is_empty() && attempt.nodes.iter().all(|node| node.end.is_some())
    })
}

//! What the ranks of a hung job do, taken once for each hang and kept beside the report for the job's owner.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use railgate_child::Task;
use railgate_node_report::stacks::{GpuState, Recorded};
use railgate_node_report::{JobStacks, NodeReport, REPORT_SCHEMA};
use railgate_rundir::Root;
use railgate_runner::{Loaded, Places, node_name};
use railgate_stacks::{Order as Stacks, RasOrder, RecorderOrder, Target, ask_ras, collect, read_recorder};
use railgate_store::store_stacks;
use serde::{Deserialize, Serialize};

use crate::run::{Mine, PROC};

const TAKE: &str = "hang-stacks";
/// A task in a child: the stacks of many ranks need more memory than a sampler has, and file servers may hang.
pub(crate) const TASK: Task = Task::new(TAKE, task).tracing();
/// For reading all processes, and for the child that also stores them.
const READING: Duration = Duration::from_secs(20);
const DEADLINE: Duration = Duration::from_secs(90);

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    /// Directory of all runs.
    runs: PathBuf,
    job: u32,
    targets: Vec<Target>,
    /// NCCL's RAS is asked as well.
    ras: bool,
    gpus: Vec<GpuState>,
}

/// Takes stacks, in a thread that sleeps while its children work.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    taking: Option<JoinHandle<()>>,
}

impl Evidence {
    /// Takes the stacks of these processes, unless that is still going on, and keeps them with the state of the GPUs. `ras`: this
    /// node asks NCCL's RAS for the whole job.
    pub(crate) fn take(&mut self, mine: &Mine, targets: Vec<Target>, gpus: Vec<GpuState>, ras: bool) {
        // No user could be become for a job of root's.
        if self.taking.as_ref().is_some_and(|taking| !taking.is_finished()) || mine.report.job.uid == 0 {
            return;
        }
        let order = Order { runs: mine.run_places().to_owned(), job: mine.job, targets, ras, gpus };
        let take = move || {
            let taken = serde_json::to_vec(&order)
                .map_err(|why| why.to_string())
                .and_then(|order| railgate_child::ask(TAKE, &order, DEADLINE));
            if let Err(why) = taken {
                tracing::info!(job = order.job, "sampler: the stacks of the ranks are not known: {why}");
            }
        };
        self.taking = std::thread::Builder::new().stack_size(256 << 10).spawn(take).ok();
    }
}

fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: Order = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let places = Places::default();
    let config = Loaded::read(&places.config(), false, &node_name()).map_err(|why| why.to_string())?.config;
    let run = Root::new(&order.runs).job(order.job).current(order.job).map_err(|why| why.to_string())?;
    let report: NodeReport = run.read_json("report.json").map_err(|why| format!("report.json: {why}"))?;
    let wanted = Stacks {
        proc: PROC.into(),
        job: order.job,
        uid: report.job.uid,
        gid: report.job.gid,
        targets: order.targets,
    };
    let mut stacks = JobStacks {
        schema: REPORT_SCHEMA,
        cluster: report.cluster.clone(),
        job: report.job.id,
        attempt: report.attempt,
        node: report.node.clone(),
        stacks: railgate_stacks::Stacks { gpus: order.gpus, ..collect(&wanted, READING) },
    };
    // Stored first: the others may take half a minute, and the job may be ended meanwhile.
    store_stacks(&config.report, &report, &stacks)?;
    let of_job = (report.job.uid, report.job.gid);
    stacks.stacks.ras = if order.ras { ras(&report, of_job) } else { Vec::new() };
    stacks.stacks.recorded = recorded(&report, of_job, &wanted.targets);
    if stacks.stacks.ras.is_empty() && stacks.stacks.recorded.is_empty() {
        return Ok(Vec::new());
    }
    stacks.stacks = stacks.stacks.bounded();
    store_stacks(&config.report, &report, &stacks).map(|()| Vec::new())
}

/// The value that railgate gave a variable of the job.
fn setting<'a>(report: &'a NodeReport, name: &str) -> Option<&'a str> {
    report.settings.iter().rev().find(|setting| setting.name == name).map(|setting| setting.value.as_str())
}

/// Only the port that railgate gave the job: on another one another job may answer.
fn ras(report: &NodeReport, (uid, gid): (u32, u32)) -> Vec<String> {
    let port = setting(report, "NCCL_RAS_ADDR").and_then(|address| address.rsplit(':').next()?.parse().ok());
    port.map(|port| ask_ras(&RasOrder { proc: PROC.into(), port, uid, gid })).unwrap_or_default()
}

fn recorded(report: &NodeReport, (uid, gid): (u32, u32), targets: &[Target]) -> Vec<Recorded> {
    let armed =
        setting(report, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE").zip(setting(report, "TORCH_FR_DUMP_TEMP_FILE"));
    let Some((pipe, dump)) = armed else { return Vec::new() };
    let ranks: BTreeSet<u32> = targets.iter().map(|target| target.rank).collect();
    let ranks = ranks.into_iter().collect();
    let order = RecorderOrder { pipe: pipe.into(), dump: dump.into(), uid, gid, ranks };
    let found = read_recorder(&order);
    if let Err(why) = &found {
        tracing::info!(job = report.job.id, "sampler: the flight recorder is not read: {why}");
    }
    found.unwrap_or_default()
}

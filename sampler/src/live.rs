use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use railgate_child::{Task, become_user};
use railgate_node_report::comm::refer;
use railgate_node_report::usage::moment;
use railgate_node_report::{Application, Communication, Launched, NodeReport, Tasks, applied};
use railgate_rundir::Root;
use railgate_runner::{
    Loaded, Places, SAMPLER_FILES, SAMPLER_HANGS, SAMPLER_PAUSES, SAMPLER_TASKS, SAMPLER_WAIT, application,
    communication, gpu_figures, launched, node_name, now,
};
use railgate_store::store_live;

use crate::run::Mine;

const LIVE: &str = "live-part";
const TOLD: &str = "live-told";
/// Tasks in a child: summing up a day needs more memory than a sampler has, and file servers may hang.
pub(crate) const TASKS: [Task; 2] = [Task::new(LIVE, task), Task::new(TOLD, told)];
/// Reading and writing the files of the job have shorter deadlines of their own.
const DEADLINE: Duration = Duration::from_secs(90);
/// More than the deadlines of its three readers together.
const TOLD_DEADLINE: Duration = Duration::from_secs(30);
/// The first report comes early, so that users need not wait for the whole interval.
const FIRST: Duration = Duration::from_secs(20);

/// Reports of the program, of NCCL's plugin and of `railgate launch`.
type Said = (Option<Application>, Option<Communication>, Option<Launched>);

/// Writes partial reports to the report directory. A thread sleeps in `poll` while its child works, so the
/// sampler never waits for it.
#[derive(Debug)]
pub(crate) struct Live {
    interval: Duration,
    wait: Duration,
    last: Instant,
    work: Option<JoinHandle<()>>,
}

impl Live {
    pub(crate) fn new(mine: &Mine) -> Self {
        let interval = mine.config.report.live;
        Live { interval, wait: interval.min(FIRST), last: Instant::now(), work: None }
    }

    /// Writes the next partial report at once.
    pub(crate) fn soon(&mut self) {
        self.wait = Duration::ZERO;
    }

    pub(crate) fn say_if_due(&mut self, mine: &Mine) {
        let busy = self.work.as_ref().is_some_and(|work| !work.is_finished());
        if self.interval.is_zero() || busy || self.last.elapsed() < self.wait {
            return;
        }
        (self.last, self.wait) =
            (Instant::now(), (self.wait * 2).clamp(self.interval.min(FIRST), self.interval));
        let order = (mine.run_places().to_owned(), mine.job);
        let work = std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
            let said = serde_json::to_vec(&order)
                .map_err(|why| why.to_string())
                .and_then(|order| railgate_child::ask(LIVE, &order, DEADLINE));
            if let Err(why) = said {
                tracing::info!(job = order.1, "sampler: the partial report could not be written: {why}");
            }
        });
        self.work = work.ok();
    }
}

/// Runs as the job's user, who owns these files, with few of root's privileges left.
fn told(input: &[u8]) -> Result<Vec<u8>, String> {
    let (root, job, uid, gid): (PathBuf, u32, u32, u32) =
        serde_json::from_slice(input).map_err(|why| why.to_string())?;
    if uid != 0 {
        become_user(uid, gid, &[]).map_err(|why| why.to_string())?;
    }
    let said: Said =
        (application(&root, job, uid), communication(&root, job, uid)?, launched(&root, job, uid));
    serde_json::to_vec(&said).map_err(|why| why.to_string())
}

fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let (root, job): (PathBuf, u32) = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let places = Places::default();
    let config = Loaded::read(&places.config(), false, &node_name()).map_err(|why| why.to_string())?.config;
    let run = Root::new(&root).job(job).current(job).map_err(|why| why.to_string())?;
    let mut report: NodeReport = run.read_json("report.json").map_err(|why| format!("report.json: {why}"))?;
    let order =
        serde_json::to_vec(&(&root, job, report.job.uid, report.job.gid)).map_err(|why| why.to_string())?;
    let said: Said = railgate_child::ask(TOLD, &order, TOLD_DEADLINE)
        .and_then(|said| serde_json::from_slice(&said).map_err(|why| why.to_string()))?;
    (report.application, report.communication, report.launched) = said;
    report.communication.iter_mut().for_each(|told| refer(told, &config.stats.references));
    if let Some(told) = &mut report.communication {
        told.pauses = run.read_json(SAMPLER_PAUSES).ok();
    }
    report.hangs = run.read_json(SAMPLER_HANGS).ok();
    report.wait = run.read_json(SAMPLER_WAIT).ok();
    let tasks: Option<Tasks> = run.read_json(SAMPLER_TASKS).ok();
    if let Some(tasks) = &tasks {
        report.applied = applied(&report, tasks);
    }
    report.tasks = tasks;
    let files: Vec<Vec<u8>> = SAMPLER_FILES.iter().filter_map(|name| run.read(name).ok()).collect();
    let streams: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
    let boot_s =
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0.0, |time| Duration::from(time).as_secs_f64());
    let end = moment(&streams, &report.boot_id, boot_s).unwrap_or_else(now);
    report.add_usage(&streams, end, &gpu_figures(&places, &config));
    report.as_of = Some(now());
    store_live(&config.report, &report).map(|()| Vec::new())
}

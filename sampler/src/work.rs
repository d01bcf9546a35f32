use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use railgate_child::{Task, become_user};
use railgate_metrics::WorkNow;
use railgate_node_report::NodeReport;
use railgate_node_report::usage::GpuFigures;
use railgate_node_report::usage::format::Head;
use railgate_runner::{application, communication, now};
use serde::{Deserialize, Serialize};

use crate::run::Mine;

const WORK: &str = "job-work";
/// Task in a child that becomes the job's user, who owns the files.
pub(crate) const TASK: Task = Task::new(WORK, task);
/// Both readers have shorter deadlines of their own.
const DEADLINE: Duration = Duration::from_secs(20);
/// Interval: reading all files of a long run takes some milliseconds.
const EVERY: Duration = Duration::from_secs(60);
/// Delay of the first reading, so that a dashboard need not wait a minute.
const FIRST: Duration = Duration::from_secs(15);

/// Self-reported figures of the job for its metrics, read by a thread that the sampler does not wait for.
#[derive(Debug)]
pub(crate) struct Work {
    next: Instant,
    asked: Option<JoinHandle<Option<WorkNow>>>,
}

#[derive(Serialize, Deserialize)]
struct Order {
    run: PathBuf,
    head: Head,
    report: NodeReport,
    figures: GpuFigures,
}

impl Work {
    pub(crate) fn new() -> Self {
        Work { next: Instant::now() + FIRST.min(EVERY), asked: None }
    }

    /// Starts a reading if it is due. Returns a result if one has arrived; `Some(None)`: nothing is known.
    pub(crate) fn ask_if_due(&mut self, mine: &Mine, head: &Head) -> Option<Option<WorkNow>> {
        if self.asked.as_ref().is_some_and(JoinHandle::is_finished) {
            return self.asked.take().map(|asked| asked.join().ok().flatten());
        }
        if self.asked.is_none() && Instant::now() >= self.next {
            self.next = Instant::now() + EVERY;
            let order = Order {
                run: mine.run_places().to_owned(),
                head: head.clone(),
                report: mine.report.clone(),
                figures: mine.figures.clone(),
            };
            let thread = std::thread::Builder::new().stack_size(256 << 10);
            self.asked = thread.spawn(move || ask(&order)).ok();
        }
        None
    }
}

fn ask(order: &Order) -> Option<WorkNow> {
    let said = serde_json::to_vec(order)
        .map_err(|why| why.to_string())
        .and_then(|order| railgate_child::ask(WORK, &order, DEADLINE))
        .and_then(|said| serde_json::from_slice(&said).map_err(|why| why.to_string()));
    said.map_err(|why| {
        tracing::info!(job = order.report.job.id, "sampler: the program's reports are unknown: {why}");
    })
    .ok()
}

fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: Order = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let job = &order.report.job;
    if job.uid != 0 {
        become_user(job.uid, job.gid, &[]).map_err(|why| why.to_string())?;
    }
    let told = application(&order.run, job.id, job.uid);
    let counted = communication(&order.run, job.id, job.uid)?;
    let said = WorkNow::of(&order.report, &order.head, &order.figures, (told, counted), now());
    serde_json::to_vec(&said).map_err(|why| why.to_string())
}

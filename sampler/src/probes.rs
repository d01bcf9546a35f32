use std::time::{Duration, Instant};

use railgate_child::{Task, become_user};
use railgate_model::JobProcesses;
use railgate_node_report::{JOB_NAME, StatsConfig, Tasks};
use railgate_probe::{JobProbe, job_processes};
use railgate_runner::{SAMPLER_TASKS, now};

use crate::ends::Ends;
use crate::run::{Mine, PROC};

const LOOK: &str = "job-processes";
/// Task in a child: reading the entries of a process that hangs in the kernel can hang too.
pub(crate) const TASK: Task = Task::new(LOOK, task);
const DEADLINE: Duration = Duration::from_secs(10);

/// Probes of the job's processes: a few early ones, when the environment is set up and NCCL starts, then
/// infrequent ones.
#[derive(Debug)]
pub(crate) struct Probes {
    config: StatsConfig,
    begun: Instant,
    next: Duration,
    tasks: Tasks,
}

impl Probes {
    pub(crate) fn new(mine: &Mine) -> Self {
        let config = mine.config.stats.clone();
        Probes { next: config.task_look, begun: Instant::now(), tasks: Tasks::default(), config }
    }

    /// Time until the next probe.
    pub(crate) fn due(&self) -> Duration {
        self.next.saturating_sub(self.begun.elapsed())
    }

    pub(crate) fn probe_if_due(&mut self, mine: &Mine) {
        if self.due() > Duration::ZERO {
            return;
        }
        self.next = self.config.next_look(self.next);
        match look(mine) {
            Ok(found) => self.tasks.add(now(), found),
            Err(why) => self.tasks.failed(why),
        }
        self.write(mine);
    }

    /// Records the processes of the ranks and their ends.
    pub(crate) fn tell(&mut self, mine: &Mine, ends: &Ends) {
        let (ranks, unwatched) = ends.ranks();
        (self.tasks.ranks, self.tasks.unwatched) = (ranks.to_vec(), unwatched);
        self.write(mine);
    }

    fn write(&self, mine: &Mine) {
        if let Err(why) = mine.dir.write_json(SAMPLER_TASKS, &self.tasks) {
            tracing::info!(job = mine.job, "sampler: {SAMPLER_TASKS}: {why}");
        }
    }
}

fn look(mine: &Mine) -> Result<JobProcesses, String> {
    let job = &mine.report.job;
    let names = mine.report.settings.iter().map(|setting| setting.name.clone());
    let names = names.chain([JOB_NAME.to_owned()]).collect();
    let order = (JobProbe { job: mine.job, uid: job.uid, names }, job.gid);
    let order = serde_json::to_vec(&order).map_err(|why| why.to_string())?;
    let found = railgate_child::ask(LOOK, &order, DEADLINE)?;
    serde_json::from_slice(&found).map_err(|why| why.to_string())
}

/// Runs as the job's user, who may read everything that is probed, so that no process can trick it into reading
/// more.
fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let (order, gid): (JobProbe, u32) = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    if order.uid != 0 {
        become_user(order.uid, gid, &[]).map_err(|why| why.to_string())?;
    }
    let found = job_processes(PROC.as_ref(), &order)?;
    serde_json::to_vec(&found).map_err(|why| why.to_string())
}

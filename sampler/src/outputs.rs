use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use railgate_child::{Task, become_user};
use railgate_model::JobOutputs;
use railgate_probe::{MOST_OUTPUTS, job_outputs};
use railgate_runner::SAMPLER_OUTPUTS;
use serde::{Deserialize, Serialize};

use crate::run::{Mine, PROC};

const LOOK: &str = "job-outputs";
/// Task in a child: a file system of the job's may not answer.
pub(crate) const TASK: Task = Task::new(LOOK, task);
const DEADLINE: Duration = Duration::from_secs(10);

/// Interval until the first file is found: a script may end within a second, and what it wrote then explains why.
const SEARCH: Duration = Duration::from_millis(500);
/// How long it is searched so often.
const EARLY: Duration = Duration::from_secs(20);
/// Interval in the first minutes, when steps start.
const OFTEN: Duration = Duration::from_secs(10);
const STARTING: Duration = Duration::from_secs(180);
/// Interval after that.
const LATER: Duration = Duration::from_secs(60);

/// Where the job's processes write. Probed by a thread that the sampler does not wait for.
#[derive(Debug)]
pub(crate) struct Outputs {
    wanted: bool,
    begun: Instant,
    next: Instant,
    asked: Option<JoinHandle<Result<JobOutputs, String>>>,
    known: JobOutputs,
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    job: u32,
    uid: u32,
    gid: u32,
}

impl Outputs {
    pub(crate) fn new(mine: &Mine) -> Self {
        let now = Instant::now();
        // The epilog reads no log of root's jobs: no user could be become for it.
        let wanted = mine.config.report.log && mine.report.job.uid != 0;
        Outputs { wanted, begun: now, next: now, asked: None, known: JobOutputs::default() }
    }

    /// Time until [`Outputs::step`] has something to do.
    pub(crate) fn due(&self) -> Duration {
        match (self.wanted, &self.asked) {
            (false, _) => Duration::MAX,
            (true, Some(_)) => SEARCH,
            (true, None) => self.next.saturating_duration_since(Instant::now()),
        }
    }

    /// Takes the result of a probe, and starts the next one if it is due.
    pub(crate) fn step(&mut self, mine: &Mine) {
        if self.asked.as_ref().is_some_and(JoinHandle::is_finished) {
            match self.asked.take().map(JoinHandle::join) {
                Some(Ok(Ok(found))) => self.add(mine, found),
                Some(Ok(Err(why))) => {
                    tracing::info!(job = mine.job, "sampler: the job's output files: {why}")
                }
                _ => {}
            }
        }
        let now = Instant::now();
        if !self.wanted || self.asked.is_some() || now < self.next {
            return;
        }
        self.next = now + interval(now.duration_since(self.begun), !self.known.files.is_empty());
        let job = &mine.report.job;
        let order = Order { job: mine.job, uid: job.uid, gid: job.gid };
        self.asked = std::thread::Builder::new().stack_size(256 << 10).spawn(move || ask(&order)).ok();
    }

    fn add(&mut self, mine: &Mine, found: JobOutputs) {
        let before = self.known.clone();
        self.known.add(found, MOST_OUTPUTS);
        if self.known == before {
            return;
        }
        if let Err(why) = mine.dir.write_json(SAMPLER_OUTPUTS, &self.known) {
            tracing::info!(job = mine.job, "sampler: {SAMPLER_OUTPUTS}: {why}");
        }
    }
}

fn interval(age: Duration, found: bool) -> Duration {
    match (age, found) {
        (age, false) if age < EARLY => SEARCH,
        (age, _) if age < STARTING => OFTEN,
        _ => LATER,
    }
}

fn ask(order: &Order) -> Result<JobOutputs, String> {
    let order = serde_json::to_vec(order).map_err(|why| why.to_string())?;
    let found = railgate_child::ask(LOOK, &order, DEADLINE)?;
    serde_json::from_slice(&found).map_err(|why| why.to_string())
}

/// Runs as the job's user, as all probes of its processes.
fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: Order = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    become_user(order.uid, order.gid, &[]).map_err(|why| why.to_string())?;
    let found = job_outputs(PROC.as_ref(), order.job, order.uid)?;
    serde_json::to_vec(&found).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_has_not_begun_is_probed_often_and_a_long_one_rarely() {
        let at = |seconds, found| interval(Duration::from_secs(seconds), found);
        assert_eq!((at(0, false), at(19, false), at(0, true)), (SEARCH, SEARCH, OFTEN));
        assert_eq!((at(60, false), at(60, true), at(3600, true)), (OFTEN, OFTEN, LATER));
    }
}

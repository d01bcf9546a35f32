use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use railgate_child::{Task, become_user};
use railgate_model::{JobOutputs, RankProcess};
use railgate_probe::{MOST_OUTPUTS, ProcessId, job_outputs};
use railgate_runner::SAMPLER_OUTPUTS;
use serde::{Deserialize, Serialize};

use crate::run::{Mine, PROC};

const LOOK: &str = "job-outputs";
/// Task in a child: a file system of the job's may not answer.
pub(crate) const TASK: Task = Task::new(LOOK, task);
const DEADLINE: Duration = Duration::from_secs(10);

/// Interval until the first file is found: a script may end within a second, and what it wrote then explains why.
const SEARCH: Duration = Duration::from_millis(500);
/// Interval until the first process of a rank is found, and after one has ended: a launcher may start the next.
const AWAITED: Duration = Duration::from_secs(2);
/// How long it is searched so often.
const EARLY: Duration = Duration::from_secs(20);
/// Interval in the first minutes, when steps start.
const OFTEN: Duration = Duration::from_secs(10);
const STARTING: Duration = Duration::from_secs(180);
/// Interval after that.
const LATER: Duration = Duration::from_secs(60);

/// Files and processes of the job.
type Found = (JobOutputs, Vec<RankProcess>);

/// Where the job's processes write, and which of them run its ranks. Probed by a thread that the sampler does not wait for.
#[derive(Debug)]
pub(crate) struct Outputs {
    /// The files are recorded.
    logs: bool,
    has_ranks: bool,
    begun: Instant,
    next: Instant,
    asked: Option<JoinHandle<Result<Found, String>>>,
    known: JobOutputs,
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    job: u32,
    uid: u32,
    gid: u32,
    programs: Vec<ProcessId>,
}

impl Outputs {
    pub(crate) fn new(mine: &Mine) -> Self {
        let now = Instant::now();
        // The epilog reads no log of root's jobs: no user could be become for it.
        let logs = mine.config.report.log && mine.report.job.uid != 0;
        Outputs { logs, has_ranks: false, begun: now, next: now, asked: None, known: JobOutputs::default() }
    }

    /// Time until [`Outputs::step`] has something to do.
    pub(crate) fn due(&self) -> Duration {
        match &self.asked {
            Some(_) => SEARCH,
            None => self.next.saturating_duration_since(Instant::now()),
        }
    }

    /// Files that the job writes to.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.known.files.iter().map(|file| PathBuf::from(&file.path)).collect()
    }

    /// The log that all ranks share, and so the job's own; without one the first that was found. `None` on a node
    /// whose tasks write to `srun`.
    pub(crate) fn log(&self) -> Option<PathBuf> {
        let shared = self.known.files.iter().find(|file| file.rank.is_none());
        shared.or(self.known.files.first()).map(|file| PathBuf::from(&file.path))
    }

    /// A process of a rank has ended: the next probe comes soon. How often processes end is the user's choice, so the interval
    /// is not shorter than in the first seconds.
    pub(crate) fn soon(&mut self) {
        self.next = self.next.min(Instant::now() + AWAITED);
    }

    /// Takes the result of a probe, and starts the next one if it is due. Returns the processes of ranks that it found.
    /// `programs`: those of them that are known to use a GPU.
    pub(crate) fn step(
        &mut self,
        mine: &Mine,
        programs: impl FnOnce() -> Vec<ProcessId>,
    ) -> Option<Vec<RankProcess>> {
        let mut ranks = None;
        if self.asked.as_ref().is_some_and(JoinHandle::is_finished) {
            match self.asked.take().map(JoinHandle::join) {
                Some(Ok(Ok((found, processes)))) => {
                    self.has_ranks |= !processes.is_empty();
                    ranks = Some(processes);
                    if self.logs {
                        self.add(mine, found);
                    }
                }
                Some(Ok(Err(why))) => {
                    tracing::info!(job = mine.job, "sampler: the job's output files: {why}")
                }
                _ => {}
            }
        }
        let now = Instant::now();
        if self.asked.is_some() || now < self.next {
            return ranks;
        }
        let has_files = !self.logs || !self.known.files.is_empty();
        self.next = now + interval(now.duration_since(self.begun), has_files, self.has_ranks);
        let job = &mine.report.job;
        let order = Order { job: mine.job, uid: job.uid, gid: job.gid, programs: programs() };
        self.asked = std::thread::Builder::new().stack_size(256 << 10).spawn(move || ask(&order)).ok();
        ranks
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

fn interval(age: Duration, has_files: bool, has_ranks: bool) -> Duration {
    match (age, has_files, has_ranks) {
        (age, false, _) if age < EARLY => SEARCH,
        (age, _, false) if age < EARLY => AWAITED,
        (age, ..) if age < STARTING => OFTEN,
        _ => LATER,
    }
}

fn ask(order: &Order) -> Result<Found, String> {
    let order = serde_json::to_vec(order).map_err(|why| why.to_string())?;
    let found = railgate_child::ask(LOOK, &order, DEADLINE)?;
    serde_json::from_slice(&found).map_err(|why| why.to_string())
}

/// Runs as the job's user, as all probes of its processes.
fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: Order = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    if order.uid != 0 {
        become_user(order.uid, order.gid, &[]).map_err(|why| why.to_string())?;
    }
    let found = job_outputs(PROC.as_ref(), order.job, order.uid, &order.programs)?;
    serde_json::to_vec(&found).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_has_not_begun_is_probed_often_and_a_long_one_rarely() {
        let at = |seconds, files, ranks| interval(Duration::from_secs(seconds), files, ranks);
        assert_eq!([at(0, false, false), at(19, false, true), at(0, true, false)], [SEARCH, SEARCH, AWAITED]);
        assert_eq!([at(0, true, true), at(60, false, false), at(60, true, true)], [OFTEN; 3]);
        assert_eq!(at(3600, true, true), LATER);
    }
}

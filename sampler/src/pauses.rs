//! Pauses of the job's ranks, found in a child that reads the counts of NCCL's profiler plugin.
//!
//! Reading them costs the job nothing: the plugin counts anyway. The files are the job's, so the child becomes its user
//! first. See `docs/decisions/0007-sampler.md`.

mod detector;
mod files;
mod standing;

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use railgate_child::{Line, Said, Stream, Task, become_user};
use railgate_guard::Counts;
use railgate_node_report::comm::Pauses;
use railgate_rundir::Root;
use railgate_runner::{SAMPLER_PAUSES, now};
use serde::{Deserialize, Serialize};

use crate::run::Mine;
use detector::{At, Detector, EVERY};
use files::Files;
use standing::Standing;

const WATCH: &str = "rank-pauses";
pub(crate) const TASK: Task = Task::stream(WATCH, task);
/// Interval of searches for new files, and in the first minutes, when ranks start: a pause in the first seconds of a training
/// counts as well.
const SEARCH: Duration = Duration::from_secs(5);
const EARLY_SEARCH: Duration = Duration::from_secs(1);
const STARTING: Duration = Duration::from_secs(180);
/// Minimum time between two messages with pauses.
const OFTEN: Duration = Duration::from_secs(2);
/// Maximum time between two messages, and maximum silence of the child.
const ALIVE: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(120);
/// Wait for the last message.
const LAST_WORD: Duration = Duration::from_millis(200);

/// Owner of the child.
#[derive(Debug)]
pub(crate) struct Pausing {
    child: Option<Stream>,
    known: Pauses,
    counts: Option<Counts>,
}

/// A message of the child. `counts`: as they are when ranks have stood still for a while, and when they move again.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Told {
    pauses: Pauses,
    counts: Option<Counts>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    /// Directory of all runs.
    runs: PathBuf,
    job: u32,
    uid: u32,
    gid: u32,
    /// What a killed sampler had found.
    before: Pauses,
}

impl Pausing {
    pub(crate) fn new(mine: &Mine) -> Self {
        let before: Pauses = mine.dir.read_json(SAMPLER_PAUSES).unwrap_or_default();
        let job = &mine.report.job;
        let order = Order {
            runs: mine.run_places().to_owned(),
            job: mine.job,
            uid: job.uid,
            gid: job.gid,
            before: before.clone().bounded(),
        };
        let child = serde_json::to_vec(&order)
            .map_err(|why| why.to_string())
            .and_then(|order| Stream::start(WATCH, &order, SILENCE).map_err(|why| why.to_string()));
        let child = child.map_err(|why| tracing::info!(job = mine.job, "sampler: child {WATCH}: {why}")).ok();
        Pausing { child, known: before, counts: None }
    }

    /// Descriptor that becomes readable when the child reports.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.child.as_ref().and_then(Stream::as_fd)
    }

    /// The ranks' counts; `None`: not known, or they do not show who waits.
    pub(crate) fn counts(&self) -> Option<&Counts> {
        self.counts.as_ref().filter(|_| self.child.is_some())
    }

    /// Writes what the child reported. A child that ended is not replaced: further pauses are unknown.
    pub(crate) fn hear(&mut self, mine: &Mine) {
        while let Some(child) = &mut self.child {
            match child.listen() {
                Said::Nothing => break,
                Said::This(text) => self.take(mine, &text),
                Said::Ended(why) => {
                    if !why.is_empty() {
                        tracing::info!(job = mine.job, "sampler: pauses of ranks are no longer known: {why}");
                    }
                    self.child = None;
                }
            }
        }
    }

    /// Requests the last message, which [`Pausing::end`] writes.
    pub(crate) fn finish(&mut self) {
        if let Some(child) = &mut self.child {
            child.finish();
        }
    }

    pub(crate) fn end(&mut self, mine: &Mine) {
        let until = Instant::now() + LAST_WORD;
        self.hear(mine);
        while self.child.is_some() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
            self.hear(mine);
        }
    }

    fn take(&mut self, mine: &Mine, text: &[u8]) {
        let Ok(Told { pauses, counts }) = serde_json::from_slice::<Told>(text) else { return };
        self.counts = counts;
        let found = pauses.bounded();
        if found == self.known {
            return;
        }
        self.known = found;
        if let Err(why) = mine.dir.write_json(SAMPLER_PAUSES, &self.known) {
            tracing::info!(job = mine.job, "sampler: {SAMPLER_PAUSES}: {why}");
        }
    }
}

fn task(line: &mut Line) -> Result<(), String> {
    let order: Order = serde_json::from_slice(line.input()).map_err(|why| format!("input: {why}"))?;
    if order.uid != 0 {
        become_user(order.uid, order.gid, &[]).map_err(|why| why.to_string())?;
    }
    let dir = Root::new(&order.runs).job(order.job).current(order.job).map_err(|why| why.to_string())?;
    let mut files = Files::new(dir, order.uid);
    let mut detector = Detector::new(order.before);
    let begun = Instant::now();
    let (mut said, mut search, mut changed) = (begun, begun, false);
    let (mut standing, mut told) = (Standing::default(), Vec::new());
    loop {
        let searches = if begun.elapsed() < STARTING { EARLY_SEARCH } else { SEARCH };
        if Instant::now() >= search {
            search = Instant::now() + searches;
            // A directory that cannot be read has no pauses. The epilog reports it.
            let _ = files.search();
        }
        if !files.is_empty() {
            let counts = files.read();
            let time = now();
            changed |= detector.add(At { clock: begun.elapsed(), time }, &counts);
            changed |= standing.add(time, &counts);
            told = counts;
        }
        let silent = said.elapsed();
        if (changed && silent >= OFTEN) || silent >= ALIVE {
            say(line, &detector, standing.told(&told))?;
            (said, changed) = (Instant::now(), false);
        }
        if !line.wait(if files.is_empty() { searches } else { EVERY }) {
            return say(line, &detector, None);
        }
    }
}

fn say(line: &mut Line, detector: &Detector, counts: Option<Counts>) -> Result<(), String> {
    let told = Told { pauses: detector.found.clone(), counts };
    let told = serde_json::to_vec(&told).map_err(|why| why.to_string())?;
    line.say(&told).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests;

//! Finds out, while a job runs, that some of its ranks wait for one that does not come.
//!
//! The guard is given one [`NodeSample`] for each sample of the node's GPUs. A GPU that waits in a collective runs kernels all the
//! time and does nothing else, so a wait is visible at once. Whether it will end is not visible. The guard therefore calls a wait a hang
//! only with one of these:
//!
//! - a proof: the process of a rank has ended, and the others have waited since;
//! - two independent signs for [`GuardConfig::after`]: GPUs that wait, and a rank that is stopped, sleeps without transferring
//!   anything, or has enqueued fewer operations than all others, or a GPU of the job that reported an error (Xid).
//!
//! A rank that computes (an evaluation, a compilation), transfers data (a save) or waits for requests (a server) is no hang,
//! however long it takes. The reasons are in `docs/decisions/0011-the-guard.md`.

mod config;
mod judge;
mod nodes;
mod rests;
mod sample;
#[cfg(test)]
mod tests;

use std::time::Duration;

use railgate_model::UnixMillis;
use railgate_node_report::phases::GpuActivity;
use railgate_node_report::{Hang, HangAct, HangKind, Hangs, MOST_AT_REST, NodeWait};

pub use config::{GuardConfig, GuardMode};
pub use nodes::judge_nodes;
pub use sample::{Counts, CountsOf, NodeSample, RankOps, RankSample, RankState, SampledError};

use judge::{
    at_rest, culprit, errors_of, failed_gpus, is_of_storage, is_refuted, judge, polling_stragglers,
    waiting_gpus,
};
use rests::Rests;

/// Work on the GPUs after which a job has begun to work, seconds. Before that, waiting belongs to the start-up, and only a
/// proof counts.
const BEGUN_S: f64 = 10.0;
/// Duration of a wait after which the processes of the ranks are probed, milliseconds.
const SUSPICIOUS: UnixMillis = 15_000;
/// The same if no GPU waits, and those of other nodes may, milliseconds. Idle jobs of several nodes cost a probe from then on.
const SUSPICIOUS_IDLE: UnixMillis = 60_000;
/// Values of the GPUs may come late on a busy node. A wait continues for this long without any, milliseconds.
const LATE: UnixMillis = 30_000;
/// A hang that no sample has confirmed for this long ends no job, milliseconds. The first node of a job looks at the others every 30 s.
const CONFIRMED: UnixMillis = 90_000;

/// What the guard knows about a run.
#[derive(Debug)]
pub struct Guard {
    config: GuardConfig,
    hangs: Hangs,
    /// Work on any GPU so far, seconds.
    worked_s: f64,
    /// Since when GPUs wait and none works.
    since: Option<UnixMillis>,
    /// Time without values of any GPU up to now, milliseconds.
    unknown: UnixMillis,
    /// Since when no GPU works, after they had begun to.
    still: Option<UnixMillis>,
    rests: Rests,
    /// When the open hang was found last.
    confirmed: Option<UnixMillis>,
}

/// A change of [`Guard::hangs`].
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// A hang was named, or the one that was named turned out to be another kind.
    Named(Hang),
    /// Work went on, or a rank that was named does something after all.
    Over(Hang),
}

impl Guard {
    /// `before`: what an earlier sampler of the run found. Whether its hang goes on is judged anew.
    pub fn new(config: GuardConfig, before: Hangs) -> Self {
        let hangs = before.bounded();
        Guard {
            config,
            hangs,
            worked_s: 0.0,
            since: None,
            unknown: 0,
            still: None,
            rests: Rests::default(),
            confirmed: None,
        }
    }

    /// Hangs so far.
    pub fn hangs(&self) -> &Hangs {
        &self.hangs
    }

    /// The hang that has not ended.
    pub fn open(&self) -> Option<&Hang> {
        self.hangs.list.last().filter(|hang| hang.over.is_none())
    }

    /// Records what was done about the hang that has not ended.
    pub fn record(&mut self, act: HangAct) {
        if let Some(open) = self.hangs.open() {
            open.act = Some(act);
        }
    }

    /// Whether ranks have waited long enough for the states of their processes to be of interest.
    pub fn is_suspicious(&self, now: UnixMillis) -> bool {
        let lasts =
            |since: Option<UnixMillis>, least| since.is_some_and(|since| now.saturating_sub(since) >= least);
        lasts(self.since, SUSPICIOUS) || lasts(self.still, SUSPICIOUS_IDLE)
    }

    /// Whether the open hang was found again a moment ago. A job is ended only then.
    pub fn is_confirmed(&self, now: UnixMillis) -> bool {
        self.confirmed.is_some_and(|time| now.saturating_sub(time) <= CONFIRMED)
    }

    /// The statement of this node for the others of its job, if no GPU of it has worked for [`GuardConfig::after`]. It is not made if
    /// a rank may work: where no GPU waits, all ranks have to be at rest, and otherwise as many as there are idle GPUs.
    pub fn stands_still(&self, sample: &NodeSample<'_>) -> Option<NodeWait> {
        let since = self.still.filter(|_| !sample.alone)?;
        if Duration::from_millis(sample.end.saturating_sub(since)) < self.config.after {
            return None;
        }
        let waiting = waiting_gpus(sample);
        let resting = at_rest(sample);
        let rests_long = |one: &&RankSample| {
            let rest = self.rests.since(one).map(|rest| sample.end.saturating_sub(rest.max(since)));
            rest.is_some_and(|rest| Duration::from_millis(rest) >= self.config.after)
        };
        // A rank of an idle GPU may compute on the CPU, for example in an evaluation: then all others wait for work.
        let works = match waiting {
            0 => resting.is_empty() || resting.len() < sample.ranks.len(),
            _ => resting.len() + failed_gpus(sample, since) < sample.gpus.len() - waiting,
        };
        if works || !resting.iter().all(rests_long) {
            return None;
        }
        let (at_rest, behind) = match waiting {
            0 => (resting, Vec::new()),
            _ if waiting == sample.gpus.len() => (Vec::new(), polling_stragglers(sample)),
            // With a blocking synchronization more ranks sleep than GPUs are idle: which ones are waited for is not known then.
            _ if resting.len() == sample.gpus.len() - waiting => (resting, Vec::new()),
            _ => (Vec::new(), Vec::new()),
        };
        let named = |ranks: Vec<&RankSample>| ranks.into_iter().take(MOST_AT_REST).map(culprit).collect();
        let count = |gpus: usize| u32::try_from(gpus).unwrap_or(u32::MAX);
        Some(NodeWait {
            since,
            as_of: sample.end,
            gpus: count(sample.gpus.len()),
            waiting_gpus: count(waiting),
            at_rest: named(at_rest),
            behind: named(behind),
            moved: sample.counts.map(|counts| counts.moved),
            logged: sample.logged,
            ports_down: sample.ports_down.to_vec(),
            gpu_errors: errors_of(sample, since).map(|(_, error)| error).collect(),
        })
    }

    /// Records what all nodes of the job together show: a hang, or that there is none.
    pub fn add_of_nodes(&mut self, found: Option<Hang>, now: UnixMillis) -> Option<News> {
        self.still?;
        match found {
            Some(hang) => self.name(hang),
            None if self.open().is_some_and(is_of_nodes) => self.end(now),
            None => None,
        }
    }

    /// Records a hang: a new one, the proof that a wait for storage is one, or one that is known.
    fn name(&mut self, found: Hang) -> Option<News> {
        self.confirmed = Some(found.named);
        match self.hangs.open() {
            Some(open) if open.kind == HangKind::Storage && found.kind.is_hang() => {
                *open = Hang { since: open.since, act: open.act.take(), ..found }.bounded();
                Some(News::Named(open.clone()))
            }
            Some(_) => None,
            None => {
                self.hangs.add(found.clone());
                Some(News::Named(found.bounded()))
            }
        }
    }

    /// How long GPUs have waited while none worked.
    pub fn waits_for(&self, now: UnixMillis) -> Duration {
        Duration::from_millis(self.since.map_or(0, |since| now.saturating_sub(since)))
    }

    /// Since when GPUs wait and none works.
    pub fn waits_since(&self) -> Option<UnixMillis> {
        self.since
    }

    /// Adds one sample at the node.
    pub fn add(&mut self, sample: &NodeSample<'_>) -> Option<News> {
        let works = sample.gpus.contains(&GpuActivity::Works);
        let waits = sample.gpus.contains(&GpuActivity::Waits);
        if works {
            self.worked_s += sample.seconds();
        }
        let moved = sample.counts.map_or(0, |counts| counts.moved);
        self.still = match sample.running && !works && self.worked_s >= BEGUN_S && !sample.alone {
            true => Some((*self.still.get_or_insert(sample.start)).max(moved)),
            false => None,
        };
        match self.since.or(self.still) {
            Some(begin) if sample.running && !works => self.rests.add(sample, begin),
            _ if sample.running && !works && waits => self.rests.add(sample, sample.start),
            _ => self.rests.clear(),
        }
        // Suspended time and time without samples do not count.
        if self.is_late(sample) {
            return None;
        }
        if !sample.running || works || !waits {
            self.since = None;
            // GPUs that are idle, suspended or not sampled have made no progress.
            return if works { self.end(sample.start) } else { None };
        }
        let since = (*self.since.get_or_insert(sample.start)).max(moved);
        self.since = Some(since);
        let found = judge(sample, since, self.worked_s >= BEGUN_S, &self.config, &self.rests);
        let is_refuted = |open: &Hang| (sample.alone || !is_of_nodes(open)) && is_refuted(open, sample);
        match self.hangs.open() {
            // Progress while GPUs wait between operations.
            Some(open) if moved > open.named => self.end(moved),
            Some(open) if found.is_none() && is_refuted(open) => self.end(sample.end),
            _ => found.and_then(|found| self.name(found)),
        }
    }

    /// Whether a wait continues although no GPU has a value. That time does not count as waiting.
    fn is_late(&mut self, sample: &NodeSample<'_>) -> bool {
        if !sample.running || sample.gpus.iter().any(|gpu| *gpu != GpuActivity::Unknown) {
            self.unknown = 0;
            return false;
        }
        let length = sample.end.saturating_sub(sample.start);
        self.unknown = self.unknown.saturating_add(length);
        let since = self.since.filter(|_| self.unknown <= LATE);
        self.since = since.map(|since| since.saturating_add(length).min(sample.end));
        self.since.is_some()
    }

    /// Ends the open hang, when work has gone on.
    fn end(&mut self, time: UnixMillis) -> Option<News> {
        self.confirmed = None;
        let open = self.hangs.open()?;
        open.over = Some(time.max(open.named));
        Some(News::Over(open.clone()))
    }
}

/// Whether a hang of a job of several nodes was found over all of them. A node alone names only ranks of its own, and does not know
/// whether all ranks of the job wait.
fn is_of_nodes(hang: &Hang) -> bool {
    hang.kind == HangKind::AllWait || hang.culprits.iter().any(|one| one.node.is_some())
}

/// Whether a hang is a wait for a file system, however long it has lasted.
fn is_wait_for_storage(hang: &Hang) -> bool {
    let in_storage = || hang.culprits.iter().any(|one| one.kernel.as_deref().is_some_and(is_of_storage));
    hang.kind == HangKind::Storage || (hang.kind == HangKind::Blocked && in_storage())
}

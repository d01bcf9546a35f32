//! Tells the other nodes of a job that this one stands still, and on the job's first node asks whether all do.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use railgate_guard::{GuardConfig, judge_nodes};
use railgate_model::UnixMillis;
use railgate_node_report::{Hang, NodeWait};
use railgate_runner::{SAMPLER_WAIT, StandingNodes, looks_at_others, standing_nodes};

use crate::run::Mine;

/// Interval at which the statement is repeated, and the others are read.
const EVERY: Duration = Duration::from_secs(60);
/// The others are read this often once this node has stood still for `[guard] after`.
const EVERY_LATE: Duration = Duration::from_secs(30);
/// Time for the others to write theirs.
const SETTLE: Duration = Duration::from_secs(20);

/// This node among those of its job.
#[derive(Debug)]
pub(crate) struct Nodes {
    /// It looks at the others.
    first: bool,
    /// When this node last said that it stands still.
    told: Option<Instant>,
    /// That statement covers `[guard] after`, so that it can be evidence of a hang.
    told_late: bool,
    next: Option<Instant>,
    asked: Option<JoinHandle<Result<StandingNodes, String>>>,
}

/// What follows from a step.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Step {
    /// The partial report is to be written soon.
    pub(crate) soon: bool,
    /// What all nodes of the job together show: a hang or none; `None`: they were not read now.
    pub(crate) judged: Option<Option<Hang>>,
}

impl Nodes {
    pub(crate) fn new(mine: &Mine) -> Self {
        Nodes { first: looks_at_others(&mine.report), told: None, told_late: false, next: None, asked: None }
    }

    /// `wait`: the statement of this node; `None`: it works, or does not know.
    pub(crate) fn step(
        &mut self,
        mine: &Mine,
        config: &GuardConfig,
        wait: Option<&NodeWait>,
        now: UnixMillis,
    ) -> Step {
        let late = wait.is_some_and(|wait| is_late(wait, config));
        let at = Instant::now();
        if late && !self.told_late {
            // The other nodes report it now as well. Without this the next look could be a minute away.
            self.next = self.next.map(|next| next.min(at + SETTLE));
        }
        let soon = self.tell(mine, wait, late);
        let mut judged = None;
        if self.asked.as_ref().is_some_and(JoinHandle::is_finished) {
            match self.asked.take().map(JoinHandle::join) {
                Some(Ok(Ok(found))) if wait.is_some() => {
                    judged = Some(judge_nodes(&found.standing, found.nodes, now, config));
                }
                Some(Ok(Err(why))) => {
                    tracing::info!(job = mine.job, "guard: the other nodes of the job are not known: {why}");
                }
                _ => {}
            }
        }
        if wait.is_none() {
            self.next = None;
        } else if self.first && self.asked.is_none() {
            let next = *self.next.get_or_insert(at + SETTLE);
            if at >= next {
                self.next = Some(at + if late { EVERY_LATE } else { EVERY });
                let (report, config) = (mine.report.clone(), mine.config.report.clone());
                let thread = std::thread::Builder::new().stack_size(256 << 10);
                self.asked = thread.spawn(move || standing_nodes(&config, &report)).ok();
            }
        }
        Step { soon, judged }
    }

    /// Writes the statement for the partial report, or removes it; returns whether it changed.
    fn tell(&mut self, mine: &Mine, wait: Option<&NodeWait>, late: bool) -> bool {
        let at = Instant::now();
        let is_known =
            self.told.is_some_and(|told| at.duration_since(told) < EVERY) && late == self.told_late;
        let done = match wait {
            Some(_) if is_known => return false,
            Some(wait) => mine.dir.write_json(SAMPLER_WAIT, wait).map(|()| Some(at)),
            None if self.told.is_none() => return false,
            None => std::fs::remove_file(mine.dir.file(SAMPLER_WAIT)).map(|()| None),
        };
        match done {
            Ok(told) => (self.told, self.told_late) = (told, late),
            Err(why) => tracing::info!(job = mine.job, "sampler: {SAMPLER_WAIT}: {why}"),
        }
        true
    }
}

/// Whether a statement covers the time after which a wait is a hang.
fn is_late(wait: &NodeWait, config: &GuardConfig) -> bool {
    Duration::from_millis(wait.as_of.saturating_sub(wait.since)) >= config.after
}

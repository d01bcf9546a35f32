//! An ended job: whether it was requeued, and whether its node reports are complete.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use railgate_model::UnixMillis;
use railgate_runner::Config;
use railgate_slurm::{JobRef, JobStanding};
use serde::{Deserialize, Serialize};

use crate::call::now;
use crate::slurm_end::{self, Record, view};
use crate::summed::{Of, summed};

/// Interval between rounds, and delay before a job is first checked.
pub(crate) const ROUND: Duration = Duration::from_secs(5);
/// Longest interval between two checks of a job.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);
/// The same for a job that slurmctld still shows as completing.
const OFTEN: Duration = Duration::from_secs(15);
/// Longest wait for node reports, milliseconds: epilogs and file servers are slow. A report that arrives later counts
/// as missing.
pub(crate) const PATIENCE_MS: u64 = 5 * 60 * 1000;
/// Longest time per round for reading the reports of one user, so that slow files of one user do not delay all
/// others.
pub(crate) const SHARE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) job: u32,
    /// Array id and task index, if the job is a member of an array.
    pub(crate) member: Option<(u32, u32)>,
    pub(crate) uid: u32,
    #[serde(default)]
    pub(crate) gid: u32,
    pub(crate) restarts: u32,
    pub(crate) nodelist: String,
    /// `SLURM_JOB_NAME`, without unprintable characters and cut.
    #[serde(default)]
    pub(crate) name: Option<String>,
    /// `SLURM_JOB_EXIT_CODE`, a raw wait status.
    #[serde(default)]
    pub(crate) exit: Option<u32>,
    pub(crate) time: UnixMillis,
}

/// A job whose end is to be recorded, or summarized for the accounting database.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) note: Note,
    /// When it is checked next.
    pub(crate) due: Instant,
    /// Interval after that check.
    wait: Duration,
    /// Progress of the record of its end.
    pub(crate) record: Record,
    /// Progress of the line for the accounting database.
    pub(crate) comment: Comment,
    /// Whether the restarts inside the allocation are in the ledger, or there are none.
    pub(crate) restarts_folded: bool,
}

/// Progress of a job's line for the accounting database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Comment {
    /// The report is not complete yet.
    Open,
    /// To be written.
    Line(String),
    /// It is written, or no line is needed.
    Settled,
}

impl Waiting {
    pub(crate) fn new(config: &Config, note: Note) -> Self {
        let age = Duration::from_millis(now().saturating_sub(note.time));
        Waiting {
            note,
            due: Instant::now() + ROUND.saturating_sub(age),
            wait: ROUND,
            record: Record::begin(config),
            comment: if config.report.admin_comment { Comment::Open } else { Comment::Settled },
            restarts_folded: !slurm_end::wanted(config),
        }
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_settled(&self) -> bool {
        self.record.is_settled() && !self.needs_reports()
    }

    /// Whether the job's reports are still to be read.
    pub(crate) fn needs_reports(&self) -> bool {
        self.comment != Comment::Settled || !self.restarts_folded
    }

    /// Whether an incomplete report may still become complete.
    pub(crate) fn in_time(&self) -> bool {
        self.age() < PATIENCE_MS
    }

    pub(crate) fn name(&self) -> JobRef {
        match self.note.member {
            Some((array, task)) => JobRef::member(array, task),
            None => JobRef::plain(self.note.job),
        }
    }

    pub(crate) fn age(&self) -> u64 {
        now().saturating_sub(self.note.time)
    }

    pub(crate) fn later(&mut self) {
        self.due = Instant::now() + self.wait;
        // slurmctld may purge a job soon after its last epilog.
        let longest = if self.record.is_settled() { LONGEST } else { OFTEN };
        self.wait = (2 * self.wait).min(longest);
    }
}

/// The result of checking a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing is left to do.
    Done,
    /// Check again later.
    Later,
    /// The line to write.
    Line(String),
}

/// The job's line for the accounting database. `standing`: slurmctld's state of the job. `dirs`: directories with
/// reports of it; empty if unknown.
pub(crate) fn check(
    config: &Config,
    cluster: Option<&str>,
    waiting: &Waiting,
    standing: Option<&JobStanding>,
    dirs: Option<&[PathBuf]>,
    spent: &mut Duration,
) -> Next {
    let note = &waiting.note;
    // A job that slurmctld has purged has ended.
    if let Some(standing) = standing {
        if went_back(note, standing) {
            return Next::Done;
        }
        if standing.state.contains("COMPLETING") && waiting.in_time() {
            return Next::Later;
        }
    }
    match &waiting.comment {
        Comment::Line(line) => return Next::Line(line.clone()),
        Comment::Settled => return Next::Done,
        Comment::Open => {}
    }
    let in_time = waiting.in_time();
    let Some(dirs) = dirs else { return if in_time { Next::Later } else { Next::Done } };
    if *spent > SHARE {
        return Next::Later;
    }
    let begun = Instant::now();
    let view = standing.map(|standing| view(note, standing));
    let of =
        Of { cluster, dirs, job: note.job, uid: note.uid, attempt: note.restarts, nodelist: &note.nodelist };
    let summed = summed(&config.report, &of, view);
    *spent += begun.elapsed();
    match summed {
        Ok(summed) if !summed.whole && in_time => Next::Later,
        Ok(summed) => summed.line.map_or(Next::Done, Next::Line),
        Err(why) => {
            tracing::warn!(job = %waiting.name(), "AdminComment: the job could not be summed up: {why}");
            if in_time { Next::Later } else { Next::Done }
        }
    }
}

/// Whether the job is pending or running again.
pub(crate) fn went_back(note: &Note, standing: &JobStanding) -> bool {
    standing.restarts > note.restarts
        || ["PENDING", "RUNNING", "CONFIGURING", "SUSPENDED", "REQUEUE"]
            .iter()
            .any(|word| standing.state.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Scene, ended_at};

    #[test]
    fn only_a_job_in_a_final_state_is_summarized() {
        let mut config = Scene::new("0", "0").call().config;
        config.report.admin_comment = true;
        let next = |state: &str, restarts, time| {
            let standing = JobStanding { state: state.to_owned(), restarts, ..JobStanding::default() };
            super::check(
                &config,
                None,
                &Waiting::new(&config, ended_at(7, time)),
                Some(&standing),
                None,
                &mut Duration::default(),
            )
        };
        // The epilogs of its nodes run; it was requeued; it is pending.
        assert_eq!(next("COMPLETING", 0, now()), Next::Later);
        assert_eq!(next("COMPLETING", 1, now()), Next::Done);
        assert_eq!(next("PENDING", 0, now()), Next::Done);
        // No report: wait for one until the deadline, then write no line.
        assert_eq!(next("COMPLETED", 0, now()), Next::Later);
        assert_eq!(next("COMPLETED", 0, now() - PATIENCE_MS - 1), Next::Done);
    }
}

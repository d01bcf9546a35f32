//! Whether a job that ended can be summed up: has it ended for good, and has its report come.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use railgate_node::UnixMillis;
use railgate_runner::Config;
use railgate_slurm::{JobRef, JobStanding};
use railgate_stats::SlurmView;
use serde::{Deserialize, Serialize};

use crate::call::now;
use crate::summed::{Of, summed};

/// Between two rounds, and until a job's first look.
pub(crate) const ROUND: Duration = Duration::from_secs(5);
/// Longest wait of a job between two looks.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);
/// Epilogs and file servers are slow; a part that has not come by then is missing.
pub(crate) const PATIENCE_MS: u64 = 5 * 60 * 1000;
/// Reading reports of one user takes at most that much of a round, so that slow files of one do not hold up all.
const SHARE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) job: u32,
    /// The array and the member's number, of a member.
    pub(crate) member: Option<(u32, u32)>,
    pub(crate) uid: u32,
    pub(crate) restarts: u32,
    pub(crate) nodelist: String,
    pub(crate) time: UnixMillis,
}

/// A job to be summed up.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) note: Note,
    /// When it is looked at next.
    pub(crate) due: Instant,
    /// How long it waits after that look.
    wait: Duration,
    /// The line, once the report is whole.
    pub(crate) line: Option<String>,
}

impl Waiting {
    pub(crate) fn new(note: Note) -> Self {
        let age = Duration::from_millis(now().saturating_sub(note.time));
        Waiting { note, due: Instant::now() + ROUND.saturating_sub(age), wait: ROUND, line: None }
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
        self.wait = (2 * self.wait).min(LONGEST);
    }
}

/// The result of checking a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// All that can be done is done.
    Done,
    /// Something is still to come.
    Later,
    /// What is to be written.
    Line(String),
}

/// Looks at one job. `standing` is what slurmctld knows of it, `dirs` where it has reports: empty, where that could not
/// be told.
pub(crate) fn look(
    config: &Config,
    cluster: Option<&str>,
    waiting: &Waiting,
    standing: Option<&JobStanding>,
    dirs: Option<&[PathBuf]>,
    spent: &mut Duration,
) -> Look {
    let note = &waiting.note;
    // What slurmctld has forgotten has ended.
    if let Some(standing) = standing {
        if standing.restarts > note.restarts || is_back(standing) {
            return Look::Done;
        }
        if standing.state.contains("COMPLETING") && waiting.age() < PATIENCE_MS {
            return Look::Later;
        }
    }
    if let Some(line) = &waiting.line {
        return Look::Line(line.clone());
    }
    let in_time = waiting.age() < PATIENCE_MS;
    let Some(dirs) = dirs else { return if in_time { Look::Later } else { Look::Done } };
    if *spent > SHARE {
        return Look::Later;
    }
    let begun = Instant::now();
    let view = standing.map(|standing| SlurmView {
        state: standing.state.clone(),
        restarts: Some(standing.restarts),
        nodelist: note.nodelist.clone(),
        ..SlurmView::default()
    });
    let of =
        Of { cluster, dirs, job: note.job, uid: note.uid, attempt: note.restarts, nodelist: &note.nodelist };
    let summed = summed(&config.report, &of, view);
    *spent += begun.elapsed();
    match summed {
        Ok(summed) if !summed.whole && in_time => Look::Later,
        Ok(summed) => summed.line.map_or(Look::Done, Look::Line),
        Err(why) => {
            tracing::warn!(job = %waiting.name(), "AdminComment: could not tell: {why}");
            if in_time { Look::Later } else { Look::Done }
        }
    }
}

fn is_back(standing: &JobStanding) -> bool {
    ["PENDING", "RUNNING", "CONFIGURING", "SUSPENDED", "REQUEUE"]
        .iter()
        .any(|word| standing.state.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Scene, ended_at};

    #[test]
    fn only_a_job_that_has_ended_for_good_is_summed_up() {
        let config = Scene::new("0", "0").call().config;
        let look = |state: &str, restarts, time| {
            let standing = JobStanding { state: state.to_owned(), restarts };
            super::look(
                &config,
                None,
                &Waiting::new(ended_at(7, time)),
                Some(&standing),
                None,
                &mut Duration::default(),
            )
        };
        // Its nodes' epilogs run; it went back; it waits.
        assert_eq!(look("COMPLETING", 0, now()), Look::Later);
        assert_eq!(look("COMPLETING", 1, now()), Look::Done);
        assert_eq!(look("PENDING", 0, now()), Look::Done);
        // No report: in time one may come, then there is nothing to say.
        assert_eq!(look("COMPLETED", 0, now()), Look::Later);
        assert_eq!(look("COMPLETED", 0, now() - PATIENCE_MS - 1), Look::Done);
    }
}

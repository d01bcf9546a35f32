//! The job's own log, and the sampler's lines in it.
//!
//! The guard takes silent logs for a sign of a hang, and a write for the end of one. A line that the sampler wrote must not count as the
//! job's.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use railgate_model::{Job, UnixMillis};
use railgate_runner::{append_to_log, now};

/// Clocks of a file server and of the node differ a little.
const SLACK_MS: u64 = 2_000;
/// Most own lines that are remembered.
const MOST: usize = 16;

/// The job's own log.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobLog {
    /// `None`: Slurm is asked for it.
    path: Option<PathBuf>,
    own: Arc<Mutex<Vec<Own>>>,
}

/// A line of the sampler.
#[derive(Clone, Copy, Debug)]
struct Own {
    begun: UnixMillis,
    /// `None`: it is being written.
    ended: Option<UnixMillis>,
}

impl JobLog {
    /// The same log at this path.
    pub(crate) fn at(&self, path: Option<PathBuf>) -> Self {
        JobLog { path, own: Arc::clone(&self.own) }
    }

    /// Adds a line. A file server may not answer: to be called in a thread.
    pub(crate) fn append(&self, job: &Job, text: &str) {
        let begun = now();
        self.record(begun, None);
        if let Err(why) = append_to_log(job, self.path.as_deref(), text) {
            tracing::info!(job = job.id, "the line about the hang is not written: {why}");
        }
        self.record(begun, Some(now()));
    }

    fn record(&self, begun: UnixMillis, ended: Option<UnixMillis>) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|one| one.begun != begun);
        own.push(Own { begun, ended });
        let excess = own.len().saturating_sub(MOST);
        own.drain(..excess);
    }

    /// Whether a write at this time was the sampler's.
    fn is_own(&self, time: UnixMillis) -> bool {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.iter().any(|one| {
            let until = one.ended.map_or(UnixMillis::MAX, |ended| ended.saturating_add(SLACK_MS));
            (one.begun.saturating_sub(SLACK_MS)..=until).contains(&time)
        })
    }
}

/// When the job itself last wrote to its logs.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastWrite(Option<UnixMillis>);

impl LastWrite {
    /// `found`: the last write of any process, `None` if it is not known.
    pub(crate) fn of_job(&mut self, found: Option<UnixMillis>, log: &JobLog) -> Option<UnixMillis> {
        let found = found?;
        if !log.is_own(found) {
            self.0 = Some(found);
        }
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_sampler_is_no_write_of_the_job() {
        let (log, mut last) = (JobLog::default(), LastWrite::default());
        assert_eq!(last.of_job(Some(100_000), &log), Some(100_000));
        log.at(None).record(300_000, None);
        assert_eq!(last.of_job(Some(300_400), &log), Some(100_000));
        assert_eq!(last.of_job(None, &log), None);
        log.record(300_000, Some(301_000));
        assert_eq!(last.of_job(Some(302_900), &log), Some(100_000));
        // The job writes again, and a second line follows.
        assert_eq!(last.of_job(Some(400_000), &log), Some(400_000));
        log.record(500_000, Some(500_100));
        assert_eq!(last.of_job(Some(500_050), &log), Some(400_000));
        // What the job wrote before the first look is not known.
        assert_eq!(LastWrite::default().of_job(Some(500_050), &log), None);
    }

    #[test]
    fn the_number_of_lines_is_bounded() {
        let log = JobLog::default();
        (0..100).for_each(|line| log.record(line * 10_000, Some(line * 10_000)));
        assert!(!log.is_own(0) && log.is_own(990_000));
        assert_eq!(log.own.lock().unwrap().len(), MOST);
    }
}

//! The record of how Slurm ended a job, used by reports after slurmctld has purged the job.

use railgate_node_report::{REPORT_SCHEMA, SlurmEnd, SlurmView};
use railgate_runner::Config;
use railgate_slurm::JobStanding;
use railgate_store::{Placed, store_ends};

use crate::call::now;
use crate::ended_job::{Note, Waiting, went_back};

/// Progress of a job's record.
#[derive(Debug)]
pub(crate) enum Record {
    /// Slurm has not reported yet how the job ended.
    Open,
    /// The end is known, but the record is not written yet.
    Known(Box<SlurmEnd>),
    /// It is written, or no record is needed.
    Settled,
}

impl Record {
    /// The initial state of a record; already settled on a site without a shared report directory.
    pub(crate) fn begin(config: &Config) -> Self {
        if wanted(config) { Record::Open } else { Record::Settled }
    }

    pub(crate) fn is_settled(&self) -> bool {
        matches!(self, Record::Settled)
    }

    /// Takes over slurmctld's state of the job; `None` if slurmctld has purged it.
    pub(crate) fn learn(&mut self, cluster: Option<&str>, note: &Note, standing: Option<&JobStanding>) {
        if !matches!(self, Record::Open) {
            return;
        }
        let (Some(cluster), Some(standing)) = (cluster, standing) else {
            *self = Record::Settled;
            return;
        };
        let slurm = view(note, standing);
        if went_back(note, standing) {
            *self = Record::Settled;
        } else if slurm.has_ended() {
            *self = Record::Known(Box::new(SlurmEnd {
                schema: REPORT_SCHEMA,
                cluster: cluster.to_owned(),
                job: note.job,
                task: note.member,
                attempt: note.restarts,
                time: now(),
                slurm,
            }));
        }
    }
}

/// Whether ends are recorded: `record_ends` is on and there is a shared report directory.
pub(crate) fn wanted(config: &Config) -> bool {
    config.report.record_ends && config.report.dir.is_some()
}

/// The job as Slurm shows it; the exit code and the name are from the environment of this program.
pub(crate) fn view(note: &Note, standing: &JobStanding) -> SlurmView {
    let millis = |seconds: Option<u64>| seconds.map(|seconds| seconds.saturating_mul(1000));
    SlurmView {
        state: standing.state.clone(),
        name: note.name.clone(),
        submitted: millis(standing.submitted),
        exit: note.exit.map(|status| (status.cast_signed() >> 8 & 0xff, status.cast_signed() & 0x7f)),
        restarts: Some(note.restarts),
        start: millis(standing.start),
        end: millis(standing.end),
        nodelist: note.nodelist.clone(),
        ..SlurmView::default()
    }
}

/// Writes all known records. Returns the last error, and the number of records that were given up.
pub(crate) fn write(config: &Config, jobs: &mut [&mut Waiting]) -> (Option<String>, u64) {
    let known: Vec<(SlurmEnd, u32, u32)> = jobs
        .iter()
        .filter_map(|job| match &job.record {
            Record::Known(end) => Some((end.as_ref().clone(), job.note.uid, job.note.gid)),
            Record::Open | Record::Settled => None,
        })
        .collect();
    if known.is_empty() {
        return (None, 0);
    }
    let (mut trouble, mut lost) = (None, 0);
    let placed = store_ends(&config.report, &known, config.report.deadline);
    let writing = jobs.iter_mut().filter(|job| matches!(job.record, Record::Known(_)));
    for (job, placed) in writing.zip(placed) {
        match placed {
            Placed::Written | Placed::NoReport => job.record = Record::Settled,
            Placed::NoTime => {}
            Placed::Failed(why) => {
                trouble = Some(format!("job {}: the record of its end: {why}", job.note.job));
                if !job.in_time() {
                    job.record = Record::Settled;
                    lost += 1;
                }
            }
        }
    }
    (trouble, lost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ended_at;

    fn learned(state: &str, restarts: u32, cluster: Option<&str>) -> Record {
        let standing =
            JobStanding { state: state.to_owned(), restarts, end: Some(9), ..JobStanding::default() };
        let mut record = Record::Open;
        record.learn(cluster, &ended_at(7, 1), Some(&standing));
        record
    }

    #[test]
    fn an_end_is_recorded_once_slurm_shows_it() {
        let Record::Known(end) = learned("TIMEOUT", 0, Some("alpha")) else { panic!("not known") };
        assert_eq!((end.job, end.attempt, end.slurm.state.as_str()), (7, 0, "TIMEOUT"));
        assert_eq!((end.slurm.name.as_deref(), end.slurm.exit), (Some("train"), Some((0, 0))));
        assert_eq!(end.slurm.end, Some(9000));
        // The epilogs of its nodes run.
        assert!(matches!(learned("COMPLETING", 0, Some("alpha")), Record::Open));
    }

    #[test]
    fn a_requeued_or_purged_job_gets_no_record() {
        for (state, restarts) in [("PENDING", 0), ("COMPLETED", 1), ("REQUEUE_HOLD", 0)] {
            assert!(learned(state, restarts, Some("alpha")).is_settled(), "{state}");
        }
        assert!(learned("FAILED", 0, None).is_settled());
        let mut record = Record::Open;
        record.learn(Some("alpha"), &ended_at(7, 1), None);
        assert!(record.is_settled());
    }

    #[test]
    fn a_job_that_a_signal_ended_has_no_exit_code() {
        let mut note = ended_at(7, 1);
        for (status, exit) in [(9, (0, 9)), (256, (1, 0)), (127 << 8, (127, 0))] {
            note.exit = Some(status);
            assert_eq!(view(&note, &JobStanding::default()).exit, Some(exit));
        }
    }
}

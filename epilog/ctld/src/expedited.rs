//! Jobs of `sbatch --requeue=expedite` (25.11 and later) where `[requeue] expedite` is set.
//!
//! If such a job ends with an exit code other than 0, Slurm acts once all epilogs and this program have ended. If the
//! epilog of a node failed, it restarts the job, without delay and before all jobs that wait; otherwise it holds the job.
//! railgate's epilog fails after it has drained its node for a fault under the job.

use railgate_node_report::DecisionKind;
use railgate_slurm::{Acting, Channel, Consent, JobState, NodeEvidence, SlurmError, Weight, weigh};

use crate::call::Call;

/// For the decision about a job that Slurm restarts.
pub(crate) const RESTARTED: &str = "Slurm restarts it without delay (--requeue=expedite)";
/// For the decision about a job that Slurm would hold.
const CANCELLED: &str = "the job was cancelled, since Slurm would hold it (--requeue=expedite)";

/// The owner's choice about requeueing: `--requeue=expedite` asks for restarts unless `--railgate-requeue` is given.
pub(crate) fn consent(call: &Call, job: &JobState) -> Consent {
    let asked = call.config.requeue.expedite && job.expedited;
    if asked { call.asked.unwrap_or(Consent::Auto) } else { call.consent }
}

/// Whether Slurm restarts the job by itself: root names a job in a drain reason of phase `epilog` only from an epilog
/// that then fails.
pub(crate) fn restarts(call: &Call, job: &JobState, evidence: &[NodeEvidence]) -> bool {
    let from_epilog = |item: &NodeEvidence| {
        item.channel == Channel::DrainReason && weigh(item, job, &call.config.requeue) == Weight::Counts
    };
    judges(call, job) && evidence.iter().any(from_epilog)
}

/// Ends a job that is not restarted, and that Slurm would hold. Returns the decision, and its explanation with what was done.
pub(crate) fn end(call: &Call, job: &JobState, why: String) -> (DecisionKind, String) {
    if !judges(call, job) {
        return (DecisionKind::Left, why);
    }
    // Slurm refuses to cancel a failed job that is still completing, and accepts it after a requeue. The job is requeued
    // held, so that it does not start if this program is killed before the second command.
    let cancel = || -> Result<(), SlurmError> {
        call.client.requeue_hold(&call.name)?;
        call.client.cancel(&call.name)
    };
    match cancel() {
        Ok(()) => (DecisionKind::Cancelled, format!("{why}; {CANCELLED}")),
        Err(failed) => {
            let why = format!(
                "{why}; Slurm holds the job (--requeue=expedite) until it is cancelled, which failed: {failed}"
            );
            (DecisionKind::Left, why)
        }
    }
}

/// Whether Slurm's own rule applies to the job, and railgate may act by it.
fn judges(call: &Call, job: &JobState) -> bool {
    let exited = call.exit.code().is_some_and(|code| code != 0);
    exited
        && call.config.requeue.expedite
        && job.expedited
        && job.requeue
        && job.restarts == call.job.restarts
        && !job.state.contains("PENDING")
        && call.asked != Some(Consent::Never)
        && call.acting == Acting::Allowed
}

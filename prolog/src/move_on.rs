use railgate_runner::Hook;
use railgate_slurm::Client;

/// Takes a batch job away from its nodes before the prolog fails; whether the prolog need not fail any more.
///
/// slurmctld (22.05, also with `DeferBatch`) counts a failed prolog as a finished one, and where it is the
/// last of the job's nodes launches the batch script before it handles slurmd's own requeue: user code then
/// runs for a moment on the nodes that are fit. A job that is no longer there cannot be launched. What slurmd
/// asks for afterwards changes nothing more, but for a job that may not be requeued it asks again and again,
/// each time draining the node anew, also after somebody has repaired it: such a job is cancelled here, as
/// Slurm would do, and the prolog ends well on the node that is drained already.
pub(crate) fn ask(hook: &Hook, client: &Client) -> bool {
    let id = hook.job.id;
    let (cancelled, done) = match client.refusable(id) {
        // srun and salloc learn it from the failed prolog.
        Ok(None) => return false,
        Ok(Some(job)) if job.requeue => (false, client.requeue(&job.name)),
        Ok(Some(job)) => (true, client.cancel(&job.name)),
        Err(why) => (false, Err(why)),
    };
    match done {
        Ok(()) => cancelled,
        Err(why) => {
            tracing::warn!(job = id, "Slurm alone moves the job: {why}");
            false
        }
    }
}

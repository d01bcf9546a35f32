use railgate_runner::Hook;
use railgate_slurm::Client;

/// Requeues a batch job, or cancels it, before the prolog fails. Returns whether the prolog need not fail any longer.
///
/// slurmctld (22.05, also with `DeferBatch`) counts a failed prolog as a finished one. If it is the last of the job's
/// nodes, slurmctld launches the batch script before it handles slurmd's own requeue: user code then runs briefly on
/// the nodes that are fit. A job that was removed cannot be launched, and slurmd's later requeue of it has no effect.
/// For a job that may not be requeued, however, slurmd repeats its request, each time draining the node again, even
/// after its repair. Such a job is cancelled here, as Slurm would do, and the prolog then succeeds on the node, which
/// is drained already.
pub(crate) fn ask(hook: &Hook, client: &Client) -> bool {
    let id = hook.job.id;
    let (cancelled, done) = match client.refusable(id) {
        // srun and salloc are notified by the failed prolog.
        Ok(None) => return false,
        Ok(Some(job)) if job.requeue => (false, client.requeue(&job.name)),
        Ok(Some(job)) => (true, client.cancel(&job.name)),
        Err(why) => (false, Err(why)),
    };
    match done {
        Ok(()) => cancelled,
        Err(why) => {
            tracing::warn!(
                job = id,
                "the job could not be requeued here, Slurm does it after the failed prolog: {why}"
            );
            false
        }
    }
}

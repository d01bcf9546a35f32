use railgate_runner::Hook;
use railgate_slurm::Client;

/// Takes a batch job away from its nodes before the prolog fails.
///
/// slurmctld (22.05, also with `DeferBatch`) counts a failed prolog as a finished one, and where it is the
/// last of the job's nodes launches the batch script before it handles slurmd's own requeue: user code then
/// runs for a moment on the nodes that are fit. A job that is no longer there cannot be launched. What slurmd
/// asks for afterwards changes nothing more.
pub(crate) fn ask(hook: &Hook) {
    let client = Client::new(&hook.config.slurm, &hook.env);
    let id = hook.job.id;
    let done = match client.refusable(id) {
        // srun and salloc learn it from the failed prolog.
        Ok(None) => return,
        Ok(Some(job)) if job.requeue => client.requeue(&job.name),
        Ok(Some(job)) => client.cancel(&job.name),
        Err(why) => Err(why),
    };
    if let Err(why) = done {
        tracing::warn!(job = id, "Slurm alone moves the job: {why}");
    }
}

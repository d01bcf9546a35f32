use std::io::ErrorKind;

use railgate_runner::{Hook, SAMPLER_TASKS, SamplerEnd, end_sampler};
use railgate_slurm::hostlist::expand;
use railgate_stats::{NodeReport, Tasks, applied, transport};

/// Ends the run's sampler and gets what it found; `None` where it never ran.
pub(crate) fn end(hook: &Hook) -> Option<Tasks> {
    let job = hook.job.id;
    let run = hook.runs().job(job).current(job).ok()?;
    match end_sampler(&run) {
        Ok(SamplerEnd::Ended | SamplerEnd::Absent) => {}
        Ok(SamplerEnd::Killed) => tracing::warn!(job, "the sampler did not answer and was killed"),
        Err(why) => tracing::warn!(job, "the sampler could not be ended: {why}"),
    }
    match run.read_json(SAMPLER_TASKS) {
        Ok(tasks) => Some(tasks),
        Err(why) => {
            if why.kind() != ErrorKind::NotFound {
                tracing::warn!(job, "{SAMPLER_TASKS}: {why}");
            }
            None
        }
    }
}

/// Puts into the report what really applied, and whether the rails were used.
pub(crate) fn compare(hook: &Hook, tasks: Option<Tasks>, report: &mut NodeReport) {
    if report.refused() {
        return;
    }
    if let Some(tasks) = &tasks {
        report.applied = applied(report, tasks);
    }
    let nodes = expand(&hook.job.nodelist).map_or(0, |nodes| nodes.len());
    report.transport = transport(report, tasks.as_ref(), nodes, hook.config.stats.settled());
    report.tasks = tasks;
}

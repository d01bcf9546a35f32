use std::io::ErrorKind;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use railgate_model::{JobOutputs, UnixMillis};
use railgate_node_report::comm::Pauses;
use railgate_node_report::usage::{joined, moment};
use railgate_node_report::{Hangs, NodeReport, Tasks, applied, transport};
use railgate_runner::{
    Hook, SAMPLER_FILES, SAMPLER_HANGS, SAMPLER_OUTPUTS, SAMPLER_PAUSES, SAMPLER_TASKS, SamplerEnd,
    end_sampler, gpu_figures, now,
};
use railgate_slurm::hostlist::expand;
use railgate_store::store_samples;

/// Results of the run's sampler.
#[derive(Debug, Default)]
pub(crate) struct Sampled {
    /// Tasks of the job; `None` if the sampler never ran.
    tasks: Option<Tasks>,
    /// Files that its processes had as output.
    pub(crate) outputs: Option<JobOutputs>,
    /// Pauses of its ranks; `None`: none, or not known.
    pauses: Option<Pauses>,
    /// Hangs that the guard found; `None`: none, or it did not run.
    hangs: Option<Hangs>,
    /// Contents of its sample files.
    files: Vec<Vec<u8>>,
    /// Seconds from boot to its end.
    ended_boot_s: f64,
}

/// Ends the run's sampler and reads its results.
pub(crate) fn end(hook: &Hook) -> Sampled {
    let job = hook.job.id;
    let Ok(run) = hook.runs().job(job).current(job) else { return Sampled::default() };
    match end_sampler(&run) {
        Ok(SamplerEnd::Ended | SamplerEnd::Absent) => {}
        Ok(SamplerEnd::Killed) => tracing::warn!(job, "the sampler did not answer and was killed"),
        Err(why) => tracing::warn!(job, "the sampler could not be ended: {why}"),
    }
    let read = |name: &str, why: &std::io::Error| {
        if why.kind() != ErrorKind::NotFound {
            tracing::warn!(job, "{name}: {why}");
        }
    };
    let tasks = run.read_json(SAMPLER_TASKS).map_err(|why| read(SAMPLER_TASKS, &why)).ok();
    let file = |name: &&str| run.read(name).map_err(|why| read(name, &why)).ok();
    let outputs = run.read_json(SAMPLER_OUTPUTS).map_err(|why| read(SAMPLER_OUTPUTS, &why)).ok();
    let pauses = run.read_json(SAMPLER_PAUSES).map_err(|why| read(SAMPLER_PAUSES, &why)).ok();
    let hangs = run.read_json(SAMPLER_HANGS).map_err(|why| read(SAMPLER_HANGS, &why)).ok();
    Sampled {
        tasks,
        outputs,
        pauses,
        hangs,
        files: SAMPLER_FILES.iter().filter_map(file).collect(),
        ended_boot_s: boot_s(),
    }
}

/// Time since boot, seconds: a clock that cannot be set.
fn boot_s() -> f64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0.0, |time| Duration::from(time).as_secs_f64())
}

/// Describes a change of the node's clock during the job: durations by wall clock are wrong by the difference, those
/// of the sampler are not.
fn clock_set(counted: UnixMillis, calendar: UnixMillis) -> Option<String> {
    /// A disciplined clock is off by less, milliseconds.
    const SLACK_MS: u64 = 10_000;
    let by = counted.abs_diff(calendar);
    let way = if calendar > counted { "forwards" } else { "back" };
    let long = humantime::format_duration(Duration::from_secs(by / 1000));
    (by > SLACK_MS).then(|| {
        format!("the node's clock was set {way} by {long} during the job: times before and after do not fit")
    })
}

/// Adds the job's hardware usage to the report, and writes the samples beside it.
fn usage(hook: &Hook, sampled: &Sampled, report: &mut NodeReport) {
    let streams: Vec<&[u8]> = sampled.files.iter().map(Vec::as_slice).collect();
    let end = moment(&streams, &report.boot_id, sampled.ended_boot_s);
    let said = end.and_then(|end| clock_set(end, now()));
    let figures = gpu_figures(&hook.places, &hook.config);
    report.add_usage(&streams, end.unwrap_or_else(now), &figures);
    let most = usize::try_from(hook.config.report.max_bytes()).unwrap_or(usize::MAX);
    let Some(mut usage) = report.usage.take() else { return };
    usage.notes.extend(said);
    match joined(&streams, most).map(|all| store_samples(&hook.config.report, report, &all)) {
        Some(Ok(file)) => usage.file = Some(file),
        Some(Err(why)) => usage.notes.push(format!("the samples are lost: {why}")),
        None => usage.notes.push("the samples exceed [report] max_size_mib and are not kept".to_owned()),
    }
    report.usage = Some(usage);
}

/// Adds the settings in effect to the report, and whether the rails were used.
pub(crate) fn compare(hook: &Hook, mut sampled: Sampled, report: &mut NodeReport) {
    if report.refused() {
        return;
    }
    report.tasks = sampled.tasks.take();
    report.hangs = sampled.hangs.take().map(Hangs::bounded);
    usage(hook, &sampled, report);
    report.ranks = sampled.outputs.map(|outputs| outputs.ranks).unwrap_or_default();
    if let Some(counted) = &mut report.communication {
        counted.pauses = sampled.pauses;
    }
    if let Some(tasks) = &report.tasks {
        report.applied = applied(report, tasks);
    }
    let nodes = expand(&hook.job.nodelist).map_or(0, |nodes| nodes.len());
    report.transport = transport(report, report.tasks.as_ref(), nodes, hook.config.stats.settled());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_change_is_reported_and_drift_is_not() {
        let counted = 1_700_000_000_000;
        assert_eq!(clock_set(counted, counted + 9_000), None);
        let set = |calendar| clock_set(counted, calendar).unwrap();
        assert!(
            set(counted + 3_600_000).starts_with("the node's clock was set forwards by 1h during the job")
        );
        assert!(set(counted - 90_000).starts_with("the node's clock was set back by 1m 30s"));
    }
}

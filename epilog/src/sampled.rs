use std::io::ErrorKind;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use railgate_model::UnixMillis;
use railgate_runner::{Hook, SAMPLER_FILES, SAMPLER_TASKS, SamplerEnd, end_sampler, now};
use railgate_slurm::hostlist::expand;
use railgate_stats::store::store_samples;
use railgate_stats::usage::{joined, moment, summarize};
use railgate_stats::{NodeReport, Tasks, applied, transport};

/// What the run's sampler found.
#[derive(Debug, Default)]
pub(crate) struct Sampled {
    /// Of the job's processes; `None` where it never ran.
    tasks: Option<Tasks>,
    /// Its files of samples.
    files: Vec<Vec<u8>>,
    /// Seconds from boot to its end.
    ended_boot_s: f64,
}

/// Ends the run's sampler and gets what it found.
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
    Sampled { tasks, files: SAMPLER_FILES.iter().filter_map(file).collect(), ended_boot_s: boot_s() }
}

/// The clock that nobody sets.
fn boot_s() -> f64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0.0, |time| Duration::from(time).as_secs_f64())
}

/// Somebody set the node's clock while the job ran: lengths by the calendar are wrong by as much. The sampler's are not.
fn clock_set(counted: UnixMillis, calendar: UnixMillis) -> Option<String> {
    /// A clock that is disciplined as it should be is off by less.
    const SLACK_MS: u64 = 10_000;
    let by = counted.abs_diff(calendar);
    let way = if calendar > counted { "forwards" } else { "back" };
    let long = humantime::format_duration(Duration::from_secs(by / 1000));
    (by > SLACK_MS).then(|| {
        format!("the node's clock was set {way} by {long} during the job: times before and after do not fit")
    })
}

/// Puts into the report what the job got out of the hardware, and the samples beside it.
fn usage(hook: &Hook, sampled: &Sampled, report: &mut NodeReport) {
    let streams: Vec<&[u8]> = sampled.files.iter().map(Vec::as_slice).collect();
    let end = moment(&streams, &report.boot_id, sampled.ended_boot_s);
    let said = end.and_then(|end| clock_set(end, now()));
    let Some(mut usage) = summarize(&streams, end.unwrap_or_else(now), &hook.config.stats.models) else {
        return;
    };
    usage.notes.extend(said);
    let most = usize::try_from(hook.config.report.max_bytes()).unwrap_or(usize::MAX);
    match joined(&streams, most).map(|all| store_samples(&hook.config.report, report, &all)) {
        Some(Ok(file)) => usage.file = Some(file),
        Some(Err(why)) => usage.notes.push(format!("the samples are lost: {why}")),
        None => usage.notes.push("the samples are too many to be kept ([report] max_size_mib)".to_owned()),
    }
    report.usage = Some(usage);
}

/// Puts into the report what really applied, and whether the rails were used.
pub(crate) fn compare(hook: &Hook, sampled: Sampled, report: &mut NodeReport) {
    if report.refused() {
        return;
    }
    usage(hook, &sampled, report);
    let tasks = sampled.tasks;
    if let Some(tasks) = &tasks {
        report.applied = applied(report, tasks);
    }
    let nodes = expand(&hook.job.nodelist).map_or(0, |nodes| nodes.len());
    report.transport = transport(report, tasks.as_ref(), nodes, hook.config.stats.settled());
    report.tasks = tasks;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_is_said_and_one_that_drifts_is_not() {
        let counted = 1_700_000_000_000;
        assert_eq!(clock_set(counted, counted + 9_000), None);
        let set = |calendar| clock_set(counted, calendar).unwrap();
        assert!(
            set(counted + 3_600_000).starts_with("the node's clock was set forwards by 1h during the job")
        );
        assert!(set(counted - 90_000).starts_with("the node's clock was set back by 1m 30s"));
    }
}

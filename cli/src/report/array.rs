//! Overview of an array: one row per task.

use railgate_node_report::SlurmView;
use railgate_report::JobReport;
use railgate_slurm::ListedJob;
use railgate_text::{Lines, put, shorten};

use super::millis;

/// Most reports that are read.
pub(super) const MOST_TASKS: usize = 200;

/// Whether the task has started, and so has a job id of its own.
pub(super) fn has_begun(job: &ListedJob) -> bool {
    !job.state.contains("PENDING") && job.start.is_some()
}

/// Table with TASK, JOB, STATE, WHY; the tasks in `more` are only counted.
pub(super) fn overview(rows: &[(ListedJob, Option<JobReport>)], more: &[ListedJob]) -> Lines {
    let mut table = vec![["TASK", "JOB", "STATE", "WHY"].map(str::to_owned)];
    for (job, report) in rows {
        let task = job.task.map(|(_, task)| task.to_string()).unwrap_or_default();
        let number = if has_begun(job) { job.job.to_string() } else { "-".to_owned() };
        let why = match report {
            Some(report) => shorten(first_sentence(&report.ended.why), 90),
            None => "has not started".to_owned(),
        };
        let state = job.state.split(' ').next().unwrap_or_default().to_owned();
        table.push([task, number, state, why]);
    }
    let mut lines = Lines::table(&table, "");
    if let (Some((array, first)), Some((_, last))) =
        (more.first().and_then(|job| job.task), more.last().and_then(|job| job.task))
    {
        put!(lines, "{} more tasks: railgate report {array}_[{first}-{last}]", more.len());
    }
    lines
}

/// A row has room for one sentence; the job's own report has the rest.
fn first_sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| first).trim_end_matches('.')
}

/// Converts a listed job for use in its report.
pub(super) fn view(job: &ListedJob) -> SlurmView {
    let begun = has_begun(job);
    let ended = begun && !["RUNNING", "SUSPENDED", "COMPLETING"].iter().any(|live| job.state.contains(live));
    SlurmView {
        state: job.state.clone(),
        reason: String::new(),
        name: Some(job.name.clone()),
        submitted: millis(job.submitted),
        exit: job.exit.filter(|_| ended),
        restarts: None,
        start: millis(job.start).filter(|_| begun),
        end: millis(job.end).filter(|_| ended),
        nodelist: job.nodes.clone(),
        ..SlurmView::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_the_first_sentence() {
        for (why, shown) in [
            (
                "It ended with exit code 1 (2.5 s). Nothing points at hardware.",
                "It ended with exit code 1 (2.5 s)",
            ),
            ("Slurm recorded success.", "Slurm recorded success"),
            ("", ""),
        ] {
            assert_eq!(first_sentence(why), shown);
        }
    }
}

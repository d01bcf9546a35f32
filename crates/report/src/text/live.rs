use railgate_model::UnixMillis;
use railgate_text::Lines;

use super::Text;
use crate::JobReport;
use crate::view::live as content;

/// First screen of a running job at `now`, with the age of the partial reports and a list of what is not known
/// yet. For a job that does not run, the same as [`super::text`].
pub fn live(report: &JobReport, now: UnixMillis) -> Lines {
    let Some(live) = content::live(report, now) else { return super::text(report, false) };
    let mut out = Text::default();
    out.line(&format!("job {}", live.job));
    for (name, text) in &live.rows {
        out.screen(name, text);
    }
    out.0
}

#[cfg(test)]
mod tests {
    use railgate_node_report::testing::{job, part};

    use super::*;
    use crate::testing::{merged, slurm};

    #[test]
    fn running_job_lists_what_is_not_known_yet() {
        let words = |as_of: [Option<u64>; 2]| {
            let parts: Vec<_> = ["n1", "n2"]
                .iter()
                .zip(as_of)
                .map(|(name, as_of)| {
                    let mut node = part(name, &job(0..8), "", vec![], 0);
                    (node.end, node.exit, node.as_of) = (None, None, as_of);
                    node
                })
                .collect();
            let start = parts[0].start;
            (start, merged(parts, vec![], slurm("RUNNING")))
        };
        let (start, silent) = words([None, None]);
        let text = live(&silent, start + 60_000);
        assert!(
            text.contains("0 of 2 nodes have sent a partial report: only their prologs have reported"),
            "{text}"
        );
        assert!(text.contains("running, for 1 min") && text.contains("NOT YET  how it ends"), "{text}");
        let (start, report) = words([Some(0), None]);
        let mut report = report;
        report.attempts[0].nodes[0].as_of = Some(start + 55_000);
        let text = live(&report, start + 60_000);
        assert!(text.contains("REPORTS  1 of 2 nodes, 5.0 s ago; nothing from n2"), "{text}");
        assert!(!text.contains("VERDICT") && !text.contains("everything else"), "{text}");
    }
}

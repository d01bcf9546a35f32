//! A waiting job: what it waits for, and how it can start.

use std::fmt::Display;

use railgate_node_report::SlurmView;
use railgate_node_report::plain::stamp;

use crate::JobReport;

/// Maximum number of nodes that are named.
const MOST: usize = 4;

/// What a job waits for, by Slurm's reason. Releases separate its words by blanks or by underscores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// Held; its owner may release it.
    Release,
    /// Held; an admin must release it.
    Admin,
    /// Other jobs that it depends on.
    Dependency,
    /// A dependency that can no longer be satisfied.
    Never,
    /// Its begin time.
    Begin,
    /// Jobs with higher priority.
    Priority,
    /// Free resources.
    Resources,
    /// A node that takes no jobs.
    Nodes,
    /// Another reason, shown in Slurm's words.
    Other,
}

/// Beginnings of Slurm's reasons in lower case with blanks. The first match is used.
const REASONS: [(&str, For); 12] = [
    ("jobheldadmin", For::Admin),
    ("jobhelduser", For::Release),
    ("job requeued in held state", For::Release),
    ("launch failed requeued held", For::Release),
    ("dependencyneversatisfied", For::Never),
    ("dependency", For::Dependency),
    ("begintime", For::Begin),
    ("priority", For::Priority),
    ("resources", For::Resources),
    ("reqnodenotavail", For::Nodes),
    ("nodes required for job are down", For::Nodes),
    ("nodedown", For::Nodes),
];

/// Beginnings of Slurm's other reasons, of limits and reservations.
const OTHER_REASONS: [&str; 7] =
    ["Assoc", "QOS", "Partition", "Licenses", "Reservation", "JobArrayTaskLimit", "BurstBuffer"];

fn row_of(reason: &str) -> Option<&'static (&'static str, For)> {
    let word = reason.replace('_', " ").to_ascii_lowercase();
    REASONS.iter().find(|(start, _)| word.starts_with(start))
}

fn waits_for(reason: &str) -> For {
    row_of(reason).map_or(For::Other, |(_, waits)| *waits)
}

/// The part of a reason that is one of Slurm's own: `ReqNodeNotAvail`, `QOSMaxJobsPerUserLimit`. `None` for
/// text of an admin or a plugin.
pub(crate) fn known_reason(reason: &str) -> Option<&str> {
    let length = match row_of(reason) {
        Some((start, _)) => start.len(),
        None if OTHER_REASONS.iter().any(|start| reason.starts_with(start)) => {
            reason.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(reason.len())
        }
        None => 0,
    };
    reason.get(..length).filter(|word| !word.is_empty())
}

/// `held` is the controller's reason if it held the job.
pub(super) fn why(state: &str, slurm: Option<&SlurmView>, held: Option<&str>) -> String {
    let reason = slurm.map(|view| view.reason.as_str()).filter(|reason| !matches!(*reason, "" | "None"));
    let required = slurm.map(|view| view.required.as_slice()).unwrap_or_default();
    let may_start = slurm.and_then(|view| view.may_start).map(stamp);
    let Some(reason) = reason else {
        let place = asked_for(required).map(|nodes| format!(", for {nodes}")).unwrap_or_default();
        return format!("Slurm reports {state}: it waits to start{place}.{}", expected(may_start));
    };
    let waits = waits_for(reason);
    match (waits, held) {
        (For::Release | For::Admin, Some(held)) => return format!("It is held: {held}."),
        (For::Release, None) => return "It is held (scontrol release lets it start).".to_owned(),
        (For::Admin, None) => return "It is held by an admin, and only an admin can release it.".to_owned(),
        (For::Never, _) => {
            return "It can never start: the job that it depends on did not end as --dependency requires \
                    (DependencyNeverSatisfied)."
                .to_owned();
        }
        (For::Begin, _) => {
            let from = may_start.map(|time| format!(" before {time}")).unwrap_or_default();
            return format!("It waits: Slurm does not start it{from} ({reason}).");
        }
        _ => {}
    }
    let what = match waits {
        For::Dependency => "for the jobs that it depends on",
        For::Priority => "until jobs with higher priority have started",
        For::Resources => "for free resources",
        For::Nodes => "for a node that takes no jobs now",
        _ => "to start",
    };
    let named = asked_for(required).map(|nodes| format!(" It asks for {nodes}.")).unwrap_or_default();
    format!("It waits {what} ({reason}).{named}{}", expected(may_start))
}

fn asked_for(required: &[String]) -> Option<String> {
    let (shown, more) = required.split_at(required.len().min(MOST));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    (!shown.is_empty()).then(|| format!("{}{more} by name (--nodelist)", shown.join(", ")))
}

fn expected(may_start: Option<String>) -> String {
    may_start.map(|time| format!(" Slurm expects it to start at {time}.")).unwrap_or_default()
}

/// How to let a job start that would otherwise wait long or forever; `None` if waiting is enough. `job` is the
/// job id or its placeholder.
pub(crate) fn way_out(report: &JobReport, job: &dyn Display) -> Option<String> {
    let view = report.slurm.as_ref()?;
    let by_gate = view.required.iter().any(|name| refused(report, name));
    match waits_for(&view.reason) {
        For::Release => Some(format!("scontrol release {job} lets it start")),
        For::Never => Some(format!(
            "scancel {job}, or let it start without the other job: scontrol update JobId={job} Dependency="
        )),
        waits if !view.required.is_empty() && (by_gate || waits == For::Nodes) => Some(format!(
            "wait until the node is resumed, or let it start on others: scontrol update JobId={job} ReqNodeList="
        )),
        _ => None,
    }
}

/// Whether the gate of a node refused the job.
pub(crate) fn refused(report: &JobReport, name: &str) -> bool {
    let nodes = report.attempts.iter().flat_map(|attempt| &attempt.nodes);
    nodes.into_iter().any(|node| node.node == name && node.refused())
}

#[cfg(test)]
mod tests {
    use railgate_node_report::SlurmView;
    use railgate_node_report::testing::{START, job};

    use crate::testing::{merged, slurm};
    use crate::{EndKind, JobReport};

    fn waits(reason: &str, required: &[&str]) -> JobReport {
        let view = SlurmView {
            reason: reason.to_owned(),
            restarts: Some(1),
            may_start: Some(START + 120_000),
            required: required.iter().map(|&name| name.to_owned()).collect(),
            ..slurm("PENDING").unwrap()
        };
        merged(vec![railgate_node_report::testing::refused("n2", &job(0..8))], vec![], Some(view))
    }

    #[test]
    fn waiting_job_names_what_it_waits_for_and_until_when() {
        for (reason, why) in [
            ("BeginTime", "It waits: Slurm does not start it before 2027-01-15 08:02:00 UTC (BeginTime)."),
            (
                "Priority",
                "It waits until jobs with higher priority have started (Priority). Slurm expects it to start at \
                 2027-01-15 08:02:00 UTC.",
            ),
            (
                "QOSMaxJobsPerUserLimit",
                "It waits to start (QOSMaxJobsPerUserLimit). Slurm expects it to start at 2027-01-15 08:02:00 UTC.",
            ),
            ("JobHeldAdmin", "It is held by an admin, and only an admin can release it."),
            ("job_requeued_in_held_state", "It is held (scontrol release lets it start)."),
            (
                "None",
                "Slurm reports PENDING: it waits to start. Slurm expects it to start at 2027-01-15 08:02:00 UTC.",
            ),
        ] {
            let report = waits(reason, &[]);
            assert_eq!((report.ended.kind, report.ended.why.as_str()), (EndKind::Waiting, why), "{reason}");
        }
    }

    #[test]
    fn job_that_cannot_start_shows_how_it_could() {
        let next = |report: &JobReport| {
            let first = report.next_steps.first().filter(|step| !step.contains("collect"));
            first.cloned().unwrap_or_default()
        };
        let never = waits("DependencyNeverSatisfied", &[]);
        assert!(never.ended.why.starts_with("It can never start"), "{}", never.ended.why);
        assert!(next(&never).starts_with("scancel 48213, or "), "{}", next(&never));
        let here = waits("ReqNodeNotAvail,_UnavailableNodes:n2", &["n2"]);
        assert!(here.ended.why.contains("It asks for n2 by name (--nodelist)."), "{}", here.ended.why);
        assert!(next(&here).contains("scontrol update JobId=48213 ReqNodeList="), "{}", next(&here));
        assert!(!here.attempts[0].ended.why.contains("other nodes"), "{}", here.attempts[0].ended.why);
        // A busy node becomes free by itself.
        assert_eq!(next(&waits("Resources", &["n1"])), "");
        assert!(next(&waits("Resources", &["n2"])).contains("ReqNodeList="), "the gate refused that node");
        assert_eq!(next(&waits("JobHeldAdmin", &[])), "");
        assert_eq!(next(&waits("launch_failed_requeued_held", &[])), "scontrol release 48213 lets it start");
    }

    #[test]
    fn refused_job_without_requeue_is_not_promised_a_restart() {
        let steps = |required: &[&str]| {
            let view = SlurmView {
                required: required.iter().map(|&name| name.to_owned()).collect(),
                ..slurm("CANCELLED").unwrap()
            };
            merged(vec![railgate_node_report::testing::refused("n2", &job(0..8))], vec![], Some(view))
                .next_steps[0]
                .clone()
        };
        assert_eq!(steps(&["n2"]), "submit it again without asking for that node by name (--nodelist)");
        assert!(steps(&[]).ends_with("Slurm requeues a batch job"), "{}", steps(&[]));
    }
}

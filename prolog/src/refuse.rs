use railgate_node::{Phase, Verdict};
use railgate_runner::{Hook, tell_owner};
use railgate_slurm::{Client, DrainOutcome, JobRef, OnBreaker};
use railgate_stats::{Act, ActKind, NodeReport};

use crate::now;

/// Whether the prolog must fail so that Slurm moves the job, after an unfit verdict was acted on.
///
/// Where the node may not be drained (the breaker) the prolog must not fail either, since that drains it too:
/// the job runs, or waits on hold until somebody looks, as `[breaker] on_breaker` says.
pub(crate) fn must_not_start(
    hook: &Hook,
    outcome: &DrainOutcome,
    verdict: &Verdict,
    report: &mut NodeReport,
) -> bool {
    let client = Client::new(&hook.config.slurm, &hook.env);
    let what = verdict
        .cause()
        .map(|cause| format!("{}: {}; {}", cause.subject(), cause.what, cause.fix))
        .unwrap_or_default();
    match outcome {
        DrainOutcome::Drained { .. } | DrainOutcome::AlreadyOurs { .. } | DrainOutcome::Foreign { .. } => {
            let text = format!(
                "railgate: node {} failed its check before job {} started ({what}). The node is drained; \
                 a batch job that may be requeued moves to other nodes by itself.",
                hook.node, hook.job.id
            );
            note(report, ActKind::Refused, &what);
            tell_owner(hook, &client, &text);
            note(report, ActKind::Notified, &text);
            true
        }
        // slurmctld does not answer: a failed prolog still drains the node, and the reason follows.
        DrainOutcome::Pending(_) => {
            note(report, ActKind::Refused, &what);
            true
        }
        DrainOutcome::BreakerOpen { .. } if hook.config.breaker.on_breaker == OnBreaker::Hold => {
            let job = JobRef::plain(hook.job.het_leader.unwrap_or(hook.job.id));
            if let Err(why) = client.requeue_hold(&job) {
                tracing::warn!(job = hook.job.id, "cannot hold: {why}; the job runs");
                note(report, ActKind::Failed, &format!("hold: {why}"));
            }
            false
        }
        DrainOutcome::BreakerOpen { .. } => {
            let text = format!(
                "railgate: node {} failed its check ({what}), but too many nodes are drained already; \
                 the job runs on it all the same.",
                hook.node
            );
            tell_owner(hook, &client, &text);
            note(report, ActKind::Notified, &text);
            false
        }
        DrainOutcome::NotActing(_) => false,
    }
}

fn note(report: &mut NodeReport, what: ActKind, detail: &str) {
    let by = Phase::Prolog.to_string();
    report.acts.push(Act { what, time: now(), by, detail: detail.to_owned() });
}

use railgate_model::{Phase, Verdict};
use railgate_node_report::{Act, ActKind, NodeReport, finding_for_reader};
use railgate_runner::{Hook, notify_owner, now};
use railgate_slurm::{Client, DrainOutcome, JobRef, OnBreaker, OwnersView, Reason};

/// Whether the prolog must fail, so that Slurm moves the job. Called after the verdict `unfit` was acted on.
///
/// If the breaker forbids the drain, the prolog must not fail either, since Slurm would then drain the node. The job
/// runs, or is requeued and held until a person releases it, depending on `[breaker] on_breaker`.
pub(crate) fn must_not_start(
    hook: &Hook,
    client: &Client,
    outcome: &DrainOutcome,
    verdict: &Verdict,
    report: &mut NodeReport,
) -> bool {
    let what = verdict
        .cause()
        .map(|cause| format!("{}: {}; {}", cause.subject(), cause.what, cause.fix))
        .unwrap_or_default();
    // The remedy is for the node's admin, not for the job's owner.
    let seen = verdict
        .cause()
        .map(|cause| finding_for_reader(&hook.job, cause))
        .map(|cause| format!("{}: {}", cause.subject(), cause.what))
        .unwrap_or_default();
    match outcome {
        DrainOutcome::Drained { .. } | DrainOutcome::AlreadyOurs { .. } | DrainOutcome::Foreign { .. } => {
            note(report, ActKind::Refused, &what);
            let told = notify_owner(hook, client, |view| {
                format!(
                    "railgate: node {} failed its check before job {} started ({seen}). {}",
                    hook.node,
                    hook.job.id,
                    what_now(view, &hook.node, hook.job.id)
                )
            });
            if let Some(text) = told {
                note(report, ActKind::Notified, &text);
            }
            true
        }
        // slurmctld does not answer: a failed prolog still drains the node, and the reason is set later. That drain
        // bypasses the breaker, so it is limited to faults with which any job would fail.
        DrainOutcome::Pending(_) => {
            let lost = verdict.cause().is_some_and(|cause| Reason::new(cause, Phase::Prolog, &[]).lost());
            if lost {
                note(report, ActKind::Refused, &what);
            } else {
                let id = hook.job.id;
                tracing::warn!(job = id, "drain count unavailable; job allowed ({what})");
            }
            lost
        }
        DrainOutcome::BreakerOpen { .. } => {
            let held = if hook.config.breaker.on_breaker == OnBreaker::Hold {
                hold(client, hook.job.id).map(Some)
            } else {
                Ok(None)
            };
            let follows = match &held {
                Ok(Some(name)) => format!("job {name} is held until an admin has repaired the nodes"),
                _ => format!("job {} runs on it nevertheless", hook.job.id),
            };
            if let Err(why) = held {
                tracing::warn!(job = hook.job.id, "cannot be held: {why}; the job runs");
                note(report, ActKind::Failed, &format!("hold: {why}"));
            }
            let told = notify_owner(hook, client, |_| {
                format!(
                    "railgate: node {} failed its check ({seen}), but too many nodes are drained already; \
                     {follows}.",
                    hook.node,
                )
            });
            if let Some(text) = told {
                note(report, ActKind::Notified, &text);
            }
            false
        }
        DrainOutcome::NotActing(_) => false,
    }
}

/// Requeues and holds a batch job. Returns its name in Slurm's commands.
fn hold(client: &Client, id: u32) -> Result<JobRef, String> {
    let job = client.refusable(id).map_err(|why| why.to_string())?;
    let job = job.filter(|job| job.requeue).ok_or("not a batch job that may be requeued")?;
    client.requeue_hold(&job.name).map_err(|why| why.to_string())?;
    Ok(job.name)
}

/// What Slurm does with a job whose prolog fails, and what its owner can do. Promises no other node: partition,
/// constraints and reservations may leave none, which is unknown here.
fn what_now(view: &OwnersView, node: &str, job: u32) -> String {
    let bound = view.required.iter().any(|name| name == node);
    let again = |elsewhere: &str| {
        if bound { format!("without asking for {node} (--nodelist)") } else { elsewhere.to_owned() }
    };
    match (view.batch, view.requeue) {
        (Some(false), _) => {
            let again = again("on other nodes");
            format!("The node is drained and Slurm revokes the job: run it again {again}.")
        }
        (Some(true), Some(false)) => {
            let again = again("for other nodes");
            format!(
                "The node is drained and Slurm cancels the job, which may not be requeued: submit it again {again}."
            )
        }
        (Some(true), Some(true)) if bound => format!(
            "The node is drained and Slurm requeues the job. It waits for {node}, because it requests this node by name \
             (--nodelist); `scontrol update JobId={job} ReqNodeList=` lets it start on other nodes."
        ),
        (Some(true), Some(true)) => {
            "The node is drained and Slurm requeues the job for other nodes.".to_owned()
        }
        _ => "The node is drained; Slurm requeues a batch job that may be requeued.".to_owned(),
    }
}

fn note(report: &mut NodeReport, what: ActKind, detail: &str) {
    let by = Phase::Prolog.to_string();
    report.acts.push(Act { what, time: now(), by, detail: detail.to_owned() });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notice_promises_no_other_node() {
        let view = |batch, requeue, required: &[&str]| OwnersView {
            batch,
            requeue,
            required: required.iter().map(|&name| name.to_owned()).collect(),
            output: None,
        };
        let says = |view: &OwnersView| what_now(view, "gn2", 7);
        for (batch, requeue) in
            [(Some(true), Some(true)), (Some(true), Some(false)), (Some(false), None), (None, None)]
        {
            for required in [&[][..], &["gn2"], &["gn1"]] {
                let said = says(&view(batch, requeue, required));
                assert!(!said.contains("by itself") && !said.contains("gets other nodes"), "{said}");
            }
        }
        let bound = says(&view(Some(true), Some(true), &["gn1", "gn2"]));
        assert!(
            bound.contains("It waits for gn2") && bound.contains("scontrol update JobId=7 ReqNodeList="),
            "{bound}"
        );
        let elsewhere = says(&view(Some(true), Some(true), &["gn1"]));
        assert!(elsewhere.ends_with("requeues the job for other nodes."), "{elsewhere}");
        assert!(
            says(&view(Some(false), None, &["gn2"]))
                .ends_with("run it again without asking for gn2 (--nodelist).")
        );
    }
}

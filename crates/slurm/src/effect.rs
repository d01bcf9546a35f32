//! Carries out a decision: the only place that changes jobs.

use tracing::warn;

use crate::admin_comment::with_field;
use crate::{Client, JobRef, JobState, SlurmError, StartWhen, hostlist};

/// Parameters of a requeue.
#[derive(Clone, Debug)]
pub struct RequeueOrder<'a> {
    /// Its name in Slurm's commands.
    pub name: &'a JobRef,
    /// State of the job before the requeue.
    pub job: &'a JobState,
    /// Nodes to add to its ExcNodeList.
    pub exclude: &'a [String],
    /// When the job may start.
    pub start: StartWhen,
    /// Text for our field in AdminComment.
    pub note: &'a str,
}

/// Requeues the job. While our hook runs the job counts as completing and cannot start, so all later settings are in
/// place before it does. Only the requeue itself can fail; the other changes are tried and failures logged.
///
/// # Errors
/// [`SlurmError`] of the requeue.
pub fn requeue(client: &Client, how: &RequeueOrder<'_>) -> Result<(), SlurmError> {
    client.requeue(how.name)?;
    exclude(client, how.name, how.job, how.exclude);
    if how.start == StartWhen::Now {
        // Slurm sets its own, later time once the job has left its nodes, unless it finds one in the future.
        tried("StartTime", client.update_job(how.name, &[("StartTime", "now+3")]));
    }
    note(client, how.name, how.note);
    Ok(())
}

/// Requeues and holds the job.
///
/// # Errors
/// [`SlurmError`] of the requeue.
pub fn requeue_held(client: &Client, name: &JobRef, text: &str) -> Result<(), SlurmError> {
    client.requeue_hold(name)?;
    note(client, name, &format!("held: {text}"));
    Ok(())
}

/// Holds a job that Slurm itself has requeued.
///
/// # Errors
/// [`SlurmError`] of the hold.
pub fn hold(client: &Client, name: &JobRef, text: &str) -> Result<(), SlurmError> {
    client.hold(name)?;
    note(client, name, &format!("held: {text}"));
    Ok(())
}

/// Adds nodes to the ExcNodeList of a pending job. Slurm replaces the whole list, so the old one is merged in. A node
/// that the job requires is left out, or the job could never start.
pub fn exclude(client: &Client, name: &JobRef, job: &JobState, nodes: &[String]) {
    let (Ok(mut list), Ok(required)) = (hostlist::expand(&job.excluded), hostlist::expand(&job.required))
    else {
        warn!(job = %name, "ExcNodeList or ReqNodeList cannot be read, nothing is excluded");
        return;
    };
    let before = list.len();
    for node in nodes {
        if required.contains(node) {
            warn!(job = %name, node, "the job requires a node that it should avoid");
        } else if !list.contains(node) {
            list.push(node.clone());
        }
    }
    if list.len() > before {
        tried("ExcNodeList", client.update_job(name, &[("ExcNodeList", &hostlist::compress(&list))]));
    }
}

/// Delays the start of a pending job.
pub fn delay(client: &Client, name: &JobRef, by: std::time::Duration) {
    let start = format!("now+{}", by.as_secs());
    tried("StartTime", client.update_job(name, &[("StartTime", &start)]));
}

/// Sets our field in the AdminComment of a pending job; everything else in it stays.
pub fn note(client: &Client, name: &JobRef, text: &str) {
    match client.admin_comment(name) {
        Ok(Some(comment)) => match with_field(&comment, text) {
            Some(changed) if changed != comment => {
                tried("AdminComment", client.update_job(name, &[("AdminComment", &changed)]));
            }
            Some(_) => {}
            None => warn!(job = %name, "AdminComment is too long for our field"),
        },
        Ok(None) => warn!(job = %name, "AdminComment is too long for our field"),
        Err(why) => warn!(job = %name, "AdminComment: {why}"),
    }
}

fn tried(what: &str, result: Result<(), SlurmError>) {
    if let Err(why) = result {
        warn!("{what}: {why}");
    }
}

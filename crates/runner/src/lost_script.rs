//! Brings a job back whose batch script has died with its node. With `sbatch --no-kill` Slurm leaves such a job running, without a
//! script, until its time limit.
//!
//! A child asks Slurm: slurmctld may not answer.

use std::path::PathBuf;
use std::time::Duration;

use railgate_child::{Task, ask};
use railgate_model::Job;
use railgate_node_report::{NodeReport, reason_for_reader};
use railgate_slurm::{Acting, Consent, JobState, NodeState, Refusable};
use serde::{Deserialize, Serialize};

use crate::act::loaded;
use crate::{acting, append_to_log};

const REVIVE: &str = "requeue-lost-script";
pub(crate) const TASK: Task = Task::new(REVIVE, revive);
/// Some commands of Slurm, each with `[slurm] timeout`.
const DEADLINE: Duration = Duration::from_secs(60);
/// Nodes after the first one that watch it: the second one in case it dies as well.
const WATCHERS: usize = 2;

/// The batch script of a job, for a node that watches the one on which it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchScript {
    job: Job,
    attempt: u32,
    /// The node of the script, as Slurm names it.
    node: String,
    requeue: String,
}

/// What Slurm says about the node of a batch script, and what was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptNode {
    /// It is not down, or Slurm has ended or requeued the job itself.
    NotLost,
    /// It is down; the job is requeued, or stays because its owner or the site does not want a requeue.
    Handled,
    /// It is down, and the requeue failed. The reason is in the job's output and in the log.
    Refused,
}

/// The order to the child.
#[derive(Serialize, Deserialize)]
struct Order {
    script: BatchScript,
    /// `false`: only look.
    act: bool,
}

/// What the child found, if the node is down and the job still runs.
#[derive(Serialize, Deserialize)]
struct Lost {
    what: String,
    output: Option<PathBuf>,
    requeue: bool,
}

impl BatchScript {
    /// The script, if this node is one of the two that watch its node. Components of a heterogeneous job do not know the node.
    pub fn watched(report: &NodeReport) -> Option<Self> {
        let job = &report.job;
        let nodes = railgate_slurm::hostlist::expand(&job.nodelist).ok()?;
        let watches = nodes.iter().skip(1).take(WATCHERS).any(|node| *node == report.node);
        (watches && job.het_leader.is_none()).then(|| BatchScript {
            job: job.clone(),
            attempt: report.attempt,
            node: nodes.first().cloned().unwrap_or_default(),
            requeue: report.options.requeue.clone(),
        })
    }

    /// Asks Slurm about the node of the script, and requeues the job if that is down and the job's owner agreed to requeues. Whether
    /// the job may start again is then decided on the controller, as after each failure of a node. Adds a line to the job's output,
    /// unless an earlier call has (`told`).
    ///
    /// # Errors
    /// In words: slurmctld does not answer.
    pub fn requeue_if_lost(&self, told: bool) -> Result<ScriptNode, String> {
        let Some(lost) = self.ask(false)? else { return Ok(ScriptNode::NotLost) };
        let tell = |what: &str| {
            tracing::warn!(job = self.job.id, "{what}");
            let line = format!("railgate: {what}");
            let append = |output: &PathBuf| append_to_log(&self.job, Some(output), &line);
            if let Some(Err(why)) = lost.output.as_ref().filter(|_| !told).map(append) {
                tracing::info!(
                    job = self.job.id,
                    "the job's output lacks the line about its batch script: {why}"
                );
            }
        };
        // Before the requeue: after it the epilog ends this program.
        tell(&lost.what);
        if !lost.requeue {
            return Ok(ScriptNode::Handled);
        }
        match self.ask(true) {
            Ok(_) => Ok(ScriptNode::Handled),
            Err(why) => {
                tell(&format!("Slurm did not requeue the job: {why}; railgate tries again"));
                Ok(ScriptNode::Refused)
            }
        }
    }

    fn ask(&self, act: bool) -> Result<Option<Lost>, String> {
        let order = Order { script: self.clone(), act };
        let order = serde_json::to_vec(&order).map_err(|why| why.to_string())?;
        let said = ask(REVIVE, &order, DEADLINE)?;
        serde_json::from_slice(&said).map_err(|why| why.to_string())
    }

    /// Why the job is not requeued; `None`: it is.
    fn refuses(&self, job: &Refusable, acting: Acting) -> Option<String> {
        if let Acting::Forbidden(why) = acting {
            return Some(why);
        }
        // Text that cannot be read is no consent.
        if self.requeue.parse::<Consent>().unwrap_or_default().at_most(u32::MAX) == 0 {
            return Some(format!("--railgate-requeue is '{}'", self.requeue));
        }
        (!job.requeue).then(|| "it was submitted with --no-requeue".to_owned())
    }

    /// Slurm has this attempt running, and does not end it.
    fn runs(&self, jobs: &[JobState]) -> bool {
        let own = jobs.iter().find(|job| job.id == self.job.id);
        own.is_some_and(|job| job.batch && job.state == "RUNNING" && job.restarts == self.attempt)
    }

    fn lost(&self, node: &NodeState) -> String {
        let told = |text: &str| format!(" ({})", reason_for_reader(text, &[self.job.id]));
        let reason = node.reason.as_ref().map(|reason| told(&reason.text)).unwrap_or_default();
        format!(
            "{}, the node of the batch script, is {} in Slurm{reason}; the job has no script any longer",
            self.node,
            node.state()
        )
    }
}

fn revive(input: &[u8]) -> Result<Vec<u8>, String> {
    let Order { script, act } = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let (places, config, client) = loaded()?;
    let node = client.node(&script.node).map_err(|why| why.to_string())?;
    let mut lost = None;
    if node.has("DOWN")
        && let Some(job) = client.refusable(script.job.id).map_err(|why| why.to_string())?
        && script.runs(&client.job(&job.name).map_err(|why| why.to_string())?)
    {
        let what = script.lost(&node);
        let output = client.owners_view(script.job.id).ok().and_then(|view| view.output);
        let refused = script.refuses(&job, acting(&config, &places));
        if act && refused.is_none() {
            client.requeue(&job.name).map_err(|why| why.to_string())?;
        }
        let requeue = refused.is_none();
        let what = match refused {
            Some(why) => format!("{what}, and is not requeued: {why}; `scancel {}` ends it", job.name),
            None => format!("{what}, and is requeued"),
        };
        lost = Some(Lost { what, output, requeue });
    }
    serde_json::to_vec(&lost).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use railgate_slurm::JobRef;

    use super::*;

    fn report(node: &str, nodes: &str) -> NodeReport {
        let job = format!(
            r#"{{"id":7,"uid":1000,"gid":1000,"user":"alice","het_leader":null,"partition":"gpu","nodelist":"{nodes}",
            "restarts":0,"allocation":"no-gpus"}}"#
        );
        NodeReport::new("alpha", node, serde_json::from_str(&job).unwrap(), 2, 1_700_000_000_000)
    }

    #[test]
    fn the_two_nodes_after_the_first_one_watch_it() {
        let watches = |node, nodes| BatchScript::watched(&report(node, nodes)).is_some();
        let of = |nodes| ["gn1", "gn2", "gn3", "gn4"].map(|node| watches(node, nodes));
        assert_eq!(of("gn[1-4]"), [false, true, true, false]);
        assert_eq!(of("gn[3-4]"), [false, false, false, true]);
        assert_eq!(of("gn2"), [false; 4]);
        let mut part = report("gn2", "gn[1-2]");
        part.job.het_leader = Some(6);
        assert_eq!(BatchScript::watched(&part), None);
    }

    #[test]
    fn without_consent_nothing_is_requeued() {
        let job = |requeue| Refusable { name: JobRef::plain(7), requeue };
        let refuses = |text: &str, may, acting| {
            let mut report = report("gn2", "gn[1-2]");
            text.clone_into(&mut report.options.requeue);
            BatchScript::watched(&report).unwrap().refuses(&job(may), acting)
        };
        assert_eq!(refuses("auto", true, Acting::Allowed), None);
        assert_eq!(refuses("2", true, Acting::Allowed), None);
        for text in ["never", "", "0", "always\n"] {
            assert!(refuses(text, true, Acting::Allowed).is_some(), "{text}");
        }
        assert!(refuses("auto", false, Acting::Allowed).is_some_and(|why| why.contains("--no-requeue")));
        let forbidden = Acting::Forbidden("dry run".to_owned());
        assert_eq!(refuses("auto", true, forbidden).as_deref(), Some("dry run"));
    }
}

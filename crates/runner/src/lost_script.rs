//! Brings a job back whose batch script has died with its node. With `sbatch --no-kill` Slurm leaves such a job running, without a
//! script, until its time limit.
//!
//! A child asks Slurm: slurmctld may not answer.

use std::path::PathBuf;
use std::time::Duration;

use railgate_child::{Task, ask};
use railgate_model::Job;
use railgate_node_report::{NodeReport, reason_for_reader};
use railgate_slurm::{Acting, Consent, JobRef, JobState, NodeState, Refusable};
use serde::{Deserialize, Serialize};

use crate::{acting, append_to_log, hang_end::loaded};

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScriptNode {
    /// It is not down, or Slurm has ended or requeued the job itself.
    NotLost,
    /// It is down. What happened to the job, in words, and the job's output file.
    Lost(String, Option<PathBuf>),
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
    /// the job may start again is then decided on the controller, as after each failure of a node. Adds a line to the job's output.
    ///
    /// # Errors
    /// In words: slurmctld does not answer, or refuses.
    pub fn requeue_if_lost(&self) -> Result<ScriptNode, String> {
        let order = serde_json::to_vec(self).map_err(|why| why.to_string())?;
        let said = ask(REVIVE, &order, DEADLINE)?;
        let found = serde_json::from_slice(&said).map_err(|why| why.to_string())?;
        if let ScriptNode::Lost(what, output) = &found {
            // At once: the epilog ends the sampler as soon as the job is requeued.
            tracing::warn!(job = self.job.id, "{what}");
            let line = format!("railgate: {what}");
            let written = output.as_ref().map(|output| append_to_log(&self.job, output, &line));
            if let Some(Err(why)) = written {
                tracing::info!(
                    job = self.job.id,
                    "the job's output lacks the line about its batch script: {why}"
                );
            }
        }
        Ok(found)
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
    let script: BatchScript = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let (places, config, client) = loaded()?;
    let node = client.node(&script.node).map_err(|why| why.to_string())?;
    let answer = if !node.has("DOWN") {
        ScriptNode::NotLost
    } else {
        let name = client.refusable(script.job.id).map_err(|why| why.to_string())?;
        let asked = |name: &JobRef| client.job(name).map_err(|why| why.to_string());
        match name {
            Some(job) if script.runs(&asked(&job.name)?) => {
                let what = script.lost(&node);
                // Afterwards Slurm may have purged it.
                let output = client.owners_view(script.job.id).ok().and_then(|view| view.output);
                let what = match script.refuses(&job, acting(&config, &places)) {
                    Some(why) => {
                        format!("{what}, and is not requeued: {why}; `scancel {}` ends it", job.name)
                    }
                    None => {
                        client.requeue(&job.name).map_err(|why| why.to_string())?;
                        format!("{what}, and is requeued")
                    }
                };
                ScriptNode::Lost(what, output)
            }
            _ => ScriptNode::NotLost,
        }
    };
    serde_json::to_vec(&answer).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
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

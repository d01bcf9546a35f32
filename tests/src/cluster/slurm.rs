//! State of jobs and nodes as Slurm reports it, and functions that wait for a state.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};

use super::Cluster;
use crate::poll;

/// A job as `scontrol show job` prints it.
#[derive(Clone, Debug)]
pub struct Job(BTreeMap<String, String>);

/// A node as `scontrol show node` prints it.
#[derive(Clone, Debug)]
pub struct Node(BTreeMap<String, String>);

/// Final states of a job.
pub const ENDED: [&str; 9] = [
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
];

/// Parses `Key=Value Key=Value …` where a value may contain spaces.
fn fields(line: &str) -> BTreeMap<String, String> {
    let mut found: Vec<(String, String)> = Vec::new();
    for word in line.split(' ') {
        let key = word.split_once('=').filter(|(key, _)| {
            key.starts_with(|c: char| c.is_ascii_uppercase())
                && key.chars().all(|c| c.is_ascii_alphanumeric() || "_:/".contains(c))
        });
        match (key, found.last_mut()) {
            (Some((key, value)), _) => found.push((key.to_owned(), value.to_owned())),
            (None, Some((_, value))) => {
                value.push(' ');
                value.push_str(word);
            }
            (None, None) => {}
        }
    }
    found.into_iter().map(|(key, value)| (key, value.trim().to_owned())).collect()
}

impl Job {
    /// The value of a field, empty if absent.
    pub fn field(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// The state, for example `RUNNING`.
    pub fn state(&self) -> &str {
        self.field("JobState")
    }

    /// The reason of the state.
    pub fn reason(&self) -> &str {
        self.field("Reason")
    }

    /// How often the job was restarted.
    pub fn restarts(&self) -> u32 {
        self.field("Restarts").parse().unwrap_or(u32::MAX)
    }

    /// Nodes on which the job runs or ran, for example `gn[1-2]`.
    pub fn nodes(&self) -> &str {
        self.field("NodeList")
    }
}

impl Node {
    /// The value of a field, empty if absent.
    pub fn field(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// The state, for example `IDLE+DRAIN`, without the asterisk of a node that does not respond.
    pub fn state(&self) -> String {
        self.field("State").replace('*', "")
    }

    /// Whether the node is drained or draining.
    pub fn drained(&self) -> bool {
        self.state().contains("DRAIN")
    }

    /// The text of the reason, without user and time.
    pub fn reason(&self) -> &str {
        let text = self.field("Reason");
        text.rsplit_once(" [").map_or(text, |(reason, _)| reason)
    }

    /// The user who set the reason.
    pub fn reason_by(&self) -> &str {
        let text = self.field("Reason").rsplit_once(" [").map_or("", |(_, by)| by);
        text.split_once('@').map_or("", |(user, _)| user)
    }
}

impl Cluster {
    /// A job or an array task (`12_3`).
    ///
    /// # Errors
    /// Slurm does not know the job or does not answer.
    pub fn job(&self, id: impl ToString) -> Result<Job> {
        let text = self.root().run(&["scontrol", "-o", "show", "job", &id.to_string()])?.ok()?;
        Ok(Job(fields(text.lines().next().unwrap_or_default())))
    }

    /// All jobs that slurmctld knows.
    ///
    /// # Errors
    /// Slurm does not answer.
    pub fn jobs(&self) -> Result<Vec<Job>> {
        let text = self.root().run(&["scontrol", "-o", "show", "jobs"])?.ok()?;
        Ok(text.lines().map(|line| Job(fields(line))).collect())
    }

    /// The node of this name.
    ///
    /// # Errors
    /// Slurm does not know the node or does not answer.
    pub fn node(&self, name: &str) -> Result<Node> {
        let text = self.root().run(&["scontrol", "-o", "show", "node", name])?.ok()?;
        Ok(Node(fields(text.lines().next().unwrap_or_default())))
    }

    /// Waits until a job is in one of the states.
    ///
    /// # Errors
    /// The job ended in another state, or the deadline passed.
    pub fn wait_job(&self, id: impl ToString, states: &[&str], deadline: Duration) -> Result<Job> {
        let id = id.to_string();
        let mut last = String::new();
        let job = poll::until(deadline, &format!("job {id} to be {}", states.join(" or ")), || {
            let job = self.job(&id)?;
            last = format!("{} ({})", job.state(), job.reason());
            Ok((states.contains(&job.state()) || ENDED.contains(&job.state())).then_some(job))
        });
        match job {
            Ok(job) if states.contains(&job.state()) => Ok(job),
            Ok(job) => bail!(
                "job {id} is {} ({}, exit code {}, restarts {}), not {}",
                job.state(),
                job.reason(),
                job.field("ExitCode"),
                job.restarts(),
                states.join(" or ")
            ),
            Err(error) => Err(error.context(format!("job {id} is {last}"))),
        }
    }

    /// Waits until a condition holds for a job.
    ///
    /// # Errors
    /// The deadline passed.
    pub fn wait_job_until(
        &self,
        id: impl ToString,
        what: &str,
        deadline: Duration,
        condition: impl Fn(&Job) -> bool,
    ) -> Result<Job> {
        let id = id.to_string();
        poll::until(deadline, &format!("job {id}: {what}"), || {
            let job = self.job(&id)?;
            Ok(condition(&job).then_some(job))
        })
    }

    /// Waits until a condition holds for a node.
    ///
    /// # Errors
    /// The deadline passed; the message contains the node's last state.
    pub fn wait_node(
        &self,
        name: &str,
        what: &str,
        deadline: Duration,
        condition: impl Fn(&Node) -> bool,
    ) -> Result<Node> {
        let mut last = String::new();
        poll::until(deadline, &format!("{name}: {what}"), || {
            let node = self.node(name)?;
            last = format!("{name} is {} ({})", node.state(), node.field("Reason"));
            Ok(condition(&node).then_some(node))
        })
        .map_err(|error| error.context(last))
    }

    /// Reads a file of the shared file systems (/home, /shared) as root; `None` if it does not exist.
    pub fn output(&self, path: &str) -> Option<String> {
        self.read(super::CONTROLLER, path).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_hold_blanks_and_equal_signs() {
        let found = fields(
            "NodeName=gn1 State=IDLE+DRAIN Reason=railgate: gpu-lost@3: a b; reboot [prolog job=7] [root@2026-11-21T02:00:00] Comment=(null)",
        );
        let node = Node(found);
        assert_eq!(node.reason(), "railgate: gpu-lost@3: a b; reboot [prolog job=7]");
        assert_eq!(node.reason_by(), "root");
        assert!(node.drained());
        assert_eq!(node.field("Comment"), "(null)");
    }
}

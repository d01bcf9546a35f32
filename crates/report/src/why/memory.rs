//! Attempts that ran out of memory.

use railgate_model::{OomLimit, oom_kills};
use railgate_node_report::{Exit, NodeReport};

use super::Proof;
use crate::Attempt;

/// Evidence that a process of the job was killed for lack of memory.
#[derive(Clone, Debug)]
pub(crate) struct Shortage {
    /// Limit that was exceeded; `None` if only Slurm or the job's own cgroup reports the kill.
    pub(crate) limit: Option<OomLimit>,
    pub(super) proof: Option<Proof>,
    /// Source of the evidence if it is not the kernel.
    said: String,
}

impl Shortage {
    /// Sentence for the verdict.
    pub(super) fn why(&self) -> String {
        match self.limit {
            Some(OomLimit::Job) => {
                "The job reached its memory limit, and the kernel killed one of its processes.".to_owned()
            }
            Some(OomLimit::Group) => {
                "The kernel killed a process because memory ran out, and the job ended with an error."
                    .to_owned()
            }
            Some(OomLimit::Node) => {
                "The node ran out of memory, and the kernel killed a process of the job. All processes \
                on the node contributed to it."
                    .to_owned()
            }
            None => self.said.clone(),
        }
    }
}

/// The most reliable evidence: the kernel's record, which names the limit, then Slurm's record of the job's
/// steps, then the counter of the job's cgroup. A script may continue after one of its processes or steps was
/// killed, so Slurm's state of the job alone is not sufficient.
pub(crate) fn shortage(attempt: &Attempt) -> Option<Shortage> {
    attempt.nodes.iter().find_map(by_kernel).or_else(|| by_slurm(attempt)).or_else(|| by_cgroup(attempt))
}

/// The first process of the job that the kernel killed.
fn by_kernel(node: &NodeReport) -> Option<Shortage> {
    let lines = &node.kernel.lines;
    let kill = oom_kills(lines).into_iter().find(|kill| kill.is_of(&node.job))?;
    let line = lines.iter().find(|line| kill.seqs.contains(&line.seq))?;
    let proof = Proof { time: Some(line.time), node: node.node.clone(), what: line.text.clone() };
    Some(Shortage { limit: Some(kill.limit), proof: Some(proof), said: String::new() })
}

/// The worst of the job's steps has Slurm's status for out of memory. If the job ends with a step, only some
/// nodes may receive its status.
fn by_slurm(attempt: &Attempt) -> Option<Shortage> {
    let worst = |node: &NodeReport| Some(Exit { status: node.exit?.derived?, derived: None });
    let marked = attempt.nodes.iter().filter_map(worst).any(|worst| worst.signal() == 125);
    marked.then(|| Shortage {
        limit: None,
        proof: None,
        said: "Slurm recorded that a step of the job ran out of memory, and the job ended with an error."
            .to_owned(),
    })
}

fn by_cgroup(attempt: &Attempt) -> Option<Shortage> {
    let kills = |node: &NodeReport| {
        let kills = *node.usage.as_ref()?.host.oom_kills.known()?;
        (kills > 0).then(|| (node.node.clone(), kills))
    };
    let (node, kills) = attempt.nodes.iter().find_map(kills)?;
    let times = if kills == 1 { "1 kill".to_owned() } else { format!("{kills} kills") };
    let what = format!("the job's cgroup counted {times} because memory ran out");
    Some(Shortage {
        limit: None,
        proof: Some(Proof { time: None, node, what }),
        said:
            "The kernel killed a process of the job because memory ran out, and the job ended with an error."
                .to_owned(),
    })
}

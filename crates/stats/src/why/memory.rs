//! Attempts that ran out of memory.

use railgate_model::{OomLimit, oom_kills};

use super::Proof;
use crate::{Attempt, Exit, NodeReport};

/// What shows that a process of the job was killed for want of memory.
#[derive(Clone, Debug)]
pub(crate) struct Shortage {
    /// What was used up; `None` where only Slurm or the job's own cgroup tells of it.
    pub(crate) limit: Option<OomLimit>,
    pub(super) proof: Option<Proof>,
    /// Whose word it is, where that is not the kernel's.
    said: String,
}

impl Shortage {
    /// The verdict's sentence.
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
                on the node had a part in it."
                    .to_owned()
            }
            None => self.said.clone(),
        }
    }
}

/// The best that is known of it: the kernel's record, which tells whose memory was used up, then what Slurm recorded of the
/// job's steps, then the count of the job's cgroup. A script may go on after one of its processes or steps was killed, so
/// Slurm's state of the job alone does not tell.
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

/// The worst of the job's steps ended with Slurm's mark for out of memory. Where the job ends with a step, its status may
/// come to some nodes only.
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

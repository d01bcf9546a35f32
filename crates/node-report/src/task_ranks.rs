use railgate_model::{ProcessExit, RankProcess, UnixMillis};
use railgate_rankfile::start_number;
use serde::{Deserialize, Serialize};

/// Maximum number of listed processes; beyond it the ones that ended first are dropped.
const MOST: usize = 256;

/// A process of a rank, with its end, as the sampler watched it. Rank and start are from the environment, which its user
/// writes; the end is from the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskRank {
    /// `RANK` of a launcher, else `SLURM_PROCID`.
    pub rank: u32,
    /// Which start of the step inside the attempt it belongs to.
    #[serde(skip_serializing_if = "crate::plain::is_zero")]
    pub start_number: u32,
    /// Step: `0`, `batch`; empty if not known.
    pub step: String,
    /// Process id on the node.
    pub pid: u32,
    /// With the process id, identifies the process while its sampler runs.
    #[serde(skip)]
    pub ticks: u64,
    /// When it began, by the kernel.
    pub began: Option<UnixMillis>,
    /// NCCL or CUDA was mapped: the program itself. A rank may also have a shell that started it.
    pub gpu: bool,
    /// When it ended; `None` if it ran until the end of the samples, or was not watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<UnixMillis>,
    /// How it ended; `None` while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<ProcessExit>,
}

impl TaskRank {
    fn new(process: RankProcess) -> Self {
        TaskRank {
            rank: process.rank,
            start_number: process.start.map_or(0, |start| start_number(start.as_bytes())),
            step: process.step,
            pid: process.pid,
            ticks: process.ticks,
            began: process.began,
            gpu: process.gpu,
            ended: None,
            exit: None,
        }
    }

    fn is_rank_of(&self, other: &TaskRank) -> bool {
        (self.rank, self.start_number, &self.step) == (other.rank, other.start_number, &other.step)
    }
}

/// Adds the processes that a probe found to those of earlier probes.
pub fn add_ranks(known: &mut Vec<TaskRank>, found: Vec<RankProcess>) {
    for one in found.into_iter().map(TaskRank::new) {
        if let Some(same) = known.iter_mut().find(|same| (same.pid, same.ticks) == (one.pid, one.ticks)) {
            same.gpu |= one.gpu;
            continue;
        }
        // A worker that outlives the process of its rank has lost its parent, and is no new process of the rank.
        let outlives =
            |rank: &TaskRank| rank.is_rank_of(&one) && rank.ended >= one.began && rank.ended.is_some();
        if known.iter().any(outlives) {
            continue;
        }
        if known.len() >= MOST {
            let ended = (0..).zip(known.iter()).filter_map(|(at, rank)| Some((rank.ended?, at))).min();
            let Some((_, at)) = ended else { continue };
            known.remove(at);
        }
        known.push(one);
    }
}

/// Of the processes of one rank those that tell whether it still runs: its programs. A shell may outlive the program that it
/// started, and then the rank is gone all the same. Without a known program, all of them.
pub fn programs<'a>(of_rank: &[&'a TaskRank]) -> Vec<&'a TaskRank> {
    let programs: Vec<&TaskRank> = of_rank.iter().filter(|one| one.gpu).copied().collect();
    if programs.is_empty() { of_rank.to_vec() } else { programs }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(rank: u32, pid: u32, began: u64) -> RankProcess {
        RankProcess { rank, pid, ticks: began / 10, began: Some(began), ..RankProcess::default() }
    }

    fn pids(ranks: &[TaskRank]) -> Vec<u32> {
        ranks.iter().map(|one| one.pid).collect()
    }

    #[test]
    fn a_process_is_listed_once_and_its_orphans_are_not() {
        let mut ranks = Vec::new();
        add_ranks(&mut ranks, vec![process(0, 20, 1_000), process(1, 30, 1_000)]);
        add_ranks(&mut ranks, vec![RankProcess { gpu: true, ..process(1, 30, 1_000) }]);
        assert_eq!((pids(&ranks), ranks[1].gpu), (vec![20, 30], true));
        (ranks[1].ended, ranks[1].exit) = (Some(9_000), Some(ProcessExit::Code(3)));
        // A worker of rank 1 that began before its end, and the rank's next process, which has the same id.
        add_ranks(&mut ranks, vec![process(1, 31, 4_000), process(1, 30, 9_500)]);
        assert_eq!(pids(&ranks), [20, 30, 30]);
        assert_eq!((ranks[1].ended, ranks[2].ended), (Some(9_000), None));
        // In the next start it is another rank 1.
        add_ranks(&mut ranks, vec![RankProcess { start: Some("1".to_owned()), ..process(1, 40, 8_000) }]);
        assert_eq!((ranks[3].pid, ranks[3].start_number), (40, 1));
        let text = serde_json::to_string(&ranks).unwrap();
        let back: Vec<TaskRank> = serde_json::from_str(&text).unwrap();
        assert_eq!(back[1].exit, Some(ProcessExit::Code(3)), "{text}");
        assert!(text.contains(r#""exit":{"code":3}"#) && !text.contains("ticks"), "{text}");
    }

    #[test]
    fn the_list_is_bounded_and_keeps_what_runs() {
        let mut ranks = Vec::new();
        add_ranks(&mut ranks, (0..300).map(|rank| process(rank, rank + 10, 1_000)).collect());
        assert_eq!(ranks.len(), MOST);
        for (place, ended) in [(7, 5_000), (9, 4_000)] {
            ranks[place].ended = Some(ended);
        }
        add_ranks(&mut ranks, vec![process(400, 500, 6_000)]);
        assert_eq!((ranks.len(), ranks.last().unwrap().rank), (MOST, 400));
        assert!(ranks.iter().any(|one| one.rank == 7) && !ranks.iter().any(|one| one.rank == 9));
    }
}

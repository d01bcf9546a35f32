//! Which ranks' processes ended, as the sampler saw it, and how.

use std::collections::BTreeMap;

use railgate_model::{ProcessExit, UnixMillis};
use railgate_node_report::{NodeReport, TaskRank, programs};

/// A rank of the newest start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankEnd<'a> {
    pub(crate) node: &'a str,
    pub(crate) rank: u32,
    /// When the last of its processes ended, and how; `None`: not all have, or it is not known.
    pub(crate) ended: Option<(UnixMillis, ProcessExit)>,
}

impl RankEnd<'_> {
    /// Whether it still ran at a time.
    pub(crate) fn runs_at(&self, time: UnixMillis) -> bool {
        self.ended.is_none_or(|(ended, _)| ended > time)
    }
}

/// The ranks of the newest start, and of its last step: a script may run several steps one after the other, with other
/// ranks. Sorted by node and rank.
pub(crate) fn rank_ends<'a>(nodes: &'a [NodeReport], start_number: u32) -> Vec<RankEnd<'a>> {
    let of = |node: &'a NodeReport| {
        let ranks = node.tasks.as_ref().map_or(&[][..], |tasks| &tasks.ranks);
        ranks.iter().filter(move |one| one.start_number == start_number).map(|one| (node.node.as_str(), one))
    };
    let all: Vec<(&str, &TaskRank)> = nodes.iter().flat_map(of).collect();
    let last = all.iter().max_by_key(|(_, one)| one.began);
    let step = last.map_or("", |(_, one)| one.step.as_str());
    let mut ranks: BTreeMap<(&str, u32), Vec<&TaskRank>> = BTreeMap::new();
    for (node, one) in all.iter().filter(|(_, one)| one.step == step) {
        ranks.entry((*node, one.rank)).or_default().push(*one);
    }
    let end = |((node, rank), processes): ((&'a str, u32), Vec<&TaskRank>)| {
        let ended: Option<Vec<_>> = programs(&processes).iter().map(|one| one.ended.zip(one.exit)).collect();
        RankEnd { node, rank, ended: ended.and_then(|ends| ends.into_iter().max_by_key(|(time, _)| *time)) }
    };
    ranks.into_iter().map(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulator::healthy;
    use railgate_node_report::Tasks;

    fn process(rank: u32, step: &str, began: u64, ended: Option<u64>) -> TaskRank {
        let exit = ended.map(|_| ProcessExit::Code(3));
        let step = step.to_owned();
        TaskRank { rank, step, began: Some(began), ended, exit, ..TaskRank::default() }
    }

    #[test]
    fn a_rank_has_ended_when_its_program_has() {
        let mut nodes = healthy();
        nodes.truncate(1);
        let mut ends = |ranks: Vec<TaskRank>, start| -> Vec<(u32, Option<u64>)> {
            nodes[0].tasks = Some(Tasks { ranks, ..Tasks::default() });
            rank_ends(&nodes, start).iter().map(|end| (end.rank, end.ended.map(|(time, _)| time))).collect()
        };
        let shell = process(0, "1", 10, None);
        let program = TaskRank { gpu: true, ..process(0, "1", 11, Some(50)) };
        let other = process(1, "1", 10, None);
        // Ranks of an earlier step that has ended are not gone.
        let earlier = process(7, "0", 1, Some(9));
        let all = vec![earlier, shell.clone(), program.clone(), other.clone()];
        assert_eq!(ends(all.clone(), 0), [(0, Some(50)), (1, None)]);
        assert_eq!(ends(vec![shell, other.clone()], 0), [(0, None), (1, None)]);
        // A launcher has started the rank's program again.
        let again = TaskRank { gpu: true, ..process(0, "1", 60, None) };
        assert_eq!(ends(vec![program, again, other], 0), [(0, None), (1, None)]);
        assert_eq!(ends(all, 1), []);
    }
}

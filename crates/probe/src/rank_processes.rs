//! Which of a job's processes run its ranks. Each process below a rank has its environment: a shell that starts the program,
//! and the program's own workers.

use std::collections::{BTreeMap, BTreeSet};

use railgate_model::RankProcess;

use crate::job_processes::GpuUse;
use crate::process_end::ProcessId;

/// Most processes in the answer.
const MOST: usize = 256;
/// Most processes whose memory map is read.
const MOST_MAPS: usize = 512;

/// A process of the job with a rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) parent: u32,
    /// Its rank is a launcher's.
    pub(crate) launched: bool,
    pub(crate) process: RankProcess,
}

/// The topmost process of each rank, and the topmost ones below it that use a GPU: what runs below those are workers.
/// A launcher of one rank looks like that rank, so the process that it has launched is taken as well, unless the upper one has
/// a CUDA context. `known`: processes that are known to use a GPU. `gpu_use` is asked of all others, as far as necessary.
pub(crate) fn select(
    seen: Vec<Seen>,
    known: &[ProcessId],
    gpu_use: impl Fn(u32) -> GpuUse,
) -> Vec<RankProcess> {
    let by_pid: BTreeMap<u32, &Seen> = seen.iter().map(|one| (one.process.pid, one)).collect();
    let above = |one: &Seen| {
        by_pid.get(&one.parent).filter(|parent| parent.process.rank == one.process.rank).copied()
    };
    let mut below: BTreeMap<u32, Vec<&Seen>> = BTreeMap::new();
    let mut next: Vec<(&Seen, bool)> = Vec::new();
    for one in &seen {
        match above(one) {
            Some(parent) => below.entry(parent.process.pid).or_default().push(one),
            None => next.push((one, true)),
        }
    }
    // The first ones are taken first.
    next.reverse();
    let (mut maps, mut found) = (0, Vec::new());
    let mut visited = BTreeSet::new();
    while let Some((one, is_top)) = next.pop() {
        let process = &one.process;
        // Process ids come from different moments, so parents may form a circle.
        if found.len() == MOST || !visited.insert(process.pid) {
            continue;
        }
        let below = below.get(&process.pid).into_iter().flatten().copied();
        let mut launched = below.clone().filter(|child| child.launched && !one.launched).peekable();
        let mut found_use = GpuUse::None;
        let is_known = known.contains(&(process.pid, process.ticks));
        if (!is_known || launched.peek().is_some()) && maps < MOST_MAPS {
            maps += 1;
            found_use = gpu_use(process.pid);
        }
        let gpu = is_known || found_use != GpuUse::None;
        if is_top || gpu {
            found.push(RankProcess { gpu, ..process.clone() });
        }
        match gpu {
            false => next.extend(below.map(|one| (one, false))),
            true if found_use == GpuUse::Context => {}
            true => next.extend(launched.map(|one| (one, false))),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pid: u32, parent: u32, rank: u32) -> Seen {
        let process = RankProcess { rank, pid, ticks: u64::from(pid) * 10, ..RankProcess::default() };
        Seen { parent, launched: false, process }
    }

    fn pids(seen: Vec<Seen>, known: &[ProcessId], gpu: &[u32]) -> Vec<(u32, bool)> {
        let gpu_use = |pid| if gpu.contains(&pid) { GpuUse::Library } else { GpuUse::None };
        let found = select(seen, known, gpu_use);
        found.iter().map(|one| (one.pid, one.gpu)).collect()
    }

    #[test]
    fn of_a_rank_its_first_process_and_its_program_are_taken_and_no_workers() {
        // Rank 0: a shell, the program, two workers. Rank 1: the program alone, started by the same launcher.
        let job = || vec![seen(20, 9, 0), seen(21, 20, 0), seen(22, 21, 0), seen(23, 21, 0), seen(30, 9, 1)];
        assert_eq!(pids(job(), &[], &[]), [(20, false), (30, false)]);
        assert_eq!(pids(job(), &[], &[21, 22, 23, 30]), [(20, false), (21, true), (30, true)]);
        let asked = std::cell::RefCell::new(Vec::new());
        select(job(), &[(21, 210), (30, 300)], |pid| {
            asked.borrow_mut().push(pid);
            GpuUse::None
        });
        assert_eq!(*asked.borrow(), [20], "known programs and their workers are not read again");
        // Another process has the id of the known one.
        assert_eq!(pids(job(), &[(30, 301)], &[]), [(20, false), (30, false)]);
    }

    #[test]
    fn a_rank_below_another_rank_is_one_of_its_own() {
        assert_eq!(pids(vec![seen(20, 1, 0), seen(21, 20, 1)], &[], &[20, 21]), [(20, true), (21, true)]);
    }

    #[test]
    fn a_crowd_and_a_circle_are_bounded() {
        let crowd = (0..5000).map(|pid| seen(10 + pid, 1, pid)).collect();
        let asked = std::cell::Cell::new(0);
        let found = select(crowd, &[], |_| {
            asked.set(asked.get() + 1);
            GpuUse::None
        });
        assert_eq!((found.len(), found[0].rank), (MOST, 0));
        assert!(asked.get() <= MOST_MAPS);
        let chain = (0..5000).map(|pid| seen(11 + pid, 10 + pid, 3)).collect();
        let asked = std::cell::Cell::new(0);
        let found = select(chain, &[], |_| {
            asked.set(asked.get() + 1);
            GpuUse::None
        });
        assert_eq!((found.len(), asked.get()), (1, MOST_MAPS));
        assert_eq!(pids(vec![seen(20, 21, 0), seen(21, 20, 0)], &[], &[20]), []);
    }
}

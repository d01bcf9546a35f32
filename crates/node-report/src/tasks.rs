use std::collections::BTreeMap;

use railgate_model::{JobProcess, JobProcesses, Reading, UnixMillis};
use railgate_rankfile::{START_VARIABLE, start_number};
use serde::{Deserialize, Serialize};

use crate::task_ranks::TaskRank;

/// Variable that the sampler reads from processes besides those of NCCL.
pub const JOB_NAME: &str = "SLURM_JOB_NAME";

/// Maximum number of distinct process environments; further processes are only counted.
const MOST_GROUPS: usize = 64;
const MOST_PROBLEMS: usize = 8;
/// Maximum number of starts that are listed, the newest ones.
const MOST_LISTED_STARTS: usize = 64;

/// Environment of the job's processes on one node, summed up from a few probes of the sampler. Read from the
/// processes, so it is self-reported; changes after a program's start are not visible.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tasks {
    /// Number of probes that found a process of the job.
    pub looks: u32,
    /// Time of the first probe.
    pub first: Option<UnixMillis>,
    /// Time of the last probe.
    pub last: Option<UnixMillis>,
    /// Groups of equal processes, sorted by step.
    pub groups: Vec<TaskGroup>,
    /// Processes beyond the maximum of groups or of probed processes, in the worst probe.
    pub more: usize,
    /// Processes that their own user may not read, in the worst probe.
    pub closed: usize,
    /// Errors of failed probes.
    pub problems: Vec<String>,
    /// Starts of the step that were seen inside this attempt, in order of their numbers; empty if a launcher counted none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<StepStart>,
    /// Processes of the job's ranks, with their ends; empty if none was seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<TaskRank>,
    /// Processes of ranks whose end cannot be known: more than the sampler watches, or a kernel without process descriptors.
    #[serde(skip_serializing_if = "crate::plain::is_zero")]
    pub unwatched: u32,
    /// `SLURM_JOB_NAME` of the batch script, else of the first process that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// One start of the job's step: a launcher may start it several times inside one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepStart {
    /// `RAILGATE_START` of its processes, from 0.
    #[serde(default, skip_serializing_if = "crate::plain::is_zero")]
    pub start_number: u32,
    /// When the first of its processes on this node began; by the probe that found it if the kernel does not tell.
    pub first: UnixMillis,
}

/// Number of the start that ran at a time: the newest that had begun by then.
pub fn start_at(starts: &[StepStart], time: UnixMillis) -> u32 {
    starts.iter().filter(|start| start.first <= time).map(|start| start.start_number).max().unwrap_or(0)
}

/// Processes of one step with the same environment. Counts are those of the probe that found the most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskGroup {
    /// Step: `0`, `batch`, `extern`, `interactive`; empty if not known.
    pub step: String,
    /// The root directory differs from the node's: a container.
    pub image: bool,
    /// Number of processes.
    pub processes: u32,
    /// Processes with `libnccl.so` mapped.
    pub nccl: u32,
    /// Processes with `libcuda.so` mapped.
    pub cuda: u32,
    /// Processes with NCCL or CUDA and an open RDMA device.
    pub rdma: u32,
    /// Processes with NCCL or CUDA for which open RDMA devices are unknown.
    pub rdma_unknown: u32,
    /// An NCCL net plugin that one of them has mapped.
    pub net_plugin: Option<String>,
    /// First probe with NCCL mapped.
    pub nccl_first: Option<UnixMillis>,
    /// Last probe with NCCL mapped.
    pub nccl_last: Option<UnixMillis>,
    /// Initial environment: `NCCL_…`, `RAILGATE_…` and other variables that railgate sets.
    pub env: BTreeMap<String, String>,
    /// Variables from NCCL's configuration files.
    pub files: BTreeMap<String, String>,
}

impl TaskGroup {
    fn is_like(&self, other: &TaskGroup) -> bool {
        self.step == other.step
            && self.image == other.image
            && self.env == other.env
            && self.files == other.files
    }
}

impl Tasks {
    /// Adds the result of one probe. A probe without a process of the job is ignored.
    pub fn add(&mut self, time: UnixMillis, mut found: JobProcesses) {
        if found.processes.is_empty() && found.closed == 0 {
            return;
        }
        self.looks += 1;
        self.first.get_or_insert(time);
        self.last = Some(time);
        self.closed = self.closed.max(found.closed);
        // A step may have another name than the job.
        let mut by_step: Vec<(bool, String)> = Vec::new();
        for process in &mut found.processes {
            let start = process.env.remove(START_VARIABLE);
            self.saw_start(start.as_deref(), process.began.map_or(time, |began| began.min(time)));
            let name = process.env.remove(JOB_NAME);
            by_step.extend(name.map(|name| (process.step != "batch", name)));
        }
        by_step.sort();
        self.name = self.name.take().or_else(|| by_step.into_iter().next().map(|(_, name)| name));
        let mut now: Vec<TaskGroup> = Vec::new();
        let mut more = found.more;
        // Processes with NCCL or CUDA come first, so that the limit affects others.
        found.processes.sort_by_key(|process| (!process.nccl, !process.cuda));
        for process in found.processes {
            let one = group(process);
            let room = now.len() < MOST_GROUPS;
            match now.iter_mut().find(|group| group.is_like(&one)) {
                Some(group) => join(group, one),
                None if room => now.push(one),
                None => more += 1,
            }
        }
        for mut one in now {
            if one.nccl > 0 {
                (one.nccl_first, one.nccl_last) = (Some(time), Some(time));
            }
            let idle = |group: &TaskGroup| group.nccl + group.cuda == 0;
            if self.groups.len() >= MOST_GROUPS
                && !idle(&one)
                && let Some(place) = self.groups.iter().rposition(idle)
                && !self.groups.iter().any(|group| group.is_like(&one))
            {
                more += self.groups.remove(place).processes as usize;
            }
            let room = self.groups.len() < MOST_GROUPS;
            match self.groups.iter_mut().find(|group| group.is_like(&one)) {
                Some(group) => most(group, one),
                None if room => self.groups.push(one),
                None => more += one.processes as usize,
            }
        }
        self.more = self.more.max(more);
        self.groups.sort_by_key(|group| (group.step.parse::<u32>().ok(), group.step.clone()));
    }

    /// The variable of one process. Without it, all processes are of the only start.
    fn saw_start(&mut self, variable: Option<&str>, began: UnixMillis) {
        let Some(variable) = variable else { return };
        let start_number = start_number(variable.as_bytes());
        match self.starts.iter_mut().find(|start| start.start_number == start_number) {
            Some(start) => start.first = start.first.min(began),
            None => self.starts.push(StepStart { start_number, first: began }),
        }
        self.starts.sort_by_key(|start| start.start_number);
        let more = self.starts.len().saturating_sub(MOST_LISTED_STARTS);
        self.starts.drain(..more);
    }

    /// Records a failed probe.
    pub fn failed(&mut self, why: String) {
        if self.problems.len() < MOST_PROBLEMS && !self.problems.contains(&why) {
            self.problems.push(why);
        }
    }
}

fn group(process: JobProcess) -> TaskGroup {
    TaskGroup {
        step: process.step,
        image: process.image,
        processes: 1,
        nccl: u32::from(process.nccl),
        cuda: u32::from(process.cuda),
        rdma: u32::from(process.rdma == Reading::Known(true)),
        rdma_unknown: u32::from(matches!(process.rdma, Reading::Failed(_))),
        net_plugin: process.net_plugin,
        nccl_first: None,
        nccl_last: None,
        env: process.env,
        files: process.files,
    }
}

/// Adds another process of the same probe to a group.
fn join(group: &mut TaskGroup, one: TaskGroup) {
    group.processes += one.processes;
    group.nccl += one.nccl;
    group.cuda += one.cuda;
    group.rdma += one.rdma;
    group.rdma_unknown += one.rdma_unknown;
    group.net_plugin = group.net_plugin.take().or(one.net_plugin);
}

/// Merges a later probe of the same processes.
fn most(group: &mut TaskGroup, now: TaskGroup) {
    group.processes = group.processes.max(now.processes);
    group.nccl = group.nccl.max(now.nccl);
    group.cuda = group.cuda.max(now.cuda);
    group.rdma = group.rdma.max(now.rdma);
    group.rdma_unknown = group.rdma_unknown.max(now.rdma_unknown);
    group.net_plugin = group.net_plugin.take().or(now.net_plugin);
    group.nccl_first = group.nccl_first.or(now.nccl_first);
    group.nccl_last = now.nccl_last.or(group.nccl_last);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(value: usize, nccl: bool) -> JobProcess {
        JobProcess {
            step: "0".to_owned(),
            began: None,
            image: false,
            nccl,
            cuda: nccl,
            net_plugin: None,
            rdma: if nccl { Reading::Known(false) } else { Reading::Unsupported },
            env: [("NCCL_X".to_owned(), value.to_string())].into(),
            files: BTreeMap::new(),
        }
    }

    fn look(processes: Vec<JobProcess>) -> JobProcesses {
        JobProcesses { processes, ..JobProcesses::default() }
    }

    #[test]
    fn probes_are_grouped_by_environment() {
        let mut tasks = Tasks::default();
        tasks.add(1_000, look(vec![]));
        assert_eq!(tasks, Tasks::default());
        tasks.add(2_000, look(vec![process(1, false), process(1, false), process(2, false)]));
        tasks.add(5_000, look(vec![process(1, true)]));
        tasks.add(9_000, look(vec![process(1, true)]));
        assert_eq!((tasks.looks, tasks.first, tasks.last), (3, Some(2_000), Some(9_000)));
        let counts: Vec<_> = tasks.groups.iter().map(|group| (group.processes, group.nccl)).collect();
        assert_eq!(counts, [(2, 1), (1, 0)]);
        assert_eq!((tasks.groups[0].nccl_first, tasks.groups[0].nccl_last), (Some(5_000), Some(9_000)));
    }

    #[test]
    fn job_name_is_that_of_the_batch_script_and_not_kept_as_a_variable() {
        let named = |step: &str, name: &str| {
            let mut one = process(1, false);
            one.step = step.to_owned();
            one.env.insert(JOB_NAME.to_owned(), name.to_owned());
            one
        };
        let mut tasks = Tasks::default();
        tasks.add(1_000, look(vec![named("0", "a step"), named("batch", "llama70b-pt7"), process(1, false)]));
        tasks.add(2_000, look(vec![named("1", "another")]));
        assert_eq!(tasks.name.as_deref(), Some("llama70b-pt7"));
        assert!(tasks.groups.iter().all(|group| !group.env.contains_key(JOB_NAME)), "{tasks:?}");
    }

    #[test]
    fn starts_are_told_apart_by_their_variable_and_by_when_they_began() {
        let of = |start: &str, began: Option<u64>| {
            let mut one = process(1, true);
            one.began = began;
            one.env.insert(START_VARIABLE.to_owned(), start.to_owned());
            one
        };
        let mut tasks = Tasks::default();
        // The script that launches them has no number.
        tasks.add(20_000, look(vec![process(1, false), of("0", Some(9_000)), of("0", Some(8_500))]));
        tasks.add(60_000, look(vec![of("1", Some(41_000)), of("1", None), of("2", Some(99_000))]));
        let starts: Vec<_> = tasks.starts.iter().map(|start| (start.start_number, start.first)).collect();
        assert_eq!(starts, [(0, 8_500), (1, 41_000), (2, 60_000)]);
        let at = |time| start_at(&tasks.starts, time);
        assert_eq!([at(0), at(8_500), at(40_999), at(41_000), at(60_000)], [0, 0, 0, 1, 2]);
        assert_eq!(tasks.groups.len(), 1, "the number makes no other environment: {:?}", tasks.groups);
        // A program may set any number; the list stays short.
        tasks.add(90_000, look((0..500).map(|start| of(&start.to_string(), None)).collect()));
        assert_eq!((tasks.starts.len(), tasks.starts[63].start_number), (MOST_LISTED_STARTS, 499));
        assert_eq!(start_at(&[], 5), 0);
    }

    #[test]
    fn ranks_are_kept_among_many_other_processes() {
        let crowd = || (0..500).map(|value| process(value, false));
        let mut tasks = Tasks::default();
        tasks.add(1_000, look(crowd().collect()));
        tasks.add(2_000, look(crowd().chain([process(1_000, true), process(1_001, true)]).collect()));
        assert_eq!(tasks.groups.len(), MOST_GROUPS);
        assert_eq!(tasks.groups.iter().filter(|group| group.nccl == 1).count(), 2);
        assert!(tasks.more >= 436, "{}", tasks.more);
    }
}

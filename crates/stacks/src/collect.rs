use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use railgate_child::{Call, Ended, Outcome, run_all};
use railgate_node_report::TaskRank;
use railgate_node_report::stacks::{MOST_RANKS, NativeStack, RankStack, Stacks};
use railgate_probe::ProcessId;
use serde::{Deserialize, Serialize};

use crate::task::{Found, NATIVE, PYTHON, PythonStack, STATES, StackOrder, StateOf, StateOrder};

/// Deadline of one process, for each kind of stack.
const EACH: Duration = Duration::from_secs(2);
/// With less time left, no child is started.
const LEAST: Duration = Duration::from_millis(100);
/// Processes that are read at the same time. Each child may use up to a gigabyte.
const AT_ONCE: usize = 8;
/// A reply has at most 64 frames of some 400 bytes; half of them may be escapes.
const MOST_REPLY: usize = 256 << 10;

/// Whose stacks to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Root of the proc tree.
    pub proc: PathBuf,
    /// Job id. Processes of other jobs are not read.
    pub job: u32,
    /// Owner of the job, not root. Processes with other rights are not read.
    pub uid: u32,
    /// Group of the job.
    pub gid: u32,
    /// The processes, at most 256.
    pub targets: Vec<Target>,
}

/// A process of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The rank.
    pub rank: u32,
    /// Its process id, and when it began, clock ticks after the boot.
    pub id: ProcessId,
}

impl From<&TaskRank> for Target {
    fn from(rank: &TaskRank) -> Self {
        Target { rank: rank.rank, id: (rank.pid, rank.ticks) }
    }
}

/// Takes the stacks of the processes in the order. Each process has two seconds for each kind of stack, and is read
/// once more after all others if it did not answer. Returns within `deadline` plus
/// [`railgate_child::GRACE`], with what is known by then: every process that the order names has an entry, and one that was not
/// read has the reason.
pub fn collect(order: &Order, deadline: Duration) -> Stacks {
    let begun = Instant::now();
    let taken = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let targets = order.targets.get(..MOST_RANKS).unwrap_or(&order.targets);
    let mut stacks = Stacks {
        taken: u64::try_from(taken.as_millis()).unwrap_or(u64::MAX),
        ranks: targets
            .iter()
            .map(|one| RankStack { rank: one.rank, pid: one.id.0, ..RankStack::default() })
            .collect(),
        left_out: u32::try_from(order.targets.len() - targets.len()).unwrap_or(u32::MAX),
        ..Stacks::default()
    };
    let left = || deadline.saturating_sub(begun.elapsed());
    if left() >= LEAST {
        add_states(&mut stacks, order, left().min(EACH));
    }
    // Native stacks come last, because a running thread is stopped for its native stack.
    let all: Vec<usize> = (0..targets.len()).collect();
    let (mut python, mut native) = (BTreeMap::new(), BTreeMap::new());
    let late = each::<PythonStack>(PYTHON, order, &all, &left, &mut python);
    let late_native = each::<NativeStack>(NATIVE, order, &all, &left, &mut native);
    // On a busy node a child may be late.
    each::<PythonStack>(PYTHON, order, &late, &left, &mut python);
    each::<NativeStack>(NATIVE, order, &late_native, &left, &mut native);
    for (at, rank) in stacks.ranks.iter_mut().enumerate() {
        (rank.python, rank.why) = either(python.remove(&at));
        (rank.native, rank.native_why) = either(native.remove(&at));
    }
    stacks.took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    stacks.bounded()
}

/// Runs a task for these targets, several at the same time, and sets their results. Returns those that did not answer; the reason of their
/// first time is kept.
fn each<T: for<'de> Deserialize<'de>>(
    task: &str,
    order: &Order,
    of: &[usize],
    left: &impl Fn() -> Duration,
    results: &mut BTreeMap<usize, Found<T>>,
) -> Vec<usize> {
    let mut silent = Vec::new();
    for chunk in of.chunks(AT_ONCE) {
        if left() < LEAST {
            break;
        }
        let limit = left().min(EACH);
        let targets = chunk.iter().filter_map(|at| order.targets.get(*at));
        let calls = targets.map(|target| call(task, &StackOrder::new(order, *target), limit));
        for (at, ended) in chunk.iter().zip(run_all(calls.collect())) {
            let is_silent = matches!(ended.outcome, Outcome::Silent);
            let found = reply::<Found<T>>(ended, limit).and_then(|found| found);
            if is_silent {
                silent.push(*at);
                results.entry(*at).or_insert(found);
            } else {
                results.insert(*at, found);
            }
        }
    }
    silent
}

fn either<T>(found: Option<Found<T>>) -> (Option<T>, Option<String>) {
    match found {
        Some(Ok(found)) => (Some(found), None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, Some("no time was left".to_owned())),
    }
}

/// Reads all states in one child: they are known also for a process whose stack cannot be read.
fn add_states(stacks: &mut Stacks, order: &Order, limit: Duration) {
    let states = run_all(vec![call(STATES, &StateOrder { order: order.clone() }, limit)]).pop();
    match states.map_or_else(|| Ok(Vec::new()), |ended| reply::<Vec<StateOf>>(ended, limit)) {
        Ok(states) => {
            for (rank, one) in stacks.ranks.iter_mut().zip(states) {
                (rank.state, rank.kernel, rank.threads) = (one.state, one.kernel, one.threads);
            }
        }
        Err(why) => stacks.problems.push(format!("states of the processes: {why}")),
    }
}

fn call(task: &str, order: &impl Serialize, deadline: Duration) -> Call {
    // An empty input is an error of the task, with the reason.
    Call { task: task.to_owned(), input: serde_json::to_vec(order).unwrap_or_default(), deadline }
}

fn reply<T: for<'de> Deserialize<'de>>(ended: Ended, limit: Duration) -> Result<T, String> {
    let limit = limit.as_secs_f64();
    match ended.outcome {
        Outcome::Done(text) if text.len() > MOST_REPLY => Err(format!("a reply of {} bytes", text.len())),
        Outcome::Done(text) => serde_json::from_slice(&text).map_err(|why| why.to_string()),
        Outcome::Failed(why) => Err(why),
        Outcome::Silent => Err(format!("no answer in {limit:.1} s")),
        Outcome::Stuck => Err(format!("no answer in {limit:.1} s, stuck in the kernel")),
    }
}

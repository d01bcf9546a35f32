//! The children that read processes, as the job's user.

use std::path::PathBuf;

use nix::sys::resource::{Resource, setrlimit};
use railgate_child::{Task, become_user_who_traces, trace_any};
use railgate_node_report::stacks::Frame;
use railgate_probe::{JobMember, MemberState};
use serde::{Deserialize, Serialize};

use crate::collect::{Order, Target};
use crate::ras::{self, RAS};
use crate::recorder::{self, RECORDER};
use crate::{native, python};

pub(crate) const STATES: &str = "stack-states";
pub(crate) const PYTHON: &str = "stack-python";
pub(crate) const NATIVE: &str = "stack-native";

/// The tasks of this crate's children.
pub const TASKS: &[Task] = &[
    Task::new(STATES, |input| answer(input, states)).tracing(),
    Task::new(PYTHON, |input| answer(input, |order| stack(order, python::frames))).tracing(),
    Task::new(NATIVE, |input| answer(input, |order| stack(order, native::stack))).tracing(),
    Task::new(RAS, |input| answer(input, |order| ras::task(&order))),
    Task::new(RECORDER, |input| answer(input, recorder::task)),
];

/// Memory of a child: the symbols of a large Python are some hundred megabytes.
const MOST_MEMORY: u64 = 1 << 30;
const MOST_CPU_S: u64 = 5;
const MOST_FILES: u64 = 1024;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StateOrder {
    pub(crate) order: Order,
}

/// The state of one process; empty if it may not be read.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct StateOf {
    pub(crate) state: Option<char>,
    pub(crate) kernel: Option<String>,
    pub(crate) threads: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StackOrder {
    proc: PathBuf,
    job: u32,
    uid: u32,
    gid: u32,
    target: Target,
}

/// The stack of one process, or why there is none.
pub(crate) type Found<T> = Result<T, String>;
/// The frames of Python, innermost first.
pub(crate) type PythonStack = Vec<Frame>;

impl StackOrder {
    pub(crate) fn new(order: &Order, target: Target) -> Self {
        let Order { job, uid, gid, .. } = *order;
        StackOrder { proc: order.proc.clone(), job, uid, gid, target }
    }
}

fn answer<I: for<'de> Deserialize<'de>, O: Serialize>(
    input: &[u8],
    work: impl FnOnce(I) -> Result<O, String>,
) -> Result<Vec<u8>, String> {
    let input = serde_json::from_slice(input).map_err(|why| format!("input: {why}"))?;
    serde_json::to_vec(&work(input)?).map_err(|why| why.to_string())
}

/// Sets limits of this process that it cannot raise again.
pub(crate) fn limit(limits: &[(Resource, u64)]) -> Result<(), String> {
    let set = |(resource, most): &(Resource, u64)| setrlimit(*resource, *most, *most);
    limits.iter().try_for_each(set).map_err(|why| format!("setrlimit: {why}"))
}

/// The contents of a process's memory and files must cost no more than this, and nothing is written.
fn enter(uid: u32, gid: u32) -> Result<(), String> {
    limit(&[
        (Resource::RLIMIT_AS, MOST_MEMORY),
        (Resource::RLIMIT_CPU, MOST_CPU_S),
        (Resource::RLIMIT_NOFILE, MOST_FILES),
        (Resource::RLIMIT_FSIZE, 0),
    ])?;
    become_user_who_traces(uid, gid).map_err(|why| why.to_string())
}

fn states(StateOrder { order }: StateOrder) -> Result<Vec<StateOf>, String> {
    enter(order.uid, order.gid)?;
    Ok(order.targets.iter().map(|target| state(&order, *target).unwrap_or_default()).collect())
}

fn state(order: &Order, target: Target) -> Option<StateOf> {
    let mut member = JobMember::hold(&order.proc, order.job, order.uid, target.id).ok()?;
    let mut found = member.state().ok()?;
    if found.kernel.is_none() && found.state != 'R' && trace_any(true).is_ok() {
        // A name of the kernel: nothing of the process is read with the capability.
        found.kernel = member.state().ok().and_then(|again| again.kernel);
        trace_any(false).ok()?;
    }
    member.check().ok()?;
    let MemberState { state, kernel, threads } = found;
    Some(StateOf { state: Some(state), kernel, threads })
}

fn stack<T>(
    order: StackOrder,
    read: impl FnOnce(&mut JobMember, u32) -> Found<T>,
) -> Result<Found<T>, String> {
    enter(order.uid, order.gid)?;
    let held = JobMember::hold(&order.proc, order.job, order.uid, order.target.id);
    Ok(held.map_err(|why| why.to_string()).and_then(|mut member| read(&mut member, order.target.id.0)))
}

//! Work that may hang, done in a child process with a deadline.
//!
//! A driver call, a `statvfs` on a dead NFS server or a write to a full file system can block in the
//! kernel for ever. So the program runs itself again (`/proc/self/exe`) with a hidden first argument;
//! the new process does one named [`Task`], writes one reply and ends. Whoever asked waits no longer
//! than the deadline and, if the child must be killed, [`GRACE`] more. A child that outlives SIGKILL is
//! left to init: nothing here ever blocks on it.
//!
//! Each binary that (directly or not) uses children begins its `main` with
//! ```no_run
//! # use std::process::ExitCode;
//! fn main() -> ExitCode {
//!     if let Some(code) = railgate_child::dispatch(&[]) {
//!         return code;
//!     }
//!     // …
//!     ExitCode::SUCCESS
//! }
//! ```

mod detach;
mod inside;
mod parent;
pub mod program;
mod start;
mod stream;
mod user;

use std::process::ExitCode;
use std::time::Duration;

pub use detach::{detach, keep_no_chown};
pub use inside::Line;
pub use stream::{Said, Stream};
pub use user::{UserError, become_user};

/// How long a killed child gets to go away before it counts as [`Outcome::Stuck`].
pub const GRACE: Duration = Duration::from_secs(2);

/// The longest reply that is accepted, bytes.
pub const MAX_REPLY: usize = 64 << 20;

/// The first argument of a child.
const HIDDEN: &str = "__railgate-child";

/// Something a child can do.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    name: &'static str,
    run: Run,
}

#[derive(Clone, Copy, Debug)]
enum Run {
    /// Gives one reply and ends.
    Once(fn(&[u8]) -> Result<Vec<u8>, String>),
    /// Sends replies until it is asked to end.
    Stream(fn(&mut Line) -> Result<(), String>),
}

impl Task {
    /// A task by its name. `run` gets the input and gives the reply, or why there is none.
    pub const fn new(name: &'static str, run: fn(&[u8]) -> Result<Vec<u8>, String>) -> Self {
        Task { name, run: Run::Once(run) }
    }

    /// A task for [`Stream`]: it speaks again and again, over a line that also says when to end.
    pub const fn stream(name: &'static str, run: fn(&mut Line) -> Result<(), String>) -> Self {
        Task { name, run: Run::Stream(run) }
    }
}

/// What came of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its reply.
    Done(Vec<u8>),
    /// It said why not, or the child could not be started, crashed or broke off.
    Failed(String),
    /// No reply by the deadline; the child was killed and went away.
    Silent,
    /// No reply by the deadline, and the child outlived SIGKILL by [`GRACE`].
    Stuck,
}

/// One task to be done.
#[derive(Clone, Debug)]
pub struct Call {
    /// Name of a task that the program's `dispatch` knows.
    pub task: String,
    /// Its input.
    pub input: Vec<u8>,
    /// Counted from the start of [`run_all`].
    pub deadline: Duration,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What came of it.
    pub outcome: Outcome,
    /// From the child's start to its last byte, or to the moment it was given up.
    pub took: Duration,
}

/// Does one task in a child. Returns within `deadline` plus [`GRACE`].
pub fn run(task: &str, input: &[u8], deadline: Duration) -> Outcome {
    run_one(task, input.to_vec(), deadline).outcome
}

/// The same, and how long it took.
pub fn run_one(task: &str, input: Vec<u8>, deadline: Duration) -> Ended {
    let call = Call { task: task.to_owned(), input, deadline };
    run_all(vec![call]).pop().unwrap_or_else(|| Ended {
        outcome: Outcome::Failed(format!("child {task}: not run")),
        took: Duration::ZERO,
    })
}

/// Does one task in a child and gives its reply, or in words why there is none. Returns as [`run`] does.
///
/// # Errors
/// The child said why not, or did not answer.
pub fn ask(task: &str, input: &[u8], deadline: Duration) -> Result<Vec<u8>, String> {
    let waited = humantime::format_duration(deadline);
    match run(task, input, deadline) {
        Outcome::Done(reply) => Ok(reply),
        Outcome::Failed(why) => Err(why),
        Outcome::Silent => Err(format!("no answer in {waited}")),
        Outcome::Stuck => Err(format!("no answer in {waited}, stuck in the kernel")),
    }
}

/// Does all tasks at the same time, each in a child of its own; the answers are in the order of the calls.
/// Returns within the longest deadline plus [`GRACE`]. Should the calling thread end meanwhile (the program
/// is killed), so do the children.
pub fn run_all(calls: Vec<Call>) -> Vec<Ended> {
    parent::run_all(calls)
}

/// In a child: does the task and gives the exit code that `main` must return. Otherwise `None`.
///
/// `tasks` are all tasks that the program knows, in lists; of two with one name the first counts.
pub fn dispatch(tasks: &[&[Task]]) -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != HIDDEN {
        return None;
    }
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    Some(inside::serve(&args, tasks))
}

//! Runs work that can hang in a child process with a deadline.
//!
//! A driver call, a `statvfs` on a dead NFS server or a write to a full file system can block in the kernel forever. So
//! the program runs itself again (`/proc/self/exe`) with a hidden first argument; the new process runs one named
//! [`Task`], writes one reply and ends. The caller waits at most until the deadline and, if the child has to be killed,
//! for another [`GRACE`]. A child that outlives SIGKILL is left to init: no function of this crate blocks on it.
//!
//! Each binary that uses children, directly or not, starts its `main` with
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
mod resident;
mod start;
mod stream;
mod user;

use std::process::ExitCode;
use std::time::Duration;

pub use detach::{detach, keep_no_chown};
pub use inside::Line;
pub use resident::drop_clean_pages;
pub use stream::{Said, Stream};
pub use user::{UserError, become_user, become_user_who_traces, trace_any};

/// Time that a killed child gets to end before it counts as [`Outcome::Stuck`].
pub const GRACE: Duration = Duration::from_secs(2);

/// Maximum size of a reply, bytes.
pub const MAX_REPLY: usize = 64 << 20;

/// The first argument of a child.
const HIDDEN: &str = "__railgate-child";

/// Work that a child can do.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    name: &'static str,
    run: Run,
    /// May keep the capability to trace of a detached process.
    traces: bool,
}

#[derive(Clone, Copy, Debug)]
enum Run {
    /// Returns one reply and ends.
    Once(fn(&[u8]) -> Result<Vec<u8>, String>),
    /// Sends messages until it is asked to end.
    Stream(fn(&mut Line) -> Result<(), String>),
}

impl Task {
    /// Creates a task. `run` gets the input and returns the reply, or the reason why there is none.
    pub const fn new(name: &'static str, run: fn(&[u8]) -> Result<Vec<u8>, String>) -> Self {
        Task { name, run: Run::Once(run), traces: false }
    }

    /// Creates a task for a [`Stream`]: it sends messages over a line, which also tells it when to end.
    pub const fn stream(name: &'static str, run: fn(&mut Line) -> Result<(), String>) -> Self {
        Task { name, run: Run::Stream(run), traces: false }
    }

    /// The same task with `CAP_SYS_PTRACE` of a process that called [`detach()`]: to read processes that their own user may
    /// read, where the kernel asks for the capability. All other tasks of such a process drop it first.
    #[must_use]
    pub const fn tracing(self) -> Self {
        Task { traces: true, ..self }
    }
}

/// The outcome of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its reply.
    Done(Vec<u8>),
    /// The task returned an error, or the child could not be started, crashed or was interrupted.
    Failed(String),
    /// No reply by the deadline; the child was killed and ended.
    Silent,
    /// No reply by the deadline, and the child outlived SIGKILL by [`GRACE`].
    Stuck,
}

/// A request to run one task.
#[derive(Clone, Debug)]
pub struct Call {
    /// Name of a task that is passed to the program's `dispatch`.
    pub task: String,
    /// Its input.
    pub input: Vec<u8>,
    /// Deadline, counted from the start of [`run_all`].
    pub deadline: Duration,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The outcome.
    pub outcome: Outcome,
    /// Time from the start of the child to its last byte, or until it was given up.
    pub took: Duration,
}

/// Runs one task in a child. Returns within `deadline` plus [`GRACE`].
pub fn run(task: &str, input: &[u8], deadline: Duration) -> Outcome {
    run_one(task, input.to_vec(), deadline).outcome
}

/// As [`run`], with the time that it took.
pub fn run_one(task: &str, input: Vec<u8>, deadline: Duration) -> Ended {
    let call = Call { task: task.to_owned(), input, deadline };
    run_all(vec![call]).pop().unwrap_or_else(|| Ended {
        outcome: Outcome::Failed(format!("child {task}: not run")),
        took: Duration::ZERO,
    })
}

/// Runs one task in a child and returns its reply. Takes as long as [`run`].
///
/// # Errors
/// Returns the task's error, or the reason why the child did not reply.
pub fn ask(task: &str, input: &[u8], deadline: Duration) -> Result<Vec<u8>, String> {
    let waited = humantime::format_duration(deadline);
    match run(task, input, deadline) {
        Outcome::Done(reply) => Ok(reply),
        Outcome::Failed(why) => Err(why),
        Outcome::Silent => Err(format!("no answer in {waited}")),
        Outcome::Stuck => Err(format!("no answer in {waited}, stuck in the kernel")),
    }
}

/// Runs all tasks in parallel, each in a child of its own, and returns the results in the order of the calls. Returns
/// within the longest deadline plus [`GRACE`]. If the calling thread ends before that (for example because the program
/// is killed), the children are killed as well.
pub fn run_all(calls: Vec<Call>) -> Vec<Ended> {
    parent::run_all(calls)
}

/// In a child: runs the task and returns the exit code that `main` must return. Otherwise returns `None`.
///
/// `tasks` are lists of all tasks of the program; of two with the same name, the first one counts.
pub fn dispatch(tasks: &[&[Task]]) -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != HIDDEN {
        return None;
    }
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    Some(inside::serve(&args, tasks))
}

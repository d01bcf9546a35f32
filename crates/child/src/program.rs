//! Runs a program until it ends or its deadline passes, and kills all processes that it started.
#![allow(unsafe_code, reason = "the program must end with us, which is set between fork and exec")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::GRACE;

/// Usual number of bytes kept of standard output and standard error each.
pub const KEPT_BYTES: usize = 16 * 1024;

/// Interval between checks of a process without open pipes, because no descriptor signals its end.
const TICK: Duration = Duration::from_millis(5);

/// A program to run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Run {
    /// The executable.
    pub path: PathBuf,
    /// Arguments, without the program name.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// The complete environment.
    pub environment: BTreeMap<String, String>,
    /// Deadline, milliseconds.
    pub deadline_ms: u64,
    /// Number of bytes kept of standard output and standard error each; the rest is read and dropped. Usually
    /// [`KEPT_BYTES`].
    pub kept_bytes: usize,
}

/// How a program ended.
#[derive(Debug)]
pub enum Ended {
    /// It exited.
    Exited {
        /// Exit code.
        code: i32,
        /// Beginning of standard output.
        out: String,
        /// Beginning of standard error.
        err: String,
    },
    /// It was killed by a signal, not by [`run_program`].
    Killed {
        /// Number of the signal.
        signal: i32,
        /// Beginning of standard output.
        out: String,
    },
    /// It could not be started, or its status is unknown.
    Failed(String),
    /// It did not end by the deadline.
    Silent {
        /// Whether it outlived SIGKILL.
        stuck: bool,
        /// The deadline, milliseconds.
        after_ms: f64,
        /// Beginning of standard output, up to the deadline.
        out: String,
    },
}

/// Runs a program. Only for a process without other children or work: at the end, all processes below it are killed.
pub fn run_program(input: &Run) -> Ended {
    // Processes that the program leaves behind become children of this one, so that they can be found.
    let _ = nix::sys::prctl::set_child_subreaper(true);
    let outcome = match spawn(input) {
        Ok(child) => watch(child, input),
        Err(why) => return Ended::Failed(format!("cannot be started: {why}")),
    };
    let left = !end_all();
    match outcome {
        Ok(ended) => ended,
        Err(Late { out }) => Ended::Silent {
            stuck: left,
            after_ms: Duration::from_millis(input.deadline_ms).as_secs_f64() * 1e3,
            out,
        },
    }
}

fn spawn(input: &Run) -> io::Result<Child> {
    let mut command = Command::new(&input.path);
    command
        .args(&input.arguments)
        .env_clear()
        .envs(&input.environment)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // SAFETY: prctl is safe to call between fork and exec, and nothing is allocated.
    unsafe {
        command.pre_exec(|| nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from));
    }
    let child = command.spawn()?;
    for fd in
        [child.stdout.as_ref().map(AsFd::as_fd), child.stderr.as_ref().map(AsFd::as_fd)].into_iter().flatten()
    {
        fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    Ok(child)
}

/// The program did not end by the deadline; its standard output so far.
struct Late {
    out: String,
}

/// Waits for the program until its deadline.
fn watch(mut child: Child, input: &Run) -> Result<Ended, Late> {
    let until = Instant::now() + Duration::from_millis(input.deadline_ms);
    let mut out = Pipe::new(child.stdout.take(), input.kept_bytes);
    let mut err = Pipe::new(child.stderr.take(), input.kept_bytes);
    loop {
        let ended = child.try_wait();
        // Read once more after it has ended, since its last output is still in the pipe. Does not wait for other
        // processes that hold the pipe open.
        out.read();
        err.read();
        match ended {
            Ok(Some(status)) => {
                return Ok(match (status.code(), status.signal()) {
                    (Some(code), _) => Ended::Exited { code, out: out.text(), err: err.text() },
                    (None, signal) => Ended::Killed { signal: signal.unwrap_or_default(), out: out.text() },
                });
            }
            Ok(None) => {}
            Err(why) => return Ok(Ended::Failed(format!("cannot be waited for: {why}"))),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Late { out: out.text() });
        }
        let mut fds: Vec<PollFd<'_>> = [out.poll_fd(), err.poll_fd()].into_iter().flatten().collect();
        let _ = poll(&mut fds, PollTimeout::try_from(left.min(TICK)).unwrap_or(PollTimeout::ZERO));
    }
}

/// One of its output streams.
struct Pipe<R> {
    from: Option<R>,
    kept: Vec<u8>,
    most: usize,
}

impl<R: Read + AsFd> Pipe<R> {
    fn new(from: Option<R>, most: usize) -> Self {
        Pipe { from, kept: Vec::new(), most }
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.from.as_ref().map(|from| PollFd::new(from.as_fd(), PollFlags::POLLIN))
    }

    /// Reads the available data, but not more than a few pipes full, in case a program writes endlessly.
    fn read(&mut self) {
        let mut chunk = [0; 16 * 1024];
        for _ in 0..16 {
            let Some(from) = &mut self.from else { return };
            match from.read(&mut chunk) {
                Ok(0) => self.from = None,
                Ok(count) => {
                    let room = self.most.saturating_sub(self.kept.len());
                    self.kept.extend_from_slice(chunk.get(..count.min(room)).unwrap_or_default());
                }
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.from = None,
            }
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept).into_owned()
    }
}

/// Kills and reaps all processes below this one; returns `false` if one of them outlives that by [`GRACE`].
fn end_all() -> bool {
    let until = Instant::now() + GRACE;
    loop {
        // As long as any of them lives, one is a child of this process, because orphans are reparented to it.
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(nix::sys::wait::WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return true,
            }
        }
        if Instant::now() >= until {
            return false;
        }
        for pid in below_us() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(TICK);
    }
}

/// The processes below this one, by the parent ids in /proc.
fn below_us() -> Vec<i32> {
    let processes: Vec<(i32, i32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name may contain blanks and parentheses; the parent is the second field after it.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut below = BTreeSet::from([nix::unistd::getpid().as_raw()]);
    let mut found = Vec::new();
    // Parents mostly have the lower pid, but pids wrap around.
    loop {
        let more: Vec<i32> = processes
            .iter()
            .filter(|(pid, parent)| below.contains(parent) && !below.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return found;
        }
        below.extend(&more);
        found.extend(more);
    }
}

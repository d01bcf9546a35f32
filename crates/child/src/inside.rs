#![allow(
    unsafe_code,
    reason = "signal dispositions, closing inherited descriptors and _exit have no safe form"
)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{alarm, dup, dup2_stdout, getppid};

use super::detach::drop_tracing;
use super::resident::drop_clean_pages;
use super::{Run, Task};

/// The connection of a [`Stream`](super::Stream) task to its parent.
#[derive(Debug)]
pub struct Line {
    input: Vec<u8>,
    out: File,
    silence: u32,
}

impl Line {
    /// Returns the input from the parent.
    pub fn input(&self) -> &[u8] {
        &self.input
    }

    /// Sends one message.
    ///
    /// # Errors
    /// Returns an error if the parent no longer reads.
    pub fn say(&mut self, what: &[u8]) -> io::Result<()> {
        alarm::set(self.silence);
        writeln!(self.out, "ok {}", what.len())?;
        self.out.write_all(what)
    }

    /// Waits for this time; returns `false` if the parent asks for an end or has ended.
    pub fn wait(&self, time: Duration) -> bool {
        let stdin = io::stdin();
        let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        // After the input, only the request to end can arrive.
        matches!(poll(&mut fds, timeout), Ok(0) | Err(Errno::EINTR))
    }
}

/// Runs the child. `args` are the task, the pid of the parent, and the seconds after which the child ends by itself.
pub(super) fn serve(args: &[String], tasks: &[&[Task]]) -> ExitCode {
    let [name, parent, seconds] = args else {
        return ExitCode::from(2);
    };
    // Signal settings inherited from the process that started the parent (slurmd, a shell) must not affect a driver.
    reset_signals();
    close_inherited();
    umask(Mode::from_bits_truncate(0o022));
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // If slurmd kills the prolog, its children are killed as well. The check covers a parent that ended before this
    // call.
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    if parent.parse() != Ok(getppid().as_raw()) {
        return ExitCode::from(2);
    }
    // If the parent is stopped permanently, the child still ends.
    let seconds = seconds.parse().unwrap_or(60);
    alarm::set(seconds);

    let Ok(mut result) = own_result() else {
        return ExitCode::from(2);
    };
    let reply = answer(name, tasks, &result, seconds);
    let (word, payload) = match &reply {
        Ok(payload) => ("ok", payload.as_slice()),
        Err(why) => ("error", why.as_bytes()),
    };
    let sent = writeln!(result, "{word} {}", payload.len()).and_then(|()| result.write_all(payload));
    let code = if sent.is_ok() && reply.is_ok() { 0 } else { 1 };
    // Destructors of a driver library, or a thread that hangs in one, must not delay the end.
    // SAFETY: `_exit` only ends the process.
    unsafe { libc::_exit(code) }
}

fn answer(name: &str, tasks: &[&[Task]], out: &File, silence: u32) -> Result<Vec<u8>, String> {
    let task = tasks
        .iter()
        .copied()
        .flatten()
        .find(|task| task.name == name)
        .ok_or_else(|| format!("no task '{name}' in this program"))?;
    if !task.traces {
        drop_tracing().map_err(|why| format!("capabilities: {why}"))?;
    }
    let input = match task.run {
        Run::Once(_) => {
            let mut input = Vec::new();
            io::stdin().lock().read_to_end(&mut input).map(|_| input)
        }
        Run::Stream(_) => first_line(),
    };
    let input = input.map_err(|why| format!("reading the input: {why}"))?;

    let place = Arc::new(Mutex::new(String::new()));
    let noted = Arc::clone(&place);
    std::panic::set_hook(Box::new(move |info| {
        *noted.lock().unwrap_or_else(PoisonError::into_inner) = info.to_string().replace('\n', " ");
    }));
    let run = || match task.run {
        Run::Once(run) => run(&input),
        Run::Stream(run) => {
            // It stays: what it needed only to start is not kept.
            let _ = drop_clean_pages();
            let out = out.try_clone().map_err(|why| why.to_string())?;
            run(&mut Line { input, out, silence }).map(|()| Vec::new())
        }
    };
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(place.lock().unwrap_or_else(PoisonError::into_inner).clone()))
}

/// Reads one byte at a time, so that nothing after the line is consumed.
fn first_line() -> io::Result<Vec<u8>> {
    const MOST: usize = 64 << 10;
    let stdin = io::stdin();
    let (mut line, mut byte) = (Vec::new(), [0]);
    while nix::unistd::read(&stdin, &mut byte)? == 1 && byte != *b"\n" {
        line.push(byte[0]);
        if line.len() > MOST {
            return Err(io::Error::other("too long"));
        }
    }
    Ok(line)
}

/// Moves the reply pipe away from stdout and redirects stdout to /dev/null, in case a library prints something.
fn own_result() -> io::Result<File> {
    let result = dup(io::stdout())?;
    dup2_stdout(File::options().write(true).open("/dev/null")?)?;
    Ok(File::from(result))
}

pub(super) fn reset_signals() {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    for signal in Signal::iterator() {
        if !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP) {
            // SAFETY: SIG_DFL installs no handler of ours.
            let _ = unsafe { sigaction(signal, &default) };
        }
    }
    for real_time in libc::SIGRTMIN()..=libc::SIGRTMAX() {
        // SAFETY: as above.
        let _ = unsafe { libc::signal(real_time, libc::SIG_DFL) };
    }
    // As in every Rust program, writing to a parent that has ended must be an error rather than a signal.
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: SIG_IGN installs no handler of ours.
    let _ = unsafe { sigaction(Signal::SIGPIPE, &ignore) };
    let _ = SigSet::empty().thread_set_mask();
}

pub(super) fn close_inherited() {
    // SAFETY: nothing has been opened yet in this process, so no descriptor above 2 has an owner here.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
    if done == 0 {
        return;
    }
    // `close_range` does not exist before Linux 5.9.
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    for fd in open {
        // SAFETY: as above; the directory's own descriptor is closed already, and closing it again fails.
        let _ = unsafe { libc::close(fd) };
    }
}

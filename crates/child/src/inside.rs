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

use super::{Run, Task};

/// What a task of a [`Stream`](super::Stream) speaks over.
#[derive(Debug)]
pub struct Line {
    input: Vec<u8>,
    out: File,
    silence: u32,
}

impl Line {
    /// What the other side gave on the way.
    pub fn input(&self) -> &[u8] {
        &self.input
    }

    /// Says one thing.
    ///
    /// # Errors
    /// The parent no longer reads.
    pub fn say(&mut self, what: &[u8]) -> io::Result<()> {
        alarm::set(self.silence);
        writeln!(self.out, "ok {}", what.len())?;
        self.out.write_all(what)
    }

    /// Waits; `false` where the other side wants an end, or is gone.
    pub fn wait(&self, time: Duration) -> bool {
        let stdin = io::stdin();
        let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        // After the input nothing comes but the end.
        matches!(poll(&mut fds, timeout), Ok(0) | Err(Errno::EINTR))
    }
}

/// The child's whole life. `args`: task, pid of the parent, seconds after which it ends by itself.
pub(super) fn serve(args: &[String], tasks: &[&[Task]]) -> ExitCode {
    let [name, parent, seconds] = args else {
        return ExitCode::from(2);
    };
    // Left over from the process that started our parent (slurmd, a shell): nothing of it may reach a driver.
    reset_signals();
    close_inherited();
    umask(Mode::from_bits_truncate(0o022));
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // A prolog that slurmd kills takes its children along; the check closes the gap before the call.
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    if parent.parse() != Ok(getppid().as_raw()) {
        return ExitCode::from(2);
    }
    // Should the parent be stopped for good, the child still ends.
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
    // Destructors of a driver library, or a thread that hangs in one, must not hold up the end.
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
            let out = out.try_clone().map_err(|why| why.to_string())?;
            run(&mut Line { input, out, silence }).map(|()| Vec::new())
        }
    };
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(place.lock().unwrap_or_else(PoisonError::into_inner).clone()))
}

/// Byte by byte, so that nothing behind it is taken.
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

/// The reply goes where stdout went; stdout itself goes nowhere, whatever a library prints there.
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
    // Writing to a parent that is gone must be an error, as it is in every Rust program.
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
    // Before Linux 5.9.
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

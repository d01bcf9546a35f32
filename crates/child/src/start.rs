use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::HIDDEN;

/// This program again, to do one task, with a pipe to it and one from it. It ends by itself after `own_end_s` seconds,
/// also if no process is left to end it.
pub(super) fn start(task: &str, own_end_s: u64) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg0("railgate-child")
        .args([HIDDEN, task, &std::process::id().to_string(), &own_end_s.to_string()])
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("LC_ALL", "C")])
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        // Only to hand the pipe over; the child moves it away before it does anything else.
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

/// Reading and writing it never waits.
pub(super) fn never_wait(pipe: &impl AsFd) -> io::Result<()> {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

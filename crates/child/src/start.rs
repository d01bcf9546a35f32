use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::HIDDEN;

/// Starts this program again for one task, with a pipe in each direction. It ends by itself after `own_end_s` seconds,
/// even if its parent cannot end it.
pub(super) fn start(task: &str, own_end_s: u64) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg0("railgate-child")
        .args([HIDDEN, task, &std::process::id().to_string(), &own_end_s.to_string()])
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("LC_ALL", "C")])
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        // The pipe is only passed on as stdout; the child moves it away first.
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

/// Makes a pipe non-blocking.
pub(super) fn never_wait(pipe: &impl AsFd) -> io::Result<()> {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

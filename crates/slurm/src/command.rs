//! One command with a deadline: no shell, a new environment, bounded output.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Most output, bytes; more than `sinfo` prints for the largest clusters. A command that prints more is killed.
const MAX_OUTPUT: usize = 32 << 20;

/// Most bytes of the error message that are kept.
const MAX_SAID: usize = 400;

/// A command failed or gave no usable output.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// The program could not be started.
    #[error("{program}: {source}")]
    NotStarted {
        /// Its path.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The command did not end by the deadline and was killed.
    #[error("{what}: no answer in {} ms", after.as_millis())]
    Silent {
        /// The command, without values.
        what: String,
        /// The deadline.
        after: Duration,
    },
    /// The command ended with an error.
    #[error("{what}: {said}")]
    Refused {
        /// The command, without values.
        what: String,
        /// Its standard error, else its exit status.
        said: String,
    },
    /// The output could not be parsed.
    #[error("{what}: {why}")]
    Unreadable {
        /// The command, without values.
        what: String,
        /// The problem.
        why: String,
    },
}

impl SlurmError {
    /// Whether slurmctld gave no answer at all, as opposed to a refusal: a later retry makes sense.
    pub fn no_answer(&self) -> bool {
        match self {
            SlurmError::Silent { .. } => true,
            SlurmError::Refused { said, .. } => {
                let said = said.to_ascii_lowercase();
                ["unable to contact", "timed out", "connection refused", "connect failure", "zero bytes"]
                    .iter()
                    .any(|sign| said.contains(sign))
            }
            SlurmError::NotStarted { .. } | SlurmError::Unreadable { .. } => false,
        }
    }
}

/// Runs a program and returns its standard output. No shell is involved, and the environment is exactly `env`. At the
/// timeout the program is killed with all processes that it started. The output is limited to 32 MiB.
///
/// # Errors
/// [`SlurmError`].
pub fn run(
    program: &Path,
    args: &[String],
    env: &[(&str, std::ffi::OsString)],
    timeout: Duration,
) -> Result<String, SlurmError> {
    let out = run_bytes(program, args, env, Stdio::null(), timeout)?;
    String::from_utf8(out).map_err(|_| SlurmError::Unreadable {
        what: what(program, args),
        why: "answer is not UTF-8".to_owned(),
    })
}

/// The first two words identify the command; values may be text of users and are left out of messages.
fn what(program: &Path, args: &[String]) -> String {
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
    let words: Vec<&str> =
        args.iter().map(String::as_str).filter(|word| !word.contains('=')).take(3).collect();
    format!("{name} {}", words.join(" ")).trim_end().to_owned()
}

/// As [`run`], with standard input; returns the output as bytes, which need not be UTF-8.
pub(crate) fn run_bytes(
    program: &Path,
    args: &[String],
    env: &[(&str, std::ffi::OsString)],
    input: Stdio,
    timeout: Duration,
) -> Result<Vec<u8>, SlurmError> {
    let what = what(program, args);
    let begun = Instant::now();
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .envs(env.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|source| SlurmError::NotStarted { program: program.to_owned(), source })?;
    let collected = collect(&mut child, begun, timeout);
    let unreadable = |why: String| SlurmError::Unreadable { what: what.clone(), why };
    let (out, err, status) = match collected {
        Ok(Some(all)) => all,
        Ok(None) => {
            end(&mut child);
            return Err(SlurmError::Silent { what, after: timeout });
        }
        Err(why) => {
            end(&mut child);
            return Err(unreadable(why.to_string()));
        }
    };
    if !status.success() {
        let said = one_line(&String::from_utf8_lossy(&err));
        let said = match (said.is_empty(), status.signal()) {
            (false, _) => said,
            (true, Some(signal)) => format!("killed by signal {signal}"),
            (true, None) => format!("exit code {}", status.code().unwrap_or(-1)),
        };
        return Err(SlurmError::Refused { what, said });
    }
    Ok(out)
}

/// An error message of several lines, `sinfo: error: a; sinfo: error: b`.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    railgate_text::clip(&lines.join("; "), MAX_SAID)
}

type Collected = (Vec<u8>, Vec<u8>, std::process::ExitStatus);

/// Reads both streams to their end and waits for the child; `None` at the deadline.
fn collect(child: &mut Child, begun: Instant, timeout: Duration) -> io::Result<Option<Collected>> {
    let (Some(mut stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("no pipes"));
    };
    nonblocking(&stdout)?;
    nonblocking(&stderr)?;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (mut out_open, mut err_open) = (true, true);
    while out_open || err_open {
        let Some(left) = timeout.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else {
            return Ok(None);
        };
        let wait = PollTimeout::try_from(left.as_millis().min(1000) + 1).unwrap_or(PollTimeout::ZERO);
        let mut fds = Vec::new();
        if out_open {
            fds.push(PollFd::new(stdout.as_fd(), PollFlags::POLLIN));
        }
        if err_open {
            fds.push(PollFd::new(stderr.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, wait) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(why) => return Err(why.into()),
        }
        out_open = out_open && drain_into(&mut stdout, &mut out)?;
        err_open = err_open && drain_into(&mut stderr, &mut err)?;
    }
    // Closed streams do not mean that the process has ended.
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some((out, err, status)));
        }
        if begun.elapsed() >= timeout {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reads what is available; false at the end of the stream.
fn drain_into(from: &mut impl Read, into: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 16 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(n) if into.len() + n > MAX_OUTPUT => return Err(io::Error::other("answer is too long")),
            Ok(n) => into.extend_from_slice(&buffer[..n]),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
}

fn nonblocking(fd: &impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Kills the command and the processes that it started. Waits only briefly, since a process in D state does not end.
fn end(child: &mut Child) {
    if let Ok(pid) = i32::try_from(child.id()) {
        // The command leads its own process group, so no other process is killed.
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    for _ in 0..50 {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn sh(script: &str, timeout: Duration) -> Result<String, SlurmError> {
        let args = ["-c".to_owned(), script.to_owned()];
        run(Path::new("/bin/sh"), &args, &[("PATH", OsString::from("/usr/bin:/bin"))], timeout)
    }

    #[test]
    fn output_or_error_message_is_returned() {
        let long = Duration::from_secs(20);
        assert_eq!(sh("echo fit; env | grep -c CARGO; :", long).unwrap(), "fit\n0\n");
        let refused = sh("echo \"scontrol: error: no\" >&2; exit 3", long).unwrap_err();
        assert!(refused.to_string().ends_with("scontrol: error: no"), "{refused}");
        assert!(!refused.no_answer());
        let two = sh("printf 'sinfo: error: a\\n\\nsinfo: error: b\\n' >&2; exit 1", long).unwrap_err();
        assert!(two.to_string().ends_with(": sinfo: error: a; sinfo: error: b"), "{two}");
        assert!(sh("echo 'Unable to contact slurm controller' >&2; exit 1", long).unwrap_err().no_answer());
        assert!(
            matches!(sh("kill -9 $$", long), Err(SlurmError::Refused { said, .. }) if said.contains("9"))
        );
        let missing = run(Path::new("/nonexistent/scontrol"), &[], &[], long).unwrap_err();
        assert!(matches!(missing, SlurmError::NotStarted { .. }));
    }

    #[test]
    fn a_hanging_command_is_killed_with_its_children() {
        let gone = tempfile::tempdir().unwrap();
        let pid = gone.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", pid.display());
        let silent = sh(&script, Duration::from_millis(300)).unwrap_err();
        assert!(matches!(silent, SlurmError::Silent { .. }) && silent.no_answer());
        let child: i32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
        let gone = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
        assert!(gone);
    }

    #[test]
    fn a_command_with_endless_output_is_killed() {
        assert!(matches!(sh("yes", Duration::from_secs(60)), Err(SlurmError::Unreadable { .. })));
    }
}

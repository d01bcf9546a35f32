//! Runs commands on the machines of a cluster as one of its users.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Cluster;
use super::sandbox::Sandbox;
use crate::poll;

/// A user who runs commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// User ID.
    pub uid: u32,
    /// ID of the primary group.
    pub gid: u32,
    /// Home directory, the same on every machine.
    pub home: String,
}

/// A user on one machine: the controller unless [`Session::on`] names another.
#[derive(Clone, Debug)]
pub struct Session<'a> {
    cluster: &'a Cluster,
    user: User,
    machine: String,
    directory: String,
    variables: Vec<(String, String)>,
    deadline: Duration,
    input: Option<Vec<u8>>,
}

/// The result of a command that has ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// The command line, for messages.
    pub command: String,
    /// Exit code, or 128 plus the number of the signal that ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Elapsed time.
    pub took: Duration,
}

/// A command that is still running. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    command: String,
    start: Instant,
    stdout: File,
    stderr: File,
}

impl Output {
    /// Returns standard output if the exit code is 0.
    ///
    /// # Errors
    /// Another exit code; the message contains both outputs.
    pub fn ok(self) -> Result<String> {
        if self.code == 0 { Ok(self.stdout) } else { Err(anyhow!("{self}")) }
    }

    /// Standard output followed by standard error.
    pub fn both(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ended with {} after {:.1?}", self.command, self.code, self.took)?;
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.trim().is_empty() {
                write!(f, "\n  {name}: {}", text.trim_end().replace('\n', "\n          "))?;
            }
        }
        Ok(())
    }
}

impl<'a> Session<'a> {
    pub(super) fn new(cluster: &'a Cluster, user: User, machine: &str) -> Self {
        Session {
            cluster,
            directory: user.home.clone(),
            user,
            machine: machine.to_owned(),
            variables: Vec::new(),
            deadline: Duration::from_secs(120),
            input: None,
        }
    }

    /// The same user on another machine.
    pub fn on(mut self, machine: &str) -> Self {
        machine.clone_into(&mut self.machine);
        self
    }

    /// Runs commands in `directory` instead of the home directory.
    pub fn within(mut self, directory: &str) -> Self {
        directory.clone_into(&mut self.directory);
        self
    }

    /// Adds an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Replaces the limit of two minutes.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Passes `bytes` on standard input.
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Some(bytes.into());
        self
    }

    /// Runs a command and waits for it.
    ///
    /// # Errors
    /// The command could not be started or exceeded the limit. A non-zero exit code is not an error here: see [`Output::ok`].
    pub fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<Output> {
        self.spawn(words)?.wait(self.deadline)
    }

    /// Starts a command without waiting for it.
    ///
    /// # Errors
    /// It could not be started.
    pub fn spawn<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<Process> {
        let pid = self.cluster.pid(&self.machine)?;
        let mut command = Sandbox::enter(pid, self.user.uid, self.user.gid, &self.directory)?;
        command
            .args(words)
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LANG", "C.UTF-8")
            .env("HOME", &self.user.home)
            .env("USER", &self.user.name)
            .env("LOGNAME", &self.user.name)
            .env("SHELL", "/bin/bash")
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        let (stdout, stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
        if let Some(input) = &self.input {
            let mut file = tempfile::tempfile()?;
            file.write_all(input)?;
            file.rewind()?;
            command.stdin(file);
        } else {
            command.stdin(Stdio::null());
        }
        let words: Vec<_> = words.iter().map(|word| word.as_ref().to_string_lossy()).collect();
        let words = words.join(" ");
        let child = command.spawn().with_context(|| words.clone())?;
        Ok(Process { child, command: words, start: Instant::now(), stdout, stderr })
    }

    /// Runs `srun` with these arguments.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn srun(&self, words: &[&str]) -> Result<Output> {
        self.run(&[&["srun"], words].concat())
    }

    /// Runs `salloc` with these arguments.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn salloc(&self, words: &[&str]) -> Result<Output> {
        self.run(&[&["salloc"], words].concat())
    }

    /// Submits a script and returns the job's ID. `words` are options of `sbatch`; a script without `#!` runs in bash.
    ///
    /// # Errors
    /// Slurm refused it; the message is Slurm's.
    pub fn sbatch(&self, words: &[&str], script: &str) -> Result<u32> {
        let script =
            if script.starts_with("#!") { script.to_owned() } else { format!("#!/bin/bash\n{script}") };
        let session = self.clone().input(script);
        let answer = session.run(&[&["sbatch", "--parsable"], words].concat())?.ok()?;
        let id = answer.trim().split(';').next().unwrap_or_default();
        id.parse().with_context(|| format!("sbatch printed '{}'", answer.trim()))
    }
}

impl Process {
    /// Its output so far, standard output and standard error.
    ///
    /// # Errors
    /// Reading failed.
    pub fn output(&self) -> Result<String> {
        Ok(format!("{}{}", read_all(&self.stdout)?, read_all(&self.stderr)?))
    }

    /// Sends a signal; SIGKILL works as well.
    ///
    /// # Errors
    /// The process has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let signal = if signal == Signal::SIGKILL { Signal::SIGUSR2 } else { signal };
        let pid = Pid::from_raw(i32::try_from(self.child.id()).context("process number")?);
        kill(pid, signal).with_context(|| self.command.clone())
    }

    /// Whether the process is still running.
    ///
    /// # Errors
    /// The system call failed.
    pub fn running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits until the process ends.
    ///
    /// # Errors
    /// The deadline passed: the process is killed, and the message contains its output so far.
    pub fn wait(mut self, deadline: Duration) -> Result<Output> {
        let ended =
            poll::until(deadline, &format!("`{}` to end", self.command), || Ok(self.child.try_wait()?));
        let status = match ended {
            Ok(status) => status,
            Err(error) => bail!("{error:#}; its output:\n{}", self.output()?),
        };
        Ok(Output {
            command: self.command.clone(),
            code: status.code().unwrap_or(-1),
            stdout: read_all(&self.stdout)?,
            stderr: read_all(&self.stderr)?,
            took: self.start.elapsed(),
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.signal(Signal::SIGKILL);
            let _ = poll::until(Duration::from_secs(2), "a killed command to end", || {
                Ok(self.child.try_wait()?)
            });
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Reads a file from the beginning without moving the offset, which the writer shares.
fn read_all(file: &File) -> Result<String> {
    let mut bytes = Vec::new();
    let mut block = [0_u8; 16 * 1024];
    loop {
        let got = file.read_at(&mut block, bytes.len() as u64)?;
        if got == 0 {
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        bytes.extend_from_slice(&block[..got]);
    }
}

//! Starts a cluster's namespaces, starts machines in them, and ends both.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::inner::{HOME, MachineSpec};
use crate::poll;

/// Namespaces with a bridge and a tmpfs. Dropping it kills every process inside and waits until they have ended.
#[derive(Debug)]
pub(super) struct Sandbox {
    keeper: Child,
    hold: Option<ChildStdin>,
    init: u32,
    keep: bool,
}

/// The first process of a machine.
#[derive(Debug)]
pub(super) struct Machine {
    waiter: Child,
    /// PID as seen from outside of the cluster.
    pub(super) pid: u32,
}

/// Path of the running program. If a build started by xtask has replaced the file meanwhile, the kernel reports the path as
/// `xtask (deleted)`; the suffix is removed.
pub fn own_program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding the running program")?;
    match own.to_str().and_then(|path| path.strip_suffix(" (deleted)")) {
        Some(path) if Path::new(path).exists() => Ok(PathBuf::from(path)),
        _ => Ok(own),
    }
}

/// Path of this package's program that has the hidden roles.
fn program() -> Result<PathBuf> {
    let own = own_program()?;
    if own.file_name() == Some(OsStr::new("xtask")) {
        return Ok(own);
    }
    // A test runs as target/debug/deps/cluster-0123abcd.
    let sibling = own.parent().and_then(Path::parent).map(|dir| dir.join("xtask"));
    sibling
        .filter(|path| path.exists())
        .with_context(|| format!("no xtask beside {} (cargo build -p railgate-tests)", own.display()))
}

/// The directory in which cargo puts built programs.
pub(crate) fn program_dir() -> Result<PathBuf> {
    program()?.parent().map(Path::to_owned).context("the program has no directory")
}

/// Waits for `pid N` and `ready` on a role's standard output; returns N.
fn await_ready(child: &mut Child, what: &str) -> Result<u32> {
    let stdout = child.stdout.take().context("no output")?;
    let mut pid = None;
    let mut ready = false;
    for line in BufReader::new(stdout).lines() {
        let line = line.with_context(|| format!("{what}: reading its state"))?;
        match line.split_once(' ') {
            Some(("pid", number)) => pid = number.parse().ok(),
            _ => ready |= line == "ready",
        }
        if let (Some(pid), true) = (pid, ready) {
            return Ok(pid);
        }
    }
    bail!("{what} did not start; see standard error or the console log")
}

/// Undoes something when it is dropped, and also when this process is killed.
#[derive(Debug)]
pub(super) struct Guard(Child);

impl Guard {
    /// Thaws a frozen file system when dropped.
    pub(super) fn thaw(directory: &Path) -> Result<Self> {
        Guard::start("@thaw", &[directory.into()])
    }

    /// Starts a role that ends when its standard input is closed.
    pub(super) fn start(role: &str, arguments: &[OsString]) -> Result<Self> {
        let mut command = Command::new(program()?);
        command.arg(role).args(arguments).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting a guard")?;
        let stdout = child.stdout.take().context("no output")?;
        let mut said = String::new();
        BufReader::new(stdout).read_line(&mut said).context("waiting for a guard")?;
        if said != "ready\n" {
            bail!("{role} did not start");
        }
        Ok(Guard(child))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// PID of the only child of a process, in the PID namespace of this process.
fn child_of(parent: u32) -> Option<u32> {
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name in parentheses may contain any character; state and parent follow it.
        let own: u32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        (own == parent).then_some(pid)
    })
}

impl Sandbox {
    /// Starts the namespaces. With `keep` they outlive this process until their first process is killed.
    pub(super) fn start(keep: bool) -> Result<Self> {
        let mut command = Command::new(program()?);
        command.arg("@keeper").process_group(0).stdout(Stdio::piped());
        if keep {
            command.arg("keep").stdin(Stdio::null()).stderr(Stdio::null());
        } else {
            command.stdin(Stdio::piped());
        }
        let mut keeper = command.spawn().context("starting a cluster's namespaces")?;
        let hold = keeper.stdin.take();
        let init = await_ready(&mut keeper, "the cluster's first process")?;
        Ok(Sandbox { keeper, hold, init, keep })
    }

    /// PID of the first process, as seen from outside.
    pub(super) fn init(&self) -> u32 {
        self.init
    }

    /// A path below the cluster's own tmpfs that this process can open.
    pub(super) fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{HOME}", self.init)).join(below)
    }

    /// Starts a machine. The output of its first process goes to the file `console`.
    pub(super) fn machine(&self, spec: &MachineSpec, console: &Path) -> Result<Machine> {
        let console = File::options()
            .create(true)
            .append(true)
            .open(console)
            .with_context(|| console.display().to_string())?;
        let mut waiter = Command::new(program()?)
            .arg("@host")
            .arg(self.init.to_string())
            .arg(serde_json::to_string(spec)?)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(console)
            .spawn()
            .context("starting a machine")?;
        let chassis = await_ready(&mut waiter, &format!("machine {}", spec.name))?;
        let pid = child_of(chassis).context("the machine's first process is gone")?;
        Ok(Machine { waiter, pid })
    }

    /// Runs the ip tool in the network namespace of the bridge.
    pub(super) fn wire(&self, words: &[&str]) -> Result<()> {
        let output = Command::new(program()?)
            .arg("@wire")
            .arg(self.init.to_string())
            .args(words)
            .output()
            .context("changing the network")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// The beginning of a command line that runs a program on a machine; the program and its arguments follow.
    pub(super) fn enter(machine: u32, uid: u32, gid: u32, directory: &str) -> Result<Command> {
        let mut command = Command::new(program()?);
        command.arg("@enter").args([machine.to_string(), uid.to_string(), gid.to_string()]).arg(directory);
        command.env_clear().process_group(0);
        Ok(command)
    }
}

impl Machine {
    /// Powers a machine off at once: SIGKILL to its first process kills all its processes.
    pub(super) fn kill(mut self) -> Result<()> {
        let pid = i32::try_from(self.pid).context("process number")?;
        kill(Pid::from_raw(pid), Signal::SIGKILL).context("killing a machine's first process")?;
        poll::until(Duration::from_secs(20), "a killed machine to be gone", || {
            Ok(self.waiter.try_wait()?.is_some().then_some(()))
        })
    }

    /// After the cluster has ended: reaps the process that waited for the machine.
    pub(super) fn reap(mut self) {
        let _ = poll::until(Duration::from_secs(5), "a machine to be gone", || {
            Ok(self.waiter.try_wait()?.is_some().then_some(()))
        });
        let _ = self.waiter.kill();
        let _ = self.waiter.wait();
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        drop(self.hold.take());
        let gone = poll::until(Duration::from_secs(10), "the cluster to be gone", || {
            Ok(self.keeper.try_wait()?.is_some().then_some(()))
        });
        if gone.is_err() {
            // init ends with the keeper.
            let _ = self.keeper.kill();
            let _ = self.keeper.wait();
        }
    }
}

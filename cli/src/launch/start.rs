//! One start of the program: srun, its signals, its end.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::SystemTime;

use anyhow::Context as _;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use railgate_launch::{Allocated, hostfile};

use super::allocation::Allocation;
use super::first_error::Log;

/// Signals that are passed on to srun, which passes them on to the tasks. SIGINT comes from a terminal, which sends it to srun as well.
const PASSED: [Signal; 4] = [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];
/// Options of the job that contradict a list of tasks.
const NOT_INHERITED: [&str; 7] = [
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_DISTRIBUTION",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
];

/// The number of the start, for the program and for root's check of the node after its step.
pub(crate) const START_VARIABLE: &str = "RAILGATE_START";

/// What is started.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    /// The program and its arguments, or a command of srun or mpirun that starts it.
    pub(crate) words: &'a [OsString],
    /// The signals that are blocked.
    pub(crate) asked: SigSet,
}

/// What starts the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Starter {
    /// The program is one task: srun starts it on each node.
    Program,
    /// A command of srun with the user's options.
    Srun,
    /// Open MPI starts its own daemons with srun, on the nodes that it is given.
    Mpirun,
}

impl Starter {
    fn of(words: &[OsString]) -> Self {
        let name = words.first().map(Path::new).and_then(Path::file_name).and_then(OsStr::to_str);
        match name {
            Some("srun") => Starter::Srun,
            Some("mpirun" | "mpiexec" | "prterun") => Starter::Mpirun,
            _ => Starter::Program,
        }
    }
}

/// Places the tasks on these nodes in this order. Returns the list of nodes, which must live until srun has ended.
fn place(srun: &mut Command, ranks: &[Allocated<'_>]) -> anyhow::Result<File> {
    for name in NOT_INHERITED {
        srun.env_remove(name);
    }
    let mut file = File::from(memfd_create("hostfile", MFdFlags::empty())?);
    file.write_all(hostfile(ranks)?.as_bytes())?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let tasks: u32 = ranks.iter().map(|rank| rank.tasks).sum();
    // 26.05 refuses --nodes with it.
    srun.args(["--distribution=arbitrary", "--ntasks", &tasks.to_string()]).env("SLURM_HOSTFILE", path);
    Ok(file)
}

/// Where it is started.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    /// From 0.
    pub(crate) number: u32,
    /// In the order of the ranks.
    pub(crate) nodes: &'a [String],
    pub(crate) allocation: &'a Allocation,
    /// Whether the step may share resources with other steps (`srun --overlap`). Needed after a node failure: Slurm 22.05 then releases the
    /// GPUs of the ended step on the wrong nodes, and without it the next step waits forever.
    pub(crate) overlap: bool,
    /// Whether root checks each node by itself once the program has failed.
    pub(crate) has_steps_that_fail: bool,
}

impl Start<'_> {
    /// Ranks of the program, at least as many as GPUs of a usual node on each: a single task may be torchrun, which starts them.
    fn ranks(&self) -> u32 {
        const ON_A_NODE: u32 = 8;
        let nodes = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        nodes.saturating_mul(self.allocation.tasks.max(ON_A_NODE))
    }
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// As a shell reports it: 128 and the number of a signal that killed srun.
    pub(crate) code: u8,
    /// A signal that asks the program to end.
    pub(crate) stopped: Option<Signal>,
    /// When it began, Unix seconds.
    pub(crate) began: u64,
    /// Where the program writes, if that is a file.
    pub(crate) log: Option<Log>,
    /// How many ranks write to it.
    pub(crate) ranks: u32,
}

/// Blocks the signals that launch waits for.
pub(crate) fn block_signals() -> anyhow::Result<SigSet> {
    let mut set: SigSet = PASSED.into_iter().collect();
    set.add(Signal::SIGINT);
    set.add(Signal::SIGCHLD);
    set.thread_block().context("signals")?;
    Ok(set)
}

fn cannot_start(program: &OsStr, why: &std::io::Error) -> anyhow::Error {
    let program = program.to_string_lossy();
    match why.kind() {
        std::io::ErrorKind::NotFound => anyhow::anyhow!(
            "cannot start {program}: it is not in PATH. In a container it is usually absent: start the container by launch, \
             `railgate launch -- srun apptainer exec …`"
        ),
        _ => anyhow::anyhow!("cannot start {program}: {why}"),
    }
}

impl Program<'_> {
    /// Whether a failed program makes its Slurm step fail on each node, which causes root to check the node. False for mpirun (Open MPI 4.1):
    /// on its own node it starts the ranks without a step, and on each other node its daemon returns 0 even if the program fails.
    pub(crate) fn has_steps_that_fail(&self) -> bool {
        Starter::of(self.words) != Starter::Mpirun
    }

    /// Starts it and waits for its end. Nothing runs meanwhile but srun.
    pub(crate) fn run(&self, start: &Start<'_>) -> anyhow::Result<Ended> {
        let began =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let log = Log::of_own_output();
        let (mut command, list) = self.command(start)?;
        let child = command.spawn().map_err(|why| cannot_start(command.get_program(), &why))?;
        let (status, stopped) = self.wait(child)?;
        // The file exists as long as this.
        drop(list);
        let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
        Ok(Ended { code: u8::try_from(code).unwrap_or(1), stopped, began, log, ranks: start.ranks() })
    }

    /// The command, and the list of nodes that it reads.
    fn command(&self, start: &Start<'_>) -> anyhow::Result<(Command, Option<File>)> {
        let Allocation { job, attempt, nodes, tasks, uneven, .. } = start.allocation;
        let is_part = start.nodes != nodes && uneven.is_none();
        let ranks: Vec<Allocated<'_>> =
            start.nodes.iter().map(|name| Allocated { name, tasks: *tasks }).collect();
        let (mut command, list) = match Starter::of(self.words) {
            Starter::Mpirun => {
                let mut mpirun = Command::new(self.words.first().context("no program")?);
                if is_part {
                    let slots = start.nodes.iter().map(|node| format!("{node}:{tasks}"));
                    mpirun.args(["--host", &slots.collect::<Vec<_>>().join(",")]);
                }
                mpirun.args(self.words.get(1..).unwrap_or_default());
                (mpirun, None)
            }
            starter => {
                let own = usize::from(starter == Starter::Srun);
                let mut srun = Command::new("srun");
                // A rank that fails would leave the others in a collective that never completes.
                srun.arg("--kill-on-bad-exit=1");
                let list = if is_part { Some(place(&mut srun, &ranks)?) } else { None };
                srun.args(self.words.get(own..).unwrap_or_default());
                (srun, list)
            }
        };
        let port =
            20_000 + (u64::from(*job) * 7 + u64::from(*attempt) + u64::from(start.number) * 1009) % 20_000;
        command.env(START_VARIABLE, start.number.to_string()).env("MASTER_PORT", port.to_string());
        if let Some(first) = start.nodes.first() {
            command.env("MASTER_ADDR", first);
        }
        if start.overlap {
            // Also for the srun of mpirun.
            command.env("SLURM_OVERLAP", "1");
        }
        Ok((command, list))
    }

    fn wait(&self, mut srun: Child) -> anyhow::Result<(ExitStatus, Option<Signal>)> {
        let pid = Pid::from_raw(i32::try_from(srun.id())?);
        let mut stopped = None;
        loop {
            if let Some(status) = srun.try_wait().context("srun")? {
                return Ok((status, stopped));
            }
            match self.asked.wait().context("signals")? {
                Signal::SIGCHLD => {}
                signal => {
                    if PASSED.contains(&signal) {
                        let _ = kill(pid, signal);
                    }
                    if !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) {
                        stopped = Some(signal);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_srun_and_mpirun_are_recognized() {
        let of = |words: &[&str]| Starter::of(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of(&["srun", "--label", "python", "train.py"]), Starter::Srun);
        assert_eq!(of(&["/opt/slurm/bin/srun", "a"]), Starter::Srun);
        assert_eq!(of(&["mpirun", "-np", "16", "a"]), Starter::Mpirun);
        assert_eq!(of(&["python", "srun"]), Starter::Program);
    }
}

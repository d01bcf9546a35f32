//! A step of the calling job with one task on each node, whose lines are read until a deadline.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::output::complain;

/// Longest output that is read of a step, bytes: a node with 16 rails prints some 10 KiB.
const MOST_OUTPUT: u64 = 256 << 20;
/// Lines of srun's own errors that are shown.
const MOST_ERRORS: usize = 5;
/// Options of the job that srun would take from the environment, and that contradict one task on each node.
pub(crate) const NOT_INHERITED: [&str; 14] = [
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_SOCKET",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_TASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_GPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_ARBITRARY_NODELIST",
    "SLURM_HOSTFILE",
    "SLURM_LABELIO",
];

/// Returns the srun of such a step, on any `nodes` nodes of the job unless the caller adds `--nodelist`.
pub(crate) fn srun(job: &str, nodes: usize) -> Command {
    let nodes = nodes.to_string();
    let mut srun = Command::new("srun");
    srun.args(["--overlap", "--ntasks-per-node=1", "--input=none"])
        // A job of `sbatch --export=NONE` would not give its tasks what the caller sets.
        .arg("--export=ALL")
        .args(["--nodes", &nodes, "--ntasks", &nodes, "--jobid", job])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for name in NOT_INHERITED {
        srun.env_remove(name);
    }
    srun
}

/// Reads the lines of a step until its end or its limit. Errors of srun are printed after `who: `, if there is
/// one. Returns why tasks may lack lines, if that is
/// known of the step as a whole.
///
/// # Errors
/// srun cannot be started.
pub(crate) fn read(
    mut srun: Command,
    who: Option<&str>,
    limit: Duration,
    hear: &mut dyn FnMut(String),
) -> anyhow::Result<Option<String>> {
    let mut child = srun.spawn().context("cannot start srun")?;
    let until = Instant::now() + limit;
    let lines = reader(child.stdout.take());
    let errors = reader(child.stderr.take());
    let late = loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => hear(line),
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        }
    };
    if late {
        if let Some(who) = who {
            complain!("{who}: the step has not ended after {} s and is cancelled", limit.as_secs());
        }
        cancel(&mut child);
    }
    let status = child.wait().context("srun")?;
    if !late && status.success() {
        return Ok(None);
    }
    let errors: Vec<String> = errors_of(&errors).collect();
    for (who, line) in who.iter().flat_map(|who| errors.iter().map(move |line| (who, line))) {
        complain!("{who}: {line}");
    }
    // srun also writes remarks.
    let of_an_error = errors.iter().find(|line| line.contains("error:"));
    Ok(Some(match of_an_error.or(errors.first()) {
        _ if late => format!("the step did not end in {} s", limit.as_secs()),
        Some(line) => line.clone(),
        None => format!("srun ended with {status}"),
    }))
}

/// Reads lines in a thread, until the other end is closed.
fn reader(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    if let Some(from) = from {
        std::thread::spawn(move || {
            let all = BufReader::new(from.take(MOST_OUTPUT)).lines();
            all.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
    }
    lines
}

/// The first lines that a srun wrote which has ended. A process of its step may hold the other end open.
fn errors_of(lines: &mpsc::Receiver<String>) -> impl Iterator<Item = String> {
    std::iter::from_fn(|| lines.recv_timeout(Duration::from_millis(200)).ok()).take(MOST_ERRORS)
}

/// srun ends its step on SIGTERM; if it does not within two seconds, it is killed, and the step ends with the job.
fn cancel(srun: &mut Child) {
    let Ok(pid) = i32::try_from(srun.id()) else { return };
    let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    for _ in 0..20 {
        if !matches!(srun.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let _ = srun.kill();
}

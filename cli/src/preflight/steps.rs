//! Steps of the job: srun starts one task on each node, and its lines are read until a deadline.

use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use railgate_slurm::hostlist::compress;

use super::lines::{Line, ORDER, Order};
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

/// Starts tasks on the nodes of a job.
#[derive(Debug)]
pub(crate) struct Steps {
    job: String,
    nodes: usize,
    program: PathBuf,
    /// Known to the tasks of this test only: their environment can be read by the job's user and root.
    key: String,
}

impl Steps {
    pub(crate) fn new(job: &str, nodes: usize) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("path of this program")?;
        let mut key = String::new();
        for _ in 0..4 {
            key.push_str(&format!("{:016x}", railgate_pair::random_number().map_err(anyhow::Error::msg)?));
        }
        Ok(Steps { job: job.to_owned(), nodes, program, key })
    }

    /// Runs one step on all nodes. A task that fails or does not end in time has only the lines that it printed. Returns why tasks may
    /// lack lines, if that is known of the step as a whole.
    pub(crate) fn run(&self, order: &Order, limit: Duration, hear: &mut dyn FnMut(Line)) -> Option<String> {
        self.start(order, self.nodes, None, limit, hear).unwrap_or_else(|why| Some(format!("{why:#}")))
    }

    /// As [`Steps::run`], on these nodes.
    pub(crate) fn run_on(
        &self,
        nodes: &[String],
        order: &Order,
        limit: Duration,
        hear: &mut dyn FnMut(Line),
    ) -> Option<String> {
        let list = Some(compress(nodes));
        self.start(order, nodes.len(), list, limit, hear).unwrap_or_else(|why| Some(format!("{why:#}")))
    }

    /// Runs another program with one task on each node. Returns as [`Steps::run`].
    pub(crate) fn run_program(
        &self,
        program: &Path,
        arguments: &[&str],
        limit: Duration,
        hear: &mut dyn FnMut(String),
    ) -> Option<String> {
        let mut srun = self.srun(self.nodes);
        // Others would wait for a task that has failed. The one task on each node serves all GPUs, and needs all processors.
        srun.args(["--kill-on-bad-exit=1", "--cpu-bind=none"]).arg(program).args(arguments);
        read(srun, limit, hear).unwrap_or_else(|why| Some(format!("{why:#}")))
    }

    fn start(
        &self,
        order: &Order,
        nodes: usize,
        list: Option<String>,
        limit: Duration,
        hear: &mut dyn FnMut(Line),
    ) -> anyhow::Result<Option<String>> {
        let mut srun = self.srun(nodes);
        srun.arg("--kill-on-bad-exit=0")
            .args(list.map(|list| format!("--nodelist={list}")))
            .arg(&self.program)
            .args(["preflight", "--on-node"])
            .env(ORDER, serde_json::to_string(order)?)
            .env(railgate_pair::KEY_VARIABLE, &self.key);
        read(srun, limit, &mut |line| match serde_json::from_str(&line) {
            Ok(line) => hear(line),
            Err(_) => complain!("preflight: a task printed: {line}"),
        })
    }

    /// A step with one task on each of so many nodes.
    fn srun(&self, nodes: usize) -> Command {
        let nodes = nodes.to_string();
        let mut srun = Command::new("srun");
        srun.args(["--overlap", "--ntasks-per-node=1", "--input=none"])
            // A job of `sbatch --export=NONE` would give its tasks no order and no key.
            .arg("--export=ALL")
            .args(["--nodes", &nodes, "--ntasks", &nodes, "--jobid", &self.job])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for name in NOT_INHERITED {
            srun.env_remove(name);
        }
        srun
    }
}

/// Reads the lines of a step until its end or its limit. Returns as [`Steps::run`].
fn read(mut srun: Command, limit: Duration, hear: &mut dyn FnMut(String)) -> anyhow::Result<Option<String>> {
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
        complain!("preflight: the step has not ended after {} s and is cancelled", limit.as_secs());
        cancel(&mut child);
    }
    let status = child.wait().context("srun")?;
    if !late && status.success() {
        return Ok(None);
    }
    let errors: Vec<String> = errors_of(&errors).collect();
    for line in &errors {
        complain!("preflight: {line}");
    }
    Ok(Some(match errors.first() {
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

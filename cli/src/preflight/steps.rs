//! Steps of the job: srun starts one task on each node, and its lines are read until a deadline.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use railgate_slurm::hostlist::compress;

use super::lines::{Line, ORDER, Order};
use crate::node_step::{read, srun};
use crate::output::complain;

/// Before the errors of a step.
const WHO: &str = "preflight";

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
        let mut step = srun(&self.job, self.nodes);
        // Others would wait for a task that has failed. The one task on each node serves all GPUs, and needs all processors.
        step.args(["--kill-on-bad-exit=1", "--cpu-bind=none"]).arg(program).args(arguments);
        read(step, Some(WHO), limit, hear).unwrap_or_else(|why| Some(format!("{why:#}")))
    }

    fn start(
        &self,
        order: &Order,
        nodes: usize,
        list: Option<String>,
        limit: Duration,
        hear: &mut dyn FnMut(Line),
    ) -> anyhow::Result<Option<String>> {
        let mut step = srun(&self.job, nodes);
        step.arg("--kill-on-bad-exit=0")
            .args(list.map(|list| format!("--nodelist={list}")))
            .arg(&self.program)
            .args(["preflight", "--on-node"])
            .env(ORDER, serde_json::to_string(order)?)
            .env(railgate_pair::KEY_VARIABLE, &self.key);
        read(step, Some(WHO), limit, &mut |line| match serde_json::from_str(&line) {
            Ok(line) => hear(line),
            Err(_) => complain!("{WHO}: a task printed: {line}"),
        })
    }
}

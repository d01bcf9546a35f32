//! `railgate launch`: starts the program of a job with srun, and starts it again inside the allocation, without the node that failed.
//!
//! It runs as the job's user and decides from what root and Slurm know: Slurm's states of the nodes, railgate's drains, root's check of
//! each node after the failed step, and the guard's entry about a job that hung. The exit code alone is never a reason to start again.

mod allocation;
mod ask;
mod evidence;
mod first_error;
mod journal;
mod nodes;
mod on_node;
mod start;

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use railgate_launch::{Cause, End, Left, Next, next};
use railgate_slurm::{Client, hostlist};

use crate::output::complain;
use crate::{Site, exit};
use allocation::Allocation;
use journal::{Journal, PROGRAM, STOPPED, duration};
use nodes::Nodes;
use start::{Program, Start};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, in a job script:
  railgate launch -- srun --label python train.py
      as srun alone; started again on the same nodes if the guard ended a hang
  railgate launch --spares 1 -- srun --label python train.py
      of five nodes (#SBATCH --nodes=5 --no-kill) four run the program, and the fifth takes the place of one that fails
  railgate launch --spares 1 --preflight -- python train.py
  railgate launch --min-nodes 2 -- python elastic.py
      continues with fewer nodes if no spare is left

Each start has its own MASTER_ADDR, MASTER_PORT and RAILGATE_START (0, 1, …). The program is expected to continue from its newest \
checkpoint. It is started again only if a node failed (down or drained in Slurm, or found unfit by root's check after the step) or if \
the guard ended a hang; never after its own error, and never when the job is cancelled, preempted or at its time limit.

Exit code: that of srun for the last start; 2 wrong use.")]
pub(crate) struct Args {
    /// Nodes of the allocation that take no part until another one fails
    #[arg(long, value_name = "K", default_value_t = 0)]
    spares: usize,
    /// Most restarts after faults of nodes and hangs; the site's `[launch] max_restarts` is the limit
    #[arg(long, value_name = "N", default_value_t = 3)]
    restarts: u32,
    /// Restarts on the same nodes if the cause of a failure cannot be known
    #[arg(long, value_name = "N", default_value_t = 0)]
    retry_unknown: u32,
    /// The program may run on as few nodes as this, when no spare is left [default: all but the spares]
    #[arg(long, value_name = "M")]
    min_nodes: Option<usize>,
    /// Test the nodes before the first start; those that are named are left out
    #[arg(long)]
    preflight: bool,
    /// Print root's check of this node after a start
    #[arg(long, hide = true, value_name = "START", requires = "of_job")]
    on_node: Option<u32>,
    /// The job, or the component of a heterogeneous one, that has this node
    #[arg(long, hide = true, value_name = "JOB")]
    of_job: Option<u32>,
    /// Wait for a check of the node; ignore the entry that no task failed
    #[arg(long, hide = true)]
    checked: bool,
    /// The program of each task and its arguments; or `srun …` with options of your own, or `mpirun …`
    #[arg(last = true, required_unless_present = "on_node", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    if let Some((start, job)) = args.on_node.zip(args.of_job) {
        return on_node::run(site, start, job, args.checked);
    }
    // Before any thread or process starts, so that no signal is lost.
    let signals = start::block_signals()?;
    let config = site.config()?;
    let client = Client::new(&config.slurm, &std::env::vars_os().collect());
    let allocation = Allocation::of_this_job(&client, &args.program)?;
    let running = allocation.nodes.len().checked_sub(args.spares).filter(|running| *running > 0);
    let running = running.with_context(|| {
        format!("--spares {}: the job has {} nodes in all", args.spares, allocation.nodes.len())
    })?;
    let least = args.min_nodes.unwrap_or(running);
    ensure!((1..=running).contains(&least), "--min-nodes {least}: must be 1 to {running}");
    ensure!(
        (args.spares == 0 && args.min_nodes.is_none()) || allocation.uneven.is_none(),
        "--spares and --min-nodes need one number of tasks for all nodes, and this job has {}",
        allocation.uneven.clone().unwrap_or_default()
    );
    let mut nodes = Nodes::new(&allocation, running, least).context("no node")?;
    if args.preflight {
        let named = crate::preflight::named_nodes(site)?;
        if !nodes.leave_out(&named, nodes.spares()) {
            complain!(
                "preflight: {} named, and the program needs {least} nodes (--spares, --min-nodes): it is not started",
                hostlist::compress(&named)
            );
            return Ok(exit::UNFIT);
        }
    }
    let limit = args.restarts.min(config.launch.max_restarts);
    let mut launch = Launch {
        client,
        program: Program { words: &args.program, asked: signals },
        journal: Journal::new(site, &allocation, limit),
        nodes,
        left: Left { restarts: limit, unknown: args.retry_unknown },
        limit,
        most_unknown: args.retry_unknown,
        died: false,
    };
    let mut number = 0;
    loop {
        if let Some(code) = launch.start(number)? {
            return Ok(code);
        }
        number += 1;
    }
}

/// How long steps of earlier starts may take to end on the nodes that are left.
const STEPS_END: Duration = Duration::from_secs(30);

/// The starts of one job.
struct Launch<'a> {
    client: Client,
    program: Program<'a>,
    journal: Journal,
    nodes: Nodes<'a>,
    left: Left,
    /// Restarts after faults of nodes and hangs.
    limit: u32,
    /// Restarts without a known cause.
    most_unknown: u32,
    /// A node has died in this allocation.
    died: bool,
}

impl Launch<'_> {
    /// Starts the program and waits for its end. Returns the exit code if it is not started again.
    fn start(&mut self, number: u32) -> anyhow::Result<Option<u8>> {
        let running = self.nodes.running();
        if self.died {
            // They share GPUs with the next start, see `Start::overlap`.
            ask::wait_for_steps(&self.client, &self.nodes.allocation.jobs(), STEPS_END);
        }
        self.journal.begin(number, &running, &self.nodes.spares());
        let began = Instant::now();
        let start = Start {
            number,
            nodes: &running,
            allocation: self.nodes.allocation,
            overlap: self.died,
            has_steps_that_fail: self.program.has_steps_that_fail(),
        };
        let ended = self.program.run(&start)?;
        let how =
            format!("start {number} ended after {} with exit code {}", duration(began.elapsed()), ended.code);
        let seen = evidence::of(&self.client, &start, &ended, |waits| self.journal.waits(waits));
        let end = match next(&seen, self.left) {
            Next::Done => {
                self.journal.end(ended.code, &[], "done", None);
                complain!("{how}");
                return Ok(Some(exit::OK));
            }
            Next::Again(cause, out) => match self.again(cause, &out) {
                Some(why) => {
                    self.journal.end(ended.code, &out, cause_name(cause), Some(&why));
                    complain!("{how}: {why}");
                    return Ok(None);
                }
                None => Why {
                    cause: "no-spare",
                    why: format!(
                        "{}; no spare is left, and the program needs {} nodes (--spares, --min-nodes)",
                        reasons(&out),
                        self.nodes.least
                    ),
                    out,
                },
            },
            Next::End(end) => self.why(end),
            // Slurm has not decided about them in its own time.
            Next::Wait(silent) => {
                self.why(End::Unknown(format!("{}: no answer", hostlist::compress(&silent))))
            }
        };
        self.journal.end(ended.code, &end.out, end.cause, Some(&end.why));
        // The journal becomes part of node reports, which have no text of the job's log.
        let said = (end.cause == PROGRAM).then(|| first_error::of(&ended)).flatten();
        let said = said.map(|said| format!("; {said}")).unwrap_or_default();
        complain!("{how}: {}{said}{}", end.why, self.journal.after(end.cause));
        Ok(Some(ended.code))
    }

    /// Chooses the nodes of the next start and counts it. Returns why it is made, in words; `None` if too few nodes are left.
    fn again(&mut self, cause: Cause, out: &[(String, String)]) -> Option<String> {
        let before = self.nodes.running();
        let lost: Vec<String> = out.iter().map(|(node, _)| node.clone()).collect();
        // Without a lost node the spares need not be asked for.
        let usable =
            if lost.is_empty() { Vec::new() } else { ask::usable(&self.client, &self.nodes.spares()) };
        if !lost.is_empty() && !self.nodes.leave_out(&lost, usable) {
            return None;
        }
        self.died |= cause == Cause::Node && ask::is_any_down(&self.client, &lost);
        let limit = self.limit;
        Some(match cause {
            Cause::Node | Cause::Hang => {
                self.left.restarts -= 1;
                let why = match cause {
                    Cause::Hang => "the job hung, and the guard ended it".to_owned(),
                    _ => format!("{}{}", reasons(out), swapped(&before, &self.nodes.running())),
                };
                format!("{why}; {} of {limit} restarts left", self.left.restarts)
            }
            Cause::Unknown => {
                self.left.unknown -= 1;
                format!(
                    "the cause is not known; {} of {} such restarts left (--retry-unknown)",
                    self.left.unknown, self.most_unknown
                )
            }
        })
    }

    fn why(&self, end: End) -> Why {
        let of = |cause, why| Why { cause, why, out: Vec::new() };
        match end {
            End::Stopped(what) => of(STOPPED, what),
            End::Program => of(PROGRAM, "all nodes are fit: the program's own error".to_owned()),
            End::Unknown(why) => {
                let retry = if self.most_unknown == 0 { " (--retry-unknown starts it again)" } else { "" };
                of("unknown", format!("the cause is not known: {why}; not started again{retry}"))
            }
            End::Spent(_, out) => {
                let why = if out.is_empty() { "the job hung".to_owned() } else { reasons(&out) };
                Why { cause: "spent", why: format!("{why}; no restart is left"), out }
            }
        }
    }
}

/// Why the program is not started again.
struct Why {
    cause: &'static str,
    why: String,
    /// Nodes that have failed, each with the reason.
    out: Vec<(String, String)>,
}

fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Node => "node",
        Cause::Hang => "hang",
        Cause::Unknown => "unknown",
    }
}

/// `gn3 is left out: DOWN in Slurm (Not responding)`
fn reasons(out: &[(String, String)]) -> String {
    let each: Vec<String> = out.iter().map(|(node, why)| format!("{node} is left out: {why}")).collect();
    each.join("; ")
}

/// `; gn4 takes the place of gn3`; where the ranks close up, how many nodes are left.
fn swapped(before: &[String], after: &[String]) -> String {
    if before.len() != after.len() {
        return format!("; {} nodes are left", after.len());
    }
    let pairs = before.iter().zip(after).filter(|(old, new)| old != new);
    pairs.map(|(old, new)| format!("; {new} takes the place of {old}")).collect()
}

//! `railgate launch`: starts the program of a job with srun, and starts it again inside the allocation, without the node that failed.
//!
//! It runs as the job's user and decides from what root and Slurm know: Slurm's states of the nodes, railgate's drains, root's check of
//! each node after the failed step, and the guard's entry about a job that hung. The exit code alone is never a reason to start again.

mod allocation;
mod ask;
mod evidence;
mod first_error;
mod journal;
pub(crate) mod on_node;
mod start;

use std::ffi::OsString;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use railgate_launch::{Cause, Chosen, End, Left, Next, choose, next, replace};
use railgate_slurm::{Client, hostlist};

use crate::output::complain;
use crate::{Site, exit};
use allocation::Allocation;
use journal::{Journal, duration};
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
    #[arg(long, hide = true, value_name = "START")]
    on_node: Option<u32>,
    /// The program of each task and its arguments; or `srun …` with options of your own, or `mpirun …`
    #[arg(last = true, required_unless_present = "on_node", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The nodes that run and the spares, as indices into the allocation.
struct Nodes<'a> {
    allocation: &'a Allocation,
    chosen: Chosen,
}

impl Nodes<'_> {
    fn names(&self, of: &[usize]) -> Vec<String> {
        of.iter().filter_map(|at| self.allocation.nodes.get(*at).cloned()).collect()
    }

    fn running(&self) -> Vec<String> {
        self.names(&self.chosen.ranks)
    }

    fn spares(&self) -> Vec<String> {
        self.names(&self.chosen.spares)
    }

    fn indices(&self, names: &[String]) -> Vec<usize> {
        let at = |name: &String| self.allocation.nodes.iter().position(|node| node == name);
        names.iter().filter_map(at).collect()
    }
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    if let Some(start) = args.on_node {
        return on_node::run(site, start);
    }
    // Before any thread or process starts, so that no signal is lost.
    let signals = start::block_signals()?;
    let config = site.config()?;
    let client = Client::new(&config.slurm, &std::env::vars_os().collect());
    let allocation = Allocation::of_this_job(&client)?;
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
    let chosen = choose(&allocation.places, running).context("no node")?;
    let mut nodes = Nodes { allocation: &allocation, chosen };
    let limit = args.restarts.min(config.launch.max_restarts);
    let mut left = Left { restarts: limit, unknown: args.retry_unknown };
    let program = Program { words: &args.program, asked: signals };
    let mut journal = Journal::new(site, &allocation, limit);
    if args.preflight && !preflight(site, &mut nodes, least)? {
        return Ok(exit::UNFIT);
    }
    for number in 0.. {
        let running = nodes.running();
        journal.begin(number, &running, &nodes.spares());
        let began = Instant::now();
        let start = Start { number, nodes: &running, allocation: &allocation };
        let ended = program.run(&start)?;
        let took = duration(began.elapsed());
        let seen = evidence::of(&client, &start, &ended, |waits| journal.waits(waits));
        let what = match next(&seen, left) {
            Next::Done => {
                journal.end(ended.code, &[], "done", None);
                complain!("start {number} ended after {took} with exit code 0");
                return Ok(exit::OK);
            }
            // Slurm has not decided about them in its own time.
            Next::Wait(silent) => {
                Next::End(End::Unknown(format!("{}: no answer", hostlist::compress(&silent))))
            }
            next => next,
        };
        let how = format!("start {number} ended after {took} with exit code {}", ended.code);
        let (cause, out) = match what {
            Next::Again(cause, out) => (cause, out),
            Next::End(end) => return Ok(ends(&mut journal, &ended, &how, &end, &left)),
            Next::Done | Next::Wait(_) => return Ok(ended.code),
        };
        let lost: Vec<String> = out.iter().map(|(node, _)| node.clone()).collect();
        let Some(moved) = next_nodes(&client, &nodes, &lost, least) else {
            let why = format!(
                "{}; no spare is left, and the program needs {least} nodes (--spares, --min-nodes)",
                reasons(&out)
            );
            journal.end(ended.code, &out, "no-spare", Some(&why));
            complain!("{how}: {why}. {}", journal.after_the_end());
            return Ok(ended.code);
        };
        match cause {
            Cause::Node | Cause::Hang => left.restarts -= 1,
            Cause::Unknown => left.unknown -= 1,
        }
        let why = match cause {
            Cause::Node => {
                let (out, swapped) = (reasons(&out), swapped(&nodes, &moved));
                format!("{out}{swapped}; {} of {limit} restarts left", left.restarts)
            }
            Cause::Hang => {
                format!("the job hung, and the guard ended it; {} of {limit} restarts left", left.restarts)
            }
            Cause::Unknown => format!(
                "the cause is not known; {} of {} such restarts left (--retry-unknown)",
                left.unknown, args.retry_unknown
            ),
        };
        journal.end(ended.code, &out, cause_name(cause), Some(&why));
        complain!("{how}: {why}");
        nodes.chosen = moved;
    }
    Ok(exit::USAGE)
}

fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Node => "node",
        Cause::Hang => "hang",
        Cause::Unknown => "unknown",
    }
}

/// `gn3 left out: DOWN (Not responding)`
fn reasons(out: &[(String, String)]) -> String {
    let each: Vec<String> = out.iter().map(|(node, why)| format!("{node} is left out: {why}")).collect();
    each.join("; ")
}

/// `; gn4 takes the place of gn3`; where the ranks close up, how many nodes are left.
fn swapped(nodes: &Nodes<'_>, moved: &Chosen) -> String {
    let (before, after) = (nodes.running(), nodes.names(&moved.ranks));
    if before.len() != after.len() {
        return format!("; {} nodes are left", after.len());
    }
    let pairs = before.iter().zip(&after).filter(|(old, new)| old != new);
    pairs.map(|(old, new)| format!("; {new} takes the place of {old}")).collect()
}

/// Prints and records why the program is not started again. Returns the exit code.
fn ends(journal: &mut Journal, ended: &start::Ended, how: &str, end: &End, left: &Left) -> u8 {
    let (cause, why, out): (_, _, &[(String, String)]) = match end {
        End::Stopped(what) => ("stopped", what.clone(), &[]),
        End::Program => {
            let found = first_error::of(ended);
            let what = "all nodes are fit: the program's own error";
            let why = found.map_or_else(|| what.to_owned(), |found| format!("{what}; {found}"));
            ("program", why, &[])
        }
        End::Unknown(why) => {
            let retry = if left.unknown == 0 { " (--retry-unknown starts it again)" } else { "" };
            ("unknown", format!("the cause is not known: {why}; not started again{retry}"), &[])
        }
        End::Spent(_, out) => {
            let why = if out.is_empty() { "the job hung".to_owned() } else { reasons(out) };
            ("spent", format!("{why}; no restart is left"), out.as_slice())
        }
    };
    journal.end(ended.code, out, cause, Some(&why));
    let then =
        if matches!(end, End::Stopped(_)) { String::new() } else { format!(". {}", journal.after_the_end()) };
    complain!("{how}: {why}{then}");
    ended.code
}

/// The nodes of the next start: spares take the places of lost nodes; without enough of them the ranks close up, down to `least` nodes.
fn next_nodes(client: &Client, nodes: &Nodes<'_>, lost: &[String], least: usize) -> Option<Chosen> {
    if lost.is_empty() {
        return Some(nodes.chosen.clone());
    }
    let usable = ask::usable(client, &nodes.spares());
    let (lost, spares) = (nodes.indices(lost), nodes.indices(&usable));
    let places = &nodes.allocation.places;
    if let Some(moved) = replace(places, &nodes.chosen.ranks, &lost, &spares) {
        return Some(moved);
    }
    // As many as there are spares for, then the ranks close up.
    let open: Vec<usize> = nodes.chosen.ranks.iter().copied().filter(|node| lost.contains(node)).collect();
    let filled = open.get(..spares.len())?;
    let moved = replace(places, &nodes.chosen.ranks, filled, &spares)?;
    let ranks: Vec<usize> = moved.ranks.into_iter().filter(|node| !lost.contains(node)).collect();
    (ranks.len() >= least).then_some(Chosen { ranks, spares: moved.spares })
}

/// Tests the nodes before the first start, and leaves out those that are named. Returns whether enough are left.
fn preflight(site: &Site, nodes: &mut Nodes<'_>, least: usize) -> anyhow::Result<bool> {
    let named = crate::preflight::named_nodes(site)?;
    let bad = nodes.indices(&named);
    let places = &nodes.allocation.places;
    let spares: Vec<usize> = nodes.chosen.spares.iter().copied().filter(|node| !bad.contains(node)).collect();
    if let Some(moved) = replace(places, &nodes.chosen.ranks, &bad, &spares) {
        nodes.chosen = moved;
        return Ok(true);
    }
    let ranks: Vec<usize> = nodes.chosen.ranks.iter().copied().filter(|node| !bad.contains(node)).collect();
    let enough = ranks.len() >= least;
    nodes.chosen = Chosen { ranks, spares };
    if !enough {
        complain!(
            "preflight: {} named, and the program needs {least} nodes: it is not started",
            hostlist::compress(&named)
        );
    }
    Ok(enough)
}

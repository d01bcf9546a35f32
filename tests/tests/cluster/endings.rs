//! Every way in which a job can end, on a mixed cluster: the first line of its report right after the end, later, and after
//! slurmctld has purged the job.
//!
//! The rows are in `endings/`: how to submit the job, what to do to it, and the expected line. All jobs run at the same time.
//! `RAILGATE_ENDINGS_LATER=600` reads the reports again after that many seconds; `RAILGATE_ENDINGS=TEXT` runs only the rows
//! whose names contain the text.

mod nodes;
mod people;
mod play;
mod programs;
mod row;
mod table;
mod waiting;

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, Cluster, memory_groups};
use railgate_tests::skipped;

use crate::accounting::with_slurmdbd;
use crate::training::ALL_MAY_DRAIN;
use play::Setup;
use row::Ending;

/// The nodes' partitions. Actions on the node of one ending do not affect any other.
const PARTITIONS: [(&str, &str); 10] = [
    ("gpu", "gn[1-3]"),
    ("cpu", "gn[4-5]"),
    ("backed", "gn6 PreemptMode=REQUEUE"),
    ("scavenge", "gn7 PreemptMode=CANCEL"),
    ("urgent", "gn[6-7] PriorityTier=10"),
    ("mortal", "gn[8-10]"),
    ("edge", "gn[11-12]"),
    ("unfit", "gn[13-15]"),
    ("leaving", "gn[16-17]"),
    ("breaking", "gn18"),
];
const NODES: usize = 18;
const UNFIT: [&str; 4] = ["gn11", "gn13", "gn14", "gn15"];
const WITHOUT_GPUS: [&str; 2] = ["gn4", "gn5"];

/// Prolog and epilog of a job whose comment requests it wait until the test has acted on the job.
const WAIT: &str = "#!/bin/sh
[ \"$SLURM_JOB_COMMENT\" = wait-in-$SLURM_SCRIPT_CONTEXT ] || exit 0
: > /home/rgalice/marks/$SLURM_SCRIPT_CONTEXT.$SLURM_JOB_ID.0
until [ -e /home/rgalice/marks/go.$SLURM_JOB_ID ]; do sleep 0.2; done
";

fn mixed() -> Result<Builder> {
    let mut builder = Builder::new(NODES)
        .config(ALL_MAY_DRAIN)?
        .slurm_conf("PreemptType", "preempt/partition_prio")
        .slurm_conf("PreemptMode", "REQUEUE")
        .file("/etc/slurm/prolog.d/50-wait", WAIT)
        .file("/etc/slurm/epilog.d/50-wait", WAIT);
    if memory_groups() {
        builder = builder.memory_groups();
    } else {
        skipped("no memory control groups here: real out-of-memory kills are left out")?;
    }
    if later()?.is_some() {
        builder = builder.slurm_conf("MinJobAge", "300");
    }
    for (name, nodes) in PARTITIONS {
        builder = builder.slurm_conf(&format!("PartitionName={name} Nodes"), nodes);
    }
    for node in UNFIT {
        builder = builder.hardware_of(node, "h100-sxm:gpu-lost@3");
    }
    for node in WITHOUT_GPUS {
        builder = builder.hardware_of(node, "cpu");
    }
    Ok(builder)
}

/// Delay of the second reading, from the environment.
fn later() -> Result<Option<Duration>> {
    let Ok(seconds) = std::env::var("RAILGATE_ENDINGS_LATER") else { return Ok(None) };
    Ok(Some(Duration::from_secs(
        seconds.parse().context("RAILGATE_ENDINGS_LATER must be a number of seconds")?,
    )))
}

/// All rows that this machine supports.
fn endings() -> Vec<Ending> {
    let wanted = std::env::var("RAILGATE_ENDINGS").unwrap_or_default();
    let all = [programs::endings(), people::endings(), nodes::endings(), waiting::endings()];
    let memory = if memory_groups() { programs::memory() } else { Vec::new() };
    all.into_iter().flatten().chain(memory).filter(|ending| ending.name.contains(&wanted)).collect()
}

fn play(cluster: &Cluster, accounted: bool) -> Result<()> {
    let table = play::play(cluster, &endings(), Setup { accounted, later: later()? })?;
    // Written to stdout directly, since the test harness captures `print!`.
    writeln!(std::io::stdout(), "{table}")?;
    anyhow::ensure!(table.wrong() == 0, "{} first lines are wrong", table.wrong());
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn first_lines_without_slurmdbd() -> Result<()> {
    mixed()?.test(|cluster| play(cluster, false))
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn first_lines_with_slurmdbd() -> Result<()> {
    let Some(place) = with_slurmdbd() else { return Ok(()) };
    mixed()?.slurm_root(place).test(|cluster| {
        let database = railgate_tests::accounting::start(cluster)?;
        let result = play(cluster, true);
        drop(database);
        result
    })
}

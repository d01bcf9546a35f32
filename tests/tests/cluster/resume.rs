//! The resume contract: the example program in the training template, ended at four different moments.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, Cluster, Job};
use railgate_tests::poll;

use crate::templates::filled;
use crate::training::{ALL_MAY_DRAIN, MINUTE};

const DIR: &str = "/shared/alice/run";

fn log(cluster: &Cluster) -> String {
    cluster.output("/home/rgalice/train.log").unwrap_or_default()
}

/// Number of steps in the loss curve.
fn steps(cluster: &Cluster) -> usize {
    cluster.output(&format!("{DIR}/loss.csv")).unwrap_or_default().lines().count()
}

/// Incomplete checkpoints.
fn half_written(cluster: &Cluster) -> Result<Vec<PathBuf>> {
    let names = std::fs::read_dir(cluster.path("ctl", DIR)?)?;
    let names = names.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(names.into_iter().filter(|path| path.to_string_lossy().ends_with(".ckpt.part")).collect())
}

/// Waits until an attempt has run some steps and is not saving; returns its first and its last node.
fn at_work(cluster: &Cluster, id: u32, attempt: u32) -> Result<(String, String)> {
    let begins = |log: &str| log.matches("begins a").count() > usize::try_from(attempt).unwrap_or(0);
    poll::until(MINUTE, &format!("attempt {attempt} to train"), || Ok(begins(&log(cluster)).then_some(())))
        .with_context(|| log(cluster))?;
    let from = steps(cluster);
    poll::until(MINUTE, "ten more steps", || {
        Ok((steps(cluster) > from + 10 && half_written(cluster)?.is_empty()).then_some(()))
    })?;
    let job = cluster.job(id)?;
    let nodes = cluster.alice().run(&["scontrol", "show", "hostnames", job.nodes()])?.ok()?;
    let mut nodes = nodes.lines();
    let first = nodes.next().context("no node")?.to_owned();
    let last = nodes.next_back().context("one node only")?.to_owned();
    // That program prints nothing; SIGUSR1 is number 10 in its SigCgt mask.
    let caught =
        "for pid in $(pgrep -x python3); do sed -n 's/^SigCgt:/0x/p' /proc/$pid/status; done | tr -d '\\t'";
    poll::until(MINUTE, "the other node's program to handle signals", || {
        let said = cluster.root().on(&last).run(&["bash", "-c", caught])?.stdout;
        let mut masks =
            said.lines().filter_map(|mask| u64::from_str_radix(mask.strip_prefix("0x")?, 16).ok());
        Ok(masks.any(|mask| mask & (1 << 9) != 0).then_some(()))
    })?;
    Ok((first, last))
}

/// A GPU falls off the bus, and the process that used it is killed: now, or during its next save. A save is short, so the waiting
/// process itself sends the signal.
fn strike(cluster: &Cluster, node: &str, saving: bool) -> Result<()> {
    cluster.hardware(node)?.inject("gpu-lost@3")?;
    let wait =
        if saving { format!("until ls {DIR}/.*.ckpt.part; do sleep 0.02; done; ") } else { String::new() };
    let kill = format!("{wait}exec pkill -KILL -f 'example_train.py --plain'");
    cluster.root().on(node).run(&["sh", "-c", &kill])?.ok().map(drop)
}

fn again(cluster: &Cluster, id: u32, restarts: u32) -> Result<()> {
    let running = |job: &Job| job.state() == "RUNNING" && job.restarts() == restarts;
    let job = cluster.wait_job_until(id, &format!("running for the {restarts}. time again"), MINUTE, running);
    job.map(drop).with_context(|| log(cluster))
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_training_ended_at_any_moment_runs_every_step_once() -> Result<()> {
    let example = include_str!("../../../contrib/python/example_train.py");
    let builder = Builder::new(5)
        .config(ALL_MAY_DRAIN)?
        .file("/opt/example_train.py", example)
        // Short enough to notice a dead node soon, long enough for a busy one.
        .slurm_conf("SlurmdTimeout", "10")
        .slurm_conf("MessageTimeout", "5");
    builder.test(|cluster| {
        cluster.root().run(&["install", "-d", "-o", "rgalice", "/shared/alice"])?.ok()?;
        // More steps than a slow machine runs during the whole test.
        let program = "python3 /opt/example_train.py --plain --steps 4000 --save-every 100";
        let slow = "--step-seconds 0.02 --save-seconds 1";
        let train = format!("TRAIN={program} {slow} --save-dir {DIR}");
        let settings = [&train, "cpus-per-task=2", "output=train.log", &format!("CHECKPOINTS={DIR}")];
        let id = cluster.alice().sbatch(&[], &filled(cluster, "torchrun-multinode", &settings)?)?;

        // Near the time limit: Slurm signals the script, and the script signals the program.
        at_work(cluster, id, 0)?;
        cluster.alice().run(&["scancel", "--batch", "--signal=USR1", &id.to_string()])?.ok()?;
        again(cluster, id, 1)?;
        ensure!(log(cluster).contains("saved at step "), "{}", log(cluster));

        // During a step, on the node that does not save.
        let (_, last) = at_work(cluster, id, 1)?;
        strike(cluster, &last, false)?;
        again(cluster, id, 2)?;

        // During a save, on the node that saves: its incomplete file is not a checkpoint.
        let (first, _) = at_work(cluster, id, 2)?;
        strike(cluster, &first, true)?;
        assert_eq!(half_written(cluster)?.len(), 1);
        again(cluster, id, 3)?;

        // The node dies.
        let (_, last) = at_work(cluster, id, 3)?;
        cluster.kill_node(&last)?;
        again(cluster, id, 4)?;
        let (_, _) = at_work(cluster, id, 4)?;

        // The remaining steps run without pauses, to save time.
        cluster.alice().run(&["scancel", &id.to_string()])?.ok()?;
        cluster.wait_job(id, &["CANCELLED"], MINUTE)?;
        let words = |dir: &str| format!("{program} --save-dir {dir}");
        for dir in [DIR, "/shared/alice/whole"] {
            let done = cluster.alice().deadline(MINUTE).run(&["sh", "-c", &words(dir)])?;
            ensure!(done.both().contains("finished at step 4000, "), "{done}");
        }
        let curve = |dir: &str| cluster.output(&format!("{dir}/loss.csv"));
        assert_eq!(curve(DIR).unwrap_or_default().lines().count(), 4000);
        assert_eq!(curve(DIR), curve("/shared/alice/whole"), "the curve of an uninterrupted run");
        let begins: Vec<usize> = log(cluster)
            .lines()
            .filter_map(|line| line.split_once("begins after step ")?.1.trim().parse().ok())
            .collect();
        assert!(begins.len() == 4 && begins.is_sorted() && begins[0] > 0, "{}", log(cluster));
        Ok(())
    })
}

//! Faults at random moments under `railgate launch`: every step of a training runs once, and the program ends as without a fault.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::{poll, skipped};

const MINUTE: Duration = Duration::from_secs(60);
const EXAMPLE: &str = include_str!("../../../contrib/python/example_train.py");
/// All of these nodes may be drained at once.
const ALL_MAY_DRAIN: &str = "[breaker]\nmax_nodes = 100\nmax_percent = 100.0\npartition_max_nodes = 100\npartition_max_percent = 100.0";
/// Jobs that are played at the same time, each on nodes of its own.
const LANES: usize = 2;
/// Nodes of a job.
const NODES: usize = 7;
const SPARES: usize = 4;
/// In each twelfth fault a node is powered off, which Slurm notices late.
const DEATHS: u64 = 12;
const PROGRAM: &str = r#"#!/bin/bash
echo "start $RAILGATE_START rank $SLURM_PROCID on $SLURMD_NODENAME"
exec python3 /opt/example_train.py --plain --steps 1500 --save-every 10 --step-seconds 0.02 --save-seconds 0.1 --save-dir "$1"
"#;

/// The sequence of Knuth's MMIX: a run can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// One job on these nodes and its faults, until its spares are used up. `run`: its name. Returns the number of faults.
fn play(cluster: &Cluster, nodes: &[String], random: &mut Random, run: &str) -> Result<u64> {
    let dir = format!("/shared/alice/run{run}");
    let output = format!("log.{run}");
    let script = format!("railgate launch --spares {SPARES} --restarts {SPARES} -- bash /opt/program {dir}");
    let (number, list) = (format!("-N{NODES}"), nodes.join(","));
    let words = [&number, "-w", &list, "--no-kill", "--gres=gpu:8", "--ntasks-per-node=1", "-o", &output];
    let id = cluster.alice().sbatch(&words, &script)?;
    let log = || cluster.output(&format!("/home/rgalice/{output}")).unwrap_or_default();
    let mut told = String::new();
    let mut faults = 0;
    for start in 0..SPARES {
        let running = poll::until(MINUTE, "the ranks of a start", || {
            let log = log();
            let of = |line: &str| {
                let rest = line.strip_prefix(&format!("start {start} rank "))?;
                Some((rest.split_once(' ')?.0.to_owned(), rest.split_once(" on ")?.1.to_owned()))
            };
            let found: Vec<(String, String)> = log.lines().filter_map(of).collect();
            Ok((found.len() == NODES - SPARES).then_some(found))
        })
        .with_context(|| format!("{told}{}", log()))?;
        std::thread::sleep(Duration::from_millis(random.below(4000)));
        if !cluster.job(id)?.state().starts_with("RUNNING") {
            break;
        }
        let (rank, node) = &running[usize::try_from(random.below(running.len() as u64))?];
        let batch_host = cluster.job(id)?.field("BatchHost") == node;
        if !batch_host && random.below(DEATHS) == 0 {
            writeln!(told, "start {start}: {node} with rank {rank} is powered off")?;
            cluster.kill_node(node)?;
        } else {
            writeln!(told, "start {start}: {node} with rank {rank} loses a GPU")?;
            cluster.hardware(node)?.inject("gpu-lost@3")?;
            cluster.root().on(node).run(&["pkill", "-KILL", "-f", "^python3 /opt/example_train.py"])?;
        }
        faults += 1;
    }
    let whole = || format!("{told}{}", log());
    cluster.wait_job(id, &["COMPLETED"], 4 * MINUTE).with_context(whole)?;
    let curve = |dir: &str| cluster.output(&format!("{dir}/loss.csv")).unwrap_or_default();
    ensure!(curve(&dir) == curve("/shared/alice/whole"), "the curves differ: {}", whole());
    let last = |dir: &str| cluster.output(&format!("{dir}/step-000001500.ckpt"));
    ensure!(
        last(&dir).is_some() && last(&dir) == last("/shared/alice/whole"),
        "the states differ: {}",
        whole()
    );
    Ok(faults)
}

fn repair(cluster: &Cluster, nodes: &[String]) -> Result<()> {
    for name in nodes {
        cluster.hardware(name)?.heal()?;
        if cluster.node(name)?.state().contains("DOWN") {
            cluster.boot_node(name)?;
        }
        poll::until(2 * MINUTE, &format!("{name} to be idle"), || {
            let resume = ["scontrol", "update", &format!("NodeName={name}"), "State=resume"];
            let idle = cluster.node(name)?.state() == "IDLE";
            if !idle {
                cluster.root().run(&resume)?;
            }
            Ok(idle.then_some(()))
        })?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn every_step_runs_once_whatever_fails() -> Result<()> {
    let Some(count) = number("RAILGATE_RANDOM_FAULTS") else {
        return skipped("RAILGATE_RANDOM_FAULTS=200 plays that many (RAILGATE_SEED=1)");
    };
    let seed = number("RAILGATE_SEED").unwrap_or(1);
    let builder = Builder::new(LANES * NODES)
        .config(ALL_MAY_DRAIN)?
        .file("/opt/example_train.py", EXAMPLE)
        .file("/opt/program", PROGRAM)
        .slurm_conf("SlurmdTimeout", "10")
        .slurm_conf("MessageTimeout", "5");
    builder.test(|cluster| {
        cluster.root().run(&["install", "-d", "-o", "rgalice", "/shared/alice"])?.ok()?;
        let alone = "python3 /opt/example_train.py --plain --steps 1500 --save-every 10 --save-dir /shared/alice/whole";
        cluster.alice().deadline(MINUTE).run(&["sh", "-c", alone])?.ok()?;
        let share = count.div_ceil(LANES as u64);
        std::thread::scope(|scope| {
            let lanes = (0..).zip(cluster.nodes().chunks(NODES));
            let play = |(lane, nodes)| scope.spawn(move || play_all(cluster, nodes, seed, lane, share));
            let lanes: Vec<_> = lanes.map(play).collect();
            lanes.into_iter().try_for_each(|lane| match lane.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    })
}

/// Plays jobs on these nodes until they had `count` faults.
fn play_all(cluster: &Cluster, nodes: &[String], seed: u64, lane: u64, count: u64) -> Result<()> {
    let mut random = Random(seed + lane);
    let (mut faults, mut runs) = (0, 0);
    while faults < count {
        faults += play(cluster, nodes, &mut random, &format!("{lane}-{runs}"))?;
        runs += 1;
        repair(cluster, nodes)?;
        eprintln!(
            "{faults} faults in {runs} jobs: every step ran once, and the states are those without a fault"
        );
    }
    Ok(())
}

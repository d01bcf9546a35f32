//! `cargo xtask bench launch`: what `railgate launch` costs over srun, and the time from a reported fault to the first step on a spare.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster, Node};
use railgate_tests::poll;

use super::bench::{self, CLOCK};

const LIMIT: Duration = Duration::from_secs(120);
/// Time until Slurm reports a node: up to twice its timeout.
const REPORT_LIMIT: Duration = Duration::from_secs(900);
/// The goal for the cost at the start, ms.
const MOST_COST_MS: f64 = 50.0;
/// The goal from the report of a fault to the first step, s.
const MOST_TAKEOVER_S: f64 = 60.0;
/// Start-up of the program itself, s.
const START_UP: &str = "2";

pub(super) fn run(programs: &Path, count: u32) -> Result<()> {
    cost(&Builder::new(2).programs(programs).start()?, count)?;
    takeovers(&of_four(programs, "10")?, count.div_ceil(4))?;
    let (whole, reported) = takeover(&of_four(programs, "300")?, Fault::Death)?;
    println!(
        "\nOnce with Slurm's default, SlurmdTimeout = 300: {:.1} s from the power-off to the first step on the spare, {:.1} s of it from DOWN on",
        whole / 1000.0,
        reported / 1000.0
    );
    Ok(())
}

/// A cluster whose nodes may all be drained.
fn of_four(programs: &Path, slurmd_timeout: &str) -> Result<Cluster> {
    let breaker = "[breaker]\nmax_nodes = 100\nmax_percent = 100.0\npartition_max_nodes = 100\npartition_max_percent = 100.0";
    let builder = Builder::new(4).programs(programs).config(breaker)?;
    builder.slurm_conf("SlurmdTimeout", slurmd_timeout).start()
}

/// Steps of one allocation, with and without launch in turns.
fn cost(cluster: &Cluster, count: u32) -> Result<()> {
    bench::put_clock(cluster, "gn1")?;
    let script = format!(
        "one() {{ {CLOCK} @time 1 -- \"$@\"; }}\n\
         step=(srun --ntasks-per-node=1 /bin/true)\n\
         one \"${{step[@]}}\"; one railgate launch -- \"${{step[@]}}\"\n\
         for round in $(seq {count}); do\n\
             if [ $((round % 2)) = 0 ]; then one \"${{step[@]}}\" >>srun; fi\n\
             one railgate launch -- \"${{step[@]}}\" >>launch\n\
             if [ $((round % 2)) = 1 ]; then one \"${{step[@]}}\" >>srun; fi\n\
         done"
    );
    let id = cluster.alice().sbatch(&["-N2", "--gres=gpu:8"], &script)?;
    cluster.wait_job(id, &["COMPLETED"], LIMIT * 10)?;
    let times = |file: &str| -> Result<Vec<f64>> {
        let text = cluster.output(&format!("/home/rgalice/{file}")).context("no times")?;
        text.lines()
            .map(|line| Ok(line.split(' ').next().context("no time")?.parse::<f64>()? / 1000.0))
            .collect()
    };
    let (launch, srun) = (times("launch")?, times("srun")?);
    bench::table(
        "A step of /bin/true on two nodes",
        &[("`railgate launch -- srun /bin/true`", &launch), ("`srun /bin/true`", &srun)],
    );
    let cost = bench::pairs("railgate launch, per start", &launch, &srun);
    ensure!(cost <= MOST_COST_MS, "launch costs {cost:.1} ms; the goal is {MOST_COST_MS} ms");
    Ok(())
}

/// How a node fails.
#[derive(Clone, Copy)]
enum Fault {
    /// A GPU is lost and the rank fails; root's check after the step reports it.
    Gpu,
    /// The node is powered off; Slurm reports it.
    Death,
}

fn takeovers(cluster: &Cluster, count: u32) -> Result<()> {
    let (mut gpu, mut death, mut silence) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..count {
        gpu.push(takeover(cluster, Fault::Gpu)?.1);
        let (whole, reported) = takeover(cluster, Fault::Death)?;
        death.push(reported);
        silence.push(whole - reported);
    }
    bench::table(
        &format!(
            "From the report of a fault to the first step on the spare; the program itself starts up for {START_UP} s"
        ),
        &[
            ("GPU lost: from the drain by root's check", &gpu),
            ("node powered off: from DOWN in Slurm", &death),
            ("before that: from the power-off to DOWN, with SlurmdTimeout = 10", &silence),
        ],
    );
    for (fault, times) in [("GPU lost", &gpu), ("node powered off", &death)] {
        let median = bench::spread(times).median / 1000.0;
        ensure!(median < MOST_TAKEOVER_S, "{fault}: {median:.1} s; the goal is {MOST_TAKEOVER_S} s");
    }
    Ok(())
}

/// Milliseconds from the fault, and from its report, to the first step of the next start.
fn takeover(cluster: &Cluster, fault: Fault) -> Result<(f64, f64)> {
    let root = cluster.root();
    root.run(&["rm", "-rf", "/shared/takeover"])?.ok()?;
    root.run(&["install", "-d", "-o", "rgalice", "/shared/takeover"])?.ok()?;
    let script = format!(
        "railgate launch --spares 1 -- bash -c 'sleep {START_UP}; \
         echo $SLURMD_NODENAME >/shared/takeover/step.$RAILGATE_START.$SLURM_PROCID; \
         until [ -e /shared/takeover/end.$RAILGATE_START ]; do sleep 0.05; done; \
         exit $(cat /shared/takeover/end.$RAILGATE_START)'"
    );
    let words = ["-N4", "--no-kill", "--ntasks-per-node=1", "--gres=gpu:8"];
    let id = cluster.alice().sbatch(&words, &script)?;
    let step = |start: u32| -> Result<Option<(String, SystemTime)>> {
        let path = cluster.path(CONTROLLER, &format!("/shared/takeover/step.{start}.1"))?;
        let Ok(node) = fs::read_to_string(&path) else { return Ok(None) };
        Ok((!node.is_empty()).then_some((node.trim().to_owned(), fs::metadata(&path)?.modified()?)))
    };
    let (node, _) = poll::until(LIMIT, "the first step", || step(0))?;
    let faulty = SystemTime::now();
    let reported: fn(&Node) -> bool = match fault {
        Fault::Gpu => {
            cluster.hardware(&node)?.inject("gpu-lost@3")?;
            cluster.write(CONTROLLER, "/shared/takeover/end.0", "1\n")?;
            |node| node.reason().starts_with("railgate: gpu-lost")
        }
        Fault::Death => {
            cluster.kill_node(&node)?;
            |node| node.state().contains("DOWN")
        }
    };
    poll::until(REPORT_LIMIT, "the fault to be reported", || {
        Ok(reported(&cluster.node(&node)?).then_some(()))
    })?;
    let known = SystemTime::now();
    let (_, first) = poll::until(LIMIT, "the first step on the spare", || step(1))?;
    cluster.write(CONTROLLER, "/shared/takeover/end.1", "0\n")?;
    cluster.wait_job(id, &["COMPLETED"], LIMIT)?;
    match fault {
        Fault::Gpu => cluster.hardware(&node)?.heal()?,
        Fault::Death => cluster.boot_node(&node)?,
    }
    for name in cluster.nodes() {
        let begun = Instant::now();
        while cluster.node(name)?.state() != "IDLE" {
            ensure!(begun.elapsed() < LIMIT, "{name} does not come back: {}", cluster.node(name)?.state());
            let _ = root.run(&["scontrol", "update", &format!("NodeName={name}"), "State=resume"])?;
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    let since = |time: SystemTime| -> f64 {
        match first.duration_since(time) {
            Ok(later) => later.as_secs_f64() * 1000.0,
            Err(earlier) => -earlier.duration().as_secs_f64() * 1000.0,
        }
    };
    Ok((since(faulty), since(known)))
}

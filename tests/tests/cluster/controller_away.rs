//! Gates while slurmctld is down or busy.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::{Builder, Cluster, Node, SLURM_ROOT, slurm_release};
use railgate_tests::poll;

const MINUTE: Duration = Duration::from_secs(60);
const PENDING: &str = "/var/lib/railgate/pending-reason.json";
/// The hook as slurmd calls it.
const PROLOG: &str = "prolog.d/95-railgate";
/// A FIFO to which NVML writes: calls block until the test reads it.
const BARRIER: &str = "/run/barrier";

fn runs(cluster: &Cluster, node: &str, program: &str) -> Result<bool> {
    Ok(cluster.root().on(node).run(&["pgrep", "-f", program])?.code == 0)
}

fn wait_program(cluster: &Cluster, node: &str, program: &str, there: bool) -> Result<()> {
    let what = format!("{program} on {node} to be {}", if there { "there" } else { "gone" });
    poll::until(MINUTE, &what, || Ok((runs(cluster, node, program)? == there).then_some(())))
}

/// Stops slurmctld during the gate of `node`, which finds a lost GPU.
fn fail_alone(
    cluster: &Cluster,
    (node, next): (&str, &str),
    go: impl Fn(&Cluster) -> Result<()>,
    come: impl Fn(&Cluster) -> Result<()>,
) -> Result<()> {
    let root = cluster.root().on(node);
    root.run(&["mkfifo", BARRIER])?.ok()?;
    cluster.hardware(node)?.nvml_stuck(Path::new(BARRIER))?;
    let log = format!("log.{node}");
    let job = cluster.alice().sbatch(&["--gres=gpu:8", "-o", &log], "hostname")?;
    wait_program(cluster, node, PROLOG, true)?;
    cluster.hardware(node)?.inject("gpu-lost@3")?;
    go(cluster)?;
    root.run(&["cat", BARRIER])?.ok()?;
    wait_program(cluster, node, PROLOG, false)?;
    assert!(cluster.read(node, PENDING)?.contains("railgate: gpu-lost@3: "));

    // After healing, the saved finding is the only source of the reason.
    cluster.hardware(node)?.heal()?;
    come(cluster)?;
    let drained = cluster.wait_node(node, "drained", MINUTE, |node| node.drained())?;
    assert_eq!(drained.reason(), "Prolog error");
    let moved = cluster.wait_job(job, &["COMPLETED"], MINUTE)?;
    assert_eq!((moved.nodes(), moved.restarts()), (next, 1));
    let log = cluster.output(&format!("/home/rgalice/{log}")).unwrap_or_default();
    let told = format!("attempt 0 left node {node}, which failed before it started: gpu-lost@3: ");
    assert!(log.contains(&told) && log.ends_with(&format!("\n{next}\n")), "{log}");
    assert_eq!(cluster.node(node)?.reason(), "Prolog error");

    // The file lets slurmd's HealthCheckProgram run the check.
    root.run(&["touch", "/run/check"])?.ok()?;
    let ours = |node: &Node| node.reason().starts_with("railgate: gpu-lost@3: ");
    let drained = cluster.wait_node(node, "drained with our reason", MINUTE, ours)?;
    assert!(drained.drained(), "{}", drained.state());
    assert!(drained.reason().ends_with(&format!("[prolog job={job}]")), "{}", drained.reason());
    // The check removes its pending drain once slurmctld has answered.
    poll::until(MINUTE, "the note to be gone", || Ok(cluster.read(node, PENDING).is_err().then_some(())))
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_gate_that_fails_without_slurmctld_drains_at_once_and_sets_the_reason_later() -> Result<()> {
    let periodic =
        "#!/bin/sh\n[ ! -e /run/check ] || exec /usr/bin/railgate check --phase periodic --drain\n";
    let builder = Builder::new(3).file("/etc/railgate/periodic.sh", periodic);
    let builder = builder.config("[breaker]\nmax_percent = 100.0\npartition_max_percent = 100.0")?;
    // The deadline exceeds the time that slurmctld takes to stop.
    let builder = builder.config("[gate]\ndeadline = '90s'")?;
    let builder = builder.slurm_conf("HealthCheckInterval", "3").slurm_conf("MessageTimeout", "3");
    builder.test(|cluster| {
        fail_alone(cluster, ("gn1", "gn2"), Cluster::stop_slurmctld, Cluster::start_slurmctld)?;
        let (ctl, daemon) = ("ctl", "slurmctld");
        fail_alone(cluster, ("gn2", "gn3"), |all| all.freeze(ctl, daemon), |all| all.thaw(ctl, daemon))
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn reconfiguring_during_a_long_gate_loses_no_job() -> Result<()> {
    // docs/install.md requires BatchStartTimeout to exceed the gate's deadline. If a node registers without the job after both
    // that and MessageTimeout have passed, slurmctld requeues the job.
    let builder = Builder::new(1).slurm_conf("BatchStartTimeout", "55").slurm_conf("MessageTimeout", "5");
    let builder = builder.slurm_conf("HealthCheckInterval", "0").config("[gate]\ndeadline = '45s'")?;
    builder.test(|cluster| {
        let gn1 = cluster.root().on("gn1");
        gn1.run(&["mkfifo", BARRIER])?.ok()?;
        cluster.hardware("gn1")?.nvml_stuck(Path::new(BARRIER))?;
        let script = "echo attempt ${SLURM_RESTART_COUNT:-0}";
        let job = cluster.alice().sbatch(&["--gres=gpu:8", "-o", "log"], script)?;
        poll::until(MINUTE, "the gate to run for a while", || {
            let age = gn1.run(&["pgrep", "-f", "--older", "8", PROLOG])?;
            Ok((age.code == 0).then_some(()))
        })?;
        cluster.root().run(&["scontrol", "reconfigure"])?.ok()?;
        // slurmd does not respond for five seconds, then rereads its files and registers.
        poll::until(MINUTE, "gn1 to respond again", || {
            Ok((cluster.bob().srun(&["-w", "gn1", "true"])?.code == 0).then_some(()))
        })?;
        let root = PathBuf::from(std::env::var_os(SLURM_ROOT).unwrap_or_else(|| "/".into()));
        if slurm_release(&root)? < (23, 11) {
            assert!(runs(cluster, "gn1", PROLOG)?);
            cluster.hardware("gn1")?.heal()?;
            gn1.run(&["cat", BARRIER])?.ok()?;
            let job = cluster.wait_job(job, &["COMPLETED"], MINUTE)?;
            assert_eq!(job.restarts(), 0);
            assert_eq!(cluster.output("/home/rgalice/log").as_deref(), Some("attempt 0\n"));
        } else {
            // slurmd restarts itself, and slurmctld is not notified of the prolog's end: the job exists without its script
            // (docs/slurm-releases.md), and a requeue starts it again.
            cluster.hardware("gn1")?.heal()?;
            wait_program(cluster, "gn1", PROLOG, false)?;
            cluster.alice().run(&["scontrol", "requeue", &job.to_string()])?.ok()?;
            let job = cluster.wait_job(job, &["COMPLETED"], MINUTE)?;
            assert_eq!(job.restarts(), 1);
            assert_eq!(cluster.output("/home/rgalice/log").as_deref(), Some("attempt 1\n"));
        }
        assert!(!cluster.node("gn1")?.drained());
        Ok(())
    })
}

//! A driver that is slow, one that does not answer, and one in which the caller hangs in the kernel.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::{Builder, Cluster, Job};
use railgate_tests::poll;

const MINUTE: Duration = Duration::from_secs(60);
const LOG: &str = "/var/log/railgate.log";

fn refused(job: &Job) -> bool {
    job.restarts() == 1 && job.state() == "PENDING"
}

/// Waits for the job's first process: for slurmctld a job is running from its prolog on.
fn begun(cluster: &Cluster, job: u32) -> Result<()> {
    let log = format!("/home/rgalice/log.{job}");
    poll::until(MINUTE, &format!("job {job} to begin"), || {
        Ok(cluster.output(&log).is_some_and(|log| log.contains("begun")).then_some(()))
    })
}

/// Number of probe processes on the node that sleep in the kernel.
fn stuck_in_the_kernel(cluster: &Cluster, node: &str) -> Result<usize> {
    let processes = cluster.root().on(node).run(&["ps", "-eo", "state=,args="])?.ok()?;
    Ok(processes.lines().filter(|line| line.starts_with('D') && line.contains("railgate-child")).count())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_slow_driver_is_fit_a_silent_one_unknown_once_and_a_stuck_one_unfit() -> Result<()> {
    // slurmd kills a prolog that exceeds its limit and sets the reason "Prolog error".
    let builder =
        Builder::new(3).slurm_conf("PrologEpilogTimeout", "100").slurm_conf("HealthCheckInterval", "0");
    let builder = builder.hardware_of("gn1", "h100-sxm:nvml-slow").hardware_of("gn2", "h100-sxm:nvml-silent");
    let builder = builder.config_of("gn2", "[gate]\ndeadline = '5s'")?;
    let builder = builder.config_of("gn3", "[gate]\ndeadline = '40s'")?;
    let builder = builder.config("[breaker]\nmax_percent = 100.0\npartition_max_percent = 100.0")?;
    builder.test(|cluster| {
        let frozen = cluster.frozen_disk("gn3", "/mnt/frozen")?;
        cluster.hardware("gn3")?.nvml_stuck(Path::new("/mnt/frozen/file"))?;
        let batch = |node, gpus, script: &str| {
            let gres = format!("--gres=gpu:{gpus}");
            cluster.alice().sbatch(&["-w", node, &gres, "-o", "log.%j"], script)
        };
        let stuck = batch("gn3", 8, "true")?;
        let slow = batch("gn1", 8, "echo begun; while [ ! -e end ]; do sleep 0.1; done")?;
        let first = batch("gn2", 4, "echo begun; sleep 600")?;

        // While one gate hangs, slurmd serves other jobs.
        let asks = || Ok((stuck_in_the_kernel(cluster, "gn3")? > 0).then_some(()));
        poll::until(MINUTE, "the gate of gn3 to hang", asks)?;
        cluster.bob().srun(&["-w", "gn3", "true"])?.ok()?;
        assert!(!cluster.node("gn3")?.drained());

        // No answer: a single occurrence may be chance.
        begun(cluster, first)?;
        let log = cluster.read("gn2", LOG)?;
        assert!(log.contains("prolog: unknown, part-silent@gpus: no answer in 5.0 s"), "{log}");
        assert!(!cluster.node("gn2")?.drained());
        let second = batch("gn2", 4, "true")?;
        cluster.wait_job_until(second, "put back", MINUTE, refused)?;
        let reason = cluster.node("gn2")?.reason().to_owned();
        let expected = format!(
            "railgate: part-silent@gpus: no answer in 5.0 s, as before; reboot [prolog job={second}]"
        );
        assert_eq!(reason, expected);
        assert_eq!(cluster.job(first)?.state(), "RUNNING");

        // Stuck in the kernel: the gate does not wait for that.
        cluster.wait_job_until(stuck, "requeued", MINUTE, refused)?;
        let node =
            cluster.wait_node("gn3", "free of the job", MINUTE, |node| node.state() == "IDLE+DRAIN")?;
        assert!(node.reason().starts_with("railgate: part-silent@gpus: "), "{}", node.reason());
        assert!(node.reason().contains(&format!("[prolog job={stuck}]")), "{}", node.reason());
        let told = cluster.output(&format!("/home/rgalice/log.{stuck}")).unwrap_or_default();
        assert!(told.contains("node gn3 failed its check"), "{told}");
        // The process still hangs, and slurmd answers nevertheless.
        assert!(stuck_in_the_kernel(cluster, "gn3")? > 0);
        cluster.root().run(&["scontrol", "reconfigure"])?.ok()?;
        // From 24.11 on slurmctld is restarted here, and resumes no node before it has registered again.
        cluster.wait_node("gn3", "known again", MINUTE, |node| node.state() == "IDLE+DRAIN")?;
        cluster.root().run(&["scontrol", "update", "nodename=gn3", "state=resume"])?.ok()?;
        cluster.bob().srun(&["-w", "gn3", "true"])?.ok()?;
        drop(frozen);
        poll::until(MINUTE, "no stuck process to be left", || {
            Ok((stuck_in_the_kernel(cluster, "gn3")? == 0).then_some(()))
        })?;

        // Eight seconds are only slow.
        begun(cluster, slow)?;
        let log = cluster.read("gn1", LOG)?;
        assert!(log.contains("prolog: fit"), "{log}");
        cluster.hardware("gn1")?.heal()?;
        cluster.write("ctl", "/home/rgalice/end", "")?;
        cluster.wait_job(slow, &["COMPLETED"], MINUTE)?;
        assert!(!cluster.node("gn1")?.drained());
        Ok(())
    })
}

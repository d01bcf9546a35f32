//! Messages to users about an unfit node: to owners of batch jobs, and to users waiting at srun or salloc.

use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::{Builder, Cluster};

use crate::training::one_line;

const MINUTE: Duration = Duration::from_secs(60);

const LOST: &str = "gpu-lost@3: 0000:61:00.0 off bus, Xid 79";

/// The beginning of the message, before the advice.
fn message(node: &str, job: u32) -> String {
    format!("railgate: node {node} failed its check before job {job} started ({LOST}). ")
}

fn drained_by_us(cluster: &Cluster, node: &str, job: u32) -> Result<()> {
    let seen = cluster.wait_node(node, "drained", MINUTE, |node| node.drained())?;
    assert_eq!(seen.reason(), format!("railgate: {LOST}; reboot [prolog job={job}]"));
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn users_are_shown_which_node_failed_and_why() -> Result<()> {
    let broken = ["gn1", "gn2", "gn3", "gn4"];
    let mut builder = Builder::new(5)
        // Only the prologs can find the faults.
        .slurm_conf("HealthCheckInterval", "0")
        .config("breaker = { max_percent = 100.0, partition_max_percent = 100.0 }")?;
    for node in broken {
        builder = builder.hardware_of(node, "h100-sxm:gpu-lost@3");
    }
    builder.test(|cluster| {
        let alice = cluster.alice();
        let gpus = "--gres=gpu:8";

        let srun = alice.srun(&["-w", "gn1", gpus, "hostname"])?;
        assert_eq!((srun.code, srun.stdout.as_str()), (1, ""), "{srun}");
        let again = |node: &str| {
            format!(
                "The node is drained and Slurm revokes the job: run it again without asking for {node} (--nodelist)."
            )
        };
        assert!(srun.stderr.contains(&format!("srun: {}{}\n", message("gn1", 1), again("gn1"))), "{srun}");
        drained_by_us(cluster, "gn1", 1)?;

        let salloc = alice.salloc(&["-w", "gn2", gpus, "hostname"])?;
        assert_eq!((salloc.code, salloc.stdout.as_str()), (1, ""), "{salloc}");
        assert!(salloc.stderr.contains(&format!("salloc: {}{}\n", message("gn2", 2), again("gn2"))), "{salloc}");
        drained_by_us(cluster, "gn2", 2)?;

        // Slurm cancels a job that must not be requeued, without a message of its own.
        let id = alice.sbatch(&["-w", "gn3", "--no-requeue", gpus, "-o", "never-%j"], "hostname")?;
        let job = cluster.wait_job(id, &["CANCELLED"], MINUTE)?;
        assert_eq!(job.restarts(), 0);
        let log = cluster.output(&format!("/home/rgalice/never-{id}")).unwrap_or_default();
        let submit = "The node is drained and Slurm cancels the job, which may not be requeued: submit it again \
                      without asking for gn3 (--nodelist).";
        assert_eq!(log, format!("{}{submit}\n", message("gn3", id)));
        drained_by_us(cluster, "gn3", id)?;

        // For a requeued job the message appears at once, and again if the log is truncated at the restart.
        let words = ["-x", "gn1,gn2,gn3", gpus, "-o", "again-%j", "--open-mode=truncate"];
        let id = alice.sbatch(&words, "echo attempt ${SLURM_RESTART_COUNT:-0} on $(hostname)")?;
        let path = format!("/home/rgalice/again-{id}");
        let moved = cluster.wait_job_until(id, "moved", MINUTE, |job| job.restarts() == 1)?;
        assert!(!moved.reason().contains("Held") && moved.field("Priority") != "0", "{moved:?}");
        let by_itself = "The node is drained and Slurm requeues the job for other nodes.";
        let log = cluster.output(&path).unwrap_or_default();
        if cluster.job(id)?.state() == "PENDING" {
            assert_eq!(log, format!("{}{by_itself}\n", message("gn4", id)));
        }
        let job = cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        assert_eq!((job.nodes(), job.restarts()), ("gn5", 1));
        let log = cluster.output(&path).unwrap_or_default();
        let why = format!("railgate: attempt 0 left node gn4, which failed before it started: {LOST}");
        assert_eq!(log, format!("{why}\nattempt 1 on gn5\n"));
        drained_by_us(cluster, "gn4", id)?;

        let report = one_line(&alice.run(&["railgate", "report", &id.to_string()])?.ok()?);
        for text in ["attempt 0", "attempt 1", "gn4", "gpu-lost@3", by_itself] {
            assert!(report.contains(text), "no '{text}' in:\n{report}");
        }
        // railgate's reason is set before Slurm's reaction to a failed prolog.
        for node in broken {
            assert!(cluster.node(node)?.reason().starts_with("railgate: gpu-lost@3: "));
        }
        Ok(())
    })
}

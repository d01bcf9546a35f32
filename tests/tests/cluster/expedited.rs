//! `sbatch --requeue=expedite` of Slurm 25.11 and later.

use anyhow::Result;
use railgate_tests::cluster::{Builder, CONTROLLER, Job};
use railgate_tests::skipped;

use crate::launch_kinds::{PROGRAM, begun, fails, go};
use crate::training::{
    ALL_MAY_DRAIN, MINUTE, WORK, end, in_order, log, one_line, report_with, since, started,
};

/// A cluster on which any other requeued job waits longer than a test.
fn builder(nodes: usize) -> Result<Builder> {
    let config = format!("{ALL_MAY_DRAIN}\nrequeue = {{ expedite = true }}");
    Ok(Builder::new(nodes)
        .config(&config)?
        .slurm_conf("SlurmctldParameters", "enable_expedited_requeue")
        .slurm_conf(
            "SchedulerParameters",
            "nohold_on_prolog_fail,bf_interval=1,sched_interval=5,requeue_delay=600",
        )
        .slurm_conf("SlurmdTimeout", "20"))
}

fn old() -> Result<bool> {
    Ok(!since((25, 11))?)
}

const OLD: &str = "expedited: this Slurm has no --requeue=expedite";

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn slurm_restarts_a_job_at_once_after_a_nodes_fault() -> Result<()> {
    if old()? {
        return skipped(OLD);
    }
    builder(3)?.test(|cluster| {
        let alice = cluster.alice();
        let words = ["--requeue=expedite", "-N2", "--gres=gpu:8", "-o", "log.%j"];
        let id = alice.sbatch(&words, WORK)?;
        started(cluster, id)?;
        let follower = alice.sbatch(&["-d", &format!("afterok:{id}"), "-o", "/dev/null"], "true")?;
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        end(cluster, id, 3)?;
        let job = cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        assert_eq!((job.nodes(), job.restarts()), ("gn[1,3]", 1));
        cluster.wait_job(follower, &["COMPLETED"], MINUTE)?;
        let node = cluster.node("gn2")?;
        let reason = format!("railgate: gpu-lost@3: 0000:61:00.0 off bus, Xid 79; reboot [epilog job={id}]");
        assert_eq!((node.drained(), node.reason()), (true, reason.as_str()));
        let told = one_line(&report_with(&alice, id, "restart 1 of 3")?);
        in_order(&told, &[
            "completed, 2 attempts",
            "railgate requeued the job: gpu-lost@3 on gn2; restart 1 of 3; Slurm restarts it without delay (--requeue=expedite)",
        ]);
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn slurm_restarts_a_job_at_once_whose_node_died() -> Result<()> {
    if old()? {
        return skipped(OLD);
    }
    builder(3)?.test(|cluster| {
        let alice = cluster.alice();
        let id = alice.sbatch(&["--requeue=expedite", "-N2", "--gres=gpu:8", "-o", "log.%j"], WORK)?;
        started(cluster, id)?;
        cluster.kill_node("gn2")?;
        let job = cluster.wait_job(id, &["COMPLETED"], 2 * MINUTE)?;
        assert_eq!((job.nodes(), job.restarts()), ("gn[1,3]", 1));
        report_with(&alice, id, "Slurm requeued the job: gn2 went down")?;
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_launch_without_spares_comes_back_at_once() -> Result<()> {
    if old()? {
        return skipped(OLD);
    }
    builder(3)?.test(|cluster| {
        let alice = cluster.alice();
        cluster.write(CONTROLLER, "/shared/program", PROGRAM)?;
        let words = ["--requeue=expedite", "-N2", "--gres=gpu:8", "--ntasks-per-node=1", "-o", "log.x"];
        let script = "[ ${SLURM_RESTART_COUNT:-0} = 0 ] || exit 0\nrailgate launch -- bash /shared/program x";
        let id = alice.sbatch(&words, script)?;
        begun(cluster, "x", 0, 2)?;
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        fails(cluster, "x", 1)?;
        go(cluster, "x", 0)?;
        let job = cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        assert_eq!((job.nodes(), job.restarts()), ("gn[1,3]", 1));
        let text = cluster.output("/home/rgalice/log.x").unwrap_or_default();
        assert!(text.contains("no spare is left"), "{text}");
        report_with(&alice, id, "gpu-lost@3 on gn2; restart 1 of 3; Slurm restarts it without delay")?;
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_job_that_failed_by_itself_is_cancelled_and_not_held() -> Result<()> {
    if old()? {
        return skipped(OLD);
    }
    builder(2)?.test(|cluster| {
        let alice = cluster.alice();
        let words = ["--requeue=expedite", "-N1", "--gres=gpu:8", "-o", "log.%j"];
        let own = alice.sbatch(&words, WORK)?;
        started(cluster, own)?;
        let follower =
            |when: &str| alice.sbatch(&["-d", &format!("{when}:{own}"), "-o", "/dev/null"], "true");
        let (any, not_ok, ok) = (follower("afterany")?, follower("afternotok")?, follower("afterok")?);
        end(cluster, own, 3)?;
        cluster.wait_job(own, &["CANCELLED"], MINUTE)?;
        cluster.wait_job(any, &["COMPLETED"], MINUTE)?;
        cluster.wait_job(not_ok, &["COMPLETED"], MINUTE)?;
        let never = |job: &Job| job.reason() == "DependencyNeverSatisfied";
        cluster.wait_job_until(ok, "never to start", MINUTE, never)?;
        let text = log(cluster, "rgalice", own);
        assert!(text.contains("attempt 0") && !text.contains("attempt 1"), "{text}");
        let told = report_with(&alice, own, "the job was cancelled, since Slurm would hold it")?;
        in_order(
            &one_line(&told),
            &["looks like the application", "not requeued: no node has evidence", "exit code 3"],
        );
        assert!(!told.contains("attempt 1") && !told.contains("2 attempts"), "{told}");
        Ok(())
    })
}

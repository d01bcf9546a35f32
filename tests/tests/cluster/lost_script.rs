//! The node of the batch script dies under a job that keeps its other nodes (`--no-kill`).

use std::time::Duration;

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster};
use railgate_tests::poll;

const MINUTE: Duration = Duration::from_secs(60);
const LEDGER: &str = "/var/lib/railgate/controller/ledger.jsonl";
/// The ranks of the first attempt run until they are ended.
const RANK: &str = r#"#!/bin/bash
echo "attempt ${SLURM_RESTART_COUNT:-0} rank $SLURM_PROCID on $SLURMD_NODENAME"
[ "${SLURM_RESTART_COUNT:-0}" != 0 ] || sleep 1000
"#;

fn submit(cluster: &Cluster, options: &[&str]) -> Result<u32> {
    let words = ["--no-kill", "--requeue", "--gres=gpu:8", "--ntasks-per-node=1"];
    let words = [&words[..], &["-o", "log.%j", "--open-mode=append"], options].concat();
    cluster.alice().sbatch(&words, "railgate launch -- rank")
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_job_without_its_script_is_requeued_if_its_owner_agreed() -> Result<()> {
    let builder = Builder::new(7).slurm_conf("SlurmdTimeout", "10").file("/usr/local/bin/rank", RANK);
    builder.test(|cluster| {
        let log = |id: u32| cluster.output(&format!("/home/rgalice/log.{id}")).unwrap_or_default();
        let agreed = submit(cluster, &["-N3", "--railgate-requeue=auto"])?;
        let left = submit(cluster, &["-N2", "--railgate-requeue=never"])?;
        for (id, ranks) in [(agreed, 3), (left, 2)] {
            poll::until(MINUTE, "the ranks", || {
                Ok((log(id).matches("attempt 0 rank ").count() == ranks).then_some(()))
            })
            .with_context(|| log(id))?;
        }
        cluster.kill_node("gn1")?;
        cluster.kill_node("gn4")?;
        let said = "gn4, the node of the batch script, is DOWN";
        poll::until(4 * MINUTE, "the line in the log of the job that stays", || {
            Ok(log(left).contains(said).then_some(()))
        })
        .with_context(|| log(left))?;
        let why = "is not requeued: --railgate-requeue is 'never'; `scancel ";
        assert!(log(left).contains(why), "{}", log(left));
        assert_eq!(cluster.job(left)?.state(), "RUNNING");

        let job = cluster.wait_job(agreed, &["COMPLETED"], 4 * MINUTE).with_context(|| log(agreed))?;
        let log = log(agreed);
        assert!(log.contains("railgate: gn1, the node of the batch script, is DOWN"), "{log}");
        assert_eq!(log.matches("attempt 1 rank ").count(), 3, "{log}");
        assert!(!log.contains("attempt 1 rank 0 on gn1"), "{log}");
        assert_eq!(job.restarts(), 1);
        let report = cluster.alice().run(&["railgate", "report", &agreed.to_string()])?.ok()?;
        assert!(report.contains("NODE DIED; gn1 DOWN"), "{report}");
        let ledger = cluster.read(CONTROLLER, LEDGER)?;
        assert!(ledger.contains("\"event\":\"node-fail\"") && ledger.contains("gn1"), "{ledger}");
        Ok(())
    })
}

//! `railgate preflight` in a job of four nodes, over TCP: all well, a node that sends slowly, and the GPU test where no driver is.

use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster};

const MINUTE: Duration = Duration::from_secs(60);
/// Four nodes on two processors have no rate of their own.
const RATE: &str = "800mbit";

/// Limits what a node sends.
fn limit(cluster: &Cluster, node: &str, rate: &str) -> Result<()> {
    let words = [
        "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "1mb", "latency",
        "50ms",
    ];
    cluster.root().on(node).run(&words)?.ok()?;
    Ok(())
}

/// What the command prints in a job of all nodes, and its exit code.
fn preflight(cluster: &Cluster, options: &str) -> Result<String> {
    let script = format!("railgate preflight {options}; echo \"exit code $?\"");
    let id = cluster.alice().sbatch(&["-N4", "-o", "preflight.%j"], &script)?;
    cluster.wait_job(id, &["COMPLETED"], 4 * MINUTE)?;
    cluster.read(CONTROLLER, &format!("/home/rgalice/preflight.{id}"))
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn nodes_test_each_other_before_the_first_step() -> Result<()> {
    Builder::new(4).test(|cluster| {
        let nodes = ["gn1", "gn2", "gn3", "gn4"];
        nodes.iter().try_for_each(|node| limit(cluster, node, RATE))?;
        let said = preflight(cluster, "--net tcp --gpus none")?;
        assert!(
            said.contains("RAILS    1 rail by TCP, one connection, 2 rounds: 4 of 4 tests measured; median "),
            "{said}"
        );
        assert!(said.contains("ANSWER   nothing is wrong with the nodes of this job"), "{said}");
        assert!(said.contains("exit code 0"), "{said}");

        limit(cluster, "gn2", "200mbit")?;
        let said = preflight(cluster, "--net tcp --gpus none")?;
        let bad =
            said.lines().find(|line| line.starts_with("BAD      rail 0 of gn2: 0.")).unwrap_or_default();
        assert!(bad.contains(" Gb/s to gn") && bad.contains(", where the median is 0."), "{said}");
        assert_eq!(said.matches("BAD ").count(), 1, "{said}");
        assert!(said.contains("--exclude=gn2; an admin: railgate check --full on gn2"), "{said}");
        assert!(said.contains("exit code 1"), "{said}");
        assert!(nodes.iter().all(|node| cluster.node(node).is_ok_and(|node| !node.drained())));

        limit(cluster, "gn2", RATE)?;
        let said = preflight(cluster, "--net tcp")?;
        let missing =
            "UNKNOWN  gn[1-4]: cannot start /usr/libexec/railgate/railgate-gpu-selftest: No such file";
        assert!(said.contains(missing) && said.contains("exit code 3"), "{said}");

        let outside = cluster.alice().run(&["railgate", "preflight"])?;
        assert_eq!(outside.code, 2);
        assert!(outside.both().contains("not inside a job: SLURM_JOB_ID is not set"), "{}", outside.both());
        Ok(())
    })
}

//! Safeguards against drains: the switches, and the breaker when many nodes fail at once.

use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

const MINUTE: Duration = Duration::from_secs(60);
const LOG: &str = "/var/log/railgate.log";
const CONFIG: &str = "/etc/railgate/railgate.toml";
const MEMORY: [&str; 2] = ["/var/lib/railgate/history.json", "/var/lib/railgate/findings.json"];

const ONE_AT_A_TIME: &str = "
    [breaker]
    max_nodes = 1
    max_percent = 100.0
    partition_max_nodes = 4
    partition_max_percent = 100.0
";

fn drained(cluster: &Cluster) -> Result<Vec<&String>> {
    let mut drained = Vec::new();
    for name in cluster.nodes() {
        if cluster.node(name)?.drained() {
            drained.push(name);
        }
    }
    Ok(drained)
}

/// One job with all GPUs for each node, submitted at once.
fn one_job_each(cluster: &Cluster) -> Result<Vec<u32>> {
    let submit = |name: &String| {
        let words = ["-w", name, "--gres=gpu:8", "-o", "log.%j"];
        cluster.alice().sbatch(&words, "echo ran on $(hostname)")
    };
    cluster.nodes().iter().map(submit).collect()
}

fn log_of(job: u32, cluster: &Cluster) -> String {
    cluster.output(&format!("/home/rgalice/log.{job}")).unwrap_or_default()
}

/// Checks all nodes at the same moment: no check sees the drain of another node before it sends its own.
fn check_all_at_once(cluster: &Cluster) -> Result<()> {
    cluster.freeze("ctl", "slurmctld")?;
    let mut checks = Vec::new();
    for node in cluster.nodes() {
        checks.push(cluster.root().on(node).spawn(&["railgate", "check", "--drain"])?);
    }
    for node in cluster.nodes() {
        poll::until(MINUTE, &format!("{node} to ask slurmctld"), || {
            let asking = cluster.root().on(node).run(&["pgrep", "-x", "scontrol"])?;
            Ok((asking.code == 0).then_some(()))
        })?;
    }
    cluster.thaw("ctl", "slurmctld")?;
    for check in checks {
        check.wait(MINUTE)?.ok()?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn four_bad_nodes_at_once_drain_one_and_a_disabled_railgate_drains_none() -> Result<()> {
    // The test starts each check run itself.
    let builder = Builder::new(4).config(ONE_AT_A_TIME)?.slurm_conf("HealthCheckInterval", "0");
    // The first check to query a frozen slurmctld must wait until the last one has sent its query.
    let builder = builder.slurm_conf("MessageTimeout", "30").config("slurm = { timeout = '35s' }")?;
    builder.hardware("h100-sxm:gpu-lost@3").test(|cluster| {
        let root = |node| cluster.root().on(node);
        let loud = "not drained, the breaker is open: nodes drained by railgate in the cluster: ";

        // Beside jobs, right after boot, on all nodes at once, as after a bad firmware update.
        check_all_at_once(cluster)?;
        let first = drained(cluster)?;
        assert_eq!(first.len(), 1, "{first:?}");
        for node in cluster.nodes().iter().filter(|node| *node != first[0]) {
            let log = cluster.read(node, LOG)?;
            assert!(log.contains(loud), "{log}");
        }
        root("ctl").run(&["scontrol", "update", &format!("nodename={}", first[0]), "state=resume"])?.ok()?;

        // Each node has one of the switches set.
        let config = cluster.read("gn1", CONFIG)?;
        cluster.write("gn1", CONFIG, &config.replace("enforce", "report"))?;
        root("gn2").run(&["touch", "/etc/railgate/disable"])?.ok()?;
        root("gn2").run(&["rm", "-f", LOG])?.ok()?;
        root("gn3").run(&["railgate", "pause", "--for", "2h", "--why", "new driver"])?.ok()?;
        cluster.write("gn4", CONFIG, &config.replace("test_node = true", "test_node = false"))?;
        let remembered = |node| {
            cluster
                .wait_node(node, "no epilog on it", MINUTE, |node| !node.state().contains("COMPLETING"))?;
            MEMORY.iter().map(|file| cluster.read(node, file)).collect::<Result<Vec<_>>>()
        };
        let before = remembered("gn4")?;
        for (job, node) in one_job_each(cluster)?.into_iter().zip(cluster.nodes()) {
            let ended = cluster.wait_job(job, &["COMPLETED"], MINUTE)?;
            assert_eq!((ended.nodes(), ended.restarts()), (node.as_str(), 0));
            assert!(log_of(job, cluster).ends_with(&format!("ran on {node}\n")));
        }
        for (node, why) in [
            ("gn1", "[gate] mode = \"report\""),
            ("gn3", "paused by root: new driver"),
            ("gn4", "[source] names other roots than the system's"),
        ] {
            let log = cluster.read(node, LOG)?;
            let line = format!("would drain {node}: railgate: gpu-lost@3: ");
            assert!(log.contains(&line) && log.contains(&format!("({why})")), "{log}");
            let said = root(node).run(&["railgate", "check", "--drain"])?.ok()?;
            assert!(said.contains(why), "{said}");
        }
        // Findings from other source roots are not saved for the node, nor are those under a non-default configuration.
        assert!(remembered("gn4")? == before, "findings from other roots were saved");
        let before = remembered("gn1")?;
        root("gn1").run(&["cp", CONFIG, "/tmp/trial.toml"])?.ok()?;
        let tried = root("gn1").run(&["railgate", "--config", "/tmp/trial.toml", "check"])?;
        assert!(tried.both().contains("fail     gpu-lost@3"), "{}", tried.both());
        assert!(remembered("gn1")? == before, "findings under a non-default configuration were saved");
        // With the flag file nothing is done at all.
        assert!(cluster.read("gn2", LOG).is_err());
        assert_eq!(root("gn2").run(&["railgate", "check", "--drain"])?.ok()?, "");
        assert!(drained(cluster)?.is_empty());

        // All switches are on again, and each node gets a job.
        for node in ["gn1", "gn4"] {
            cluster.write(node, CONFIG, &config)?;
        }
        root("gn2").run(&["rm", "/etc/railgate/disable"])?.ok()?;
        root("gn3").run(&["railgate", "resume"])?.ok()?;
        let jobs = one_job_each(cluster)?;
        let mut moved = Vec::new();
        for (&job, node) in jobs.iter().zip(cluster.nodes()) {
            let settled = |job: &railgate_tests::cluster::Job| {
                job.state() == "COMPLETED" || (job.state() == "PENDING" && job.restarts() == 1)
            };
            let job = cluster.wait_job_until(job, "completed or requeued", MINUTE, settled)?;
            if job.state() == "PENDING" {
                moved.push(node);
            }
        }
        assert_eq!(moved.len(), 1, "{moved:?}");
        assert_eq!(drained(cluster)?, moved);
        let reason = cluster.node(moved[0])?.reason().to_owned();
        assert!(reason.starts_with("railgate: gpu-lost@3: "), "{reason}");
        for (job, node) in jobs.iter().zip(cluster.nodes()).filter(|(_, node)| *node != moved[0]) {
            // The admin finds it in the log, the owner in the job's output, both in the report.
            let told = log_of(*job, cluster);
            assert!(
                told.contains(&format!("railgate: node {node} failed its check (gpu-lost@3: ")),
                "{told}"
            );
            assert!(told.ends_with(&format!("ran on {node}\n")), "{told}");
            let report = cluster.alice().run(&["railgate", "report", &job.to_string()])?.ok()?;
            assert!(report.contains("! ") && report.contains("not drained, the breaker is open"), "{report}");
        }

        // A site may prefer to hold such a job.
        let hold = config.replace("max_nodes = 1", "max_nodes = 1\non_breaker = \"hold\"");
        let node = jobs.iter().zip(cluster.nodes()).find(|(_, node)| *node != moved[0]).unwrap().1;
        cluster.write(node, CONFIG, &hold)?;
        let held = cluster.alice().sbatch(&["-w", node, "--gres=gpu:8", "-o", "log.%j"], "echo ran")?;
        cluster.wait_job_until(held, "held", MINUTE, |job| {
            job.state() == "PENDING" && job.field("Priority") == "0"
        })?;
        let told = log_of(held, cluster);
        assert!(told.contains("gpu-lost@3") && !told.contains("ran"), "{told}");
        assert_eq!(drained(cluster)?, moved);
        Ok(())
    })
}

//! Faults of railgate itself never affect jobs or nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

const MINUTE: Duration = Duration::from_secs(60);
const LOG: &str = "/var/log/railgate.log";

/// A prolog whose check `ib-rate` panics, and that panics as a whole for a job with the comment "panic".
fn panicking_prolog() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let built = program.ancestors().nth(2).context("no target directory")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // With the features of the whole workspace, to reuse most of the build.
    let done = Command::new(cargo)
        .args(["build", "-q", "--workspace", "--bin", "railgate-prolog-fault"])
        .args(["--features", "railgate-prolog-fault/fault-injection", "--target-dir"])
        .arg(built.parent().context("no target directory")?)
        .args(built.ends_with("release").then_some("--release"))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .status()?;
    ensure!(done.success(), "the panicking prolog cannot be built");
    Ok(built.join("railgate-prolog-fault"))
}

fn sh(cluster: &Cluster, node: &str, script: &str) -> Result<()> {
    cluster.root().on(node).run(&["sh", "-ec", script])?.ok()?;
    Ok(())
}

fn drained(cluster: &Cluster) -> Result<Vec<String>> {
    let mut drained = Vec::new();
    for name in cluster.nodes() {
        let node = cluster.node(name)?;
        if node.drained() {
            drained.push(format!("{name}: {}", node.reason()));
        }
    }
    Ok(drained)
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn faults_of_railgate_itself_stop_no_job_and_drain_no_node() -> Result<()> {
    let prolog = panicking_prolog()?;
    let builder = Builder::new(7).hardware_of("gn2", "h100-sxm:nvml-missing");
    builder.slurm_conf("HealthCheckInterval", "0").test(|cluster| {
        sh(cluster, "gn1", "echo '[gate' > /etc/railgate/railgate.toml")?;
        sh(
            cluster,
            "gn3",
            "mkdir -p /var/lib/railgate; echo '{\"memory\": 7' > /var/lib/railgate/history.json",
        )?;
        sh(
            cluster,
            "gn4",
            "rm -rf /var/lib/railgate/* /run/railgate; mkdir -p /var/lib/railgate/history.json /run/railgate; touch /run/railgate/jobs",
        )?;
        let full =
            "mkdir -p $d; mount -t tmpfs -o size=16k,nr_inodes=8 full $d; cat /dev/zero > $d/ballast || true";
        for dir in ["/var/lib/railgate", "/run/railgate"] {
            sh(cluster, "gn5", &format!("d={dir}; {full}"))?;
        }
        sh(cluster, "gn6", "mkdir -p /run/railgate; mount -t tmpfs -o ro none /run/railgate")?;
        fs::copy(&prolog, cluster.path("gn7", "/usr/libexec/railgate/railgate-prolog")?)?;

        let script = "echo begun on $(hostname)\nwhile [ ! -e go ]; do sleep 0.1; done\nsrun echo step ran";
        let mut jobs = Vec::new();
        for node in cluster.nodes() {
            let words = ["-w", node, "--gres=gpu:4", "-o", "log.%j"];
            jobs.push((node.as_str(), cluster.alice().sbatch(&words, script)?));
        }
        let words = ["-w", "gn7", "--gres=gpu:4", "--comment=panic", "-o", "log.%j"];
        jobs.push(("gn7", cluster.alice().sbatch(&words, script)?));
        let log_of = |job: u32| cluster.output(&format!("/home/rgalice/log.{job}")).unwrap_or_default();
        for (node, job) in &jobs {
            poll::until(MINUTE, &format!("job {job} to begin on {node}"), || {
                Ok(log_of(*job).contains(&format!("begun on {node}\n")).then_some(()))
            })?;
        }
        // Damage the files of a running job as well.
        let of_gn3 = jobs.iter().find(|(node, _)| *node == "gn3").unwrap().1;
        let ruin = "for f in run.json report.json before.json task.env; do echo '{' > $f; done";
        sh(cluster, "gn3", &format!("cd /run/railgate/jobs/{of_gn3}/current/; {ruin}"))?;
        cluster.write("ctl", "/home/rgalice/go", "")?;
        for (node, job) in &jobs {
            let ended = cluster.wait_job(job, &["COMPLETED"], MINUTE)?;
            assert_eq!((ended.nodes(), ended.restarts()), (*node, 0));
            assert!(log_of(*job).contains("step ran\n"), "{node}: {}", log_of(*job));
        }

        for (node, said) in [
            ("gn1", "prolog: /etc/railgate/railgate.toml:1:6: "),
            ("gn1", "the job continues without railgate"),
            ("gn2", "prolog: unknown, part-silent@gpus: "),
            ("gn3", "history.json: "),
            ("gn3", "run.json: "),
            ("gn4", "history.json: "),
            ("gn4", "/run/railgate/jobs/4: Not a directory"),
            ("gn5", "/var/lib/railgate/history.json: No space left on device"),
            ("gn5", "/run/railgate/jobs/5: No space left on device"),
                        ("gn6", "/run/railgate/jobs/6: Read-only file system"),
            ("gn7", "prolog: ib-rate: the check itself failed: "),
            ("gn7", "railgate's prolog failed, the job continues without it: panicked at "),
        ] {
            let log = cluster.read(node, LOG)?;
            assert!(log.contains(said), "no '{said}' in the log of {node}:\n{log}");
        }
        let alices = |job: &u32| cluster.alice().run(&["railgate", "report", &job.to_string()])?.ok();
        for (_, job) in jobs.iter().filter(|(node, _)| ["gn5", "gn6"].contains(node)) {
            let report = alices(job)?;
            assert!(report.contains("railgate error: railgate's prolog did not run here"), "{report}");
        }
        for node in cluster.nodes() {
            let checked = cluster.root().on(node).run(&["railgate", "check", "--drain"])?;
            assert_eq!(checked.code, if node == "gn1" { 2 } else { 0 }, "{checked}");
        }
        assert_eq!(drained(cluster)?, [""; 0]);

        // A check of simulated hardware never drains the real node.
        let simulated = ["railgate", "check", "--simulate", "h100-sxm:gpu-lost@3", "--drain"];
        let refused = cluster.root().on("gn3").run(&simulated)?;
        assert_eq!(refused.code, 2, "{refused}");
        assert!(refused.stderr.contains("--drain"), "{refused}");
        assert_eq!(drained(cluster)?, [""; 0]);

        // On the controller: with a broken configuration its program decides nothing.
        sh(cluster, "ctl", "echo 'requeue = 1' > /etc/railgate/railgate.toml")?;
        let words = ["-w", "gn7", "--gres=gpu:4", "--railgate-requeue=auto", "-o", "log.%j"];
        let failing = cluster.alice().sbatch(&words, "exit 3")?;
        let failed = cluster.wait_job(failing, &["FAILED"], MINUTE)?;
        assert_eq!(failed.restarts(), 0);
        Ok(())
    })
}

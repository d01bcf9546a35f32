//! Probes that hang in the kernel, each alone and all together: a mount, the fabric's files, a site's own check, NVML.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

const MINUTE: Duration = Duration::from_secs(60);
const CONFIG: &str = "profile = 'h100-sxm'\n[gate]\ndeadline = '10s'\n[gate.checks.mounts]\nrequired = ['/mnt/work']\nclass = 'node'\n\
                      [gate.checks.rdma-self-test]\nprogram = '/etc/railgate/self-test'\n\
                      [breaker]\nmax_percent = 100.0\npartition_max_percent = 100.0";

/// Processes of probes and their children that are still running on a node.
fn probes_left(cluster: &Cluster, node: &str) -> Result<Vec<String>> {
    let processes = cluster.root().on(node).run(&["ps", "-eo", "state=,args="])?.ok()?;
    let ours = |line: &&str| {
        ["railgate-child", "checks.d", "self-test", "sleep 4711", "uverbs0"]
            .iter()
            .any(|name| line.contains(name))
    };
    Ok(processes.lines().filter(ours).map(|line| line.trim().to_owned()).collect())
}

fn no_probe_left(cluster: &Cluster, node: &str) -> Result<()> {
    poll::until(MINUTE, "no probe to be left", || Ok(probes_left(cluster, node)?.is_empty().then_some(())))
}

/// Runs a periodic check. Returns its output and the drain reason of the node, which is empty unless the node is drained: 24.11
/// keeps the reason of a resumed node.
fn check(cluster: &Cluster, node: &str) -> Result<(String, String)> {
    let said = cluster.root().on(node).run(&["railgate", "check", "--drain"])?.ok()?;
    let node = cluster.node(node)?;
    Ok((said, if node.drained() { node.reason().to_owned() } else { String::new() }))
}

fn back(cluster: &Cluster, node: &str) -> Result<()> {
    cluster.root().on(node).run(&["railgate", "readmit", node])?.ok()?;
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn hangs_get_a_verdict_at_the_deadline_and_leave_no_process() -> Result<()> {
    let builder = Builder::new(2).slurm_conf("HealthCheckInterval", "0").config(CONFIG)?;
    builder.test(|cluster| {
        let sh = |node: &str, script: &str| cluster.root().on(node).run(&["sh", "-ec", script])?.ok();
        let config: toml::Table = cluster.read("gn1", "/etc/railgate/railgate.toml")?.parse()?;
        let sysfs = config["source"]["sysfs"].as_str().context("no sysfs root")?;
        let devices = format!("{sysfs}/class/infiniband");
        for node in ["gn1", "gn2"] {
            sh(node, "mkdir -p /mnt/work && mount -t tmpfs work /mnt/work")?;
            let (said, reason) = check(cluster, node)?;
            assert!(reason.is_empty(), "{said}");
        }

        // A mount of a dead server.
        let server = cluster.mute_mount("gn1", "/mnt/work")?;
        let (said, reason) = check(cluster, "gn1")?;
        assert_eq!(
            reason,
            "railgate: mounts@/mnt/work: no answer in 10.0 s, stuck in the kernel; check server [periodic]",
            "{said}"
        );
        let left = probes_left(cluster, "gn1")?;
        assert!(!left.is_empty() && left.iter().all(|line| line.starts_with('D')), "{left:?}");
        drop(server);
        no_probe_left(cluster, "gn1")?;
        back(cluster, "gn1")?;

        // The fabric's files: a device whose firmware does not answer the driver.
        let firmware = cluster.mute_mount("gn2", &devices)?;
        let (said, reason) = check(cluster, "gn2")?;
        assert!(
            reason.starts_with(
                "railgate: part-silent@fabric: no answer in 10.0 s, stuck in the kernel; reboot"
            ),
            "{reason}\n{said}"
        );
        drop(firmware);
        no_probe_left(cluster, "gn2")?;
        back(cluster, "gn2")?;

        // Verbs: the self-test hangs in the kernel, as when opening a device, and then in itself. Neither is a reason to drain.
        let verbs = cluster.mute_mount("gn2", "/mnt/verbs")?;
        for (program, stuck) in [("cat /mnt/verbs/uverbs0", true), ("sleep 4711 & wait", false)] {
            sh(
                "gn2",
                &format!(
                    "cd /etc/railgate && printf '#!/bin/sh\\n{program}\\n' > self-test && chmod 755 self-test"
                ),
            )?;
            // On a busy machine the child that runs the program can itself be late.
            let silent = poll::until(Duration::from_secs(60), "the self-test to be named", || {
                let check = cluster.root().on("gn2").run(&["railgate", "check", "--full"])?;
                assert!(check.code != 2, "not unfit: {check}");
                let silent = check.stdout.lines().find(|line| line.contains("rdma-self-test"));
                let silent = silent.with_context(|| format!("the self-test has no line:\n{check}"))?;
                assert!(silent.contains("not run: ") && silent.contains("no answer in"), "{silent}");
                Ok(silent.contains("/etc/railgate/self-test: ").then(|| silent.to_owned()))
            })?;
            assert_eq!(silent.contains("stuck in the kernel"), stuck, "{silent}");
            sh("gn2", "rm /etc/railgate/self-test")?;
        }
        drop(verbs);
        no_probe_left(cluster, "gn2")?;

        // A site's check that never ends is reported and does not drain the node.
        let never = "mkdir -p /etc/railgate/checks.d && cd /etc/railgate/checks.d && \
                     printf '#!/bin/sh\\nsleep 4711 & wait\\n' > never && chmod 755 never";
        sh("gn2", never)?;
        let (said, reason) = check(cluster, "gn2")?;
        assert!(said.contains("site-never: not finished after") && reason.is_empty(), "{reason}\n{said}");
        no_probe_left(cluster, "gn2")?;

        // All hangs together.
        let frozen = cluster.frozen_disk("gn2", "/mnt/frozen")?;
        cluster.hardware("gn2")?.nvml_stuck(Path::new("/mnt/frozen/file"))?;
        let (server, firmware) =
            (cluster.mute_mount("gn2", "/mnt/work")?, cluster.mute_mount("gn2", &devices)?);
        let (said, reason) = check(cluster, "gn2")?;
        for silent in [
            "mounts@/mnt/work: no answer",
            "part-silent@fabric: no answer",
            "part-silent@gpus: no answer",
            "site-never: not finished",
        ] {
            assert!(said.contains(silent), "no '{silent}' in:\n{said}");
        }
        assert!(reason.starts_with("railgate: mounts@/mnt/work: no answer in 10.0 s"), "{reason}");
        let left = probes_left(cluster, "gn2")?;
        assert!(left.len() == 3 && left.iter().all(|line| line.starts_with('D')), "{left:?}");
        // A job's gate comes to the same verdict, and slurmd serves other jobs meanwhile.
        cluster.bob().srun(&["-w", "gn1", "true"])?.ok()?;
        drop((frozen, server, firmware));
        cluster.hardware("gn2")?.heal()?;
        no_probe_left(cluster, "gn2")?;
        sh("gn2", "rm /etc/railgate/checks.d/never")?;
        back(cluster, "gn2")
    })
}

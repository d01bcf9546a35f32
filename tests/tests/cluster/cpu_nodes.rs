//! Nodes without GPUs in a cluster with GPU nodes: CPU, storage and login nodes with the same configuration.

use std::time::Duration;

use anyhow::{Result, ensure};
use railgate_tests::cluster::Builder;

const MINUTE: Duration = Duration::from_secs(60);
const NO_DRIVER: &str = "[source]\nnvml_library = '/nowhere/libnvidia-ml.so.1'\n";

/// The site's profile is that of its GPU nodes; Slurm knows no GPUs on gn2.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_node_without_gpus_is_fit_under_the_gpu_nodes_profile() -> Result<()> {
    let builder = Builder::new(2).hardware_of("gn2", "cpu").config("profile = 'h100-sxm'")?;
    builder.config_of("gn2", NO_DRIVER)?.test(|cluster| {
        let on = |node: &str, words: &[&str]| cluster.root().on(node).run(words);
        let check = on("gn2", &["railgate", "check"])?;
        ensure!(
            check.code == 0 && check.stdout.starts_with("gn2 (cpu, live), periodic: fit"),
            "{}",
            check.both()
        );
        on("gn2", &["railgate", "check", "--phase", "periodic", "--drain"])?.ok()?;
        ensure!(cluster.node("gn2")?.state() == "IDLE");

        let id = cluster.alice().sbatch(&["-w", "gn2", "-o", "cpu"], "srun hostname")?;
        cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        cluster.wait_node("gn2", "idle", MINUTE, |node| node.state() == "IDLE")?;

        let reason = "reason=railgate: read-only@/: read-only; fsck [periodic]";
        on("ctl", &["scontrol", "update", "nodename=gn2", "state=drain", reason])?.ok()?;
        let back = on("gn2", &["railgate", "readmit", "gn2"])?;
        ensure!(back.code == 0, "{}", back.both());
        cluster.wait_node("gn2", "idle", MINUTE, |node| node.state() == "IDLE")?;
        let doctor = on("gn2", &["railgate", "doctor"])?;
        ensure!(!doctor.stdout.contains("libnvidia-ml"), "{}", doctor.both());

        // A GPU node with a missing driver still has its GPUs in Slurm.
        let settings = cluster.read("gn1", "/etc/railgate/railgate.toml")?;
        let broken: String = settings
            .lines()
            .map(|line| {
                if line.starts_with("nvml_library") {
                    "nvml_library = '/nowhere/libnvidia-ml.so.1'"
                } else {
                    line
                }
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        cluster.write("gn1", "/etc/railgate/railgate.toml", &broken)?;
        let check = on("gn1", &["railgate", "check"])?;
        ensure!(check.code != 0 && check.stdout.contains("libnvidia-ml"), "{}", check.both());
        Ok(())
    })
}

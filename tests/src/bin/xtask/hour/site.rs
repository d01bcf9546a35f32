//! The cluster before railgate is installed, and the admin's changes to Slurm.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

use super::Hour;

pub(super) const MINUTE: Duration = Duration::from_secs(60);
/// Two nodes with eight GPUs each, two nodes without GPUs.
pub(super) const NODES: [&str; 4] = ["gn1", "gn2", "cn1", "cn2"];
pub(super) const GPU_NODES: [&str; 2] = ["gn1", "gn2"];
pub(super) const HEAD: &str = "ctl";

/// The site's own Prolog and health check, which must keep running throughout.
pub(super) const PROLOG: &str = "/usr/local/sbin/site-prolog";
pub(super) const HEALTH: &str = "/usr/local/sbin/site-health";
/// Files to which they append one line for each run.
pub(super) const PROLOG_RAN: &str = "/shared/site-prolog.log";
pub(super) const HEALTH_RAN: &str = "/shared/site-health.log";
/// The site's own settings in a key that railgate extends.
pub(super) const SCHEDULER: [&str; 3] = ["bf_interval=1", "sched_interval=5", "bf_window=2880"];

/// Stand-in for PyTorch's launcher: prints the settings that a rank received.
const TORCHRUN: &str = "\
#!/bin/bash
echo \"$(hostname): rank ${SLURM_PROCID:-?} of ${SLURM_NTASKS:-?}, NCCL_IB_HCA=${NCCL_IB_HCA:-(not set)}\"
sleep 2
";

/// A cluster without railgate, with the site's own settings.
pub(super) fn builder(slurm_root: &Path, keep: bool) -> Builder {
    let mut builder = Builder::new(NODES.len()).named(&NODES).slurm_root(slurm_root).bare();
    for node in NODES {
        builder = builder.hardware_of(node, if GPU_NODES.contains(&node) { "h100-sxm" } else { "cpu" });
    }
    if keep {
        builder = builder.keep();
    }
    builder
        .slurm_conf("SchedulerParameters", &SCHEDULER.join(","))
        .slurm_conf("Prolog", PROLOG)
        .slurm_conf("HealthCheckProgram", HEALTH)
        .slurm_conf("HealthCheckInterval", "30")
        .slurm_conf("HealthCheckNodeState", "ANY")
        // The jobs of the load are counted at the end, so slurmctld must remember them.
        .slurm_conf("MinJobAge", "7200")
        .slurm_conf("MaxJobCount", "20000")
        .file(PROLOG, &format!("#!/bin/sh\necho \"$SLURM_JOB_ID $(hostname)\" >> {PROLOG_RAN}\n"))
        .file(HEALTH, &format!("#!/bin/sh\necho \"$(hostname)\" >> {HEALTH_RAN}\n"))
        .file("/usr/local/bin/torchrun", TORCHRUN)
}

/// Disables the index of man pages, which dpkg would rebuild at each step, ten seconds on each machine.
pub(super) fn without_man_db(cluster: &Cluster) -> Result<()> {
    for machine in std::iter::once(HEAD).chain(NODES) {
        cluster.root().on(machine).run(&["rm", "-f", "/var/lib/man-db/auto-update"])?.ok()?;
    }
    Ok(())
}

impl Hour<'_> {
    /// Names of all machines, the head node first.
    pub(super) fn machines(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(HEAD).chain(NODES)
    }

    /// Restarts Slurm while jobs are submitted, as the page describes.
    pub(super) fn restart_under_load(&self) -> Result<()> {
        let partition = |state: &str| {
            let command = format!("scontrol update partitionname=PARTITION state={state}");
            self.typist.admin(HEAD, "install.md", &command, &[("PARTITION", "main")])?.ok().map(drop)
        };
        partition("down")?;
        poll::until(MINUTE, "all short jobs to end", || {
            let words = ["squeue", "-h", "-t", "R,CF", "-n", super::load::NAME];
            Ok(self.cluster.root().run(&words)?.ok()?.trim().is_empty().then_some(()))
        })?;
        self.restart_slurm()?;
        partition("up")
    }

    /// Restarts as `systemctl restart` does: SIGTERM, and a new process when the old one has exited.
    pub(super) fn restart_slurm(&self) -> Result<()> {
        self.cluster.stop_slurmctld()?;
        self.cluster.start_slurmctld()?;
        for node in NODES {
            let root = self.cluster.root().on(node);
            root.run(&["pkill", "-TERM", "-x", "slurmd"])?.ok()?;
            poll::until(MINUTE, &format!("slurmd on {node} to be gone"), || {
                Ok((root.run(&["pgrep", "-x", "slurmd"])?.code == 1).then_some(()))
            })?;
            self.cluster.start_slurmd(node)?;
        }
        for node in NODES {
            self.cluster.wait_node(node, "in service", MINUTE, |node| in_service(&node.state()))?;
        }
        Ok(())
    }

    /// The value of a key that slurmctld uses.
    pub(super) fn in_force(&self, key: &str) -> Result<String> {
        let config = self.cluster.root().run(&["scontrol", "show", "config"])?.ok()?;
        let line = config.lines().find(|line| line.split('=').next().is_some_and(|name| name.trim() == key));
        let (_, value) = line.and_then(|line| line.split_once('=')).with_context(|| format!("no {key}"))?;
        Ok(value.trim().to_owned())
    }

    /// Checks that `sinfo -R` lists no node.
    pub(super) fn no_node_drained(&self) -> Result<()> {
        let reasons = self.cluster.root().run(&["sinfo", "-R", "-h", "-o", "%N %E"])?.ok()?;
        ensure!(reasons.trim().is_empty(), "sinfo -R: {}", reasons.trim());
        for node in NODES {
            let state = self.cluster.node(node)?.state();
            ensure!(in_service(&state), "{node} is {state}");
        }
        Ok(())
    }

    /// Writes the same settings on every machine; on nodes also the location of the simulated hardware, which the test needs.
    pub(super) fn edit(&self, settings: &str) -> Result<()> {
        for (machine, source) in &self.given.0 {
            self.cluster.write(machine, super::install::SETTINGS, &format!("{settings}\n{source}"))?;
        }
        self.record.edited("every machine", super::install::SETTINGS, settings);
        Ok(())
    }
}

fn in_service(state: &str) -> bool {
    [
        "IDLE",
        "MIXED",
        "ALLOCATED",
        "COMPLETING",
        "IDLE+COMPLETING",
        "MIXED+COMPLETING",
        "ALLOCATED+COMPLETING",
    ]
    .contains(&state)
}

/// Each machine's `[source]` table, which only the test needs.
pub(super) struct Given(Vec<(&'static str, String)>);

impl Given {
    /// Takes the tables from the prepared configuration files and removes the files, since a new site has none.
    pub(super) fn take(cluster: &Cluster) -> Result<Self> {
        let mut all = Vec::new();
        for machine in std::iter::once(HEAD).chain(NODES) {
            let place = cluster.path(machine, super::install::SETTINGS)?;
            let table: toml::Table = toml::from_str(&std::fs::read_to_string(&place)?)?;
            std::fs::remove_file(&place)?;
            std::fs::remove_dir(cluster.path(machine, "/etc/railgate")?)?;
            let mut text = String::new();
            if let Some(toml::Value::Table(mut source)) = table.get("source").cloned() {
                if !GPU_NODES.contains(&machine) {
                    // A node without a GPU driver.
                    source.insert("nvml_library".to_owned(), "/nowhere/libnvidia-ml.so.1".into());
                }
                let mut whole = toml::Table::new();
                whole.insert("source".to_owned(), toml::Value::Table(source));
                text = toml::to_string(&whole)?;
            }
            all.push((machine, text));
        }
        Ok(Given(all))
    }
}

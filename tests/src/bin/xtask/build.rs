//! Building what goes onto the cluster's machines.

use std::process::Command;

use anyhow::{Context as _, Result};

use super::{packages, steps};

/// Cargo, the one that runs this.
pub(super) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Programs, plugin and simulated NVML, for the Slurm that is installed.
pub(super) fn programs(release: bool) -> Result<()> {
    let mut command = cargo();
    command.args(["build", "--quiet"]).args(release.then_some("--release"));
    for package in
        ["railgate-cli", "railgate-prolog", "railgate-epilog", "spank-railgate", "nvml-sim", "railgate-tests"]
    {
        command.args(["-p", package]);
    }
    if let Some(version) = slurm_version()? {
        command.env("RAILGATE_SLURM_VERSION", version);
    }
    steps::run(&mut command)
}

/// The installed Slurm's release where it is not the plugin's default: `23.11`.
fn slurm_version() -> Result<Option<String>> {
    let slurmd = packages::find("slurmd").context("slurmd is not installed")?;
    let output = Command::new(slurmd).arg("-V").output().context("asking slurmd for its version")?;
    let text = String::from_utf8_lossy(&output.stdout);
    // `slurm-wlm 22.05.8`
    let version = text.split_whitespace().next_back().unwrap_or_default();
    let release: Vec<&str> = version.split('.').take(2).collect();
    let release = release.join(".");
    Ok((release != "22.05").then_some(release))
}

//! Builds the programs that go onto the cluster's machines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{plugin_target, slurm_release};

use super::steps;

/// Plugins built for one Slurm release: railgate's, and one with deliberate faults.
const PLUGINS: [&str; 4] = ["-p", "spank-railgate", "-p", "spank-railgate-fault"];

/// Root directory of the workspace, independent of the current directory.
pub(super) fn workspace() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// The cargo that runs this program, without the variables that describe this package: ring's build script depends on them, so
/// ring and all that need it would be built again whenever cargo is called from here and then from a shell.
pub(super) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command.current_dir(workspace());
    command
}

/// The same command at the lowest priority.
pub(super) fn behind_others(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice.current_dir(command.get_current_dir().unwrap_or_else(|| workspace()));
    nice
}

/// `target/debug` or `target/release`, beside this program.
pub(super) fn folder(release: bool) -> Result<PathBuf> {
    let target = railgate_tests::cluster::own_program()?.ancestors().nth(2).map(Path::to_owned);
    Ok(target.context("no target folder")?.join(if release { "release" } else { "debug" }))
}

/// Builds the programs, the simulated NVML, and the plugin for the Slurm below `slurm_root`.
pub(super) fn programs(release: bool, slurm_root: &Path) -> Result<()> {
    let build = || {
        let mut command = cargo();
        command.args(["build", "--quiet"]).args(release.then_some("--release"));
        command
    };
    let mut all = build();
    for package in [
        "railgate-cli",
        "railgate-prolog",
        "railgate-epilog",
        "railgate-epilog-ctld",
        "railgate-sampler",
        "railgate-fleet-program",
        "nccl-env-railgate",
        "nccl-profiler-railgate",
        "nvml-sim",
        "railgate-tests",
    ] {
        all.args(["-p", package]);
    }
    all.args(PLUGINS);
    steps::run(&mut all)?;
    let slurm = slurm_release(slurm_root)?;
    let programs = folder(release)?;
    let plugin = plugin_target(&programs, slurm);
    if plugin == programs {
        return Ok(());
    }
    let place = plugins(&programs)?;
    let mut command = build();
    command.args(PLUGINS).arg("--target-dir").arg(&place);
    steps::run(command.env("RAILGATE_SLURM_VERSION", format!("{}.{:02}", slurm.0, slurm.1)))?;
    fs::create_dir_all(&plugin)?;
    let made = place.join(programs.file_name().context("no profile")?);
    for library in ["libspank_railgate.so", "libspank_railgate_fault.so"] {
        // Replaced by rename, since a cluster may have the old file open.
        let fresh = plugin.join(format!(".{library}"));
        fs::copy(made.join(library), &fresh)?;
        fs::rename(&fresh, plugin.join(library))?;
    }
    Ok(())
}

/// Target directory for plugins of other releases; a shared one, so that their common dependencies are built once.
pub(super) fn plugins(programs: &Path) -> Result<PathBuf> {
    Ok(programs.parent().context("no target folder")?.join("plugins"))
}

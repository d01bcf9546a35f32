//! Builds the RDMA self-test, and runs a virtual machine with a real verbs device and control groups of version 2.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use super::build;
use super::packages::{self, Need};
use super::steps::{self, Steps};

/// Packages for building the one program that links libibverbs.
const BUILD: [Need; 8] = [
    ("cmake", "cmake"),
    ("pkg-config", "pkg-config"),
    ("/var/lib/dpkg/info/libclang-dev.list", "libclang-dev"),
    ("/usr/include/libnl3/netlink/netlink.h", "libnl-3-dev"),
    ("/usr/include/libnl3/netlink/route/route.h", "libnl-route-3-dev"),
    ("/usr/include/libudev.h", "libudev-dev"),
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("/usr/bin/python3", "python3"),
];

/// Packages for the virtual machine.
const MACHINE: [Need; 6] = [
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("modprobe", "kmod"),
    ("rdma", "iproute2"),
];

fn cargo(words: &[&str]) -> Command {
    let mut command = build::cargo();
    command.current_dir(build::workspace().join("crates/rdma-selftest")).args(words);
    command
}

fn target() -> PathBuf {
    build::workspace().join("target/rdma-selftest")
}

fn building(release: bool) -> Command {
    let mut command = cargo(&["build", "--quiet", "--locked", "--target-dir"]);
    command.arg(target()).args(release.then_some("--release"));
    command
}

/// The self-test that can send wrong data and transfers less, for the tests of pairs.
fn building_planted() -> Command {
    let mut command = building(false);
    command.args(["--features", "plant,small"]);
    command
}

fn testing() -> Command {
    let mut command = cargo(&["test", "--quiet", "--locked", "--target-dir"]);
    command.arg(target());
    command
}

fn linting() -> Command {
    let mut command = cargo(&["clippy", "--quiet", "--target-dir"]);
    command.arg(target());
    command
}

/// Builds the self-test and returns its path.
pub(super) fn rdma_selftest(release: bool) -> Result<PathBuf> {
    packages::need(&BUILD)?;
    steps::run(&mut building(release))?;
    Ok(target().join(if release { "release" } else { "debug" }).join("railgate-rdma-selftest"))
}

/// Builds and lints the self-test ahead of [`run`] at the lowest priority. Installs nothing; failures are reported by `run`.
pub(super) fn build_ahead() {
    if BUILD.iter().any(|(program, _)| packages::find(program).is_none()) {
        return;
    }
    for command in [building_planted(), building(false), linting()] {
        let _ = steps::run(build::behind_others(&command).stderr(Stdio::null()));
    }
}

/// Builds the self-test that can send wrong data and returns its path, beside that of the ordinary one: cargo gives both the same
/// name, so that the next build replaces it.
fn planted() -> Result<PathBuf> {
    steps::run(&mut building_planted())?;
    let path = target().join("debug/railgate-rdma-selftest-planted");
    std::fs::copy(target().join("debug/railgate-rdma-selftest"), &path)?;
    Ok(path)
}

/// Installs what [`run`] needs.
pub(super) fn need() -> Result<()> {
    packages::need(&[&BUILD[..], &MACHINE].concat())
}

/// Builds, lints and tests the self-test, and runs it and the fabric checks in the virtual machine. Skipped with a message if the
/// distribution lacks a package.
pub(super) fn run(all: &mut Steps) {
    const NAME: &str = "virtual machine: a verbs device, control groups v2";
    if cfg!(not(target_arch = "x86_64")) {
        return all.skip(NAME, "only built for x86-64");
    }
    if let Err(why) = need() {
        return all.skip(NAME, &format!("{why:#}"));
    }
    all.step("RDMA self-test", || {
        steps::run(&mut cargo(&["fmt", "--check"]))?;
        steps::run(&mut linting())?;
        steps::run(&mut testing())?;
        planted()?;
        rdma_selftest(false)?;
        let packages = ["railgate-cli", "railgate-prolog", "railgate-epilog", "railgate-epilog-ctld"];
        steps::run(build::cargo().args(["build", "--quiet"]).args(packages.map(|name| format!("-p{name}"))))
    });
    all.step(NAME, || {
        let script = build::workspace().join("tests/vm/run.sh");
        let mut command = if nix::unistd::geteuid().is_root() {
            Command::new(&script)
        } else if packages::find("sudo").is_some() {
            let mut command = Command::new("sudo");
            command.arg(&script);
            command
        } else {
            bail!("the virtual machine reads the whole file system: run {} as root", script.display());
        };
        command.arg(build::folder(false)?);
        let built = target().join("debug");
        command.arg(built.join("railgate-rdma-selftest"));
        steps::run(command.arg(built.join("railgate-rdma-selftest-planted")))
    });
}

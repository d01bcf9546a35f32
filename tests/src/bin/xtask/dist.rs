//! `cargo xtask dist`: builds the packages for admins in `target/dist` as .deb and .rpm. One package runs on every supported
//! distribution; the one with the program that links libibverbs needs this distribution or a newer one.

mod contents;
mod formats;
mod links;
mod symbols;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::{build, packages, steps, vm};

/// All Slurm releases from the oldest to the newest supported one. A plugin file is valid for one release.
const SLURM: [&str; 8] = ["22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05"];

/// Libraries that NCCL loads, in any container image.
const NCCL: [&str; 2] = ["nccl-env-railgate", "nccl-profiler-railgate"];
/// glibc of CentOS 7, the oldest supported container image.
const NCCL_GLIBC: &str = "2.17";
/// Packages of the workspace, and the programs that they build.
const PROGRAMS: [(&str, &str); 7] = [
    ("railgate-cli", "railgate"),
    ("railgate-prolog", "railgate-prolog"),
    ("railgate-epilog", "railgate-epilog"),
    ("railgate-epilog-ctld", "railgate-epilog-ctld"),
    ("railgate-fleet-program", "railgate-fleet"),
    ("railgate-gpu-selftest", "railgate-gpu-selftest"),
    ("railgate-sampler", "railgate-sampler"),
];
/// glibc of RHEL 8, the oldest supported host.
const GLIBC: &str = "2.28";

/// The rdma-core release that introduced the newest libibverbs symbol of the self-test, and that symbol's version.
const VERBS: (u32, (u32, u32)) = (32, (1, 11));

const PLUGIN: &str = "spank-railgate";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Tools from the Python package index that build for a glibc older than this machine's.
const ZIG: [&str; 2] = ["cargo-zigbuild==0.23.0", "ziglang==0.15.1"];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask dist            for every Linux with glibc 2.28 or later (about ten minutes on two cores); the RDMA
                              self-test for this one and newer ones
  cargo xtask dist --quick    not optimised, for this machine's own C library: to try the packages")]
pub(super) struct Arguments {
    /// Without optimisation, for this machine's C library
    #[arg(long)]
    pub(super) quick: bool,
    /// Revision of the packages
    #[arg(long, default_value_t = 1)]
    pub(super) revision: u32,
}

/// Paths of the built packages.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) deb: PathBuf,
    pub(super) rpm: PathBuf,
    pub(super) selftest: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<Made> {
    Parts::build(arguments.quick)?.pack(arguments.revision)
}

/// Everything that goes into packages.
pub(super) struct Parts {
    dist: PathBuf,
    built: PathBuf,
    generated: PathBuf,
    quick: bool,
    /// The glibc versions that the programs and plugins, and the self-test, require.
    glibc: [(u32, u32); 2],
}

impl Parts {
    /// Builds everything; `quick` skips optimisation and the older C libraries.
    pub(super) fn build(quick: bool) -> Result<Self> {
        packages::need(&packages::BUILD)?;
        packages::need(&packages::DIST)?;
        let dist = build::folder(false)?.with_file_name("dist");
        let [built, generated] = ["built", "generated"].map(|name| dist.join(name));
        for place in [&built, &generated] {
            if place.exists() {
                fs::remove_dir_all(place)?;
            }
        }
        fs::create_dir_all(&built)?;
        let builder = if quick { Builder::quick()? } else { Builder::portable(&dist)? };
        let newest = compile(&builder, &built)?;
        let glibc = [newest, rdma_selftest(quick, &built)?];
        steps::run(Command::new(built.join("railgate")).arg("generate").arg(&generated))?;
        Ok(Parts { dist, built, generated, quick, glibc })
    }

    /// Makes the packages of one revision.
    pub(super) fn pack(&self, revision: u32) -> Result<Made> {
        let [glibc, selftest] = self.glibc;
        let [deb, rpm] =
            self.both(&formats::Package::railgate(glibc), contents::Files::Railgate, revision)?;
        let package = formats::Package::rdma_selftest(selftest, VERBS.0);
        let [selftest, _] = self.both(&package, contents::Files::RdmaSelftest, revision)?;
        Ok(Made { deb, rpm, selftest })
    }

    fn both(
        &self,
        package: &formats::Package,
        files: contents::Files,
        revision: u32,
    ) -> Result<[PathBuf; 2]> {
        let version = format!("{}-{revision}", env!("CARGO_PKG_VERSION"));
        let effort = if self.quick { formats::Effort::Least } else { formats::Effort::Most };
        let tree = |format| contents::stage(&self.dist, format, files, &self.built, &self.generated);
        let packing = formats::Packing { package, dist: &self.dist, version: &version, effort };
        let made = [packing.deb(&tree(formats::Format::Deb)?)?, packing.rpm(&tree(formats::Format::Rpm)?)?];
        for file in &made {
            println!("{}: {:.1} MB", file.display(), fs::metadata(file)?.len() as f64 / 1e6);
        }
        Ok(made)
    }
}

/// Builds the self-test with this machine's libraries; returns the glibc version that it requires.
fn rdma_selftest(quick: bool, built: &Path) -> Result<(u32, u32)> {
    println!("building the RDMA self-test");
    let to = built.join("railgate-rdma-selftest");
    fs::copy(vm::rdma_selftest(!quick)?, &to)?;
    let verbs = symbols::newest(&to, "IBVERBS_")?;
    ensure!(
        verbs <= VERBS.1,
        "the self-test needs libibverbs {verbs:?}, more than the declared {:?}",
        VERBS.1
    );
    asks_for(&to)
}

/// How programs and libraries are compiled.
struct Builder {
    words: Vec<String>,
    path: Option<PathBuf>,
    portable: bool,
    /// A separate target directory, in which the plugin is built once for each release.
    target_dir: PathBuf,
}

impl Builder {
    fn quick() -> Result<Self> {
        let target_dir = build::plugins(&build::folder(false)?)?;
        Ok(Builder { words: vec!["build".to_owned()], path: None, portable: false, target_dir })
    }

    fn portable(dist: &Path) -> Result<Self> {
        let tools = dist.join("tools");
        if !tools.join("bin/cargo-zigbuild").exists() {
            packages::need(&packages::VENV)?;
            println!("installing {}", ZIG.join(" "));
            steps::run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(&tools))?;
            steps::run(Command::new(tools.join("bin/pip")).args(["install", "-q"]).args(ZIG))?;
        }
        let words = ["zigbuild", "--release"].map(str::to_owned).to_vec();
        Ok(Builder { words, path: Some(tools.join("bin")), portable: true, target_dir: dist.join("build") })
    }

    /// Builds packages for a glibc version and returns the directory of the results.
    fn build(&self, names: &[&str], glibc: &str, slurm: Option<&str>) -> Result<PathBuf> {
        let mut command = build::cargo();
        command.args(&self.words).arg("--quiet");
        let plain = !self.portable && slurm.is_none();
        if !plain {
            command.arg("--target-dir").arg(&self.target_dir);
        }
        for name in names {
            command.args(["-p", name]);
        }
        if let Some(slurm) = slurm {
            command.env("RAILGATE_SLURM_VERSION", slurm);
        }
        if !self.portable {
            steps::run(&mut command)?;
            // The tests have already built these.
            return if plain { build::folder(false) } else { Ok(self.target_dir.join("debug")) };
        }
        command.arg("--target").arg(format!("{TARGET}.{glibc}"));
        if let Some(tools) = &self.path {
            let old = std::env::var_os("PATH").unwrap_or_default();
            let places = std::iter::once(tools.clone()).chain(std::env::split_paths(&old));
            command.env("PATH", std::env::join_paths(places)?);
        }
        steps::run(&mut command)?;
        Ok(self.target_dir.join(TARGET).join("release"))
    }
}

/// Builds the libraries that NCCL loads as they are shipped and checks that no symbol is newer than declared.
pub(super) fn try_nccl_plugins(all: &mut steps::Steps) {
    const NAME: &str = "NCCL plugins need no glibc newer than 2.17";
    let builder = build::folder(false).and_then(|folder| {
        let dist = folder.with_file_name("dist");
        fs::create_dir_all(&dist)?;
        Builder::portable(&dist)
    });
    match builder {
        Ok(builder) => all.step(NAME, || {
            let place = builder.build(&NCCL, NCCL_GLIBC, None)?;
            NCCL.iter().try_for_each(|name| promised(&place.join(library(name)), NCCL_GLIBC).map(drop))
        }),
        Err(why) => all.skip(NAME, &format!("{why:#}")),
    }
}

fn library(package: &str) -> String {
    format!("lib{}.so", package.replace('-', "_"))
}

/// The glibc version that a file requires.
fn asks_for(file: &Path) -> Result<(u32, u32)> {
    let newest = symbols::newest(file, symbols::GLIBC)?;
    println!("{}: glibc {}.{}", file.display(), newest.0, newest.1);
    Ok(newest)
}

/// The same, checked against the declared version.
fn promised(file: &Path, glibc: &str) -> Result<(u32, u32)> {
    let wanted = symbols::version(glibc).context("no version")?;
    let (major, minor) = asks_for(file)?;
    ensure!(
        (major, minor) <= wanted,
        "{} needs glibc {major}.{minor}, more than the declared {glibc}",
        file.display()
    );
    Ok(wanted)
}

/// Compiles everything into one folder and checks the symbols; returns the newest glibc version required.
fn compile(builder: &Builder, built: &Path) -> Result<(u32, u32)> {
    let mut needs = (0, 0);
    let mut take = |from: &Path, name: &str, to: &str, glibc: &str| -> Result<()> {
        let to = built.join(to);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(from.join(name), &to).with_context(|| name.to_owned())?;
        if !builder.portable {
            // Debug information would make the packages ten times as large.
            steps::run(Command::new("strip").arg("--strip-debug").arg(&to))?;
        }
        let newest = if builder.portable { promised(&to, glibc)? } else { asks_for(&to)? };
        needs = needs.max(newest);
        Ok(())
    };
    println!("building the programs");
    let place = builder.build(&PROGRAMS.map(|(package, _)| package), GLIBC, None)?;
    for (_, program) in PROGRAMS {
        take(&place, program, program, GLIBC)?;
    }
    println!("building the NCCL plugins");
    let place = builder.build(&NCCL, NCCL_GLIBC, None)?;
    for name in NCCL {
        take(&place, &library(name), &format!("lib{name}.so"), NCCL_GLIBC)?;
    }
    for release in SLURM {
        println!("building the plugin for Slurm {release}");
        let place = builder.build(&[PLUGIN], GLIBC, Some(release))?;
        let to = format!("slurm-{release}/spank_railgate.so");
        take(&place, "libspank_railgate.so", &to, GLIBC)?;
    }
    Ok(needs)
}

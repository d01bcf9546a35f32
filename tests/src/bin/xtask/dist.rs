//! `cargo xtask dist`: everything that an admin installs, as one .deb and one .rpm in `target/dist`.

mod contents;
mod formats;
mod symbols;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::{build, packages, steps};

/// The releases that Slurm had from the oldest that we know to the newest; a plugin announces one of them.
const SLURM: [&str; 8] = ["22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05"];

/// What NCCL loads, in whatever container the user has.
const NCCL: [&str; 2] = ["nccl-env-railgate", "nccl-profiler-railgate"];
/// CentOS 7's.
const NCCL_GLIBC: &str = "2.17";
const PROGRAMS: [&str; 4] = ["railgate-cli", "railgate-prolog", "railgate-epilog", "railgate-sampler"];
/// RHEL 8's.
const GLIBC: &str = "2.28";

const PLUGIN: &str = "spank-railgate";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Tools that build for an older C library than this machine's, from the Python package index.
const ZIG: [&str; 2] = ["cargo-zigbuild==0.23.0", "ziglang==0.15.1"];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask dist            for every Linux with glibc 2.28 or later (a few minutes)
  cargo xtask dist --quick    not optimised, for this machine's own C library: to try the packages")]
pub(super) struct Arguments {
    /// Not optimised, for this machine's C library
    #[arg(long)]
    pub(super) quick: bool,
    /// The packages' own revision of this version
    #[arg(long, default_value_t = 1)]
    pub(super) revision: u32,
}

/// What was made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) deb: PathBuf,
    pub(super) rpm: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<Made> {
    packages::need(&packages::BUILD)?;
    packages::need(&packages::DIST)?;
    let dist = build::folder(false)?.with_file_name("dist");
    let builder = if arguments.quick { Builder::quick(&dist) } else { Builder::portable(&dist)? };
    let built = dist.join("built");
    if built.exists() {
        fs::remove_dir_all(&built)?;
    }
    fs::create_dir_all(&built)?;
    compile(&builder, &built)?;
    let generated = dist.join("generated");
    if generated.exists() {
        fs::remove_dir_all(&generated)?;
    }
    steps::run(Command::new(built.join("railgate")).arg("generate").arg(&generated))?;

    let version = format!("{}-{}", env!("CARGO_PKG_VERSION"), arguments.revision);
    let effort = if arguments.quick { formats::Effort::Least } else { formats::Effort::Most };
    let tree = |format| contents::stage(&dist, format, &built, &generated);
    let deb = formats::deb(&dist, &tree(formats::Format::Deb)?, &version, effort)?;
    let rpm = formats::rpm(&dist, &tree(formats::Format::Rpm)?, &version, effort)?;
    for file in [&deb, &rpm] {
        println!("{}: {:.1} MB", file.display(), fs::metadata(file)?.len() as f64 / 1e6);
    }
    Ok(Made { deb, rpm })
}

/// How things are compiled.
struct Builder {
    words: Vec<String>,
    path: Option<PathBuf>,
    portable: bool,
    target_dir: PathBuf,
}

impl Builder {
    /// In a target folder of its own, in which a plugin may be built again and again.
    fn quick(dist: &Path) -> Self {
        Builder {
            words: vec!["build".to_owned()],
            path: None,
            portable: false,
            target_dir: dist.join("build"),
        }
    }

    fn portable(dist: &Path) -> Result<Self> {
        let tools = dist.join("tools");
        if !tools.join("bin/cargo-zigbuild").exists() {
            println!("installing {}", ZIG.join(" "));
            steps::run(Command::new("python3").args(["-m", "venv"]).arg(&tools))?;
            steps::run(Command::new(tools.join("bin/pip")).args(["install", "-q"]).args(ZIG))?;
        }
        let words = ["zigbuild", "--release"].map(str::to_owned).to_vec();
        Ok(Builder { words, path: Some(tools.join("bin")), portable: true, target_dir: dist.join("build") })
    }

    /// Builds packages against a C library, and returns where they are.
    fn build(&self, names: &[&str], glibc: &str, slurm: Option<&str>) -> Result<PathBuf> {
        let mut command = build::cargo();
        command.args(&self.words).arg("--quiet").arg("--target-dir").arg(&self.target_dir);
        // Debug information would make packages ten times as large.
        command.env("CARGO_PROFILE_DEV_STRIP", "debuginfo");
        for name in names {
            command.args(["-p", name]);
        }
        if let Some(slurm) = slurm {
            command.env("RAILGATE_SLURM_VERSION", slurm);
        }
        if !self.portable {
            steps::run(&mut command)?;
            return Ok(self.target_dir.join("debug"));
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

/// Everything into one folder, and no symbol newer than promised.
fn compile(builder: &Builder, built: &Path) -> Result<()> {
    let take = |from: &Path, name: &str, to: &str, glibc: &str| -> Result<()> {
        let to = built.join(to);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(from.join(name), &to).with_context(|| name.to_owned())?;
        if builder.portable {
            let newest = symbols::newest_glibc(&to)?;
            let wanted = symbols::version(glibc).context("no version")?;
            ensure!(
                newest <= wanted,
                "{name} needs glibc {}.{}, and {glibc} was promised",
                newest.0,
                newest.1
            );
            println!("{}: glibc {}.{}", to.display(), newest.0, newest.1);
        }
        Ok(())
    };
    println!("building the programs");
    let place = builder.build(&PROGRAMS, GLIBC, None)?;
    for name in ["railgate", "railgate-prolog", "railgate-epilog", "railgate-epilog-ctld", "railgate-sampler"]
    {
        take(&place, name, name, GLIBC)?;
    }
    println!("building what NCCL loads");
    let place = builder.build(&NCCL, NCCL_GLIBC, None)?;
    for name in NCCL {
        let file = format!("lib{}.so", name.replace('-', "_"));
        take(&place, &file, &format!("lib{name}.so"), NCCL_GLIBC)?;
    }
    for release in SLURM {
        println!("building the plugin for Slurm {release}");
        let place = builder.build(&[PLUGIN], GLIBC, Some(release))?;
        let to = format!("slurm-{release}/spank_railgate.so");
        take(&place, "libspank_railgate.so", &to, GLIBC)?;
    }
    Ok(())
}

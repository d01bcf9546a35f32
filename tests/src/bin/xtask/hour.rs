//! `cargo xtask hour`: the first hour of an admin and of a researcher on a mixed cluster, with the commands of the pages, and all
//! package operations under load.

mod install;
mod left;
mod life;
mod load;
mod pages;
mod record;
mod research;
mod site;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::accounting;
use railgate_tests::cluster::{Cluster, SLURM_ROOT, slurm_release};

use super::dist::Parts;
use super::{build, demo, packages, steps};
use pages::Typist;
use record::Record;
use site::Given;

/// Which cluster and which packages to use.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask hour                     this machine's Slurm; eight minutes, five for the packages
  cargo xtask hour --release 26.05     Debian's Slurm 26.05, kept in /var/cache/railgate
  cargo xtask hour --slurmdbd          with slurmdbd and MariaDB
  cargo xtask hour --built --keep      existing packages; the cluster keeps running

A head node where users log in, two GPU nodes and two CPU nodes. Each command comes from a page
(docs/install.md, oncall.md, researchers.md, templates.md), and its output is checked. The
transcript is target/hour/transcript.txt.

Exit codes: 0 every step passed, 1 a step failed or the hour could not be run")]
pub(super) struct Arguments {
    /// Slurm's release: 22.05, 24.11 or 26.05 from Debian (default: the installed one)
    #[arg(long, value_name = "VERSION")]
    release: Option<String>,
    /// With Debian's slurmdbd and MariaDB
    #[arg(long)]
    slurmdbd: bool,
    /// Keep the cluster running afterwards and print how to log in to its machines (cargo xtask demo --stop stops it)
    #[arg(long)]
    keep: bool,
    /// Use the packages in target/dist, revisions 1 and 2, instead of building them
    #[arg(long)]
    built: bool,
    /// Number of short jobs submitted per second during package operations
    #[arg(long, value_name = "JOBS", default_value_t = 2.0)]
    rate: f64,
}

/// Two revisions of the same version.
struct Packages {
    old: PathBuf,
    new: PathBuf,
}

/// The cluster, the packages, and the record of the run.
struct Hour<'a> {
    cluster: &'a Cluster,
    record: &'a Record,
    typist: Typist<'a>,
    packages: &'a Packages,
    given: Given,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the hour creates namespaces: run it as root (sudo cargo xtask hour)"
    );
    ensure!((0.1..=10.0).contains(&arguments.rate), "--rate must be between 0.1 and 10 jobs per second");
    demo::none_kept()?;
    packages::need(&packages::CLUSTER)?;
    let root = slurm(arguments)?;
    steps::run(build::cargo().args(["build", "--quiet", "-p", "nvml-sim", "-p", "railgate-tests"]))?;
    let packages = if arguments.built { Packages::of_dist()? } else { Packages::build()? };
    let record = Record::new(&build::folder(false)?.with_file_name("hour"))?;
    let cluster = site::builder(&root, arguments.keep).start()?;
    if arguments.keep {
        // Before the first step that can fail, so that `demo --stop` finds the cluster of an interrupted run.
        demo::remember(&cluster)?;
    }
    site::without_man_db(&cluster)?;
    let database = if arguments.slurmdbd { Some(accounting::start(&cluster)?) } else { None };
    let hour = Hour {
        cluster: &cluster,
        record: &record,
        typist: Typist::new(&cluster, &record)?,
        packages: &packages,
        given: Given::take(&cluster)?,
    };
    let played = hour.play(arguments.rate);
    if let Err(why) = &played {
        println!("\nthe hour stops here: {why:#}\n{}", cluster.describe());
        cluster.save_logs(&record.dir().join("logs"))?;
    }
    if arguments.keep {
        // A kept cluster keeps its database.
        std::mem::forget(database);
    } else {
        drop(database);
        drop(cluster);
    }
    record.show();
    Ok(if played.is_ok() && record.all_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn slurm(arguments: &Arguments) -> Result<PathBuf> {
    let release = arguments.release.as_deref();
    if arguments.slurmdbd {
        return packages::accounting(release.unwrap_or("22.05"));
    }
    let here = slurm_release(Path::new("/")).ok().map(|(year, month)| format!("{year}.{month:02}"));
    match release.filter(|release| here.as_deref() != Some(*release)) {
        Some(release) => packages::slurm(release),
        // As for the tests: SLURM_ROOT can name another root directory.
        None => Ok(std::env::var_os(SLURM_ROOT).map_or_else(|| PathBuf::from("/"), PathBuf::from)),
    }
}

impl Packages {
    fn build() -> Result<Self> {
        let parts = Parts::build(true)?;
        Ok(Packages { old: parts.pack(1)?.deb, new: parts.pack(2)?.deb })
    }

    fn of_dist() -> Result<Self> {
        let dist = build::folder(false)?.with_file_name("dist");
        let [old, new] = [1, 2].map(|revision| {
            dist.join(format!("railgate_{}-{revision}_amd64.deb", env!("CARGO_PKG_VERSION")))
        });
        for file in [&old, &new] {
            ensure!(file.exists(), "{} does not exist: run without --built", file.display());
        }
        Ok(Packages { old, new })
    }
}

/// File name of a package.
fn name(deb: &Path) -> Result<String> {
    Ok(deb.file_name().context("no name")?.to_string_lossy().into_owned())
}

impl Hour<'_> {
    fn play(&self, rate: f64) -> Result<()> {
        let before = left::Machines::read(self.cluster)?;
        self.record.chapter("An admin installs railgate");
        self.install()?;
        self.record.chapter("A researcher");
        self.research()?;
        self.record.chapter("Packages are upgraded and removed under load");
        self.live(rate, &before)
    }
}

//! `cargo xtask hour`: the first hour of an admin and of a researcher, typed from the pages on a mixed cluster, and the packages'
//! whole life under load.

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

/// Which cluster, and which packages.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask hour                     this machine's Slurm; eight minutes, five for the packages
  cargo xtask hour --release 26.05     Debian's Slurm 26.05, kept in /var/cache/railgate
  cargo xtask hour --slurmdbd          with slurmdbd and MariaDB
  cargo xtask hour --built --keep      packages as they are; the cluster stays for a look

A head node where users log in, two GPU nodes and two CPU nodes. Each command comes from a page
(docs/install.md, oncall.md, researchers.md, templates.md), and what it prints is read. The
transcript is target/hour/transcript.txt.

Exit codes: 0 every step is right, 1 at least one is wrong or the hour could not be played")]
pub(super) struct Arguments {
    /// Slurm's release: 22.05, 24.11 or 26.05 from Debian (default: the one that is installed here)
    #[arg(long, value_name = "VERSION")]
    release: Option<String>,
    /// With Debian's accounting database
    #[arg(long)]
    slurmdbd: bool,
    /// Leave the cluster running afterwards, and say how to talk to it (cargo xtask demo --stop ends it)
    #[arg(long)]
    keep: bool,
    /// Use the packages in target/dist, revisions 1 and 2, instead of building them
    #[arg(long)]
    built: bool,
    /// How many short jobs are submitted in a second while packages come and go
    #[arg(long, value_name = "JOBS", default_value_t = 2.0)]
    rate: f64,
}

/// Two revisions of one version.
struct Packages {
    old: PathBuf,
    new: PathBuf,
}

/// A cluster on which somebody types, and what came of it.
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
        "the hour makes namespaces and needs root: sudo cargo xtask hour"
    );
    ensure!((0.1..=10.0).contains(&arguments.rate), "--rate is from 0.1 to 10 jobs a second");
    demo::none_kept()?;
    packages::need(&packages::CLUSTER)?;
    let root = slurm(arguments)?;
    steps::run(build::cargo().args(["build", "--quiet", "-p", "nvml-sim", "-p", "railgate-tests"]))?;
    let packages = if arguments.built { Packages::of_dist()? } else { Packages::build()? };
    let record = Record::new(&build::folder(false)?.with_file_name("hour"))?;
    let cluster = site::builder(&root, arguments.keep).start()?;
    if arguments.keep {
        // Before anything can fail: whoever interrupts this finds it by `demo --stop`.
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
        println!("\nthe hour ends here: {why:#}\n{}", cluster.describe());
        cluster.save_logs(&record.dir().join("logs"))?;
    }
    if arguments.keep {
        // The database stays with its cluster.
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
        // As for the tests: another root with Slurm where somebody names one.
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
            ensure!(file.exists(), "{} is not there: leave out --built", file.display());
        }
        Ok(Packages { old, new })
    }
}

/// A package's file name.
fn name(deb: &Path) -> Result<String> {
    Ok(deb.file_name().context("no name")?.to_string_lossy().into_owned())
}

impl Hour<'_> {
    fn play(&self, rate: f64) -> Result<()> {
        let before = left::Machines::look(self.cluster)?;
        self.record.chapter("An admin installs it");
        self.install()?;
        self.record.chapter("A researcher");
        self.research()?;
        self.record.chapter("Packages come and go under load");
        self.live(rate, &before)
    }
}

//! The project's own commands: `cargo xtask demo`, `cargo xtask test`, `cargo xtask hour`, `cargo xtask bench`,
//! `cargo xtask dist`, `cargo xtask docs`, `cargo xtask xid-catalogue`.

mod bench;
mod build;
mod demo;
mod dist;
mod hostile_files;
mod hour;
mod packaged;
mod packages;
mod peers;
mod reports;
mod steady;
mod steps;
mod storm;
mod tasks;
mod test;
mod vm;
mod workbook;
mod xid_catalogue;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// railgate's own commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", version, about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// One job on a cluster with one bad node: gate, drain, move, run, report
    Demo(demo::Arguments),
    /// Format, lints, licences, documentation, unit tests, scenarios, and the real Slurm cluster
    Test(test::Arguments),
    /// The first hour of an admin and of a researcher, typed from the pages, and the packages' whole life under load
    Hour(hour::Arguments),
    /// What railgate costs, on the simulated hardware and the real Slurm of this machine
    Bench(bench::Arguments),
    /// Packages: .deb and .rpm
    Dist(dist::Arguments),
    /// Write the pages that come from the code: docs/checks.md, docs/rules.md, docs/metrics.md
    Docs,
    /// Write the facts of NVIDIA's Xid catalogue from a local copy of Xid-Catalog.xlsx (needs unzip and sha256sum)
    XidCatalogue(xid_catalogue::Catalogue),
    /// Write the names of SXids from local copies of the switch driver's ctrl_dev_nvswitch.h
    SxidNames(xid_catalogue::Names),
    /// Run a command again and again and print how long each run took, in microseconds
    #[command(hide = true, name = "@time")]
    Time {
        /// How often
        count: u32,
        /// The command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Run a command and print its time, its exit code and the most memory that programs of this name had together
    #[command(hide = true, name = "@watch")]
    Watch {
        /// File name of the programs
        program: String,
        /// The command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Read a task's environment once, as the plugin does, and print the nanoseconds that it took
    #[command(hide = true, name = "@task")]
    ReadEnv {
        /// The run's directory
        dir: std::path::PathBuf,
    },
    /// End the jobs whose numbers come from standard input, 33 a second
    #[command(hide = true, name = "@pace")]
    Pace,
    /// Install packages, as root (for the other commands)
    #[command(hide = true, name = "@packages")]
    Packages {
        /// Their names
        names: Vec<String>,
    },
}

fn main() -> ExitCode {
    if let Some(code) = railgate_tests::cluster::dispatch() {
        return code;
    }
    let command = Cli::parse().command;
    let result = match command {
        Task::Demo(arguments) => demo::run(&arguments),
        Task::Test(arguments) => test::run(&arguments).map(|()| ExitCode::SUCCESS),
        Task::Hour(arguments) => hour::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Dist(arguments) => dist::run(&arguments).map(|_| ExitCode::SUCCESS),
        Task::Docs => docs().map(|()| ExitCode::SUCCESS),
        Task::XidCatalogue(arguments) => xid_catalogue::catalogue(&arguments).map(|()| ExitCode::SUCCESS),
        Task::SxidNames(arguments) => xid_catalogue::names(&arguments).map(|()| ExitCode::SUCCESS),
        Task::Time { count, command } => bench::time(count, &command).map(|()| ExitCode::SUCCESS),
        Task::Watch { program, command } => {
            hostile_files::watch(&program, &command).map(|()| ExitCode::SUCCESS)
        }
        Task::ReadEnv { dir } => tasks::once(&dir).map(|()| ExitCode::SUCCESS),
        Task::Pace => steady::pace().map(|()| ExitCode::SUCCESS),
        Task::Packages { names } => packages::install(&names).map(|()| ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The tests that compare a page with the code also write it.
fn docs() -> anyhow::Result<()> {
    for (package, test) in
        [("railgate-gate", "catalogue"), ("railgate-stats", "rules_page"), ("railgate-stats", "metrics_page")]
    {
        let mut command = build::cargo();
        command.args(["test", "--quiet", "-p", package, "--test", test]);
        steps::run(command.env("RAILGATE_WRITE_DOCS", "1"))?;
    }
    Ok(())
}

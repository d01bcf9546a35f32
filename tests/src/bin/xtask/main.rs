//! The project's commands: `cargo xtask demo`, `cargo xtask test`, `cargo xtask hour`, `cargo xtask bench`,
//! `cargo xtask dist`, `cargo xtask docs`, `cargo xtask xid-catalogue`.

mod bench;
mod browser;
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
mod takeover;
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
    /// One job on a cluster with one bad node: gate, drain, requeue, run, report
    Demo(demo::Arguments),
    /// Formatting, lints, licences, documentation, unit tests, scenarios, and the real Slurm cluster
    Test(test::Arguments),
    /// The first hour of an admin and of a researcher with the commands of the pages, and all package operations under load
    Hour(hour::Arguments),
    /// Measure railgate's cost on the simulated hardware and the real Slurm of this machine
    Bench(bench::Arguments),
    /// Build the packages: .deb and .rpm
    Dist(dist::Arguments),
    /// Write the pages generated from the code: docs/checks.md, docs/rules.md, docs/metrics.md
    Docs,
    /// Write the table of NVIDIA's Xid catalogue from a local copy of Xid-Catalog.xlsx (needs unzip and sha256sum)
    XidCatalogue(xid_catalogue::Catalogue),
    /// Write the names of SXids from local copies of the switch driver's ctrl_dev_nvswitch.h
    SxidNames(xid_catalogue::Names),
    /// Run a command repeatedly and print the duration of each run in microseconds
    #[command(hide = true, name = "@time")]
    Time {
        /// Number of runs
        count: u32,
        /// The command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Run a command and print its duration, its exit code and the peak memory of all programs named PROGRAM together
    #[command(hide = true, name = "@watch")]
    Watch {
        /// File name of the programs
        program: String,
        /// The command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Read a task's environment once, as the plugin does, and print the duration in nanoseconds
    #[command(hide = true, name = "@task")]
    ReadEnv {
        /// The run's directory
        dir: std::path::PathBuf,
    },
    /// End the jobs whose numbers are on standard input, 33 per second
    #[command(hide = true, name = "@pace")]
    Pace,
    /// Install packages, as root (for the other commands)
    #[command(hide = true, name = "@packages")]
    Packages {
        /// Package names
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
    for (package, test) in [
        ("railgate-gate", "catalogue"),
        ("railgate-diagnosis", "rules_page"),
        ("railgate-metrics", "metrics_page"),
    ] {
        let mut command = build::cargo();
        command.args(["test", "--quiet", "-p", package, "--test", test]);
        steps::run(command.env("RAILGATE_WRITE_DOCS", "1"))?;
    }
    Ok(())
}

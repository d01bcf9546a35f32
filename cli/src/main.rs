//! `railgate`: judge a node, look at its wiring, read a job's report, see and change what is in force.

mod check;
mod config;
mod explain;
mod node_source;
mod output;
mod pause;
mod rails;
mod report;
mod simulate;
mod snapshot;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use railgate_runner::{Config, Places};

/// Keeps GPU jobs off bad nodes, pins NCCL to the rails, and says what a job got out of the hardware.
#[derive(Debug, Parser)]
#[command(name = "railgate", version, max_term_width = 100)]
struct Cli {
    /// Site configuration [default: /etc/railgate/railgate.toml, if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Judge this node, or a recorded or simulated one
    Check(check::Args),
    /// Record what the node says, as JSON
    Snapshot(snapshot::Args),
    /// Machine types and faults that can be simulated
    Simulate(simulate::Args),
    /// GPU to HCA map, NCCL environment, topology file
    Rails(rails::Args),
    /// What a job did, and why it ended
    Report(report::Args),
    /// Check the configuration, or show what is in force
    Config(config::Args),
    /// What a check reads, why it matters, how to fix it, how to switch it off
    Explain(explain::Args),
    /// Stop acting on this node (on the controller: requeueing) until resumed; judging goes on
    Pause(pause::PauseArgs),
    /// Act again after a pause
    Resume(pause::ResumeArgs),
}

/// Exit codes, the same for every subcommand.
mod exit {
    /// Done; a judged node is fit or degraded.
    pub(crate) const OK: u8 = 0;
    /// The judged node is unfit.
    pub(crate) const UNFIT: u8 = 1;
    /// Wrong use or wrong configuration.
    pub(crate) const USAGE: u8 = 2;
    /// Could not tell.
    pub(crate) const UNKNOWN: u8 = 3;
}

/// What every subcommand gets.
#[derive(Debug)]
struct Site {
    places: Places,
    config_file: PathBuf,
    config_required: bool,
    node: String,
}

impl Site {
    /// The configuration in force here.
    fn config(&self) -> anyhow::Result<Config> {
        Ok(self.loaded()?.config)
    }

    fn loaded(&self) -> Result<railgate_runner::Loaded, railgate_runner::ConfigError> {
        railgate_runner::Loaded::read(&self.config_file, self.config_required, &self.node)
    }
}

fn main() -> ExitCode {
    if let Some(code) = railgate_node::child::dispatch(&railgate_runner::tasks()) {
        return code;
    }
    let cli = Cli::parse();
    let places = Places::default();
    let site = Site {
        config_required: cli.config.is_some(),
        config_file: cli.config.unwrap_or_else(|| places.config()),
        node: railgate_runner::node_name(),
        places,
    };
    let done = match cli.command {
        Command::Check(args) => check::run(&site, &args),
        Command::Snapshot(args) => snapshot::run(&site, &args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Rails(args) => rails::run(&site, &args),
        Command::Report(args) => report::run(&site, &args),
        Command::Config(args) => config::run(&site, &args),
        Command::Explain(args) => explain::run(&args),
        Command::Pause(args) => pause::pause(&site, &args),
        Command::Resume(args) => pause::resume(&site, &args),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(why) if output::broken_pipe(&why) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("railgate: {why:#}");
            ExitCode::from(exit::USAGE)
        }
    }
}

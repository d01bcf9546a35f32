//! `railgate`: judge a node, look at its wiring, read a job's report, see and change what is in force.

mod calibrate;
mod check;
mod check_list;
mod config;
mod doctor;
mod explain;
mod fabric;
mod generate;
mod history;
mod import;
mod node_source;
mod node_story;
mod nodes;
mod offered;
mod output;
mod pause;
mod profile;
mod prune;
mod rails;
mod readmit;
mod report;
mod rma;
mod simulate;
mod snapshot;
mod stand_aside;
mod template;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use railgate_runner::{Config, Places};

/// Keeps GPU jobs off bad nodes, pins NCCL to the rails, and says what a job got out of the hardware.
#[derive(Debug, Parser)]
#[command(name = "railgate", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    /// Use this site configuration [default: /etc/railgate/railgate.toml; built-in values where there is no such file]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  railgate check                                 is this node fit for jobs?
  railgate explain gpu-lost                      what a drain reason means, and what to do
  railgate report 48213                          what a job did, and why it ended
  railgate check --simulate h100-sxm:gpu-lost@3  what such a fault looks like; no GPU, no root

Exit codes: 0 done, the node is fit or degraded; 1 the node is unfit; 2 wrong use, wrong
configuration or a failure of railgate; 3 could not tell

railgate COMMAND --help has more examples.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Judge this node, or a recorded or simulated one
    Check(check::Args),
    /// Record what this node says, as JSON, for `check --snapshot` here or elsewhere
    Snapshot(snapshot::Args),
    /// Machine types and faults that can be simulated
    Simulate(simulate::Args),
    /// GPU to HCA map, NCCL environment, topology file
    Rails(rails::Args),
    /// Leafs, rails, wrong cables, oversubscription; topology files for Slurm
    Fabric(fabric::Args),
    /// What a job did, and why it ended
    Report(report::Args),
    /// What Slurm and this machine must say for railgate to work, and do not
    Doctor(doctor::Args),
    /// Check the configuration, or show what is in force
    Config(config::Args),
    /// A check or a diagnosis rule: what it reads, why it matters, how to fix it; a node: its story
    Explain(explain::Args),
    /// Job scripts to start from, with your values filled in
    Template(template::Args),
    /// What another health checker was told, as railgate's configuration
    Import(import::Args),
    /// What is held, since when, why, and what to do
    Nodes(nodes::Args),
    /// Give a repaired node back to Slurm, after looking at it
    Readmit(readmit::Args),
    /// What a vendor asks for: serial numbers, Xids, counts, versions
    Rma(rma::Args),
    /// Make a machine profile from a good node
    Profile(profile::Args),
    /// Measure how much work a GPU model's tensor activity stands for
    Calibrate(calibrate::Args),
    /// Run a program, a profiler say, while the sampler leaves the job's GPUs alone
    Yield(stand_aside::Args),
    /// Judge and report, but change nothing from this machine, for a while
    Pause(pause::PauseArgs),
    /// Act again after a pause
    Resume(pause::ResumeArgs),
    /// Man pages and shell completions, for packages
    #[command(hide = true)]
    Generate(generate::Args),
}

/// Exit codes, the same for every subcommand.
mod exit {
    /// Done; a judged node is fit or degraded.
    pub(crate) const OK: u8 = 0;
    /// The judged node is unfit.
    pub(crate) const UNFIT: u8 = 1;
    /// Wrong use, wrong configuration, or a failure of railgate itself.
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
    if let Some(code) = railgate_probe::dispatch(&railgate_runner::tasks()) {
        return code;
    }
    let cli: Cli = output::parse();
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
        Command::Simulate(args) => simulate::run(&site, &args),
        Command::Rails(args) => rails::run(&site, &args),
        Command::Fabric(args) => fabric::run(&args),
        Command::Report(args) => report::run(&site, &args),
        Command::Doctor(args) => doctor::run(&site, &args),
        Command::Config(args) => config::run(&site, &args),
        Command::Explain(args) => explain::run(&site, &args),
        Command::Template(args) => template::run(&site, &args),
        Command::Import(args) => import::run(&site, &args),
        Command::Nodes(args) => nodes::run(&site, &args),
        Command::Readmit(args) => readmit::run(&site, &args),
        Command::Rma(args) => rma::run(&site, &args),
        Command::Profile(args) => profile::run(&site, &args),
        Command::Calibrate(args) => calibrate::run(&site, &args),
        Command::Yield(args) => stand_aside::run(&site, &args),
        Command::Pause(args) => pause::pause(&site, &args),
        Command::Resume(args) => pause::resume(&site, &args),
        Command::Generate(args) => generate::run(&args),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            output::failure(&why);
            ExitCode::from(exit::USAGE)
        }
    }
}

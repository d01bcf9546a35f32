//! `railgate`: checks nodes and wiring, shows job reports, and shows and changes the state of railgate.

mod accept;
mod calibrate;
mod check;
mod check_list;
mod config;
mod doctor;
mod explain;
mod fabric;
mod fleet;
mod generate;
mod history;
mod import;
mod launch;
mod node_source;
mod node_step;
mod node_story;
mod nodes;
mod offered;
mod output;
mod pause;
mod preflight;
mod profile;
mod prune;
mod rails;
mod readmit;
mod report;
mod rma;
mod self_test_lines;
mod simulate;
mod snapshot;
mod stand_aside;
mod template;
mod why;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use railgate_runner::{Config, Places};

/// Keeps GPU jobs off bad nodes, pins NCCL to the rails, and reports how well jobs used the hardware.
#[derive(Debug, Parser)]
#[command(name = "railgate", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    /// Use this site configuration [default: /etc/railgate/railgate.toml; built-in values if it does not exist]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  railgate check             is this node fit for jobs?
  railgate explain gpu-lost  what a drain reason means, and what to do
  railgate report 48213      what a job did, and why it ended
  railgate why 48213         why a job does not advance
  railgate check --simulate h100-sxm:gpu-lost@3
      what such a fault looks like; no GPU, no root

Exit codes: 0 done, the node is fit or degraded; 1 the node is unfit; 2 wrong use, wrong configuration or a \
failure of railgate; 3 could not tell

railgate COMMAND --help has more examples.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Check this node, or a recorded or simulated one
    Check(check::Args),
    /// Record the state of this node as JSON, for `check --snapshot` here or elsewhere
    Snapshot(snapshot::Args),
    /// Machine types and faults that can be simulated
    Simulate(simulate::Args),
    /// GPU to HCA map, NCCL environment, topology file
    Rails(rails::Args),
    /// Leaf switches, rails, wrong cables, oversubscription; topology files for Slurm
    Fabric(fabric::Args),
    /// History of all nodes and jobs: nodes that fail again and again, incidents, lost GPU hours
    Fleet(fleet::Args),
    /// Inside a job, before its first step: test the GPUs, and the rails between the nodes
    Preflight(preflight::Args),
    /// Inside a job: start its program, and again without a node that failed, on a spare
    Launch(launch::Args),
    /// Acceptance of a cluster through jobs: tests of nodes, rails and storage, and a report to sign
    Accept(accept::Args),
    /// What a job did, and why it ended
    Report(report::Args),
    /// Why a job does not advance, or ended: the answer first, then what shows it
    Why(why::Args),
    /// Check the settings of Slurm and of this machine that railgate needs
    Doctor(doctor::Args),
    /// Check the configuration, or show the effective one
    Config(config::Args),
    /// Explain a check or a diagnosis rule (what it reads, why it matters, how to fix it), or show the history of a node
    Explain(explain::Args),
    /// Job scripts to start from, with your values filled in
    Template(template::Args),
    /// Convert the configuration of another health checker
    Import(import::Args),
    /// Nodes that railgate drained: since when, why, and what to do
    Nodes(nodes::Args),
    /// Check a repaired node and resume it in Slurm
    Readmit(readmit::Args),
    /// Collect data for a case with the vendor: serial numbers, Xids, counts, versions
    Rma(rma::Args),
    /// Make a machine profile from a healthy node
    Profile(profile::Args),
    /// Measure how much work corresponds to a GPU's tensor activity, for reports
    Calibrate(calibrate::Args),
    /// Run a program, for example a profiler, while the sampler does not read the job's GPUs
    Yield(stand_aside::Args),
    /// Check and report, but change nothing from this machine, for a while
    Pause(pause::PauseArgs),
    /// Act again after a pause
    Resume(pause::ResumeArgs),
    /// Man pages and shell completions, for packages
    #[command(hide = true)]
    Generate(generate::Args),
}

/// Exit codes, the same for every subcommand.
mod exit {
    /// Done; a checked node is fit or degraded.
    pub(crate) const OK: u8 = 0;
    /// The checked node is unfit.
    pub(crate) const UNFIT: u8 = 1;
    /// Wrong usage, invalid configuration, or an internal failure.
    pub(crate) const USAGE: u8 = 2;
    /// Could not be determined.
    pub(crate) const UNKNOWN: u8 = 3;
}

/// Context of every subcommand.
#[derive(Debug)]
struct Site {
    places: Places,
    config_file: PathBuf,
    config_required: bool,
    node: String,
}

impl Site {
    /// The configuration in force on this node.
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
        Command::Fleet(args) => fleet::run(&site, &args),
        Command::Preflight(args) => preflight::run(&site, &args),
        Command::Launch(args) => launch::run(&site, &args),
        Command::Accept(args) => accept::run(&site, &args),
        Command::Report(args) => report::run(&site, &args),
        Command::Why(args) => why::run(&site, &args),
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

//! `railgate-fleet`: keeps the history of all nodes and jobs on the controller, or on any host that reads the report directory.
//! `railgate fleet` shows what follows from it.
//!
//! It reads the ledger, the report directory, and the nodes of Slurm by one `scontrol show node` a minute at most. It listens on
//! no port, and sends alerts to the receivers of `[alerts]`. It changes nothing but its own files, and with `[fleet] lemons = "drain"` the
//! state of nodes that fail more often than the fleet. Run it as SlurmUser, who may read the
//! reports of all jobs.

mod alerts;
mod conditions;
mod figures;
mod idle;
mod lemons;
mod pass;
mod places;
mod queue;
mod reading;
mod signals;
mod storage;
mod ufm;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use railgate_fleet_store::Writer;
use railgate_runner::{FleetConfig, Loaded, LogLevel, become_owner, now, own_process, start_stderr};
use railgate_text::{Printable, printable};

use alerts::{Alerts, AlertsThread};
use pass::Desk;
use places::Site;
use signals::Signals;

/// Keeps the history of all nodes and jobs, for `railgate fleet`.
#[derive(Debug, Parser)]
#[command(
    name = "railgate-fleet",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  railgate-fleet run                     until SIGTERM, for a systemd unit
  railgate-fleet once                    for a timer
  railgate-fleet backup /backup/fleet.db

`run` and `once` also send alerts to the receivers of `[alerts]`.

Exit codes: 0 done; 2 wrong use, wrong configuration or a failure, nothing was taken in; 3 a source could not be read, the \
others were taken in. A message that a receiver does not accept is sent again later, and changes no exit code"
)]
struct Cli {
    /// Use this site configuration [default: /etc/railgate/railgate.toml; built-in values if it does not exist]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of railgate's state on the controller, with the ledger in `controller/`
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/lib/railgate")]
    state: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Read all sources once
    Once,
    /// Read all sources again and again, until SIGTERM or SIGINT
    Run {
        /// Pause between two readings, 60s to 240s [default: `[fleet] every`]
        #[arg(long, value_name = "TIME", value_parser = pause)]
        every: Option<Duration>,
    },
    /// Write a copy of the history, whole and checked, also while another process writes the history
    Backup {
        /// Where: an existing file is replaced
        file: PathBuf,
    },
}

/// Done.
const OK: u8 = 0;
/// Wrong use or a failure.
const FAILED: u8 = 2;
/// A source could not be read.
const UNKNOWN: u8 = 3;

fn pause(text: &str) -> Result<Duration, String> {
    let every = humantime::parse_duration(text).map_err(|why| why.to_string())?;
    FleetConfig::wrong_pause(every).map_or(Ok(every), Err)
}

/// clap's error pages quote the arguments, so they are made from printable ones.
fn parse() -> Cli {
    let args: Vec<OsString> = std::env::args_os().collect();
    Cli::try_parse_from(&args).unwrap_or_else(|wrong| {
        let shown = args.iter().map(|arg| printable(&arg.to_string_lossy()).into_owned());
        Cli::try_parse_from(shown).err().unwrap_or(wrong).exit()
    })
}

fn main() -> ExitCode {
    if let Some(code) = railgate_child::dispatch(&[railgate_store::TASKS, &[storage::TASK]]) {
        return code;
    }
    own_process();
    let cli = parse();
    start_stderr(LogLevel::Info);
    match run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            tracing::error!("{why:#}");
            ExitCode::from(FAILED)
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<u8> {
    let path = cli.config.clone().unwrap_or_else(|| PathBuf::from("/etc/railgate/railgate.toml"));
    let loaded = Loaded::read(&path, cli.config.is_some(), &railgate_runner::node_name());
    let config = loaded.map_err(|why| anyhow::anyhow!("{}", why.in_one_line()))?.config;
    // The history and the reports are SlurmUser's.
    if let Some(dir) = config.fleet.database.parent() {
        become_owner(dir)?;
    }
    if let Command::Backup { file } = &cli.command {
        railgate_fleet_store::Reader::open(&config.fleet.database)?.backup(file)?;
        tracing::info!("{}: written", Printable(file.display()));
        return Ok(OK);
    }
    let signals = Signals::catch().context("signals")?;
    let every = match &cli.command {
        Command::Run { every } => Some(every.unwrap_or(config.fleet.every)),
        _ => None,
    };
    let site = Site::new(config, &cli.state);
    places::make_directory(&site.config.fleet.database)?;
    let holder = railgate_runner::node_name();
    let writer = Writer::open(&site.config.fleet.database, &holder, now())?;
    let alerts = Alerts::open(&site.config)?;
    let mut desk = Desk::new(site, writer)?;
    match every {
        None => once(&mut desk, alerts),
        Some(every) => again_and_again(&mut desk, alerts, every, &signals),
    }
}

fn once(desk: &mut Desk, alerts: Option<Alerts>) -> anyhow::Result<u8> {
    let time = now();
    let passed = desk.pass(time)?;
    passed.log();
    desk.drain_lemons(&passed, time);
    if let Some(mut alerts) = alerts {
        alerts.observe(&desk.observation(Some(&passed), time));
        alerts.deliver();
    }
    desk.write_metrics(Some(&passed), time);
    Ok(if passed.problems.is_empty() { OK } else { UNKNOWN })
}

fn again_and_again(
    desk: &mut Desk,
    alerts: Option<Alerts>,
    every: Duration,
    signals: &Signals,
) -> anyhow::Result<u8> {
    let alerts = alerts.map(AlertsThread::start).transpose()?;
    loop {
        let time = now();
        let done = desk.pass(time);
        match &done {
            Ok(passed) => {
                passed.log();
                desk.drain_lemons(passed, time);
            }
            // A full disk can have room again; another writer of the history ends this one.
            Err(why) if pass::may_pass(why) => tracing::error!("{why:#}"),
            Err(_) => return done.map(|_| OK),
        }
        if let Some(alerts) = &alerts {
            alerts.observed(desk.observation(done.as_ref().ok(), time))?;
        }
        desk.write_metrics(done.as_ref().ok(), time);
        if let Some(signal) = signals.wait(every) {
            if let Some(alerts) = alerts {
                alerts.end();
            }
            tracing::info!("{signal}: ended");
            return Ok(OK);
        }
    }
}

//! `railgate fleet`: what follows from the history that `railgate-fleet` keeps, and about which nodes it sends no alerts.

mod accepted;
mod checks;
mod cost;
mod node;
mod overview;
mod page;
mod rma;
mod silences;
mod tested;
mod work;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use railgate_fleet::{Event, History, Judgement, Settings, judge};
use railgate_fleet_store::Reader;
use railgate_model::UnixMillis;
use railgate_runner::Lemons;
use serde::Serialize;

use crate::output::{self, Format};
use crate::pause::who;
use crate::{Site, exit};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate fleet                 lemons, open incidents, nodes out of service
  railgate fleet node gn017      why this node is a lemon, or is not
  railgate fleet incidents       what failed at once, and why
  railgate fleet cost            GPU hours that were lost, by reason
  railgate fleet lemons --format json
  railgate fleet --format html --out fleet.html
                                 one page: what needs action, figures, nodes by days
  railgate fleet repaired gn017 --why 'new fans'
                                 its faults before this no longer count
  railgate fleet rma gn017       what its vendor needs to know
  railgate fleet silences        nodes about which no alerts are sent

Reads the history of `railgate-fleet` as SlurmUser, who owns it, or as root. Intervals contain the true value with a \
probability of 90 %, unless the heading calls them lower and upper bounds.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The history [default: `[fleet] database`]
    #[arg(long, global = true, value_name = "FILE")]
    database: Option<PathBuf>,
    /// How to print it
    #[arg(long, global = true, value_enum, default_value_t = Show::Table)]
    format: Show,
    /// With --format html: where to write the page, as SlurmUser [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// With --format html: who reads the page [default: all]
    #[arg(long, value_enum)]
    audience: Option<page::Audience>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Show {
    /// For people
    Table,
    /// For programs: docs/json.md; fields are never renamed
    Json,
    /// One page of the whole fleet, opens offline; without a subcommand
    Html,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// One node: where it stands, why, and what happened on it
    Node {
        /// Slurm's name of the node
        name: String,
    },
    /// One card: the nodes in which it was seen, and its faults, also through swaps
    Card {
        /// UUID of a GPU, GUID of a network card
        uuid: String,
    },
    /// What failed at once, and why
    Incidents,
    /// One incident with its nodes
    Incident {
        /// Id from `railgate fleet incidents`
        id: String,
    },
    /// Nodes that fail more often than the fleet, and those that were repaired
    Lemons,
    /// GPU hours by partition and month, lost GPU hours by reason, time to failure by job size
    Cost,
    /// How often what followed a drain confirmed the check that asked for it
    Checks,
    /// All events as JSON, for other programs
    Export,
    /// Record a repair of nodes: their faults before it no longer count, and they are on probation
    Repaired(work::WorkArgs),
    /// Record the figures of an acceptance, so that the history of each node has them
    Accepted(accepted::AcceptedArgs),
    /// Record the figures of a self-test that ran on a node
    Tested(tested::TestedArgs),
    /// Record other work on nodes, for example a firmware update
    Maintained(work::WorkArgs),
    /// Silences that hold now: nodes about which no alerts are sent
    Silences,
    /// What the vendor of a node or a card needs to know: cards with serial numbers, faults with their evidence, repairs. It names no
    /// users and no jobs
    Rma(rma::RmaArgs),
    /// Send no alerts about nodes for some time
    Silence(silences::SilenceArgs),
    /// End a silence before its time
    Unsilence {
        /// Id from `railgate fleet silences`
        id: String,
    },
}

/// The judgement looks back for 28 days, and the history may be as short: an older record would have no effect.
const MAX_AGO: Duration = Duration::from_secs(28 * 86_400);

/// A history and its judgement.
struct Known {
    /// Empty for the page: a copy of all events takes longer than the judgement of them.
    events: Vec<Event>,
    history: History,
    judgement: Judgement,
    settings: Settings,
    /// `railgate-fleet` drains lemons itself.
    drains_lemons: bool,
    now: UnixMillis,
}

#[derive(Serialize)]
struct Export<'a> {
    schema: u32,
    events: &'a [Event],
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let is_page = args.format == Show::Html;
    anyhow::ensure!(
        !is_page || args.command.is_none(),
        "only the whole fleet has a page: `railgate fleet --format html`"
    );
    anyhow::ensure!(
        is_page || (args.out.is_none() && args.audience.is_none()),
        "--out and --audience need --format html"
    );
    let format = if args.format == Show::Json { Format::Json } else { Format::Table };
    let database = match &args.database {
        Some(file) => file.clone(),
        None => site.config()?.fleet.database,
    };
    match &args.command {
        Some(Command::Silences) => return silences::list(site, &database, format).map(|()| exit::OK),
        Some(Command::Silence(new)) => return silences::add(&database, new, format),
        Some(Command::Unsilence { id }) => return silences::remove(site, &database, id),
        Some(Command::Accepted(args)) => return accepted::enter(&database, args, format),
        _ => {}
    }
    // Before the identity changes.
    let who = who();
    let known = load(site, &database, !is_page)?;
    match &args.command {
        // Done above: they need no history.
        Some(Command::Silences | Command::Silence(_) | Command::Unsilence { .. } | Command::Accepted(_)) => {}
        None if is_page => {
            page::print(site, &known, args.audience.unwrap_or_default(), args.out.as_deref())?;
            // The program ends: it need not free the millions of names of a large history one by one.
            std::mem::forget(known);
        }
        None => overview::print(&known, format)?,
        Some(Command::Node { name }) => return node::node(&known, name, format),
        Some(Command::Card { uuid }) => return node::card(&known, uuid, format),
        Some(Command::Incidents) => overview::incidents(&known, format)?,
        Some(Command::Incident { id }) => return overview::incident(&known, id, format),
        Some(Command::Lemons) => overview::lemons(&known, format)?,
        Some(Command::Checks) => checks::print(&known, format)?,
        Some(Command::Cost) => cost::print(&known, format)?,
        Some(Command::Export) => output::json(&Export { schema: 1, events: &known.events })?,
        Some(Command::Rma(args)) => return rma::print(&known, args, format),
        Some(Command::Tested(args)) => return tested::enter(&known, &database, args, format),
        Some(Command::Repaired(work)) => return work::enter(&known, &database, &who, work, true, format),
        Some(Command::Maintained(work)) => return work::enter(&known, &database, &who, work, false, format),
    }
    Ok(exit::OK)
}

/// The last line about records that were entered.
fn taken_in(node: &str) -> String {
    format!("railgate-fleet takes this in at its next reading; then `railgate fleet node {node}` shows it")
}

/// Why a node is refused: a record of a wrong name would have no effect, without an error.
fn no_such_node(node: &str) -> String {
    format!("{node}: the history has no such node; `railgate fleet export` has all of them")
}

/// Reads and judges a history. `with_events`: whether [`Known::events`] is needed.
fn load(site: &Site, database: &Path, with_events: bool) -> anyhow::Result<Known> {
    if let Some(dir) = database.parent() {
        railgate_runner::become_owner(dir).context("the owner of the history")?;
    }
    let reader = Reader::open(database).context("railgate-fleet keeps it on the controller")?;
    let events = reader.events(0, UnixMillis::MAX)?;
    let (now, settings) = (railgate_runner::now(), Settings::default());
    let (events, history) = match with_events {
        true => {
            let history = History::new(events.iter().cloned(), now);
            (events, history)
        }
        false => (Vec::new(), History::new(events, now)),
    };
    let judgement = judge(&history, &settings);
    // With --database the configuration may be that of another machine.
    let drains_lemons = site.config().is_ok_and(|config| config.fleet.lemons == Lemons::Drain);
    Ok(Known { events, history, judgement, settings, drains_lemons, now })
}

/// A time in the past, for people.
fn shown(time: UnixMillis) -> String {
    crate::history::time(time / 1000)
}

/// `3.4 (1.2 to 6.0)`.
fn interval(mean: f64, low: f64, high: f64) -> String {
    format!("{mean:.1} ({low:.1} to {high:.1})")
}

/// Rows of text with a head.
fn rows(head: &[&str]) -> Vec<Vec<String>> {
    vec![head.iter().map(|word| (*word).to_owned()).collect()]
}

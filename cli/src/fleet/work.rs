//! `railgate fleet repaired` and `railgate fleet maintained`: work on nodes, for the history.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use railgate_fleet::{Event, Source, What};
use railgate_fleet_store::EnteredFile;
use railgate_model::UnixMillis;
use railgate_slurm::hostlist;
use railgate_text::{Lines, clip, put};

use super::{Export, Known, MAX_AGO, shown, taken_in};
use crate::exit;
use crate::output::{self, Format, complain};

/// Longest name of the user that is kept, characters.
const MAX_BY: usize = 64;
/// Longest description, characters.
const MAX_WHY: usize = 200;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate fleet repaired gn017 --why 'new fans'
  railgate fleet repaired gn017 --card GPU-5e1f --why 'card replaced, RMA 4711' --ago 3h
  railgate fleet maintained 'gn[001-064]' --why 'BIOS 2.4'

After `repaired`, faults before it no longer count against the node, and the node is on probation until it has worked 168 h without a \
fault. If the fault comes back in that time, the earlier ones count again. `maintained` is only shown in the history. A record cannot be \
removed. railgate-fleet takes it in at its next reading. Needs root or SlurmUser.")]
pub(super) struct WorkArgs {
    /// Nodes: a name or a host list
    nodes: String,
    /// What was done
    #[arg(long, value_name = "TEXT")]
    why: String,
    /// Only this card of the node: its UUID, as `railgate fleet node` shows it
    #[arg(long, value_name = "UUID")]
    card: Option<String>,
    /// How long ago the work ended, up to 28days
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "0s")]
    ago: Duration,
}

impl WorkArgs {
    /// The nodes; otherwise what is wrong with the arguments.
    fn nodes(&self, known: &Known) -> Result<Vec<String>, String> {
        let nodes = hostlist::expand(&self.nodes)
            .map_err(|why| format!("{}: not the name of a node, nor a host list: {why}", self.nodes))?;
        if nodes.is_empty() {
            return Err("no node is named".to_owned());
        }
        if let Some(node) = nodes.iter().find(|node| known.judgement.node(node).is_none()) {
            return Err(super::no_such_node(node));
        }
        if let Some(card) = &self.card {
            let [node] = nodes.as_slice() else {
                return Err(format!("--card {card}: a card is in one node, and {} are named", nodes.len()));
            };
            let is_seen = |event: &Event| event.source == Source::Root && has_card(&event.what, node, card);
            if !known.events.iter().any(is_seen) {
                return Err(format!(
                    "{card}: never seen in {node}; `railgate fleet card {card}` shows where it was"
                ));
            }
        }
        if self.ago > MAX_AGO {
            return Err("--ago: at most 28days".to_owned());
        }
        let length = self.why.chars().count();
        if self.why.trim().is_empty() || length > MAX_WHY || self.why.chars().any(char::is_control) {
            return Err(format!("--why: needs 1 to {MAX_WHY} printable characters"));
        }
        Ok(nodes)
    }
}

fn has_card(what: &What, of: &str, card: &str) -> bool {
    match what {
        What::Cards { node, cards } => node == of && cards.iter().any(|known| known.uuid == card),
        What::Finding(finding) => finding.node == of && finding.card.as_deref() == Some(card),
        _ => false,
    }
}

/// Enters work on nodes. `who`: the admin. `repair`: the fault should be gone.
pub(super) fn enter(
    known: &Known,
    database: &Path,
    who: &str,
    args: &WorkArgs,
    repair: bool,
    format: Format,
) -> anyhow::Result<u8> {
    let nodes = match args.nodes(known) {
        Ok(nodes) => nodes,
        Err(why) => {
            complain!("{why}");
            return Ok(exit::USAGE);
        }
    };
    let ago = UnixMillis::try_from(args.ago.as_millis()).unwrap_or(UnixMillis::MAX);
    let time = known.now.saturating_sub(ago);
    let what = if repair { "repaired" } else { "maintained" };
    let by = Some(clip(who, MAX_BY)).filter(|by| !by.is_empty()).unwrap_or_else(|| "unknown".to_owned());
    let event = |node: &String| Event {
        id: format!("{what}/{node}/{}/{time}", args.card.as_deref().unwrap_or_default()),
        time,
        source: Source::Root,
        what: What::Maintained {
            node: node.clone(),
            repair,
            card: args.card.clone(),
            by: by.clone(),
            why: args.why.clone(),
        },
    };
    let events: Vec<Event> = nodes.iter().map(event).collect();
    EnteredFile::beside(database).add(&events).context("no record was written")?;
    if format == Format::Json {
        output::json(&Export { schema: 1, events: &events })?;
        return Ok(exit::OK);
    }
    let mut text = Lines::new();
    let card = args.card.as_ref().map_or_else(String::new, |card| format!(", card {card}"));
    put!(text, "{}: {what} at {}{card}: {}", hostlist::compress(&nodes), shown(time), args.why);
    let first = nodes.first().map_or("", String::as_str);
    put!(text, "{}", taken_in(first));
    output::text(&text)?;
    Ok(exit::OK)
}

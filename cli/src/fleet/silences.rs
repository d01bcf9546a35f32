use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use railgate_gate::CHECKS;
use railgate_model::UnixMillis;
use railgate_runner::{FleetSilence, NewSilence, SilenceFile, now};
use railgate_slurm::hostlist;
use railgate_text::{Lines, clip, put};
use serde::Serialize;

use super::{rows, shown};
use crate::output::{self, Format, complain, say};
use crate::pause::who;
use crate::{Site, exit};

/// Longest name of the user that is kept, characters.
const MAX_BY: usize = 64;
/// Longest list of nodes in the table, characters. Of a longer one, the first names are shown, and the rest is a number.
const LONG: usize = 60;
const SHOWN_NODES: usize = 4;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate fleet silence gn017 --for 4h --why 'new fans'
  railgate fleet silence 'gn[017-032]' --for 1day --why 'leaf switch 2 is replaced'
  railgate fleet silence 'gn7*' --check ib-port --for 2h --why 'new cables in row 7'
  railgate fleet silence '*' --reservation maint-7 --for 8h --why 'driver 580 on its nodes'
  railgate fleet silence '*' --for 8h --why 'maintenance of the whole cluster'

The silence holds from the next observation on, at most one minute later. A condition that lasts beyond the end of the silence is \
then sent. Needs root or SlurmUser.")]
pub(super) struct SilenceArgs {
    /// Nodes: a name, a host list, or the beginning of names with a trailing *
    target: String,
    /// How long, 1m to 90days
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    length: Duration,
    /// Reason, shown by `railgate fleet silences`
    #[arg(long, value_name = "TEXT")]
    why: String,
    /// Only conditions that this check found
    #[arg(long, value_name = "ID")]
    check: Option<String>,
    /// Only while a node is in this reservation, which Slurm 23.02 and later show; with an older Slurm the silence covers nothing
    #[arg(long, value_name = "NAME")]
    reservation: Option<String>,
}

#[derive(Serialize)]
struct List {
    schema: u32,
    silences: Vec<Row>,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    id: String,
    source: &'static str,
    nodes: Vec<String>,
    check: Option<String>,
    reservation: Option<String>,
    until: UnixMillis,
    by: Option<String>,
    reason: String,
}

impl Row {
    fn of(silence: FleetSilence) -> Row {
        let FleetSilence { id, nodes, check, reservation, until, by, reason } = silence;
        Row { id, source: "command", nodes, check, reservation, until: until.0, by: Some(by), reason }
    }

    fn target(&self) -> String {
        let mut text = hosts(&self.nodes);
        if self.nodes.is_empty() {
            text = "all nodes".to_owned();
        } else if text.chars().count() > LONG {
            let more = self.nodes.len().saturating_sub(SHOWN_NODES);
            text = hosts(self.nodes.get(..SHOWN_NODES).unwrap_or(&self.nodes));
            if more > 0 {
                text.push_str(&format!(" and {more} more"));
            }
        }
        for (what, value) in [("check", &self.check), ("reservation", &self.reservation)] {
            if let Some(value) = value {
                text.push_str(&format!(", {what} {value}"));
            }
        }
        text
    }
}

/// Beginnings of names, then names as a host list.
fn hosts(nodes: &[String]) -> String {
    let (mut parts, names): (Vec<String>, Vec<String>) =
        nodes.iter().cloned().partition(|name| name.ends_with('*'));
    if !names.is_empty() {
        parts.push(hostlist::compress(&names));
    }
    parts.join(",")
}

/// The file, opened as its owner.
fn file(database: &Path) -> anyhow::Result<SilenceFile> {
    if let Some(dir) = database.parent() {
        railgate_runner::become_owner(dir).context("the owner of the silences")?;
    }
    Ok(SilenceFile::beside(database))
}

pub(super) fn list(site: &Site, database: &Path, format: Format) -> anyhow::Result<()> {
    let config = site.config()?.alerts;
    let time = now();
    let found = file(database)?
        .read(time)
        .context("silences are on the controller, where only root and SlurmUser can read them")?;
    let of_config = config.silences.into_iter().filter(|(_, silence)| silence.until.0 > time);
    let mut silences: Vec<Row> = of_config
        .map(|(id, silence)| Row {
            id,
            source: "configuration",
            nodes: silence.nodes,
            check: silence.check,
            reservation: silence.reservation,
            until: silence.until.0,
            by: None,
            reason: silence.reason,
        })
        .collect();
    silences.extend(found.silences.into_iter().map(Row::of));
    if format == Format::Json {
        return output::json(&List { schema: 1, silences, problems: found.problems });
    }
    for problem in &found.problems {
        complain!("{problem}");
    }
    if silences.is_empty() {
        return say!("no silences: alerts are sent about all nodes");
    }
    let mut table = rows(&["ID", "TARGET", "UNTIL", "BY", "WHY"]);
    for row in &silences {
        table.push(vec![
            row.id.clone(),
            row.target(),
            shown(row.until),
            row.by.clone().unwrap_or_else(|| row.source.to_owned()),
            row.reason.clone(),
        ]);
    }
    output::text(&output::table(&table))
}

pub(super) fn add(database: &Path, args: &SilenceArgs, format: Format) -> anyhow::Result<u8> {
    let nodes = match args.target.ends_with('*') {
        true => vec![args.target.clone()],
        false => match hostlist::expand(&args.target) {
            Ok(nodes) => nodes,
            Err(why) => {
                complain!("{}: not the name of a node, nor a host list: {why}", args.target);
                return Ok(exit::USAGE);
            }
        },
    };
    if let Some(check) = &args.check
        && !check.starts_with("site-")
        && !CHECKS.iter().any(|known| known.id == check)
    {
        complain!("{check}: no such check; `railgate check --list` lists them");
        return Ok(exit::USAGE);
    }
    // Before the identity changes.
    let by = Some(clip(&who(), MAX_BY)).filter(|by| !by.is_empty()).unwrap_or_else(|| "unknown".to_owned());
    let new = NewSilence {
        nodes,
        check: args.check.clone(),
        reservation: args.reservation.clone(),
        length: args.length,
        by,
        reason: args.why.clone(),
    };
    let row = Row::of(file(database)?.add(new, now()).context("no silence was made")?);
    if format == Format::Json {
        output::json(&List { schema: 1, silences: vec![row], problems: Vec::new() })?;
        return Ok(exit::OK);
    }
    let mut text = Lines::new();
    put!(text, "{}: no alerts about {} until {}", row.id, row.target(), shown(row.until));
    put!(text, "`railgate fleet unsilence {}` ends it earlier", row.id);
    output::text(&text)?;
    Ok(exit::OK)
}

pub(super) fn remove(site: &Site, database: &Path, id: &str) -> anyhow::Result<u8> {
    let is_of_config = site.config()?.alerts.silences.contains_key(id);
    match file(database)?.remove(id, now()).context("no silence was ended")? {
        Some(silence) => {
            let row = Row::of(silence);
            say!("{}: ended; alerts about {} are sent again", row.id, row.target())?;
            Ok(exit::OK)
        }
        None if is_of_config => {
            complain!("{id}: a silence of the configuration; remove [alerts.silences.{id}] there");
            Ok(exit::USAGE)
        }
        None => {
            complain!("{id}: no such silence; `railgate fleet silences` lists them");
            Ok(exit::USAGE)
        }
    }
}

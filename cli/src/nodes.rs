use std::collections::BTreeMap;

use anyhow::Context as _;
use railgate_runner::Places;
use railgate_slurm::{Client, Entry, Env, Event, HeldNode, Ledger, Reason, is_ours};
use serde::Serialize;

use crate::history::time;
use crate::output::{self, Format};
use crate::{Site, exit};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate nodes                                       what railgate holds, since when, why, what to do
  railgate nodes --all                                 also what others hold
  railgate nodes --format json

Asks slurmctld (sinfo). On the controller the ledger adds how many jobs each node took down.
`railgate explain NODE` has the story of one node, `railgate readmit NODE` gives it back.")]
pub(crate) struct Args {
    /// Also nodes that somebody else holds
    #[arg(long)]
    all: bool,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Serialize)]
struct Row {
    name: String,
    partitions: Vec<String>,
    state: String,
    /// Milliseconds; `None` where Slurm does not say.
    since: Option<u64>,
    /// railgate holds it.
    ours: bool,
    reason: String,
    check: Option<String>,
    part: Option<String>,
    what: Option<String>,
    fix: Option<String>,
    phase: Option<String>,
    /// Jobs in the reason.
    jobs: Vec<u32>,
    /// Jobs that died of this node, by the ledger; `None` where there is none to read.
    deaths: Option<usize>,
}

impl Row {
    fn new(node: HeldNode, deaths: Option<&BTreeMap<String, usize>>) -> Row {
        let parsed = Reason::parse(&node.reason);
        let subject = parsed.as_ref().map(|reason| reason.subject.clone());
        let (check, part) = match subject.as_deref().map(|subject| subject.split_once('@')) {
            Some(Some((check, part))) => (Some(check.to_owned()), Some(part.to_owned())),
            Some(None) => (subject, None),
            None => (None, None),
        };
        Row {
            deaths: deaths.map(|deaths| deaths.get(&node.name).copied().unwrap_or(0)),
            name: node.name,
            partitions: node.partitions,
            state: node.state,
            since: node.since.map(|since| since * 1000),
            ours: is_ours(&node.reason),
            check,
            part,
            what: parsed.as_ref().map(|reason| reason.what.clone()),
            fix: parsed.as_ref().map(|reason| reason.fix.clone()),
            phase: parsed.as_ref().map(|reason| reason.phase.to_string()),
            jobs: parsed.map(|reason| reason.jobs).unwrap_or_default(),
            reason: node.reason,
        }
    }

    fn subject(&self) -> Option<String> {
        let check = self.check.as_ref()?;
        Some(self.part.as_ref().map_or_else(|| check.clone(), |part| format!("{check}@{part}")))
    }
}

/// The controller's ledger; `None` on other machines.
pub(crate) fn ledger(places: &Places) -> Option<Vec<Entry>> {
    let dir = places.state.join("controller");
    dir.is_dir().then(|| Ledger::new(&dir).read().ok()).flatten()
}

/// Whether the job ended because of the nodes that the line blames.
pub(crate) fn is_death(event: Event) -> bool {
    matches!(event, Event::Death | Event::NodeFail | Event::Held | Event::Left)
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let config = site.config()?;
    let env: Env = std::env::vars_os().collect();
    let held = Client::new(&config.slurm, &env).held_nodes().context("slurmctld")?;
    let ledger = ledger(&site.places);
    let deaths = ledger.as_ref().map(|entries| {
        let mut deaths: BTreeMap<String, usize> = BTreeMap::new();
        for entry in entries.iter().filter(|entry| is_death(entry.event)) {
            for blamed in &entry.blamed {
                *deaths.entry(blamed.node.clone()).or_default() += 1;
            }
        }
        deaths
    });
    let rows: Vec<Row> = held.into_iter().map(|node| Row::new(node, deaths.as_ref())).collect();
    let (ours, others): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| row.ours);
    let (held_by_us, held_by_others) = (ours.len(), others.len());
    let shown: Vec<Row> = if args.all { ours.into_iter().chain(others).collect() } else { ours };
    if args.format == Format::Json {
        output::json(&serde_json::json!({
            "schema": 1, "held": held_by_us, "max_nodes": config.breaker.max_nodes,
            "max_percent": config.breaker.max_percent, "nodes": shown,
        }))?;
        return Ok(exit::OK);
    }
    let mut text = String::new();
    if !shown.is_empty() {
        let mut table =
            vec![["NODE", "STATE", "SINCE", "WHY", "DO", "JOBS", "DIED HERE"].map(str::to_owned).to_vec()];
        table.extend(shown.iter().map(|row| {
            let (why, fix) = match (row.subject(), &row.what) {
                (Some(subject), Some(what)) => {
                    (format!("{subject}: {what}"), row.fix.clone().unwrap_or_default())
                }
                _ if row.ours => (row.reason.clone(), String::new()),
                _ => (format!("(not railgate's) {}", row.reason), String::new()),
            };
            let jobs: Vec<String> = row.jobs.iter().map(u32::to_string).collect();
            vec![
                row.name.clone(),
                row.state.clone(),
                row.since.map_or_else(|| "unknown".to_owned(), |since| time(since / 1000)),
                why,
                fix,
                if jobs.is_empty() { "-".to_owned() } else { jobs.join(",") },
                row.deaths.map_or_else(|| "unknown".to_owned(), |deaths| deaths.to_string()),
            ]
        }));
        text.push_str(&output::table(&table));
    }
    text.push_str(&format!(
        "railgate holds {held_by_us} node{}; [breaker] stops at {} nodes or {}% of the cluster\n",
        if held_by_us == 1 { "" } else { "s" },
        config.breaker.max_nodes,
        config.breaker.max_percent,
    ));
    if held_by_others > 0 && !args.all {
        text.push_str(&format!("{held_by_others} more are held by others: --all\n"));
    }
    if held_by_us > 0 {
        text.push_str("next: railgate explain NODE; after the repair, on the node: railgate readmit NODE\n");
    }
    output::text(&text)?;
    Ok(exit::OK)
}

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use railgate_slurm::{
    BreakerConfig, Cap, Client, Entry, Env, Event, HangNote, HangStage, HeldNode, Ledger, LetThrough,
    OnBreaker, Reason, is_ours,
};
use railgate_text::{Lines, put};
use serde::Serialize;

use crate::doctor::facts::{SlurmConf, is_controller};
use crate::history::time;
use crate::output::{self, Format};
use crate::{Site, exit};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate nodes        drained by railgate, unfit nodes still in service, and
                        jobs that hung within the last hour
  railgate nodes --all  also nodes drained by others
  railgate nodes --format json

Asks slurmctld (sinfo). On the controller the ledger adds how many jobs failed on each node. `railgate explain \
NODE` shows the history of one node, `railgate readmit NODE` resumes it.")]
pub(crate) struct Args {
    /// Also nodes that were drained by others
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
    /// Milliseconds; `None` if Slurm does not show it.
    since: Option<u64>,
    /// railgate drained it.
    ours: bool,
    reason: String,
    check: Option<String>,
    part: Option<String>,
    what: Option<String>,
    fix: Option<String>,
    phase: Option<String>,
    /// Jobs named in the reason.
    jobs: Vec<u32>,
    /// Jobs that failed because of this node, by the ledger; `None` without a readable ledger.
    deaths: Option<usize>,
}

impl Row {
    fn new(node: HeldNode, deaths: Option<&BTreeMap<String, usize>>) -> Row {
        let parsed = Reason::parse(&node.reason);
        let (check, part) = parsed.as_ref().map(check_and_part).unzip();
        Row {
            deaths: deaths.map(|deaths| deaths.get(&node.name).copied().unwrap_or(0)),
            name: node.name,
            partitions: node.partitions,
            state: node.state,
            since: node.since.map(|since| since * 1000),
            ours: is_ours(&node.reason),
            check,
            part: part.flatten(),
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

/// An unfit node that the breaker left in service.
#[derive(Serialize)]
struct NotDrained {
    name: String,
    /// Milliseconds; `None` if the comment has no time.
    since: Option<u64>,
    check: String,
    part: Option<String>,
    what: String,
    fix: String,
    phase: String,
}

impl NotDrained {
    fn new(name: String, note: LetThrough) -> NotDrained {
        let (check, part) = check_and_part(&note.reason);
        let since = note.since.map(|since| since * 1000);
        let Reason { what, fix, phase, .. } = note.reason;
        NotDrained { name, since, check, part, what, fix, phase: phase.to_string() }
    }

    fn cells(&self) -> Vec<String> {
        let part = self.part.as_ref().map(|part| format!("@{part}")).unwrap_or_default();
        vec![
            self.name.clone(),
            shown_time(self.since),
            format!("{}{part}: {}", self.check, self.what),
            self.fix.clone(),
        ]
    }
}

/// A job that hangs, or that the guard ended because it hung.
#[derive(Serialize)]
struct HungRow {
    job: u32,
    node: String,
    /// Milliseconds: when the hang was named, or the job ended.
    time: u64,
    /// `hangs`, `storage` (it waits for a file system), `ended`.
    stage: HangStage,
}

impl HungRow {
    /// From the comment of a node. Of a job that was ended only that is shown.
    fn of_node((node, comment): &(String, String), now: u64) -> Vec<HungRow> {
        let mut all = HangNote::all(comment);
        all.retain(|one| one.counts(now));
        let is_ended = |job| all.iter().any(|one| one.job == job && one.stage.was_ended());
        let is_shown = |one: &&HangNote| one.stage.was_ended() || !is_ended(one.job);
        let row = |one: &HangNote| HungRow {
            job: one.job,
            node: node.clone(),
            time: one.time * 1000,
            stage: one.stage,
        };
        all.iter().filter(is_shown).map(row).collect()
    }

    fn cells(&self) -> Vec<String> {
        let what = match self.stage {
            HangStage::Hangs => "hangs",
            HangStage::Storage => "waits for storage",
            HangStage::Ended => "hung, and was ended",
            HangStage::Restarted => "hung, was ended, and was started again",
        };
        vec![self.job.to_string(), self.node.clone(), shown_time(Some(self.time)), what.to_owned()]
    }
}

fn check_and_part(reason: &Reason) -> (String, Option<String>) {
    match reason.subject.split_once('@') {
        Some((check, part)) => (check.to_owned(), Some(part.to_owned())),
        None => (reason.subject.clone(), None),
    }
}

fn shown_time(since: Option<u64>) -> String {
    since.map_or_else(|| "unknown".to_owned(), |since| time(since / 1000))
}

/// The controller's ledger; `None` on other machines, which have none, and for users who may not read it. Empty on a
/// controller that has not written one yet.
pub(crate) fn ledger(site: &Site, client: &Client) -> Option<Vec<Entry>> {
    let ledger = Ledger::new(&site.places.state.join("controller"));
    let is_controller = || client.config().is_ok_and(|said| is_controller(site, &SlurmConf(said)));
    (ledger.is_there() || is_controller()).then(|| ledger.read().ok()).flatten()
}

/// Whether the job failed because of the nodes that the line blames.
pub(crate) fn is_death(event: Event) -> bool {
    matches!(event, Event::Death | Event::NodeFail | Event::Held | Event::Left)
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let config = site.config()?;
    let env: Env = std::env::vars_os().collect();
    let client = Client::new(&config.slurm, &env);
    let (held, caps) = client.held_nodes_and_caps(&config.breaker).context("slurmctld")?;
    let comments = client.comments();
    // A node may have been drained meanwhile.
    let drained: BTreeSet<&str> = held.iter().map(|node| node.name.as_str()).collect();
    let not_drained = comments.as_ref().map(|all| {
        let left = all.iter().filter(|(node, _)| !drained.contains(node.as_str()));
        left.filter_map(|(node, comment)| Some(NotDrained::new(node.clone(), LetThrough::parse(comment)?)))
            .collect::<Vec<_>>()
    });
    let now = railgate_runner::now() / 1000;
    let hung: Vec<HungRow> = comments.iter().flatten().flat_map(|node| HungRow::of_node(node, now)).collect();
    let ledger = ledger(site, &client);
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
            "max_percent": config.breaker.max_percent, "caps": caps, "nodes": shown,
            "not_drained": not_drained.as_ref().ok(), "hung_jobs": comments.as_ref().ok().map(|_| &hung),
        }))?;
        return Ok(exit::OK);
    }
    let mut text = Lines::new();
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
                shown_time(row.since),
                why,
                fix,
                if jobs.is_empty() { "-".to_owned() } else { jobs.join(",") },
                row.deaths.map_or_else(|| "unknown".to_owned(), |deaths| deaths.to_string()),
            ]
        }));
        text.add(&output::table(&table));
    }
    match &not_drained {
        Ok(nodes) if nodes.is_empty() => {}
        Ok(nodes) => {
            put!(text, "unfit and not drained, because the breaker was open:");
            let mut table = vec![["NODE", "SINCE", "WHY", "DO"].map(str::to_owned).to_vec()];
            table.extend(nodes.iter().map(NotDrained::cells));
            text.add(&output::table(&table));
        }
        Err(why) => put!(text, "which unfit nodes were not drained is not known: {why}"),
    }
    if !hung.is_empty() {
        put!(
            text,
            "jobs that hung within the last hour (only those with --railgate-hang=end or [guard] mode = \"end\"):"
        );
        let mut table = vec![["JOB", "NODE", "TIME", "WHAT"].map(str::to_owned).to_vec()];
        table.extend(hung.iter().map(HungRow::cells));
        text.add(&output::table(&table));
    }
    text.add(&standing(&config.breaker, &caps));
    if held_by_others > 0 && !args.all {
        put!(text, "{held_by_others} more are drained by others: --all");
    }
    if held_by_us > 0 {
        put!(text, "next: railgate explain NODE; after the repair, on the node: railgate readmit NODE");
    }
    output::text(&text)?;
    Ok(exit::OK)
}

/// State of `[breaker]`: one line for the cluster, and one for each partition where no further node may be drained.
fn standing(config: &BreakerConfig, caps: &[Cap]) -> Lines {
    let mut text = Lines::new();
    let Some((cluster, partitions)) = caps.split_first() else { return text };
    let keys = format!("[breaker] max_nodes = {}, max_percent = {}", config.max_nodes, config.max_percent);
    let allowed = match cluster.limit.checked_sub(cluster.held) {
        Some(more @ 1..) => format!("{more} more may be drained ({keys}: {} here)", cluster.limit),
        _ => format!("the limit is {} ({keys})", cluster.limit),
    };
    put!(text, "nodes drained by railgate: {} of {}; {allowed}", cluster.held, cluster.nodes);
    for cap in partitions.iter().filter(|cap| cap.is_reached() && !cluster.is_reached()) {
        put!(text, "{}: {} of {} nodes drained; the limit is {}", cap.scope, cap.held, cap.nodes, cap.limit);
    }
    if caps.iter().any(Cap::is_reached) {
        let jobs = match config.on_breaker {
            OnBreaker::Run => "jobs start on them, and their owners are notified",
            OnBreaker::Hold => "jobs that would start on them are requeued and held",
        };
        put!(
            text,
            "the breaker is open: further unfit nodes are not drained, {jobs}; \
             one with a comment of the site's own in Slurm is not listed: `railgate check` there tells"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cap(scope: &str, nodes: usize, held: usize, limit: usize) -> Cap {
        Cap { scope: scope.to_owned(), nodes, held, limit }
    }

    #[test]
    fn a_job_that_was_ended_is_listed_once() {
        let comment = "railgate: hangs: 7 hangs 2026-11-21T00:50:00Z, 7 ended 2026-11-21T00:55:00Z, 9 storage 2026-11-21T00:59:59Z";
        let now = 1_795_222_800;
        let rows = HungRow::of_node(&("gn1".to_owned(), comment.to_owned()), now);
        assert!(HungRow::of_node(&("gn1".to_owned(), comment.to_owned()), now + 3600).is_empty());
        let cells: Vec<String> = rows.iter().map(|row| row.cells().join(" ")).collect();
        assert_eq!(
            cells,
            [
                "7 gn1 2026-11-21T00:55:00Z hung, and was ended",
                "9 gn1 2026-11-21T00:59:59Z waits for storage"
            ]
        );
        assert!(HungRow::of_node(&("gn1".to_owned(), "rack 7".to_owned()), now).is_empty());
    }

    #[test]
    fn a_reached_limit_is_shown_with_its_effect() {
        let config = BreakerConfig::default();
        let small = standing(&config, &[cap("cluster", 4, 1, 1), cap("partition main", 4, 1, 1)]);
        assert!(
            small.starts_with(
                "nodes drained by railgate: 1 of 4; the limit is 1 ([breaker] max_nodes = 10, max_percent = 10)\n\
             the breaker is open: further unfit nodes are not drained, jobs start on them"
            ),
            "{small}"
        );
        let large = standing(&config, &[cap("cluster", 200, 3, 10), cap("partition small", 4, 1, 1)]);
        assert!(large.starts_with(
            "nodes drained by railgate: 3 of 200; 7 more may be drained ([breaker] max_nodes = 10, max_percent = 10: 10 here)\n\
             partition small: 1 of 4 nodes drained; the limit is 1\nthe breaker is open"
        ), "{large}");
        let free = standing(&config, &[cap("cluster", 200, 0, 10), cap("partition main", 200, 0, 10)]);
        assert!(!free.contains("breaker is open"), "{free}");
    }
}

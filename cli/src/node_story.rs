//! `railgate explain NODE`: the node's state, its findings, the jobs that it made fail, and the parts that caused
//! this.

use std::collections::BTreeMap;

use railgate_gate::CHECKS;
use railgate_runner::{Episode, FindingHistory, Given, History};
use railgate_slurm::{Client, Entry, Env, LemonReason, NodeState, Reason, hostlist, is_ours};
use railgate_text::{Lines, put};
use serde::Serialize;

use crate::history::time;
use crate::nodes::{is_death, ledger};
use crate::output::{self, Format};
use crate::{Site, exit};

/// Most lines of each list on a terminal.
const SHOWN: usize = 20;

#[derive(Serialize)]
struct Story {
    schema: u32,
    node: String,
    state: String,
    partitions: Vec<String>,
    held: bool,
    ours: bool,
    /// Milliseconds.
    since: Option<u64>,
    reason: Option<String>,
    /// What to do next, one line each.
    next: Vec<String>,
    /// Lines of the controller's ledger that blame this node; `None` without a readable ledger.
    jobs: Option<Vec<Entry>>,
    /// Finding history of this node; `None` on another machine.
    found: Option<Vec<Episode>>,
    given_back: Option<Vec<Given>>,
    parts: Vec<PartStory>,
}

/// A part by an identifier that stays the same if it moves.
#[derive(Serialize)]
struct PartStory {
    identity: String,
    subjects: Vec<String>,
    /// Number of findings and job failures.
    times: usize,
    /// Whether it is in this node now; `None` if unknown.
    here: Option<bool>,
}

/// Prints a node's history; `None` if Slurm does not know the node.
pub(crate) fn run(site: &Site, name: &str, format: Format) -> anyhow::Result<Option<u8>> {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if !plain || hostlist::expand(name).is_err() {
        return Ok(None);
    }
    let config = site.config()?;
    let env: Env = std::env::vars_os().collect();
    let client = Client::new(&config.slurm, &env);
    let state = match client.node(name) {
        Ok(state) => Ok(state),
        Err(why) if name == site.node => Err(why.to_string()),
        Err(why) if why.to_string().contains("not found") => return Ok(None),
        Err(why) => anyhow::bail!("unknown whether Slurm has such a node: {why}"),
    };
    let story = story(site, name, state, ledger(site, &client));
    if format == Format::Json {
        output::json(&story)?;
    } else {
        output::text(&text(&story))?;
    }
    Ok(Some(exit::OK))
}

fn story(site: &Site, name: &str, state: Result<NodeState, String>, ledger: Option<Vec<Entry>>) -> Story {
    let here = name == site.node;
    let jobs = ledger.map(|entries| {
        let blames = |entry: &Entry| entry.blamed.iter().any(|blamed| blamed.node == name);
        // The owners of the jobs are not shown outside the controller.
        let shown = |entry| Entry { uid: None, ..entry };
        entries.into_iter().filter(blames).map(shown).collect::<Vec<_>>()
    });
    let past = here.then(|| FindingHistory::load(&site.places));
    let held = state.as_ref().is_ok_and(NodeState::held);
    let reason = state.as_ref().ok().and_then(|state| state.reason.clone()).filter(|_| held);
    let ours = reason.as_ref().is_some_and(|reason| is_ours(&reason.text));
    let hardware = History::load(&site.places).hardware;
    let parts = parts(name, jobs.as_deref(), past.as_ref(), |identity| {
        (here && !hardware.is_empty()).then(|| hardware.contains(identity))
    });
    Story {
        schema: 1,
        node: name.to_owned(),
        next: next(name, here, &state, reason.as_ref().map(|reason| reason.text.as_str())),
        held,
        ours,
        since: reason.as_ref().and_then(|reason| reason.since).map(|since| since * 1000),
        reason: reason.map(|reason| reason.text),
        partitions: state.as_ref().map(|state| state.partitions.clone()).unwrap_or_default(),
        state: state.map_or_else(|why| format!("unknown: {why}"), |state| state.state()),
        jobs,
        found: past.as_ref().map(|past| past.episodes.clone()),
        given_back: past.map(|past| past.given_back),
        parts,
    }
}

fn next(name: &str, here: bool, state: &Result<NodeState, String>, reason: Option<&str>) -> Vec<String> {
    let Ok(state) = state else { return Vec::new() };
    let on = if here { String::new() } else { format!("on {name}: ") };
    let Some(text) = reason else {
        return if state.held() {
            vec!["drained without a reason: not by railgate".to_owned()]
        } else {
            Vec::new()
        };
    };
    if !is_ours(text) {
        return vec!["drained by others: railgate leaves it alone".to_owned()];
    }
    if LemonReason::is(text) {
        return vec![
            format!(
                "it fails more often than the fleet (on the controller: railgate fleet node {name}); no part was found broken"
            ),
            format!("{on}railgate readmit {name} runs all self-tests, and resumes it if it passes"),
        ];
    }
    let mut next = Vec::new();
    if let Some(reason) = Reason::parse(text) {
        let check = reason.subject.split('@').next().unwrap_or_default().to_owned();
        if let Some(known) = CHECKS.iter().find(|known| known.id == check) {
            next.push(format!("{}: {} (railgate explain {check})", reason.subject, known.about));
        }
        if !reason.fix.is_empty() {
            next.push(format!("repair: {}", reason.fix));
        }
    }
    next.push(format!("then {on}railgate readmit {name}"));
    next
}

fn parts(
    node: &str,
    jobs: Option<&[Entry]>,
    past: Option<&FindingHistory>,
    here: impl Fn(&str) -> Option<bool>,
) -> Vec<PartStory> {
    let mut parts: BTreeMap<String, (Vec<String>, usize)> = BTreeMap::new();
    let mut add = |identity: &str, subject: String| {
        if identity.is_empty() {
            return;
        }
        let (subjects, times) = parts.entry(identity.to_owned()).or_default();
        *times += 1;
        if !subjects.contains(&subject) {
            subjects.push(subject);
        }
    };
    for episode in past.into_iter().flat_map(|past| &past.episodes) {
        add(&episode.identity, episode.finding.subject());
    }
    for entry in jobs.into_iter().flatten().filter(|entry| is_death(entry.event)) {
        for blamed in entry.blamed.iter().filter(|blamed| blamed.node == node) {
            add(&blamed.part, blamed.subject.clone());
        }
    }
    parts
        .into_iter()
        .map(|(identity, (subjects, times))| PartStory { here: here(&identity), identity, subjects, times })
        .collect()
}

fn text(story: &Story) -> Lines {
    let mut text = Lines::new();
    let since = story.since.map_or_else(String::new, |since| format!(" since {}", time(since / 1000)));
    put!(text, "{}: {}{since}", story.node, story.state);
    if let Some(reason) = &story.reason {
        put!(text, "  {reason}");
    }
    for line in &story.next {
        put!(text, "  {line}");
    }
    match &story.jobs {
        None => {
            text.blank();
            put!(
                text,
                "Jobs that failed on it: not known here. The ledger is on the controller: there, as root, railgate explain {}",
                story.node
            );
        }
        Some(jobs) if jobs.is_empty() => {
            text.blank();
            put!(text, "Jobs that failed on it: none in the ledger");
        }
        Some(jobs) => {
            text.blank();
            put!(text, "Jobs that failed on it or were refused");
            let rows = jobs.iter().map(|entry| {
                let of_this = entry.blamed.iter().filter(|blamed| blamed.node == story.node);
                let subjects: Vec<&str> = of_this.map(|blamed| blamed.subject.as_str()).collect();
                let event = serde_json::to_value(entry.event).ok();
                let event = event.as_ref().and_then(|event| event.as_str()).unwrap_or_default().to_owned();
                vec![
                    time(entry.time / 1000),
                    event,
                    entry.name.clone(),
                    subjects.join(","),
                    entry.why.clone(),
                ]
            });
            push_table(&mut text, &["TIME", "EVENT", "JOB", "PART", "WHY"], rows.collect());
        }
    }
    match &story.found {
        None => {
            text.blank();
            put!(text, "Found on it: on {} itself, railgate explain {}", story.node, story.node);
        }
        Some(found) if found.is_empty() => {
            text.blank();
            put!(text, "Found on it: nothing yet, or /var/lib/railgate was lost");
        }
        Some(found) => {
            text.blank();
            put!(text, "Found on it");
            let rows = found.iter().map(|episode| {
                let last = if episode.open { "still there".to_owned() } else { time(episode.last) };
                let jobs: Vec<String> = episode.jobs.iter().map(u32::to_string).collect();
                vec![
                    time(episode.first),
                    last,
                    episode.finding.severity.to_string(),
                    jobs.join(","),
                    format!("{}: {}", episode.finding.subject(), episode.finding.what),
                    outcome(episode),
                ]
            });
            push_table(&mut text, &["FIRST", "LAST", "HOW BAD", "JOBS", "WHAT", "OUTCOME"], rows.collect());
        }
    }
    if let Some(given) = story.given_back.as_ref().filter(|given| !given.is_empty()) {
        text.blank();
        put!(text, "Resumed");
        let rows = given.iter().map(|given| vec![time(given.time), given.by.clone(), given.reason.clone()]);
        push_table(&mut text, &["TIME", "BY", "DRAIN REASON"], rows.collect());
    }
    if !story.parts.is_empty() {
        text.blank();
        put!(text, "Parts");
        let rows = story.parts.iter().map(|part| {
            let place = match part.here {
                Some(true) => "in this node",
                Some(false) => "no longer in this node",
                None => "",
            };
            let times = format!("{} time{}", part.times, if part.times == 1 { "" } else { "s" });
            vec![part.identity.clone(), part.subjects.join(","), times, place.to_owned()]
        });
        let rows: Vec<_> = rows.collect();
        text.add(&output::table(&rows));
    }
    text
}

fn outcome(episode: &Episode) -> String {
    match (episode.drained, episode.shadow) {
        (Some(at), _) => format!("drained {}", time(at)),
        (None, true) if episode.would_drain => "in shadow, would have drained".to_owned(),
        (None, true) => "in shadow".to_owned(),
        (None, false) if !episode.outcome.is_empty() => episode.outcome.clone(),
        (None, false) => "reported".to_owned(),
    }
}

/// Adds the newest lines of a table, oldest first.
fn push_table(text: &mut Lines, head: &[&str], rows: Vec<Vec<String>>) {
    let over = rows.len().saturating_sub(SHOWN);
    if over > 0 {
        put!(text, "({over} older: --format json)");
    }
    let mut table = vec![head.iter().map(|cell| (*cell).to_owned()).collect()];
    table.extend(rows.into_iter().skip(over));
    text.add(&output::table(&table));
}

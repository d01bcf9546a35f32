use std::collections::BTreeMap;

use railgate_fleet::{Incident, NodeRecord, Standing};
use railgate_model::UnixMillis;
use railgate_text::{Lines, put};
use serde::Serialize;

use super::{Known, interval, rows, shown};
use crate::exit;
use crate::output::{self, Format, complain, say};

#[derive(Serialize)]
struct Overview {
    schema: u32,
    now: UnixMillis,
    /// Time of the first and of the last event; `None` without events.
    since: Option<UnixMillis>,
    last: Option<UnixMillis>,
    events: usize,
    nodes: usize,
    attempts: usize,
    lemons: Vec<String>,
    probation: Vec<String>,
    out_of_service: Vec<String>,
    open_incidents: Vec<IncidentRow>,
}

#[derive(Serialize)]
struct IncidentRow {
    id: String,
    #[serde(flatten)]
    incident: Incident,
}

#[derive(Serialize)]
struct Incidents {
    schema: u32,
    incidents: Vec<IncidentRow>,
}

#[derive(Serialize)]
struct Lemons<'a> {
    schema: u32,
    nodes: Vec<LemonRow<'a>>,
}

#[derive(Serialize)]
pub(super) struct LemonRow<'a> {
    #[serde(flatten)]
    record: &'a NodeRecord,
    proposes_drain: bool,
}

impl<'a> LemonRow<'a> {
    pub(super) fn of(record: &'a NodeRecord) -> LemonRow<'a> {
        LemonRow { record, proposes_drain: record.proposes_drain() }
    }
}

/// The incidents with their ids: the time of the start in Unix seconds, and a number among those that started in the same second.
fn numbered(known: &Known) -> Vec<IncidentRow> {
    let mut of_second: BTreeMap<UnixMillis, usize> = BTreeMap::new();
    let row = |incident: &Incident| {
        let second = incident.start / 1000;
        let count = of_second.entry(second).or_default();
        *count += 1;
        IncidentRow { id: format!("{second}-{count}"), incident: incident.clone() }
    };
    known.judgement.incidents.iter().map(row).collect()
}

fn names<'a>(known: &'a Known, wanted: impl Fn(&NodeRecord) -> bool + 'a) -> Vec<String> {
    let nodes = known.judgement.nodes.iter();
    nodes.filter(|record| wanted(record)).map(|record| record.node.clone()).collect()
}

pub(super) fn print(known: &Known, format: Format) -> anyhow::Result<()> {
    let mut open_incidents = numbered(known);
    open_incidents.retain(|row| row.incident.end.is_none());
    let overview = Overview {
        schema: 1,
        now: known.now,
        since: known.events.first().map(|event| event.time),
        last: known.events.last().map(|event| event.time),
        events: known.events.len(),
        nodes: known.judgement.nodes.len(),
        attempts: known.history.attempts().len(),
        lemons: names(known, |record| record.standing == Standing::Lemon),
        probation: names(known, |record| record.standing == Standing::Probation),
        out_of_service: names(known, |record| record.out_of_service),
        open_incidents,
    };
    if format == Format::Json {
        return output::json(&overview);
    }
    let mut text = Lines::new();
    match (overview.since, overview.last) {
        (Some(since), Some(last)) => put!(
            text,
            "{} nodes and {} job attempts since {}, last event {}",
            overview.nodes,
            overview.attempts,
            shown(since),
            shown(last)
        ),
        _ => put!(text, "no events yet: railgate-fleet takes them in"),
    }
    for (title, names, meaning) in [
        ("lemons", &overview.lemons, "fail more often than the fleet: railgate fleet lemons"),
        ("on probation", &overview.probation, "were repaired, and have not yet worked long enough"),
        ("out of service", &overview.out_of_service, "take no jobs now"),
    ] {
        if names.is_empty() {
            put!(text, "{title}: none");
        } else {
            put!(text, "{title}: {} ({meaning}): {}", names.len(), names.join(", "));
        }
    }
    put!(text, "open incidents: {}", overview.open_incidents.len());
    for row in &overview.open_incidents {
        put!(text, "  {}: {}", row.id, row.incident.what);
    }
    output::text(&text)
}

pub(super) fn incidents(known: &Known, format: Format) -> anyhow::Result<()> {
    let incidents = numbered(known);
    if format == Format::Json {
        return output::json(&Incidents { schema: 1, incidents });
    }
    if incidents.is_empty() {
        return say!("no incidents: no faults close in time that nodes, jobs or users explain");
    }
    let mut table = rows(&["ID", "START", "END", "NODES", "WHAT"]);
    for row in &incidents {
        let of = &row.incident;
        table.push(vec![
            row.id.clone(),
            shown(of.start),
            of.end.map_or_else(|| "open".to_owned(), shown),
            format!("{} of {}", of.nodes.len(), of.of),
            of.what.clone(),
        ]);
    }
    output::text(&output::table(&table))
}

pub(super) fn incident(known: &Known, id: &str, format: Format) -> anyhow::Result<u8> {
    let Some(row) = numbered(known).into_iter().find(|row| row.id == id) else {
        complain!("{id}: no such incident; `railgate fleet incidents` lists them");
        return Ok(exit::USAGE);
    };
    if format == Format::Json {
        output::json(&Incidents { schema: 1, incidents: vec![row] })?;
        return Ok(exit::OK);
    }
    let of = &row.incident;
    let mut text = Lines::new();
    put!(text, "{}: {}", row.id, of.what);
    put!(text, "cause   {}", of.cause);
    put!(text, "start   {} (first fault)", shown(of.start));
    match of.end {
        Some(end) => put!(text, "end     {} (last fault)", shown(end)),
        None => put!(text, "end     open: further nodes can fail"),
    }
    put!(text, "nodes   {} of {} that could have failed: {}", of.nodes.len(), of.of, of.nodes.join(", "));
    put!(text, "These faults count against none of the nodes.");
    output::text(&text)?;
    Ok(exit::OK)
}

pub(super) fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Unknown => "unknown: no hour of service in the window",
        Standing::Ordinary => "ordinary",
        Standing::Probation => "on probation",
        Standing::Lemon => "lemon",
    }
}

pub(super) fn lemons(known: &Known, format: Format) -> anyhow::Result<()> {
    let shown = |record: &&NodeRecord| matches!(record.standing, Standing::Lemon | Standing::Probation);
    let nodes: Vec<&NodeRecord> = known.judgement.nodes.iter().filter(shown).collect();
    if format == Format::Json {
        let nodes = nodes.into_iter().map(LemonRow::of).collect();
        return output::json(&Lemons { schema: 1, nodes });
    }
    if nodes.is_empty() {
        return say!("no lemons: no node fails more often than chance explains");
    }
    let mut table =
        rows(&["NODE", "STANDING", "FAULTS", "EXPECTED", "TIMES THE FLEET'S RATE (90 %)", "DRAIN", "WHY"]);
    for record in nodes {
        let ratio = record.ratio;
        table.push(vec![
            record.node.clone(),
            standing(record.standing).to_owned(),
            record.faults.to_string(),
            format!("{:.2}", record.expected),
            interval(ratio.mean, ratio.low, ratio.high),
            if record.proposes_drain() { "proposed" } else { "no" }.to_owned(),
            record.reasons.join("; "),
        ]);
    }
    output::text(&output::table(&table))
}

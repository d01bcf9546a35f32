use railgate_fleet::{Drainer, Event, Grade, NodeFinding, Standing, What};
use railgate_model::UnixMillis;
use railgate_text::{Lines, put};
use serde::Serialize;

use super::overview::{LemonRow, standing};
use super::{Known, interval, rows, shown};
use crate::exit;
use crate::output::{self, Format, complain};

/// Events of a node or card that are shown in the table, the last ones.
const LAST: usize = 30;

#[derive(Serialize)]
struct OfNode<'a> {
    schema: u32,
    node: LemonRow<'a>,
    events: Vec<&'a Event>,
}

#[derive(Serialize)]
struct OfCard<'a> {
    schema: u32,
    card: &'a str,
    /// When the card was first seen in each node, in order.
    stays: Vec<Stay<'a>>,
    events: Vec<&'a Event>,
}

#[derive(Serialize)]
struct Stay<'a> {
    node: &'a str,
    since: UnixMillis,
}

/// The node that an event is about; `None` for events of jobs.
fn node_of(what: &What) -> Option<&str> {
    match what {
        What::Finding(NodeFinding { node, .. })
        | What::Placed { node, .. }
        | What::Cards { node, .. }
        | What::Down { node }
        | What::Drained { node, .. }
        | What::Resumed { node }
        | What::LemonResumed { node }
        | What::Rebooted { node, .. }
        | What::Maintained { node, .. }
        | What::SelfTested { node, .. } => Some(node),
        What::JobStarted(_) | What::JobEnded(_) | What::Restarted { .. } | What::Progress(_) => None,
    }
}

/// `712.3 TFLOPS`.
pub(super) fn measured(value: Option<f64>, unit: &str) -> Option<String> {
    let value = value?;
    let digits = if value.abs() < 10.0 { 3 } else { 1 };
    Some(format!("{value:.digits$} {unit}").trim_end().to_owned())
}

fn in_words(what: &What) -> String {
    match what {
        What::Finding(found) => {
            let grade = match found.grade {
                Grade::Hearsay => "hearsay, does not count",
                Grade::Sign => "sign",
                Grade::Proof => "proof",
            };
            let card = found.card.as_ref().map_or_else(String::new, |card| format!(", card {card}"));
            format!("{} ({}): {}, {grade}{card}", found.check, found.severity, found.cause)
        }
        What::Placed { shares, .. } if shares.is_empty() => "known to Slurm".to_owned(),
        What::Placed { shares, .. } => {
            let shares: Vec<String> = shares.iter().map(|one| format!("{} {}", one.kind, one.name)).collect();
            format!("shares {}", shares.join(", "))
        }
        What::Cards { cards, .. } => format!("{} cards", cards.len()),
        What::Down { .. } => "down: no answer to Slurm".to_owned(),
        What::Drained { by, reason, .. } => {
            let by = match by {
                Drainer::Railgate => "railgate",
                Drainer::Slurm => "Slurm",
                Drainer::Admin => "an admin",
            };
            format!("drained by {by}: {reason}")
        }
        What::Resumed { .. } => "takes jobs again".to_owned(),
        What::LemonResumed { .. } => "resumed after a drain as a lemon: on probation".to_owned(),
        What::Rebooted { expected, .. } => match expected {
            Some(true) => "rebooted, as requested".to_owned(),
            Some(false) => "rebooted unexpectedly".to_owned(),
            None => "rebooted; it is not known whether that was requested".to_owned(),
        },
        What::Maintained { repair, card, by, why, .. } => {
            let mut text = if *repair { "repaired" } else { "maintained" }.to_owned();
            if !by.is_empty() {
                text.push_str(&format!(" by {by}"));
            }
            text.extend(card.iter().map(|card| format!(", card {card}")));
            if !why.is_empty() {
                text.push_str(&format!(": {why}"));
            }
            text
        }
        What::SelfTested { figure, value, unit, passed, .. } => {
            let value = measured(*value, unit).unwrap_or_else(|| "no value".to_owned());
            let passed = match passed {
                Some(true) => "passed",
                Some(false) => "failed",
                None => "not judged",
            };
            format!("self-test {figure}: {value}, {passed}")
        }
        What::JobStarted(_) | What::JobEnded(_) | What::Restarted { .. } | What::Progress(_) => String::new(),
    }
}

fn last_events(text: &mut Lines, events: &[&Event], with_node: bool) {
    let left_out = events.len().saturating_sub(LAST);
    let mut table = rows(if with_node { &["TIME", "NODE", "EVENT"] } else { &["TIME", "EVENT"] });
    for event in events.iter().skip(left_out) {
        let node = node_of(&event.what).unwrap_or_default().to_owned();
        let mut row = vec![shown(event.time), in_words(&event.what)];
        if with_node {
            row.insert(1, node);
        }
        table.push(row);
    }
    text.add(&output::table(&table));
    if left_out > 0 {
        put!(text, "{left_out} earlier events: --format json");
    }
}

pub(super) fn node(known: &Known, name: &str, format: Format) -> anyhow::Result<u8> {
    let Some(record) = known.judgement.node(name) else {
        complain!("{name}: no event about such a node");
        return Ok(exit::USAGE);
    };
    let events: Vec<&Event> =
        known.events.iter().filter(|event| node_of(&event.what) == Some(name)).collect();
    if format == Format::Json {
        output::json(&OfNode { schema: 1, node: LemonRow::of(record), events })?;
        return Ok(exit::OK);
    }
    let mut text = Lines::new();
    let (ratio, aside) = (record.ratio, record.set_aside);
    put!(text, "{}: {}", record.node, standing(record.standing));
    put!(
        text,
        "faults    {} in {:.0} hours of service; the fleet's rate makes {:.2}",
        record.faults,
        record.hours,
        record.expected
    );
    put!(
        text,
        "rate      {} times the fleet's, with a probability of 90 %",
        interval(ratio.mean, ratio.low, ratio.high)
    );
    put!(
        text,
        "set aside {aside} faults of incidents, of jobs that failed their nodes, or beside a node with proof; they do not count"
    );
    if let Some(repaired) = record.repaired {
        put!(text, "repaired  {}", shown(repaired));
    }
    let service = if record.out_of_service { "takes no jobs now" } else { "takes jobs" };
    put!(text, "service   {service}{}", if record.in_incident { "; in an open incident" } else { "" });
    if record.standing == Standing::Lemon {
        put!(text, "proposal  {}", record.proposal(known.drains_lemons));
    }
    for reason in &record.reasons {
        put!(text, "because   {reason}");
    }
    text.blank();
    last_events(&mut text, &events, false);
    output::text(&text)?;
    Ok(exit::OK)
}

pub(super) fn card(known: &Known, uuid: &str, format: Format) -> anyhow::Result<u8> {
    let is_about = |what: &What| match what {
        What::Finding(found) => found.card.as_deref() == Some(uuid),
        What::Maintained { card, .. } => card.as_deref() == Some(uuid),
        _ => false,
    };
    let mut stays: Vec<Stay<'_>> = Vec::new();
    for event in &known.events {
        if let What::Cards { node, cards } = &event.what
            && cards.iter().any(|card| card.uuid == uuid)
            && stays.last().is_none_or(|last| last.node != node)
        {
            stays.push(Stay { node, since: event.time });
        }
    }
    let events: Vec<&Event> = known.events.iter().filter(|event| is_about(&event.what)).collect();
    if stays.is_empty() && events.is_empty() {
        complain!("{uuid}: no event about such a card");
        return Ok(exit::USAGE);
    }
    if format == Format::Json {
        output::json(&OfCard { schema: 1, card: uuid, stays, events })?;
        return Ok(exit::OK);
    }
    let mut text = Lines::new();
    put!(text, "{uuid}: {} events about it", events.len());
    for stay in &stays {
        put!(text, "in {} since {}", stay.node, shown(stay.since));
    }
    if !events.is_empty() {
        text.blank();
        last_events(&mut text, &events, true);
    }
    output::text(&text)?;
    Ok(exit::OK)
}

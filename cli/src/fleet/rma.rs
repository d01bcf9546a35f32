//! `railgate fleet rma`: what the vendor of a node or a card needs to know, without the site's users and jobs.

use std::collections::BTreeMap;

use railgate_fleet::{Card, Drainer, Event, Grade, NodeFinding, NodeRecord, SharedKind, What};
use railgate_model::{Severity, UnixMillis};
use railgate_slurm::Reason;
use railgate_text::{Lines, put};
use serde::Serialize;

use super::node::measured;
use super::{Known, interval, rows, shown};
use crate::exit;
use crate::output::{self, Format, complain};

#[derive(Debug, clap::Args)]
pub(super) struct RmaArgs {
    /// Slurm's name of the node
    node: String,
    /// Only this card: UUID of a GPU, GUID of a network card
    #[arg(long, value_name = "UUID")]
    card: Option<String>,
}

#[derive(Serialize)]
struct Bundle<'a> {
    schema: u32,
    node: &'a str,
    /// The card that is asked for; `None`: the node as a whole.
    card: Option<&'a str>,
    time: UnixMillis,
    railgate: &'static str,
    /// Cards of the node by its latest list, or the one that is asked for.
    cards: Vec<&'a Card>,
    /// Driver and image.
    software: BTreeMap<&'static str, &'a str>,
    /// The node among the others; it has no names of others.
    record: &'a NodeRecord,
    records: Vec<Record>,
}

/// One line of the table.
#[derive(Serialize)]
struct Record {
    time: UnixMillis,
    what: String,
    /// The finding in words, from railgate's drain reason; empty if there was none.
    evidence: String,
}

pub(super) fn print(known: &Known, args: &RmaArgs, format: Format) -> anyhow::Result<u8> {
    let name = args.node.as_str();
    let Some(record) = known.judgement.node(name) else {
        complain!("{name}: no event about such a node");
        return Ok(exit::USAGE);
    };
    let card = args.card.as_deref();
    let cards = cards(known, name, card);
    if let Some(card) = card.filter(|_| cards.is_empty()) {
        complain!("{card}: {name} has no such card in the history (railgate fleet card {card})");
        return Ok(exit::USAGE);
    }
    let bundle = Bundle {
        schema: 1,
        node: name,
        card,
        time: known.now,
        railgate: env!("CARGO_PKG_VERSION"),
        cards,
        software: software(known, name),
        record,
        records: records(known, name, card),
    };
    match format {
        Format::Json => output::json(&bundle)?,
        Format::Table => output::text(&text(&bundle, known))?,
    }
    Ok(exit::OK)
}

/// The cards of the latest list that has them.
fn cards<'a>(known: &'a Known, name: &str, card: Option<&str>) -> Vec<&'a Card> {
    let is_wanted = |one: &&Card| card.is_none_or(|card| one.uuid == card);
    let of_event = |event: &'a Event| match &event.what {
        What::Cards { node, cards } if node == name => Some(cards),
        _ => None,
    };
    let mut lists = known.events.iter().rev().filter_map(of_event);
    lists
        .find_map(|list| {
            let found: Vec<&Card> = list.iter().filter(is_wanted).collect();
            (!found.is_empty()).then_some(found)
        })
        .unwrap_or_default()
}

fn software<'a>(known: &'a Known, name: &str) -> BTreeMap<&'static str, &'a str> {
    let mut software = BTreeMap::new();
    for event in &known.events {
        let What::Placed { node, shares } = &event.what else { continue };
        for share in shares.iter().filter(|_| node == name) {
            match share.kind {
                SharedKind::Driver => software.insert("driver", share.name.as_str()),
                SharedKind::Image => software.insert("image", share.name.as_str()),
                _ => None,
            };
        }
    }
    software
}

/// What happened, in order. Findings that a job can cause, and reasons that admins wrote, are left out: they can name users.
fn records(known: &Known, name: &str, card: Option<&str>) -> Vec<Record> {
    let reasons = reasons(known, name);
    let of_card = |of: &Option<String>| card.is_none_or(|card| of.as_deref() == Some(card));
    let record = |event: &Event| {
        let (what, evidence) = match &event.what {
            What::Finding(found) if found.node == name && counts(found) && of_card(&found.card) => {
                let part = found.card.as_ref().map(|card| format!(", card {card}")).unwrap_or_default();
                let grade = if found.grade == Grade::Proof { "proof" } else { "sign" };
                let evidence = reasons.get(&(event.time, found.check.as_str())).cloned();
                (format!("{}: {} ({grade}){part}", found.check, found.cause), evidence.unwrap_or_default())
            }
            What::SelfTested { node, figure, value, unit, passed: Some(passed) }
                if node == name && card.is_none() =>
            {
                let value = measured(*value, unit).map(|value| format!(": {value}")).unwrap_or_default();
                let passed = if *passed { "passed" } else { "failed" };
                (format!("self-test {figure} {passed}{value}"), String::new())
            }
            What::Rebooted { node, expected: Some(false) } if node == name && card.is_none() => {
                ("rebooted unexpectedly".to_owned(), String::new())
            }
            What::Down { node } if node == name && card.is_none() => {
                ("no answer to Slurm".to_owned(), String::new())
            }
            What::Maintained { node, repair: true, card: of, .. }
                if node == name && (of.is_none() || of_card(of)) =>
            {
                let part = of.as_ref().map(|card| format!(", card {card}")).unwrap_or_default();
                (format!("repaired{part}"), String::new())
            }
            _ => return None,
        };
        Some(Record { time: event.time, what, evidence })
    };
    known.events.iter().filter_map(record).collect()
}

fn counts(found: &NodeFinding) -> bool {
    found.severity == Severity::Fail && found.grade != Grade::Hearsay && found.accuser.is_none()
}

/// The words of railgate's drains, without jobs, by time and check.
fn reasons<'a>(known: &'a Known, name: &str) -> BTreeMap<(UnixMillis, &'a str), String> {
    let reason = |event: &'a Event| {
        let What::Drained { node, by: Drainer::Railgate, reason } = &event.what else { return None };
        let parsed = Reason::parse(reason).filter(|_| node == name)?;
        let check = reason.strip_prefix("railgate: ")?.split(['@', ':']).next()?;
        Some(((event.time, check), format!("{}: {}", parsed.subject, parsed.what)))
    };
    known.events.iter().filter_map(reason).collect()
}

fn text(bundle: &Bundle<'_>, known: &Known) -> Lines {
    let mut text = Lines::new();
    let Bundle { node, record, .. } = bundle;
    put!(text, "{node}: report for an RMA, {}, railgate {}", shown(bundle.time), bundle.railgate);
    for (kind, name) in &bundle.software {
        put!(text, "{kind:<9} {name}");
    }
    for card in &bundle.cards {
        let serial = if card.serial.is_empty() { "serial number not known" } else { &card.serial };
        put!(text, "card      {}, {serial}", card.uuid);
    }
    if bundle.card.is_none() {
        let ratio = record.ratio;
        let days = known.settings.window / 86_400_000;
        put!(
            text,
            "faults    {} in {:.0} h of service within {days} days: {} times the rate of the fleet (90 % interval)",
            record.faults,
            record.hours,
            interval(ratio.mean, ratio.low, ratio.high)
        );
    }
    text.blank();
    if bundle.records.is_empty() {
        put!(text, "no fault is known");
        return text;
    }
    let mut table = rows(&["TIME", "WHAT", "EVIDENCE"]);
    let row = |one: &Record| vec![shown(one.time), one.what.clone(), one.evidence.clone()];
    table.extend(bundle.records.iter().map(row));
    text.add(&output::table(&table));
    text
}

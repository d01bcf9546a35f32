//! Nodes by days: which nodes failed when, and when they were out of service. Only nodes with faults have a lane.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use maud::{Markup, Render, html};
use railgate_fleet::{Cause, NodeFault};
use railgate_model::{UnixMillis, rfc3339};
use railgate_page::Text;
use railgate_text::shorten;

use crate::Facts;
use crate::words::{more, plural, whole};

const DAY: UnixMillis = 86_400_000;
/// Days that are drawn, the last ones.
const MOST_DAYS: u64 = 90;
/// Lanes that are open; the others unfold.
const OPEN_LANES: usize = 40;
/// Marks that are drawn. Each one takes up to 250 bytes: this bounds the page for any history.
const MOST_MARKS: usize = 16_000;
pub(crate) const WIDTH: f64 = 1000.0;
/// Where lanes begin: the names stand before them.
pub(crate) const LEFT: f64 = 150.0;
pub(crate) const TOP: f64 = 22.0;
const LANE: f64 = 14.0;
/// Longest name before a lane, characters.
const LONGEST_NAME: usize = 20;

/// A coordinate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenths(pub(crate) f64);

impl Render for Tenths {
    fn render_to(&self, page: &mut String) {
        // Writing to a String cannot fail.
        let _ = write!(page, "{:.1}", self.0);
    }
}

/// Faults of a node on a day.
#[derive(Debug, Default)]
struct Cell {
    counted: usize,
    aside: usize,
    causes: BTreeSet<Cause>,
}

/// A node with faults.
struct Lane<'a> {
    node: &'a str,
    /// By days since 1970.
    cells: BTreeMap<u64, Cell>,
    /// When the node became known, if that is later than the first day.
    unknown_until: Option<UnixMillis>,
    out: Vec<(UnixMillis, UnixMillis)>,
}

impl Lane<'_> {
    fn counted(&self) -> usize {
        self.cells.values().map(|cell| cell.counted).sum()
    }

    fn all(&self) -> usize {
        self.cells.values().map(|cell| cell.counted + cell.aside).sum()
    }

    fn marks(&self) -> usize {
        self.cells.len() + self.out.len() + usize::from(self.unknown_until.is_some())
    }
}

/// The days that are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    first: u64,
    days: u64,
}

impl Scale {
    pub(crate) fn of(facts: &Facts<'_>) -> Scale {
        let (begin, last) = (facts.history.begin() / DAY, facts.history.now() / DAY);
        let first = begin.max((last + 1).saturating_sub(MOST_DAYS)).min(last);
        Scale { first, days: last - first + 1 }
    }

    pub(crate) fn start(self) -> UnixMillis {
        self.first * DAY
    }

    fn end(self) -> UnixMillis {
        (self.first + self.days) * DAY
    }

    pub(crate) fn at(self, time: UnixMillis) -> f64 {
        let time = time.clamp(self.start(), self.end()) - self.start();
        LEFT + time as f64 / (self.days * DAY) as f64 * (WIDTH - LEFT)
    }
}

impl Scale {
    /// Lines for at most nine dates.
    pub(crate) fn grid(self, height: f64) -> Markup {
        let every = self.days.div_ceil(9).max(1);
        html! {
            @for day in (0..self.days).step_by(usize::try_from(every).unwrap_or(1)) {
                @let x = Tenths(self.at((self.first + day) * DAY));
                line.grid x1=(x) y1=(TOP) x2=(x) y2=(Tenths(height)) {}
                text x=(x) y="14" { (Text(date(self.first + day).get(5..).unwrap_or_default())) }
            }
        }
    }
}

/// `2026-11-27`.
fn date(day: u64) -> String {
    rfc3339(day * DAY).and_then(|text| text.get(..10).map(str::to_owned)).unwrap_or_default()
}

/// Nodes with faults in the days that are drawn, those with the most faults first.
fn lanes<'a>(facts: &Facts<'a>, scale: Scale) -> Vec<Lane<'a>> {
    let mut of_node: BTreeMap<&str, BTreeMap<u64, Cell>> = BTreeMap::new();
    let start = scale.start();
    for NodeFault { node, time, cause, counts } in
        facts.judgement.faults.iter().filter(|fault| fault.time >= start)
    {
        let cell = of_node.entry(node).or_default().entry(time / DAY).or_default();
        *if *counts { &mut cell.counted } else { &mut cell.aside } += 1;
        cell.causes.insert(*cause);
    }
    let lane = |(node, cells): (&'a str, BTreeMap<u64, Cell>)| {
        let (known, out) = facts.history.service(node).unwrap_or((start, &[]));
        let out = out.iter().copied().filter(|(_, to)| *to > start).collect();
        Lane { node, cells, unknown_until: Some(known).filter(|known| known / DAY > scale.first), out }
    };
    let mut lanes: Vec<Lane<'a>> = of_node.into_iter().map(lane).collect();
    // Stable: equal nodes stay in the order of their names.
    lanes.sort_by_key(|lane| Reverse((lane.counted(), lane.all())));
    lanes
}

pub(crate) fn html(facts: &Facts<'_>) -> Markup {
    let scale = Scale::of(facts);
    let mut lanes = lanes(facts, scale);
    let all = lanes.len();
    let mut marks = 0;
    lanes.retain(|lane| {
        marks += lane.marks();
        marks <= MOST_MARKS
    });
    let (open, folded) = lanes.split_at(lanes.len().min(OPEN_LANES));
    html! {
        h2 { "Nodes with faults, by day" }
        div.card {
            @if open.is_empty() {
                p { "No node had a fault in the last " (plural(usize::try_from(scale.days).unwrap_or(0), "day")) "." }
            } @else {
                p.soft {
                    (whole(all)) " of " (plural(facts.judgement.nodes.len(), "node")) " had faults from " (Text(&date(scale.first)))
                    " on, those with the most faults that count first. "
                    span.bad { "■" } " faults that count " span.warn { "■" } " only faults set aside "
                    span.out { "■" } " out of service " span.unknown { "■" } " could not tell: no event about the node yet"
                }
                (chart(scale, open))
                @if !folded.is_empty() {
                    details {
                        summary { "Further nodes: " (whole(folded.len())) }
                        (chart(scale, folded))
                    }
                }
                (more(all, lanes.len(), "railgate fleet node NAME"))
            }
        }
    }
}

fn chart(scale: Scale, lanes: &[Lane<'_>]) -> Markup {
    let height = TOP + LANE * lanes.len() as f64;
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (Tenths(height)) } role="img" aria-label="Faults and time out of service of nodes by day" {
            (scale.grid(height))
            @for (index, lane) in lanes.iter().enumerate() { (row(scale, lane, TOP + LANE * index as f64)) }
        }
    }
}

fn row(scale: Scale, lane: &Lane<'_>, y: f64) -> Markup {
    let bar = |class: &str, from: UnixMillis, to: UnixMillis, height: f64| {
        let (from, to) = (scale.at(from), scale.at(to));
        html! {
            rect.(class) x=(Tenths(from)) y=(Tenths(y + (LANE - height) / 2.0)) width=(Tenths((to - from).max(1.0))) height=(height) {}
        }
    };
    let width = (WIDTH - LEFT) / scale.days as f64;
    html! {
        text.name x="0" y=(Tenths(y + 11.0)) { (Text(&shorten(lane.node, LONGEST_NAME))) }
        @if let Some(known) = lane.unknown_until { (bar("unknown", scale.start(), known, 10.0)) }
        @for (from, to) in &lane.out { (bar("bar", *from, *to, 10.0)) }
        @for (day, cell) in &lane.cells {
            rect class=(if cell.counted > 0 { "bad" } else { "warn" }) x=(Tenths(scale.at(day * DAY) + width * 0.1)) y=(Tenths(y + 3.0))
                width=(Tenths(width * 0.8)) height="8" {
                title { (Text(&in_words(*day, cell))) }
            }
        }
    }
}

fn in_words(day: u64, cell: &Cell) -> String {
    let causes: Vec<String> = cell.causes.iter().map(ToString::to_string).collect();
    format!("{}: {} counted, {} set aside ({})", date(day), cell.counted, cell.aside, causes.join(", "))
}

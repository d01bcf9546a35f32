//! Where nodes are, and their state: a square for each node, by rack, or by leaf switch where no rack is known.

use std::collections::BTreeMap;

use maud::{Markup, html};
use railgate_fleet::{NodeRecord, SharedKind, Standing};
use railgate_page::Text;
use railgate_text::shorten;

use crate::Facts;
use crate::words::{more, plural};

/// Places that are drawn. Each one with its squares takes up to 10 kB.
const MOST_PLACES: usize = 600;
/// Longest name of a place, characters.
const LONGEST_NAME: usize = 40;
/// Squares in a line of a place.
const IN_LINE: usize = 32;
const SQUARE: usize = 12;

/// The state of a node, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    InService,
    Unknown,
    Probation,
    Lemon,
    Out,
    InIncident,
}

impl State {
    const ALL: [State; 6] =
        [State::InService, State::Unknown, State::Probation, State::Lemon, State::Out, State::InIncident];

    fn words(self) -> &'static str {
        match self {
            State::InService => "in service",
            State::Unknown => "could not tell",
            State::Probation => "on probation",
            State::Lemon => "lemon",
            State::Out => "out of service",
            State::InIncident => "in an open incident",
        }
    }

    fn class(self) -> &'static str {
        match self {
            State::InService => "good",
            State::Unknown => "unknown",
            State::Probation => "calm",
            State::Lemon => "warn",
            State::Out => "out",
            State::InIncident => "bad",
        }
    }

    fn of(record: &NodeRecord) -> State {
        if record.in_incident {
            State::InIncident
        } else if record.out_of_service {
            State::Out
        } else {
            match record.standing {
                Standing::Lemon => State::Lemon,
                Standing::Probation => State::Probation,
                Standing::Unknown => State::Unknown,
                Standing::Ordinary => State::InService,
            }
        }
    }
}

/// Nodes of a place, by name.
struct Place<'a> {
    name: String,
    nodes: Vec<(&'a str, State)>,
}

impl Place<'_> {
    /// `8 nodes: 7 in service, 1 lemon`.
    fn words(&self) -> String {
        let count = |state: State| self.nodes.iter().filter(|(_, of)| *of == state).count();
        let counts = State::ALL.map(|state| (count(state), state.words()));
        let counts: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, words)| format!("{count} {words}"))
            .collect();
        format!("{}: {}", plural(self.nodes.len(), "node"), counts.join(", "))
    }

    fn worst(&self) -> Option<State> {
        self.nodes.iter().map(|(_, state)| *state).max()
    }
}

/// The places of one kind; the last one has the nodes of which none is known.
fn places<'a>(facts: &Facts<'a>, kind: SharedKind) -> Vec<Place<'a>> {
    let mut of_name: BTreeMap<&str, Vec<(&str, State)>> = BTreeMap::new();
    let mut without = Vec::new();
    for record in &facts.judgement.nodes {
        // A node of a rail-optimised network is below several leaf switches: it has a square in each.
        let mut is_placed = false;
        for (_, name) in facts.history.shares(&record.node).filter(|(of, _)| *of == kind) {
            of_name.entry(name).or_default().push((&record.node, State::of(record)));
            is_placed = true;
        }
        if !is_placed {
            without.push((record.node.as_str(), State::of(record)));
        }
    }
    let place = |(name, nodes): (&str, Vec<(&'a str, State)>)| Place { name: name.to_owned(), nodes };
    let mut places: Vec<Place<'_>> = of_name.into_iter().map(place).collect();
    places.sort_by(|one, other| in_numbers(&one.name).cmp(&in_numbers(&other.name)));
    if !without.is_empty() {
        places.push(Place { name: format!("no known {kind}"), nodes: without });
    }
    places
}

/// `r9` before `r10`: the name without its last number, and that number.
fn in_numbers(name: &str) -> (&str, u64, &str) {
    let text = name.trim_end_matches(|character: char| character.is_ascii_digit());
    let number = name.get(text.len()..).and_then(|digits| digits.parse().ok()).unwrap_or(0);
    (text, number, name)
}

pub(crate) fn html(facts: &Facts<'_>) -> Markup {
    let is_known = |kind: &SharedKind| {
        let mut nodes = facts.judgement.nodes.iter();
        nodes.any(|record| facts.history.shares(&record.node).any(|(of, _)| of == *kind))
    };
    let known = [SharedKind::Rack, SharedKind::Leaf].into_iter().find(is_known);
    html! {
        h2 { "Map" }
        div.card {
            @if known.is_none() {
                p { "No racks or leaf switches are known: name them in [fleet] of railgate.toml." }
            }
            @let kind = known.unwrap_or(SharedKind::Rack);
            (map(kind, places(facts, kind)))
        }
    }
}

/// Places with something else than nodes in service come first; the others unfold.
fn map(kind: SharedKind, places: Vec<Place<'_>>) -> Markup {
    let all = places.len();
    let (mut first, rest): (Vec<Place<'_>>, Vec<Place<'_>>) =
        places.into_iter().partition(|place| place.worst() > Some(State::InService));
    first.truncate(MOST_PLACES);
    let left = MOST_PLACES - first.len();
    let shown = first.len() + rest.len().min(left);
    html! {
        p.soft {
            "By " (kind.to_string()) ". "
            @for state in State::ALL { span.(state.class()) { "■" } " " (state.words()) " " }
        }
        @if first.is_empty() && !rest.is_empty() { p { "All nodes are in service." } }
        div.places { @for place in &first { (one(place)) } }
        @if !rest.is_empty() {
            details {
                summary { "All nodes in service: " (plural(rest.len(), "place")) }
                div.places { @for place in rest.iter().take(left) { (one(place)) } }
            }
        }
        (more(all, shown, "railgate fleet --format json"))
    }
}

fn one(place: &Place<'_>) -> Markup {
    let words = place.words();
    let lines = place.nodes.len().div_ceil(IN_LINE).max(1);
    let columns = place.nodes.len().clamp(1, IN_LINE);
    let (width, height) = (columns * SQUARE, lines * SQUARE);
    html! {
        div.place {
            strong { (Text(&shorten(&place.name, LONGEST_NAME))) }
            svg.map width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) } role="img" aria-label=(words) {
                @for (index, (node, state)) in place.nodes.iter().enumerate() {
                    rect.(state.class()) x=(index % IN_LINE * SQUARE) y=(index / IN_LINE * SQUARE) width="10" height="10" {
                        title { (Text(node)) ": " (state.words()) }
                    }
                }
            }
            span.soft { (words) }
        }
    }
}

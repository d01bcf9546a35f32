//! The fleet as a page: first what needs action, then where the nodes are, the figures of the period, and which nodes failed on which days.
//!
//! The page needs no network. Its script sorts and filters tables, and nothing is missing without it. Its size is bounded for any history: tables and the picture name how many rows they leave out.
//! A value that could not be determined is "could not tell", never zero.

mod action;
mod figures;
mod map;
mod names;
mod picture;
#[cfg(test)]
mod tests;
mod timeline;
mod words;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use maud::{Markup, html};
use railgate_fleet::{History, Incident, Judgement, Reason, Settings};
use railgate_page::{Text, page_with_sorting, table};
use railgate_text::shorten;

pub use names::Names;

use words::{more, plural, time};

/// Rows that a table of the page shows; the JSON has all.
const MOST_ROWS: usize = 200;

/// Characters of a host list in a cell: names that have no order in common make a long one.
const LONGEST_LIST: usize = 1000;

/// What the page is made of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The history.
    pub history: &'a History,
    /// Its judgement.
    pub judgement: &'a Judgement,
    /// The settings of the judgement.
    pub settings: &'a Settings,
    /// Whether railgate-fleet drains lemons itself.
    pub drains_lemons: bool,
    /// Whether the page has user names and job ids.
    pub names: &'a Names,
    /// Writes names of nodes as a host list.
    pub host_list: fn(&[String]) -> String,
    /// Version of railgate.
    pub railgate: &'a str,
}

impl Facts<'_> {
    /// Names of nodes as a host list, within the limit of a cell.
    fn hosts(&self, nodes: &[String]) -> String {
        shorten(&(self.host_list)(nodes), LONGEST_LIST)
    }
}

/// Returns the page.
pub fn html(facts: &Facts<'_>) -> String {
    let todo = action::Todo::of(facts);
    let body = html! {
        h1 { "Fleet" (todo.pill()) }
        (about(facts))
        (todo.html(facts))
        (map::html(facts))
        (figures::html(facts))
        (figures::checks(facts))
        (timeline::html(facts))
        (picture::html(facts))
        (ended(facts))
        (figures::failures(facts))
    };
    let footer = html! {
        "railgate " (Text(facts.railgate)) ", made " (Text(&time(facts.history.now()))) ". Times are UTC. A value that could not be \
         determined is \"could not tell\", never zero. Intervals contain the true value with a probability of 90 %, unless \
         they are called lower and upper bound."
    };
    page_with_sorting("Fleet", &body, &footer)
}

/// Returns the users that a page with names shows, so that the caller looks up no others.
pub fn users(history: &History, judgement: &Judgement) -> BTreeSet<u32> {
    let mut users: BTreeSet<u32> =
        figures::last_failures(history, judgement).1.iter().map(|failure| failure.attempt.uid).collect();
    let mut jobs = BTreeSet::new();
    for incident in &judgement.incidents {
        match &incident.reason {
            Reason::Job { job, attempt } => drop(jobs.insert((*job, *attempt))),
            Reason::User { uid } => drop(users.insert(*uid)),
            Reason::Shared(_) => {}
        }
    }
    let of_jobs = history.attempts().iter().filter(|one| jobs.contains(&(one.job, one.attempt)));
    users.extend(of_jobs.map(|attempt| attempt.uid));
    users
}

fn about(facts: &Facts<'_>) -> Markup {
    let Facts { history, judgement, .. } = facts;
    html! {
        @if let Some(last) = history.last() {
            p.soft {
                (plural(judgement.nodes.len(), "node")) " and " (plural(history.attempts().len(), "job attempt"))
                " from " (Text(&time(history.begin()))) " to " (Text(&time(history.now())))
                ". Last event: " (Text(&time(last))) "."
            }
        } @else {
            p.warn { "No events yet: railgate-fleet takes them in." }
        }
        @if let Names::Withheld { why } = facts.names {
            p.soft { "Without user names and job IDs: " (Text(why)) "." }
        }
        @if history.forged() > 0 {
            p.warn {
                (plural(history.forged(), "event")) " not counted: files of users that make claims about nodes, which only root may make."
            }
        }
    }
}

/// Incidents that have ended, the newest first.
fn ended(facts: &Facts<'_>) -> Markup {
    let mut ended: Vec<(&Incident, u64)> =
        facts.judgement.incidents.iter().filter_map(|one| Some((one, one.end?))).collect();
    // The judgement has them by start and reason.
    ended.sort_by_key(|(incident, _)| Reverse(incident.start));
    let row = |(incident, end): &(&Incident, u64)| {
        vec![
            time(incident.start),
            time(*end),
            incident.cause.to_string(),
            format!("{} of {}", incident.nodes.len(), incident.of),
            facts.names.incident(incident, facts.history),
            facts.hosts(&incident.nodes),
        ]
    };
    let rows: Vec<Vec<String>> = ended.iter().take(MOST_ROWS).map(row).collect();
    html! {
        h2 { "Incidents that have ended" }
        div.card {
            @if rows.is_empty() { p { "None." } }
            (table(&["@First fault", "@Last fault", "Cause", "#Nodes", "~Incident", "%Names of nodes"], &rows))
            (more(ended.len(), rows.len(), "railgate fleet incidents"))
        }
    }
}

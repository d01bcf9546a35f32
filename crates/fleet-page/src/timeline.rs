//! Incidents on a time line: a line for each kind of reason.

use std::collections::BTreeMap;

use maud::{Markup, html};
use railgate_fleet::{Incident, Reason, SharedKind};
use railgate_page::Text;

use crate::Facts;
use crate::picture::{LEFT, Scale, TOP, Tenths, WIDTH};
use crate::words::{more, plural, time};

const LINE: f64 = 20.0;
/// Incidents that are drawn, the newest ones.
const MOST: usize = 2000;

/// What its nodes had in common: a place before jobs.
fn kind(reason: &Reason) -> (bool, Option<SharedKind>, String) {
    match reason {
        Reason::Shared(shared) => (false, Some(shared.kind), shared.kind.to_string()),
        Reason::Job { .. } => (true, None, "one job".to_owned()),
        Reason::User { .. } => (true, None, "jobs of one user".to_owned()),
    }
}

pub(crate) fn html(facts: &Facts<'_>) -> Markup {
    let scale = Scale::of(facts);
    let now = facts.history.now();
    let in_scale = |incident: &&Incident| incident.end.unwrap_or(now) >= scale.start();
    let all = facts.judgement.incidents.iter().filter(in_scale).count();
    let mut lines: BTreeMap<(bool, Option<SharedKind>, String), Vec<&Incident>> = BTreeMap::new();
    // The judgement has them by start.
    for incident in facts.judgement.incidents.iter().rev().filter(in_scale).take(MOST) {
        lines.entry(kind(&incident.reason)).or_default().push(incident);
    }
    let height = TOP + LINE * lines.len() as f64;
    html! {
        h2 { "Incidents by day" }
        div.card {
            @if lines.is_empty() {
                p { "None: no nodes have failed together." }
            } @else {
                p.soft {
                    "Nodes that failed together, by what they had in common: " (plural(all, "incident")) ". "
                    span.bad { "■" } " open " span.calm { "■" } " ended"
                }
                div.scroll tabindex="0" {
                    svg.wide viewBox={ "0 0 " (WIDTH) " " (Tenths(height)) } role="img"
                        aria-label={ "Incidents by day: " (plural(all, "incident")) ". The tables have each one." } {
                        (scale.grid(height))
                        @for (index, ((_, _, name), incidents)) in lines.iter().enumerate() {
                            (line(scale, now, name, incidents, TOP + LINE * index as f64))
                        }
                    }
                }
                (more(all, all.min(MOST), "railgate fleet incidents"))
            }
        }
    }
}

fn line(scale: Scale, now: u64, name: &str, incidents: &[&Incident], y: f64) -> Markup {
    html! {
        text.name x="0" y=(Tenths(y + 14.0)) { (name) }
        @for incident in incidents {
            @let (from, to) = (scale.at(incident.start), scale.at(incident.end.unwrap_or(now)));
            // A short one needs some width to be seen.
            @let from = from.clamp(LEFT, WIDTH - 4.0);
            rect class=(if incident.end.is_none() { "bad" } else { "calm" }) x=(Tenths(from)) y=(Tenths(y + 4.0))
                width=(Tenths((to - from).max(4.0))) height="12" {
                title {
                    (Text(&time(incident.start))) ": " (plural(incident.nodes.len(), "node")) ", " (Text(&incident.cause.to_string()))
                }
            }
        }
    }
}

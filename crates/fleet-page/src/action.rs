//! What needs action: open incidents, lemons, nodes out of service.

use std::collections::BTreeMap;

use maud::{Markup, html};
use railgate_fleet::{Drainer, Incident, NodeRecord, Outage, Standing};
use railgate_model::UnixMillis;
use railgate_page::{Text, table};

use crate::words::{UNKNOWN, more, plural, short, time};
use crate::{Facts, MOST_ROWS};

/// Open conditions of the fleet.
pub(crate) struct Todo<'a> {
    incidents: Vec<&'a Incident>,
    lemons: Vec<&'a NodeRecord>,
    /// By since when, reason and who: the nodes.
    out: Vec<Out>,
}

/// Nodes that are out of service for one reason.
struct Out {
    since: Option<UnixMillis>,
    by: &'static str,
    reason: String,
    nodes: Vec<String>,
}

impl<'a> Todo<'a> {
    pub(crate) fn of(facts: &Facts<'a>) -> Todo<'a> {
        let judgement = facts.judgement;
        let mut lemons: Vec<&NodeRecord> =
            judgement.nodes.iter().filter(|record| record.standing == Standing::Lemon).collect();
        // The surest first.
        lemons.sort_by(|one, other| {
            other.ratio.low.total_cmp(&one.ratio.low).then_with(|| one.node.cmp(&other.node))
        });
        Todo {
            incidents: judgement.incidents.iter().filter(|incident| incident.end.is_none()).collect(),
            lemons,
            out: out_of_service(facts),
        }
    }

    pub(crate) fn pill(&self) -> Markup {
        let out: usize = self.out.iter().map(|out| out.nodes.len()).sum();
        let parts: Vec<String> =
            [(self.incidents.len(), "open incident"), (self.lemons.len(), "lemon"), (out, "node")]
                .into_iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, what)| plural(count, what))
                .collect();
        let text = parts.join(", ");
        let class = if !self.incidents.is_empty() {
            "bad"
        } else if !parts.is_empty() {
            "warn"
        } else {
            "good"
        };
        html! {
            span.pill.(class) {
                @if parts.is_empty() { "nothing to do" }
                @else if out > 0 { (text) " out of service" }
                @else { (text) }
            }
        }
    }

    pub(crate) fn html(&self, facts: &Facts<'_>) -> Markup {
        html! {
            h2 { "Needs action" }
            div.card {
                (self.open_incidents(facts))
                (self.lemons(facts))
                (self.nodes_out(facts))
                (others(facts))
            }
        }
    }

    fn open_incidents(&self, facts: &Facts<'_>) -> Markup {
        let row = |incident: &&Incident| {
            vec![
                time(incident.start),
                incident.cause.to_string(),
                format!("{} of {}", incident.nodes.len(), incident.of),
                facts.names.incident(incident, facts.history),
                facts.hosts(&incident.nodes),
            ]
        };
        let rows: Vec<Vec<String>> = self.incidents.iter().take(MOST_ROWS).map(row).collect();
        html! {
            h3 { "Open incidents: " (self.incidents.len()) }
            @if rows.is_empty() { p { "None: no nodes fail together now." } }
            (table(&["@Since", "Cause", "#Nodes that failed", "~Incident", "%Names of nodes"], &rows))
            (more(self.incidents.len(), rows.len(), "railgate fleet incidents"))
        }
    }

    fn lemons(&self, facts: &Facts<'_>) -> Markup {
        let row = |record: &&NodeRecord| {
            let ratio = record.ratio;
            vec![
                record.node.clone(),
                record.proposal(facts.drains_lemons).to_owned(),
                // The first one has what is in the columns after.
                record.reasons.get(1..).unwrap_or_default().join("; "),
                format!("{:.1} to {:.1}", ratio.low, ratio.high),
                record.faults.to_string(),
                short(record.expected),
                short(record.hours),
            ]
        };
        let rows: Vec<Vec<String>> = self.lemons.iter().take(MOST_ROWS).map(row).collect();
        let rate = format!("#Rate, times the fleet's ({:.0} % interval)", 100.0 * facts.settings.credible);
        // On a phone the first columns are visible.
        let head =
            ["Node", "Proposed action", "~Reasons", &rate, "#Faults", "#Faults expected", "#Service, h"];
        html! {
            h3 { "Lemons, nodes that fail more often than the fleet: " (self.lemons.len()) }
            @if rows.is_empty() { p { "None: no node fails more often than chance explains." } }
            (table(&head, &rows))
            (more(self.lemons.len(), rows.len(), "railgate fleet lemons"))
        }
    }

    fn nodes_out(&self, facts: &Facts<'_>) -> Markup {
        let row = |out: &Out| {
            vec![
                out.since.map_or_else(|| UNKNOWN.to_owned(), time),
                out.nodes.len().to_string(),
                facts.hosts(&out.nodes),
                out.by.to_owned(),
                out.reason.clone(),
            ]
        };
        let rows: Vec<Vec<String>> = self.out.iter().take(MOST_ROWS).map(row).collect();
        let nodes: usize = self.out.iter().map(|out| out.nodes.len()).sum();
        html! {
            h3 { "Nodes out of service: " (nodes) }
            @if rows.is_empty() { p { "None: all known nodes take jobs." } }
            (table(&["@Since", "#Nodes", "%Names of nodes", "Drained by", "Reason in Slurm"], &rows))
            (more(self.out.len(), rows.len(), "railgate fleet"))
        }
    }
}

/// Nodes on probation, and nodes of which nothing is known.
fn others(facts: &Facts<'_>) -> Markup {
    let of = |standing: Standing| -> Vec<String> {
        let nodes = facts.judgement.nodes.iter().filter(|record| record.standing == standing);
        nodes.map(|record| record.node.clone()).collect()
    };
    let (probation, unknown) = (of(Standing::Probation), of(Standing::Unknown));
    let days = facts.settings.window / 86_400_000;
    html! {
        @if !probation.is_empty() {
            p.soft {
                "On probation, repaired or resumed after a drain as a lemon, and not yet " (facts.settings.probation_hours) " h in service without a fault: "
                (probation.len()) " (" (Text(&facts.hosts(&probation))) ")."
            }
        }
        @if !unknown.is_empty() {
            p.soft {
                "Could not tell, no hour of service in the last " (days) " days: "
                (unknown.len()) " (" (Text(&facts.hosts(&unknown))) ")."
            }
        }
    }
}

/// Nodes out of service by reason: many nodes of one reason are one row.
fn out_of_service(facts: &Facts<'_>) -> Vec<Out> {
    let mut groups: BTreeMap<(Option<UnixMillis>, String, &'static str), Vec<String>> = BTreeMap::new();
    for record in facts.judgement.nodes.iter().filter(|record| record.out_of_service) {
        let spans = facts.history.service(&record.node).map(|(_, out)| out).unwrap_or_default();
        let since = spans.last().map(|(from, _)| *from);
        let (by, reason) = match facts.history.outage(&record.node) {
            Some(Outage::Drained { by, reason }) => (drainer(*by), facts.names.drain_reason(*by, reason)),
            Some(Outage::Down) => ("not drained", "the node does not answer to Slurm".to_owned()),
            None => (UNKNOWN, UNKNOWN.to_owned()),
        };
        // To the minute: nodes that one failure takes out are one row.
        let minute = since.map(|since| since / 60_000 * 60_000);
        groups.entry((minute, reason, by)).or_default().push(record.node.clone());
    }
    // The newest first.
    let groups = groups.into_iter().rev();
    groups.map(|((since, reason, by), nodes)| Out { since, by, reason, nodes }).collect()
}

fn drainer(by: Drainer) -> &'static str {
    match by {
        Drainer::Railgate => "railgate",
        Drainer::Slurm => "Slurm",
        Drainer::Admin => "an admin",
    }
}

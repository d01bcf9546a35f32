use maud::{Markup, html};
use railgate_model::{Access, Fitness};
use railgate_node_report::plain::float;

use super::{Text, ended, first_error, pill, table};
use crate::Attempt;
use crate::view::{
    AskedNode, Controller, Count, Counters, Found, GateRow, GpuRow, ListedRows, NodeCounters, OfAttempt,
    PortRow, Rails, Ran, more_nodes,
};

/// Beyond so many nodes the rest is in the JSON.
const MOST_NODES: usize = 64;

pub(super) fn attempt(attempt: &Attempt, of: &OfAttempt, numbered: bool) -> Markup {
    let asked = of.controller.iter().flat_map(|controller| &controller.nodes);
    let more_asked = asked.clone().count().saturating_sub(MOST_NODES);
    let asked: Vec<Vec<String>> = asked.take(MOST_NODES).map(asked_cells).collect();
    let findings: Vec<Vec<String>> = of.findings.iter().map(finding).collect();
    html! {
        h2 { "Attempt " (attempt.attempt) @if numbered { (pill(attempt.ended.kind)) } }
        div.card {
            @if numbered {
                (ended(&of.ended))
                (first_error(&of.first_error))
            }
            dl {
                @if let Some(reported) = &of.reported {
                    dt { "Nodes" } dd { (Text(&of.nodes)) ", " (reported) }
                }
                @match &of.ran {
                    Some(Ran::Ended(ran)) => { dt { "Ran" } dd { (ran) } }
                    Some(Ran::Since(since)) => { dt { "Began" } dd { (since) } }
                    None => {}
                }
                @for start in &of.starts {
                    dt { "Starts" } dd { (start) }
                }
                @if let Some(exit) = &of.exit {
                    dt { "Ended" } dd { (Text(exit)) }
                }
                @if let Some(controller) = &of.controller { (decision(controller)) }
                @for warning in &of.warnings {
                    dt { "Rails" } dd.warn { (warning) }
                }
            }
            (table(&["Node", "State", "`Reason", "Evidence"], &asked))
            @if more_asked > 0 {
                p.soft { "and " (Text(&more_nodes(more_asked))) ": --format json" }
            }
            @if !of.gate.is_empty() { (gate(&of.gate)) }
            @if !findings.is_empty() {
                h3 { "Findings" }
                (table(&["Node", "Phase", "Check", "Severity", "Whose", "What", "Do", "`Evidence"], &findings))
            }
            @if let Some(rails) = &of.rails { (wiring(rails)) }
            @if let Some(environment) = &of.environment { (super::environment::environment(environment)) }
            @if let Some(counted) = &of.counters { (counters(counted)) }
        }
    }
}

fn decision(controller: &Controller) -> Markup {
    html! {
        dt { "Controller" }
        dd {
            (Text(controller.what)) ": " (controller.why) " "
            span.soft {
                "(effective --railgate-requeue: " (Text(&controller.consent)) ", waited "
                (format_args!("{:.1}", float(controller.waited_ms) / 1000.0)) " s)"
            }
        }
        @if let Some(budget) = &controller.budget {
            dt { "Budget" } dd { (budget) }
        }
    }
}

fn asked_cells(node: &AskedNode) -> Vec<String> {
    let evidence =
        node.evidence.as_ref().map_or_else(|| "no".to_owned(), |source| format!("yes, by {source}"));
    vec![node.node.clone(), node.state.clone(), node.reason.as_str().to_owned(), evidence]
}

fn word(fitness: Option<Fitness>) -> Markup {
    let class = match fitness {
        None => "soft",
        Some(Fitness::Fit) => "good",
        Some(Fitness::Degraded | Fitness::Unknown) => "warn",
        Some(Fitness::Unfit) => "bad",
    };
    let word = fitness.map_or_else(|| "not judged".to_owned(), |fitness| fitness.to_string());
    html! { span.(class) { (Text(&word)) } }
}

fn gate(gate: &[GateRow]) -> Markup {
    let listed = ListedRows::of(gate, MOST_NODES, MOST_NODES);
    html! {
        h3 { "Gate" }
        @if !listed.rows.is_empty() {
            div.scroll tabindex="0" { table {
                thead { tr {
                    th { "Node" } th { "Before" } th { "After" } th { "Options" } th { "What railgate did" }
                } }
                tbody {
                    @for row in &listed.rows { (gate_row(row)) }
                }
            } }
        }
        @if let Some(rest) = listed.rest() {
            p.soft { (Text(&rest)) }
        }
    }
}

fn gate_row(row: &GateRow) -> Markup {
    let or_unknown = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
    let options = format!("gate {}, requeue {}", or_unknown(&row.gate), or_unknown(&row.requeue));
    let profile = row.profile.as_ref().map(|name| format!(", profile {name}")).unwrap_or_default();
    html! {
        tr {
            td { (Text(&row.node)) }
            td { (word(row.before)) }
            td { (word(row.after)) }
            td { (Text(&options)) (Text(&profile)) }
            td.c {
                @if row.acts.is_empty() { "nothing" }
                @for (place, act) in row.acts.iter().enumerate() {
                    @if place > 0 { br; }
                    (Text(act))
                }
            }
        }
    }
}

/// Node, phase, check, severity, whose, what, what to do, evidence.
fn finding(found: &Found) -> Vec<String> {
    let none = String::new;
    match found {
        Found::Finding { node, phase, subject, severity, class, what, fix, proof } => {
            let (what, fix) = (what.as_str().to_owned(), fix.as_str().to_owned());
            let cells = [node, phase, subject, severity, class].map(String::clone);
            cells.into_iter().chain([what, fix, proof.join("; ")]).collect()
        }
        Found::NotRead { node, phase, part, why } => {
            let (unknown, what) = ("unknown".to_owned(), format!("not read: {}", why.as_str()));
            vec![node.clone(), phase.clone(), (*part).to_owned(), unknown, none(), what, none(), none()]
        }
        Found::Fault { node, what } => {
            let (internal, what) = ("internal".to_owned(), what.as_str().to_owned());
            let check = "railgate".to_owned();
            vec![node.clone(), none(), check, internal.clone(), internal, what, none(), none()]
        }
    }
}

fn wiring(rails: &Rails) -> Markup {
    let rows: Vec<Vec<String>> = rails
        .rows
        .iter()
        .map(|row| {
            let port = format!("{}:{}", row.hca, row.port);
            let (number, gpus, pci) = (row.number.to_string(), row.gpus.clone(), row.pci.clone());
            vec![number, gpus, port, pci, row.rate.clone(), row.numa.clone(), row.state.clone()]
        })
        .collect();
    let left_out = rails.left_out.iter().map(|left| format!("{}: {}", left.port, left.why));
    let notes = rails.none.iter().chain(&rails.differ).chain(&rails.notes);
    let notes = notes.map(|note| note.as_str().to_owned());
    let items: Vec<String> = left_out.chain(notes).take(64).collect();
    html! {
        details {
            summary {
                "Rails, as on " (Text(&rails.node)) " "
                span.soft { "(" (rails.rows.len()) "; found by " (Text(&rails.method)) ")" }
            }
            (table(&["#Rail", "GPU", "@Port", "@PCI", "#Rate", "#NUMA", "State"], &rows))
            @if !items.is_empty() {
                ul { @for item in &items { li { (Text(item)) } } }
            }
        }
    }
}

fn counters(counters: &Counters) -> Markup {
    html! {
        p { "Counters: " (counters.totals) }
        @for (place, node) in counters.nodes.iter().enumerate() { (one_node(node, place == 0)) }
        @if let Some(rest) = counters.rest(|_| true) {
            p.soft { (Text(&rest)) ": --format json" }
        }
    }
}

fn one_node(node: &NodeCounters, open: bool) -> Markup {
    const GPU: [&str; 14] = [
        "#GPU",
        "@PCI",
        "Job's",
        "State",
        "#Energy",
        "#Mean power",
        "#ECC uncorrected",
        "#ECC corrected",
        "#Rows remapped",
        "#PCIe replays",
        "#NVLink sent",
        "#NVLink received",
        "#NVLinks up",
        "#After",
    ];
    const PORT: [&str; 10] = [
        "#Rail",
        "@Port",
        "State",
        "#Rate",
        "#Sent",
        "#Mean",
        "#Received",
        "#Mean",
        "#Link downs",
        "`Errors that grew",
    ];
    let gpus: Vec<Vec<String>> = node.gpus.iter().map(gpu_cells).collect();
    let ports: Vec<Vec<String>> = node.ports.iter().map(port_cells).collect();
    html! {
        details open[open] {
            summary { "Counters of " (Text(&node.node)) " " span.soft { (Text(&node.window)) } }
            (table(&GPU, &gpus))
            @if !ports.is_empty() {
                h3 { "Ports of the whole node, all jobs together" }
                (table(&PORT, &ports))
            }
        }
    }
}

fn pair(count: &Count) -> String {
    format!("{} → {}", count.before, count.after)
}

fn gpu_cells(gpu: &GpuRow) -> Vec<String> {
    let own = match gpu.own {
        Some(true) => "yes",
        Some(false) => "no",
        None => "?",
    };
    let state = match &gpu.access {
        Access::Ok => "ok".to_owned(),
        Access::Lost(why) => format!("lost: {why}"),
        Access::ResetRequired(why) => format!("needs a reset: {why}"),
        Access::Failed(why) => format!("unknown: {why}"),
    };
    vec![
        gpu.index.to_string(),
        gpu.pci.clone(),
        own.to_owned(),
        state,
        gpu.energy.clone(),
        gpu.power.clone(),
        pair(&gpu.ecc_uncorrected),
        gpu.ecc_corrected.grew.clone(),
        pair(&gpu.rows_remapped),
        gpu.pcie_replays.grew.clone(),
        gpu.nvlink_sent.clone(),
        gpu.nvlink_received.clone(),
        pair(&gpu.nvlinks_up),
        gpu.temperature.clone(),
    ]
}

fn port_cells(port: &PortRow) -> Vec<String> {
    let errors: Vec<String> = port.errors.iter().map(|(name, grew)| format!("{name} {grew}")).collect();
    vec![
        port.rail.clone(),
        format!("{}:{}", port.hca, port.port),
        format!("{} → {}", port.state_before, port.state_after),
        port.rate.clone(),
        port.sent.clone(),
        port.sent_rate.clone(),
        port.received.clone(),
        port.received_rate.clone(),
        pair(&port.link_downs),
        errors.join(", "),
    ]
}

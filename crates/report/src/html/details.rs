use std::fmt::Write as _;

use railgate_model::{Access, Fitness};
use railgate_node_report::plain::float;

use super::{ended, esc, pill, table};
use crate::Attempt;
use crate::text::more_nodes;
use crate::view::{Count, Found, GateRow, GpuRow, NodeCounters, OfAttempt, PortRow, Rails, Ran};

/// Beyond so many nodes the rest is in the JSON.
const MOST_NODES: usize = 64;

pub(super) fn attempt(out: &mut String, attempt: &Attempt, of: &OfAttempt, numbered: bool) {
    let kind = if numbered { pill(attempt.ended.kind) } else { String::new() };
    // Writing to a String cannot fail.
    let _ = writeln!(out, "<h2>Attempt {}{kind}</h2>\n<div class=\"card\">", attempt.attempt);
    if numbered {
        ended(out, &of.ended);
    }
    out.push_str("<dl>");
    if let Some(reported) = &of.reported {
        let _ = write!(out, "<dt>Nodes</dt><dd>{}, {}</dd>", esc(&of.nodes), reported.as_str());
    }
    let ran = of.ran.as_ref().map(|ran| match ran {
        Ran::Ended(ran) => ("Ran", ran),
        Ran::Since(since) => ("Began", since),
    });
    if let Some((name, text)) = ran {
        let _ = write!(out, "<dt>{name}</dt><dd>{}</dd>", text.as_str());
    }
    if let Some(exit) = &of.exit {
        let _ = write!(out, "<dt>Ended</dt><dd>{}</dd>", esc(exit));
    }
    if let Some(controller) = &of.controller {
        let _ = write!(
            out,
            "<dt>Controller</dt><dd>{}: {} <span class=\"soft\">(consent {}, waited {:.1} s)</span></dd>",
            controller.what,
            esc(controller.why.as_str()),
            esc(&controller.consent),
            float(controller.waited_ms) / 1000.0
        );
        if let Some(budget) = &controller.budget {
            let _ = write!(out, "<dt>Budget</dt><dd>{}</dd>", budget.as_str());
        }
    }
    for warning in &of.warnings {
        let _ = write!(out, "<dt>Rails</dt><dd class=\"warn\">{}</dd>", esc(warning.as_str()));
    }
    out.push_str("</dl>\n");
    let asked = of.controller.iter().flat_map(|controller| &controller.nodes).take(MOST_NODES);
    let rows: Vec<Vec<String>> = asked
        .map(|node| {
            let evidence =
                node.evidence.as_ref().map_or_else(|| "no".to_owned(), |source| format!("yes, by {source}"));
            vec![node.node.clone(), node.state.clone(), node.reason.as_str().to_owned(), evidence]
        })
        .collect();
    table(out, &["Node", "State", "`Reason", "Evidence"], &rows);
    if !of.gate.is_empty() {
        gate(out, &of.gate);
    }
    let rows: Vec<Vec<String>> = of.findings.iter().map(finding).collect();
    if !rows.is_empty() {
        out.push_str("<h3>Findings</h3>");
        table(out, &["Node", "Phase", "Check", "Severity", "Whose", "What", "Do", "`Evidence"], &rows);
    }
    if let Some(rails) = &of.rails {
        wiring(out, rails);
    }
    if let Some(environment) = &of.environment {
        super::environment::environment(out, environment);
    }
    if let Some(counters) = &of.counters {
        let _ = writeln!(out, "<p>Counters: {}</p>", esc(counters.totals.as_str()));
        for (position, node) in counters.nodes.iter().enumerate() {
            one_node(out, node, position == 0);
        }
        if counters.more > 0 {
            let _ = writeln!(
                out,
                "<p class=\"soft\">{}, nothing unusual in the counters: --format json</p>",
                more_nodes(counters.more)
            );
        }
    }
    out.push_str("</div>\n");
}

fn word(fitness: Option<Fitness>) -> String {
    let (class, word) = match fitness {
        None => ("soft", "not judged".to_owned()),
        Some(fitness) => match fitness {
            Fitness::Fit => ("good", fitness.to_string()),
            Fitness::Degraded | Fitness::Unknown => ("warn", fitness.to_string()),
            Fitness::Unfit => ("bad", fitness.to_string()),
        },
    };
    format!("<span class=\"{class}\">{word}</span>")
}

fn gate(out: &mut String, gate: &[GateRow]) {
    out.push_str(
        "<h3>Gate</h3><div class=\"scroll\"><table><thead><tr><th>Node</th><th>Before</th><th>After</th>\
         <th>Options</th><th>What railgate did</th></tr></thead><tbody>\n",
    );
    let listed = |row: &&GateRow| gate.len() <= MOST_NODES || row.has_news;
    for row in gate.iter().filter(listed).take(MOST_NODES) {
        let or_unknown = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
        let options = format!("gate {}, requeue {}", or_unknown(&row.gate), or_unknown(&row.requeue));
        let profile = row.profile.as_ref().map(|name| format!(", profile {name}")).unwrap_or_default();
        let acts: Vec<String> = row.acts.iter().map(|act| esc(act)).collect();
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}{}</td><td class=\"c\">{}</td></tr>",
            esc(&row.node),
            word(row.before),
            word(row.after),
            esc(&options),
            esc(&profile),
            if acts.is_empty() { "nothing".to_owned() } else { acts.join("<br>") }
        );
    }
    out.push_str("</tbody></table></div>\n");
    let rest = gate.len() - gate.iter().filter(listed).count();
    if rest > 0 {
        let _ = writeln!(out, "<p class=\"soft\">and {} without findings</p>", more_nodes(rest));
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

fn wiring(out: &mut String, rails: &Rails) {
    let _ = write!(
        out,
        "<details><summary>Rails, as on {} <span class=\"soft\">({}; found by {})</span></summary>",
        esc(&rails.node),
        rails.rows.len(),
        esc(&rails.method)
    );
    let rows: Vec<Vec<String>> = rails
        .rows
        .iter()
        .map(|row| {
            let port = format!("{}:{}", row.hca, row.port);
            let (number, gpus, pci) = (row.number.to_string(), row.gpus.clone(), row.pci.clone());
            vec![number, gpus, port, pci, row.rate.clone(), row.numa.clone(), row.state.clone()]
        })
        .collect();
    table(out, &["#Rail", "GPU", "@Port", "@PCI", "#Rate", "#NUMA", "State"], &rows);
    let left_out = rails.left_out.iter().map(|left| format!("{}: {}", left.port, left.why));
    let notes = rails.none.iter().chain(&rails.differ).chain(&rails.notes);
    let notes = notes.map(|note| note.as_str().to_owned());
    let items: Vec<String> =
        left_out.chain(notes).take(64).map(|item| format!("<li>{}</li>", esc(&item))).collect();
    if !items.is_empty() {
        let _ = write!(out, "<ul>{}</ul>", items.concat());
    }
    out.push_str("</details>\n");
}

fn one_node(out: &mut String, node: &NodeCounters, open: bool) {
    let _ = write!(
        out,
        "<details{}><summary>Counters of {} <span class=\"soft\">{}</span></summary>",
        if open { " open" } else { "" },
        esc(&node.node),
        esc(&node.window)
    );
    let rows: Vec<Vec<String>> = node.gpus.iter().map(gpu_cells).collect();
    table(
        out,
        &[
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
        ],
        &rows,
    );
    let rows: Vec<Vec<String>> = node.ports.iter().map(port_cells).collect();
    if !rows.is_empty() {
        out.push_str("<h3>Ports of the whole node, all jobs together</h3>");
        table(
            out,
            &[
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
            ],
            &rows,
        );
    }
    out.push_str("</details>\n");
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

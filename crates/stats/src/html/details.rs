use std::fmt::Write as _;

use railgate_model::{Access, Fitness, Reading};

use super::{ended, esc, pill, table};
use crate::exits::ending;
use crate::plain::{byte_rate, bytes, cell, energy, float, port_state, span, stamp};
use crate::view::nccl::warnings;
use crate::view::{OfAttempt, Rails};
use crate::why::decided;
use crate::{Attempt, Counter, Look, NodeReport, Window};

/// Beyond so many nodes the rest is in the JSON.
const MOST_NODES: usize = 64;

pub(super) fn attempt(out: &mut String, attempt: &Attempt, of: &OfAttempt, numbered: bool) {
    let kind = if numbered { pill(attempt.ended.kind) } else { String::new() };
    // Writing to a String cannot fail.
    let _ = writeln!(out, "<h2>Attempt {}{kind}</h2>\n<div class=\"card\">", attempt.attempt);
    if numbered {
        ended(out, &attempt.ended);
    }
    let nodes = if attempt.nodelist.is_empty() { "unknown" } else { &attempt.nodelist };
    let reported =
        format!("{} of {} reported", attempt.nodes.len(), attempt.node_count.max(attempt.nodes.len()));
    let _ = write!(out, "<dl><dt>Nodes</dt><dd>{}, {reported}</dd>", esc(nodes));
    if attempt.end.is_some() {
        let _ = write!(out, "<dt>Ended</dt><dd>{}</dd>", esc(&ending(attempt)));
    }
    if let Some(decision) = &attempt.decision {
        let _ = write!(
            out,
            "<dt>Controller</dt><dd>{}: {} <span class=\"soft\">(consent {}, waited {:.1} s)</span></dd>",
            decision.what.title(),
            esc(&decided(attempt, decision)),
            esc(&decision.consent),
            float(decision.waited_ms) / 1000.0
        );
        if let Some(budget) = decision.budget {
            let _ = write!(
                out,
                "<dt>Budget</dt><dd>deaths during a run: {} (restarts allowed: {}); moves by the gate: {}</dd>",
                budget.restarts, budget.max_restarts, budget.moves
            );
        }
    }
    for warning in warnings(attempt) {
        let _ = write!(out, "<dt>Rails</dt><dd class=\"warn\">{}</dd>", esc(&warning));
    }
    out.push_str("</dl>\n");
    if let Some(decision) = &attempt.decision {
        let rows: Vec<Vec<String>> = decision
            .nodes
            .iter()
            .take(MOST_NODES)
            .map(|node| {
                let evidence =
                    if node.evidence { format!("yes, by {}", node.source) } else { "no".to_owned() };
                vec![node.node.clone(), node.state.clone(), node.reason.clone(), evidence]
            })
            .collect();
        table(out, &["Node", "State", "`Reason", "Evidence"], &rows);
    }
    gate(out, attempt);
    if let Some(rails) = &of.rails {
        wiring(out, rails);
    }
    if let Some(environment) = &of.environment {
        super::environment::environment(out, environment);
    }
    for (position, node) in attempt.nodes.iter().take(MOST_NODES).enumerate() {
        counters(out, node, position == 0);
    }
    if attempt.nodes.len() > MOST_NODES {
        let _ = writeln!(
            out,
            "<p class=\"soft\">{} more nodes: --format json</p>",
            attempt.nodes.len() - MOST_NODES
        );
    }
    out.push_str("</div>\n");
}

fn word(look: Option<&Look>) -> String {
    let Some(look) = look else { return "<span class=\"soft\">not judged</span>".to_owned() };
    let class = match look.verdict.fitness {
        Fitness::Fit => "good",
        Fitness::Degraded | Fitness::Unknown => "warn",
        Fitness::Unfit => "bad",
    };
    format!("<span class=\"{class}\">{}</span>", look.verdict.fitness)
}

fn gate(out: &mut String, attempt: &Attempt) {
    if attempt.nodes.is_empty() {
        return;
    }
    out.push_str(
        "<h3>Gate</h3><div class=\"scroll\"><table><thead><tr><th>Node</th><th>Before</th><th>After</th>\
         <th>Options</th><th>What railgate did</th></tr></thead><tbody>\n",
    );
    for node in attempt.nodes.iter().take(MOST_NODES) {
        let acts: Vec<String> =
            node.acts.iter().map(|act| format!("{} {}", act.by, act_text(act.what, &act.detail))).collect();
        let or_unknown = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
        let options =
            format!("gate {}, requeue {}", or_unknown(&node.options.gate), or_unknown(&node.options.requeue));
        let profile =
            node.options.profile.as_ref().map(|name| format!(", profile {name}")).unwrap_or_default();
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}{}</td><td class=\"c\">{}</td></tr>",
            esc(&node.node),
            word(node.prolog.as_ref()),
            word(node.epilog.as_ref()),
            esc(&options),
            esc(&profile),
            if acts.is_empty() {
                "nothing".to_owned()
            } else {
                acts.iter().map(|act| esc(act)).collect::<Vec<_>>().join("<br>")
            }
        );
    }
    out.push_str("</tbody></table></div>\n");
    let mut rows = Vec::new();
    for node in attempt.nodes.iter().take(MOST_NODES) {
        for look in [&node.prolog, &node.epilog].into_iter().flatten() {
            for finding in look.verdict.findings.iter().take(50) {
                let proof: Vec<String> = finding
                    .evidence
                    .iter()
                    .take(5)
                    .map(|row| format!("{}: {} (want {}; {})", row.what, row.got, row.want, row.source))
                    .collect();
                rows.push(vec![
                    node.node.clone(),
                    look.verdict.phase.to_string(),
                    finding.subject(),
                    finding.severity.to_string(),
                    finding.class.to_string(),
                    finding.what.clone(),
                    finding.fix.clone(),
                    proof.join("; "),
                ]);
            }
            for part in &look.missing {
                let phase = look.verdict.phase.to_string();
                let what = format!("not read: {}", part.why);
                rows.push(vec![
                    node.node.clone(),
                    phase,
                    part.part.as_str().to_owned(),
                    "unknown".to_owned(),
                    String::new(),
                    what,
                    String::new(),
                    String::new(),
                ]);
            }
        }
        for fault in node.faults.iter().take(20) {
            let internal = "internal".to_owned();
            rows.push(vec![
                node.node.clone(),
                String::new(),
                "railgate".to_owned(),
                internal.clone(),
                internal,
                fault.clone(),
                String::new(),
                String::new(),
            ]);
        }
    }
    if !rows.is_empty() {
        out.push_str("<h3>Findings</h3>");
        table(out, &["Node", "Phase", "Check", "Severity", "Whose", "What", "Do", "`Evidence"], &rows);
    }
}

fn act_text(what: crate::ActKind, detail: &str) -> String {
    use crate::ActKind::{Breaker, Drained, Failed, ForeignReason, Notified, Pending, Refused, WouldDrain};
    let lead = match what {
        Drained => "drained the node",
        WouldDrain => "would have drained the node",
        Breaker => "did not drain, the breaker is open",
        ForeignReason => "left the node to whoever holds it",
        Pending => "keeps the reason until slurmctld answers",
        Refused => "refused the job",
        Notified => "told the owner",
        Failed => "failed",
    };
    if detail.is_empty() { lead.to_owned() } else { format!("{lead}: {detail}") }
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

fn counters(out: &mut String, node: &NodeReport, open: bool) {
    if node.gpus.is_empty() && node.ports.is_empty() {
        return;
    }
    let seconds = node.window.and_then(Window::seconds);
    let window = match (node.window, seconds) {
        (Some(window), Some(seconds)) => format!("over {} from {}", span(seconds), stamp(window.start)),
        _ => "no window".to_owned(),
    };
    let _ = write!(
        out,
        "<details{}><summary>Counters of {} <span class=\"soft\">{}</span></summary>",
        if open { " open" } else { "" },
        esc(&node.node),
        esc(&window)
    );
    let count = |counter: &Counter<u64>| cell(&counter.delta, u64::to_string);
    let pair = |counter: &Counter<u64>| {
        format!("{} → {}", cell(&counter.before, u64::to_string), cell(&counter.after, u64::to_string))
    };
    let rows: Vec<Vec<String>> = node
        .gpus
        .iter()
        .map(|gpu| {
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
            let power = match (&gpu.energy_j.delta, seconds) {
                (Reading::Known(joules), Some(seconds)) => format!("{:.0} W", joules / seconds),
                _ => "?".to_owned(),
            };
            vec![
                gpu.index.to_string(),
                cell(&gpu.pci, ToString::to_string),
                own.to_owned(),
                state,
                cell(&gpu.energy_j.delta, |joules| energy(*joules)),
                power,
                pair(&gpu.ecc_uncorrected),
                count(&gpu.ecc_corrected),
                pair(&gpu.rows_remapped),
                count(&gpu.pcie_replays),
                cell(&gpu.nvlink_tx_bytes.delta, |sent| bytes(float(*sent))),
                cell(&gpu.nvlink_rx_bytes.delta, |received| bytes(float(*received))),
                format!(
                    "{} → {}",
                    cell(&gpu.nvlinks_up.before, u32::to_string),
                    cell(&gpu.nvlinks_up.after, u32::to_string)
                ),
                cell(&gpu.temperature_c, |degrees| format!("{degrees} °C")),
            ]
        })
        .collect();
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
    let rows: Vec<Vec<String>> = node
        .ports
        .iter()
        .map(|port| {
            let rate = |counter: &Counter<u64>| match (&counter.delta, seconds) {
                (Reading::Known(delta), Some(seconds)) => byte_rate(float(*delta) / seconds),
                _ => "?".to_owned(),
            };
            let errors: Vec<String> =
                port.errors.iter().map(|(name, counter)| format!("{name} {}", count(counter))).collect();
            vec![
                port.rail.map_or_else(|| "-".to_owned(), |rail| rail.to_string()),
                format!("{}:{}", port.hca, port.port),
                format!("{} → {}", port_state(&port.state_before), port_state(&port.state_after)),
                cell(&port.rate_gbps, |rate| format!("{rate} Gb/s")),
                cell(&port.tx_bytes.delta, |sent| bytes(float(*sent))),
                rate(&port.tx_bytes),
                cell(&port.rx_bytes.delta, |received| bytes(float(*received))),
                rate(&port.rx_bytes),
                pair(&port.link_downed),
                errors.join(", "),
            ]
        })
        .collect();
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

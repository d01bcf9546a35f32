use railgate_model::{Access, Reading};
use railgate_text::shorten;

use super::{Text, more_nodes};
use crate::plain::{byte_rate, bytes, cell, energy, float, plain, port_state, span, stamp};
use crate::{Attempt, Counter, NodeReport};

fn count(counter: &Counter<u64>) -> String {
    cell(&counter.delta, u64::to_string)
}

/// Something in the node's counters is not as it is on a healthy node.
fn odd(node: &NodeReport) -> bool {
    let grew = |counter: &Counter<u64>| counter.delta.known().is_some_and(|delta| *delta > 0);
    node.gpus
        .iter()
        .any(|gpu| gpu.access != Access::Ok || grew(&gpu.ecc_uncorrected) || grew(&gpu.rows_remapped))
        || node.ports.iter().any(|port| port.rail.is_some() && grew(&port.link_downed))
        || !node.evidence.is_empty()
}

fn totals(out: &mut Text, attempt: &Attempt) {
    let own = || attempt.nodes.iter().flat_map(|node| &node.gpus).filter(|gpu| gpu.own == Some(true));
    let joules: f64 = own().filter_map(|gpu| gpu.energy_j.delta.known()).sum();
    let unread = own().filter(|gpu| gpu.energy_j.delta.known().is_none()).count();
    let rails = || attempt.nodes.iter().flat_map(|node| &node.ports).filter(|port| port.rail.is_some());
    let sum =
        |pick: &dyn Fn(&crate::PortUse) -> Option<u64>| rails().filter_map(pick).map(float).sum::<f64>();
    let count = own().count();
    let mut line = match count {
        0 => "no GPU was the job's".to_owned(),
        _ if unread == count => format!("what the job's {count} GPUs drew is not known"),
        _ => format!("the job's {count} GPUs drew {}", energy(joules)),
    };
    if (1..count).contains(&unread) {
        line.push_str(&format!(" ({unread} of them unknown)"));
    }
    if rails().next().is_some() {
        let sent = sum(&|port| port.tx_bytes.delta.known().copied());
        let received = sum(&|port| port.rx_bytes.delta.known().copied());
        line.push_str(&format!(
            "; the rails of its nodes sent {} and received {}",
            bytes(sent),
            bytes(received)
        ));
    }
    out.indented(&line, 2);
}

pub(super) fn counters(out: &mut Text, attempt: &Attempt, last: bool) {
    const MOST_TABLES: usize = 4;
    let counted = || attempt.nodes.iter().filter(|node| !node.gpus.is_empty() || !node.ports.is_empty());
    if counted().next().is_none() {
        return;
    }
    out.section(&format!("attempt {}: counters", attempt.attempt), "");
    totals(out, attempt);
    let mut shown: Vec<&NodeReport> = counted().filter(|node| odd(node)).take(MOST_TABLES).collect();
    if shown.is_empty() && last {
        shown.extend(counted().next());
    }
    for node in &shown {
        out.0.blank();
        let seconds = node.window.and_then(crate::Window::seconds);
        let window = match (node.window, seconds) {
            (Some(window), Some(seconds)) => format!("over {} from {}", span(seconds), stamp(window.start)),
            _ => "no window".to_owned(),
        };
        out.line(&format!("  {} {window}", plain(&node.node)));
        out.line("  (* a GPU of the job, - not supported, ? could not tell)");
        let gpus: Vec<Vec<String>> = node
            .gpus
            .iter()
            .take(64)
            .map(|gpu| {
                let power = match (&gpu.energy_j.delta, seconds) {
                    (Reading::Known(joules), Some(seconds)) => format!("{:.0} W", joules / seconds),
                    _ => "?".to_owned(),
                };
                vec![
                    format!(
                        "{}{}",
                        gpu.index,
                        match gpu.own {
                            Some(true) => "*",
                            Some(false) => "",
                            None => "?",
                        }
                    ),
                    match &gpu.access {
                        Access::Ok => "ok".to_owned(),
                        Access::Lost(_) => "LOST".to_owned(),
                        Access::ResetRequired(_) => "RESET".to_owned(),
                        Access::Failed(_) => "?".to_owned(),
                    },
                    cell(&gpu.energy_j.delta, |joules| energy(*joules)),
                    power,
                    count(&gpu.ecc_uncorrected),
                    count(&gpu.ecc_corrected),
                    count(&gpu.rows_remapped),
                    count(&gpu.pcie_replays),
                    cell(&gpu.nvlink_tx_bytes.delta, |sent| bytes(float(*sent))),
                    cell(&gpu.nvlink_rx_bytes.delta, |received| bytes(float(*received))),
                ]
            })
            .collect();
        if !gpus.is_empty() {
            out.table(
                &[
                    "GPU",
                    "STATE",
                    "ENERGY",
                    "MEAN",
                    "ECC UNC",
                    "ECC COR",
                    "REMAPS",
                    "REPLAYS",
                    "NVLINK TX",
                    "NVLINK RX",
                ],
                &gpus,
            );
        }
        let ports: Vec<Vec<String>> = node
            .ports
            .iter()
            .take(64)
            .map(|port| {
                let rate = |counter: &Counter<u64>| match (&counter.delta, seconds) {
                    (Reading::Known(delta), Some(seconds)) => byte_rate(float(*delta) / seconds),
                    _ => "?".to_owned(),
                };
                let errors: Vec<String> = port
                    .errors
                    .iter()
                    .take(6)
                    .map(|(name, counter)| format!("{}={}", shorten(name, 40), count(counter)))
                    .collect();
                vec![
                    port.rail.map_or_else(|| "-".to_owned(), |rail| rail.to_string()),
                    format!("{}:{}", shorten(&port.hca, 20), port.port),
                    port_state(&port.state_after),
                    cell(&port.tx_bytes.delta, |sent| bytes(float(*sent))),
                    rate(&port.tx_bytes),
                    cell(&port.rx_bytes.delta, |received| bytes(float(*received))),
                    rate(&port.rx_bytes),
                    count(&port.link_downed),
                    errors.join(" "),
                ]
            })
            .collect();
        if !ports.is_empty() {
            out.line("  ports of the whole node, all jobs together:");
            out.table(
                &["RAIL", "PORT", "STATE", "SENT", "MEAN", "RECEIVED", "MEAN", "DOWNS", "ERRORS"],
                &ports,
            );
        }
    }
    let rest = counted().count() - shown.len();
    if rest > 0 {
        out.line(&format!("  {}, nothing odd in the counters: --format html or json", more_nodes(rest)));
    }
}

use railgate_model::Access;
use railgate_node_report::plain::plain;
use railgate_text::shorten;

use super::Text;
use crate::view::{Counters, GpuRow, NodeCounters, PortRow};

/// Maximum number of nodes with tables.
const MOST_TABLES: usize = 4;
/// Maximum number of rows of a table.
const MOST_ROWS: usize = 64;

/// Tables of nodes with anomalies; for the last attempt that of the first node if there are none.
pub(super) fn counters(out: &mut Text, title: &str, counters: &Counters, is_last: bool) {
    out.section(title, "");
    out.indented(counters.totals.as_str(), 2);
    let mut shown: Vec<&NodeCounters> =
        counters.nodes.iter().filter(|node| node.is_odd).take(MOST_TABLES).collect();
    if shown.is_empty() && is_last {
        shown.extend(counters.nodes.first());
    }
    for node in &shown {
        one_node(out, node);
    }
    if let Some(rest) = counters.rest(|node| shown.iter().any(|shown| std::ptr::eq(*shown, node))) {
        out.line(&format!("  {rest}: --format html or json"));
    }
}

fn one_node(out: &mut Text, node: &NodeCounters) {
    out.0.blank();
    out.line(&format!("  {} {}", plain(&node.node), node.window));
    out.line("  (* a GPU of the job, - not supported, ? not known)");
    let gpus: Vec<Vec<String>> = node.gpus.iter().take(MOST_ROWS).map(gpu_cells).collect();
    if !gpus.is_empty() {
        let head = [
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
        ];
        out.table(&head, &gpus);
    }
    let ports: Vec<Vec<String>> = node.ports.iter().take(MOST_ROWS).map(port_cells).collect();
    if !ports.is_empty() {
        out.line("  ports of the whole node, all jobs together:");
        let head = ["RAIL", "PORT", "STATE", "SENT", "MEAN", "RECEIVED", "MEAN", "DOWNS", "ERRORS"];
        out.table(&head, &ports);
    }
}

fn gpu_cells(gpu: &GpuRow) -> Vec<String> {
    let own = match gpu.own {
        Some(true) => "*",
        Some(false) => "",
        None => "?",
    };
    let state = match &gpu.access {
        Access::Ok => "ok",
        Access::Lost(_) => "LOST",
        Access::ResetRequired(_) => "RESET",
        Access::Failed(_) => "?",
    };
    let index = format!("{}{own}", gpu.index);
    let counts = [&gpu.ecc_uncorrected, &gpu.ecc_corrected, &gpu.rows_remapped, &gpu.pcie_replays];
    let mut cells = vec![index, state.to_owned(), gpu.energy.clone(), gpu.power.clone()];
    cells.extend(counts.map(|count| count.grew.clone()));
    cells.extend([gpu.nvlink_sent.clone(), gpu.nvlink_received.clone()]);
    cells
}

fn port_cells(port: &PortRow) -> Vec<String> {
    let errors = port.errors.iter().take(6);
    let errors: Vec<String> = errors.map(|(name, grew)| format!("{}={grew}", shorten(name, 40))).collect();
    let name = format!("{}:{}", shorten(&port.hca, 20), port.port);
    let mut cells = vec![port.rail.clone(), name];
    let traffic = [&port.sent, &port.sent_rate, &port.received, &port.received_rate];
    cells.push(port.state_after.clone());
    cells.extend(traffic.map(String::clone));
    cells.extend([port.link_downs.grew.clone(), errors.join(" ")]);
    cells
}

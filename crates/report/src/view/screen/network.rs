//! Collectives and rails on the screen.

use railgate_diagnosis::{Analysis, Line, median};
use railgate_model::{LinkLayer, Reading, Severity};
use railgate_node_report::comm::Collective;
use railgate_node_report::plain::{float, plain};
use railgate_node_report::{NodeReport, PortUse};
use railgate_text::shorten;

use crate::{Attempt, JobReport};

/// Library, transport, and the share of calls that were timed.
pub(super) fn nccl(attempt: &Attempt) -> Option<String> {
    let all: Vec<_> = attempt.nodes.iter().filter_map(|node| node.communication.as_ref()).collect();
    let process = all.iter().flat_map(|comm| &comm.processes).next()?;
    let version = process.nccl.as_deref().unwrap_or("of unknown version");
    let mode = process.mode.as_deref().unwrap_or("unknown");
    let mut parts = vec![format!("{}, profiler {}", shorten(version, 16), shorten(mode, 12))];
    let transports: Vec<_> = attempt.nodes.iter().filter_map(|node| node.transport.as_ref()).collect();
    let over = |what: railgate_node_report::Over| {
        transports.iter().filter(|transport| transport.over == what).count()
    };
    match (over(railgate_node_report::Over::Rails), over(railgate_node_report::Over::Sockets)) {
        (0, 0) => {}
        (_, 0) => {
            parts.push(format!("over {}", own_rails(attempt)));
            parts.extend(no_gpudirect(attempt));
            parts.push("no TCP fallback".to_owned());
        }
        (rails, sockets) => parts.push(format!("over sockets on {sockets} of {} nodes", rails + sockets)),
    }
    let rows = || all.iter().flat_map(|comm| &comm.collectives);
    let (timed, calls) = rows().fold((0, 0), |sum, row| (sum.0 + row.timed, sum.1 + row.calls));
    let costly = all.iter().flat_map(|comm| costly(&comm.collectives));
    let error = costly.filter_map(|row| row.error_percent).fold(0.0, f64::max);
    if timed > 0 && timed < calls {
        parts.push(format!(
            "timed {:.1} % of calls, error <{:.0} %",
            100.0 * float(timed) / float(calls),
            error.ceil().max(1.0)
        ));
    }
    Some(parts.join(", "))
}

/// Rows with at least one hundredth of the node's time in collectives; the accuracy of the others is
/// irrelevant.
fn costly(rows: &[Collective]) -> impl Iterator<Item = &Collective> {
    let took =
        |row: &Collective| if row.timed > 0 { row.gpu_s * float(row.calls) / float(row.timed) } else { 0.0 };
    let least = rows.iter().map(took).sum::<f64>() / 100.0;
    rows.iter().filter(move |row| took(row) >= least)
}

/// Why GPUDirect RDMA was impossible: the gate found no path, or a setting disabled it. A path does not prove
/// that NCCL used it, so "enabled" is never reported.
fn no_gpudirect(attempt: &Attempt) -> Option<String> {
    let no_way = |node: &&NodeReport| {
        let looks = node.prolog.iter().chain(&node.epilog).flat_map(|look| &look.verdict.findings);
        looks.into_iter().any(|one| one.check == "gpu-direct" && one.severity != Severity::Unknown)
    };
    let lacking: Vec<&NodeReport> = attempt.nodes.iter().filter(no_way).collect();
    let mut applied = attempt.nodes.iter().flat_map(|node| &node.applied);
    let off = applied.find(|one| {
        one.name == "NCCL_NET_GDR_LEVEL" && one.value.as_deref().is_some_and(|to| ["LOC", "0"].contains(&to))
    });
    match (lacking.as_slice(), off) {
        ([], None) => None,
        ([], Some(off)) => Some(format!(
            "GPUDirect off ({}={} by {})",
            off.name,
            off.value.as_deref().unwrap_or_default(),
            off.by.as_str()
        )),
        ([one], _) => Some(format!("no GPUDirect on {} (gpu-direct)", shorten(&one.node, 24))),
        (many, _) => {
            Some(format!("no GPUDirect on {} of {} nodes (gpu-direct)", many.len(), attempt.nodes.len()))
        }
    }
}

/// Rails of the job, `8 rails (InfiniBand)`, if all nodes have the same.
fn own_rails(attempt: &Attempt) -> String {
    let maps = attempt.nodes.iter().filter_map(|node| node.rail_map.as_ref());
    let mut counts: Vec<(usize, Option<&str>)> = maps
        .map(|map| {
            let mut layers: Vec<Option<&str>> = map
                .rails
                .iter()
                .map(|rail| match &rail.link_layer {
                    Reading::Known(LinkLayer::InfiniBand) => Some("InfiniBand"),
                    Reading::Known(LinkLayer::Ethernet) => Some("RoCE"),
                    _ => None,
                })
                .collect();
            layers.dedup();
            (map.rails.len(), if let [one] = layers.as_slice() { *one } else { None })
        })
        .collect();
    counts.dedup();
    match counts.as_slice() {
        [(1, layer)] => format!("1 rail{}", in_brackets(*layer)),
        [(count @ 2.., layer)] => format!("{count} rails{}", in_brackets(*layer)),
        _ => "rails".to_owned(),
    }
}

fn in_brackets(layer: Option<&str>) -> String {
    layer.map(|layer| format!(" ({layer})")).unwrap_or_default()
}

/// Balance of rail traffic, and events of links and switches.
pub(super) fn rails(report: &JobReport, attempt: &Attempt, analysis: &Analysis) -> Option<String> {
    let odd: Vec<&str> = analysis.on_line(Line::Rails).map(|one| one.what.as_str()).collect();
    let mut worst = None;
    for usage in attempt.nodes.iter().filter_map(|node| node.usage.as_ref()) {
        let of_rail = |rail: &railgate_node_report::usage::RailUsage| {
            rail.rail?;
            Some(rail.tx_bytes_s.known()?.mean + rail.rx_bytes_s.known()?.mean)
        };
        let rates: Vec<f64> = usage.rails.iter().filter_map(of_rail).collect();
        let mean = rates.iter().sum::<f64>() / float(u64::try_from(rates.len()).unwrap_or(1)).max(1.0);
        // Below this rate rails are not in use.
        if rates.len() > 1 && mean > 100e6 {
            let off = rates.iter().map(|rate| (rate / mean - 1.0).abs()).fold(0.0, f64::max);
            worst = Some(off.max(worst.unwrap_or(0.0)));
        }
    }
    let balance = worst.map(|worst: f64| format!("balance +-{:.1} %", 100.0 * worst));
    let odd = odd.iter().take(2).map(|what| plain(what));
    let parts: Vec<String> =
        balance.into_iter().chain(odd).chain(links(report, attempt)).chain(waits(report, attempt)).collect();
    Some(parts.join("; ")).filter(|text| !text.is_empty())
}

/// The job's rails whose link went down during the run.
fn links(report: &JobReport, attempt: &Attempt) -> Option<String> {
    let down = |(node, rail, port): &(&str, usize, &PortUse)| {
        let times = port.link_downed.delta.known().copied().filter(|times| *times > 0)?;
        Some(format!("{} link_downed +{times}", place(report, node, *rail, port)))
    };
    listed(ports(attempt).iter().filter_map(down).collect())
}

/// Rails that waited for credits at least three times as long as the job's other rails.
fn waits(report: &JobReport, attempt: &Attempt) -> Option<String> {
    let known = |(node, rail, port): (_, _, &PortUse)| {
        let wait = match port.errors.get("port_xmit_wait") {
            Some(counter) => *counter.delta.known()?,
            // Only counters that increased are listed; a port without a reading has no traffic either.
            None => port.tx_bytes.delta.known().map(|_| 0)?,
        };
        Some((place(report, node, rail, port), float(wait)))
    };
    let waits: Vec<(String, f64)> = ports(attempt).into_iter().filter_map(known).collect();
    let typical = median(waits.iter().map(|(_, wait)| *wait).collect()).filter(|wait| *wait > 0.0)?;
    let long = waits.iter().filter(|(_, wait)| waits.len() >= 4 && *wait >= 3.0 * typical);
    listed(long.map(|(place, wait)| format!("{place} xmit_wait {:.1}x median", wait / typical)).collect())
}

/// Port, `gn7 r2`, or `gn7 r2 (leaf07)` if the site's table has its leaf switch.
fn place(report: &JobReport, node: &str, rail: usize, port: &PortUse) -> String {
    let leaf = report.leaf(node, port).map(|leaf| format!(" ({})", shorten(leaf, 24)));
    format!("{} r{rail}{}", shorten(node, 24), leaf.unwrap_or_default())
}

/// Ports that are rails: node, rail, port.
fn ports(attempt: &Attempt) -> Vec<(&str, usize, &PortUse)> {
    let mut all = Vec::new();
    for node in &attempt.nodes {
        all.extend(node.ports.iter().filter_map(|port| Some((node.node.as_str(), port.rail?, port))));
    }
    all
}

fn listed(mut all: Vec<String>) -> Option<String> {
    const MOST: usize = 2;
    let more = all.len().saturating_sub(MOST);
    all.truncate(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!all.is_empty()).then(|| format!("{}{more}", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_with_little_time_do_not_affect_the_error() {
        let row = |calls, timed, gpu_s| Collective { calls, timed, gpu_s, ..Collective::default() };
        // Durations of 1 s, 9 ms and 11 ms; of the first a tenth of the calls is timed.
        let rows = [row(100, 10, 0.098), row(5, 5, 0.009), row(4, 4, 0.011), row(7, 0, 0.0)];
        let found: Vec<u64> = costly(&rows).map(|row| row.calls).collect();
        assert_eq!(found, [100, 4]);
    }
}

//! For people.

use crate::analysis::Analysis;
use crate::slurm::Hostlist;
use crate::units::{FaultKind, Unit};

/// Most lines of a list that grows with the fabric's faults.
const MOST: usize = 200;

/// The whole fabric: tiers, units and their leafs, what is wrong.
pub fn table(analysis: &Analysis, hostlist: Hostlist<'_>) -> String {
    let nodes: usize = analysis.units.iter().map(|unit| unit.nodes.len()).sum();
    let count = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let mut text = format!(
        "{}, {}, {}\n",
        count(analysis.switches.len(), "switch").replace("switchs", "switches"),
        count(nodes, "node"),
        count(analysis.ports.len(), "HCA port"),
    );
    text.push_str(&tiers(analysis));
    for unit in &analysis.units {
        text.push_str(&of_unit(unit, hostlist));
    }
    text.push('\n');
    match analysis.faults.len() {
        0 => text.push_str("Wiring: every port is where its neighbours are\n"),
        faults => {
            let wrong = |kind| analysis.faults.iter().filter(|fault| fault.kind == kind).count();
            text.push_str(&format!(
                "Wiring: {} on the wrong leaf, {} without a link, {} undecided\n",
                wrong(FaultKind::WrongLeaf),
                wrong(FaultKind::NoLink),
                wrong(FaultKind::Undecided)
            ));
            for fault in analysis.faults.iter().take(MOST) {
                text.push_str(&format!("  {}\n", fault.text));
            }
            if faults > MOST {
                text.push_str(&format!("  and {} more: --format json has all\n", faults - MOST));
            }
        }
    }
    if analysis.roots() > 1 {
        text.push_str(&format!("The fabric is in {} parts that no switch joins\n", analysis.roots()));
    }
    if !analysis.absent.is_empty() {
        text.push_str(&format!("Not in this fabric: {}\n", hostlist(&analysis.absent)));
    }
    if !analysis.unnamed.is_empty() {
        text.push_str(&format!(
            "{} whose name does not tell its node (rdma-ndd sets it): {}{}\n",
            count(analysis.unnamed.len(), "HCA"),
            analysis.unnamed.iter().take(4).cloned().collect::<Vec<_>>().join(", "),
            if analysis.unnamed.len() > 4 { ", …" } else { "" }
        ));
    }
    text
}

fn tiers(analysis: &Analysis) -> String {
    let mut rows = vec![["TIER", "SWITCHES", "DOWN", "UP", "OVERSUBSCRIPTION"].map(str::to_owned)];
    for tier in &analysis.tiers {
        let side = |links: usize, gbps: Option<f64>| match gbps {
            _ if links == 0 => "-".to_owned(),
            Some(gbps) => {
                format!("{links} x {:.0} Gb/s", gbps / f64::from(u32::try_from(links).unwrap_or(u32::MAX)))
            }
            None => format!("{links}"),
        };
        let whole = tier.oversubscription.map_or("-".to_owned(), |ratio| format!("{ratio:.2}:1"));
        let worst = tier.worst.as_ref().map_or(String::new(), |worst| {
            let ratio =
                worst.oversubscription.map_or("no link up".to_owned(), |ratio| format!("{ratio:.2}:1"));
            format!(", worst {} {ratio}", worst.switch)
        });
        rows.push([
            if tier.tier == 1 { "1 (leaf)".to_owned() } else { tier.tier.to_string() },
            tier.switches.to_string(),
            side(tier.down_links, tier.down_gbps),
            side(tier.up_links, tier.up_gbps),
            whole + &worst,
        ]);
    }
    aligned(&rows, "")
}

fn of_unit(unit: &Unit, hostlist: Hostlist<'_>) -> String {
    let kind = if unit.by_rail { "a leaf for each rail" } else { "rails share leafs" };
    let mut text =
        format!("\n{}: {} ({} nodes, {kind})\n", unit.name, hostlist(&unit.nodes), unit.nodes.len());
    let mut rows = vec![["RAIL", "HCA", "PORT", "LEAF"].map(str::to_owned)];
    for rail in &unit.rails {
        rows.push([
            rail.rail.to_string(),
            rail.hca.clone(),
            rail.port.to_string(),
            rail.leaf.clone().unwrap_or_else(|| "undecided".to_owned()),
        ]);
    }
    text.push_str(&aligned(&rows, "  "));
    text
}

fn aligned<const N: usize>(rows: &[[String; N]], indent: &str) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(&format!("{indent}{}\n", cells.join("  ").trim_end()));
    }
    text
}

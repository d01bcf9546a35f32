//! Renders the analysis for people.

use railgate_text::{Lines, put};

use crate::analysis::Analysis;
use crate::slurm::Hostlist;
use crate::units::{FaultKind, Unit};

/// Maximum number of lines in a list of faults.
const MOST: usize = 200;

/// Renders the whole fabric: tiers, units with their leaf switches, and faults.
pub fn table(analysis: &Analysis, hostlist: Hostlist<'_>) -> Lines {
    let nodes: usize = analysis.units.iter().map(|unit| unit.nodes.len()).sum();
    let count = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let mut text = Lines::new();
    put!(
        text,
        "{}, {}, {}",
        count(analysis.switches.len(), "switch").replace("switchs", "switches"),
        count(nodes, "node"),
        count(analysis.ports.len(), "HCA port"),
    );
    text.add(&tiers(analysis));
    for unit in &analysis.units {
        text.add(&of_unit(unit, hostlist));
    }
    text.blank();
    match analysis.faults.len() {
        0 => put!(text, "Wiring: every port is where its neighbours are"),
        faults => {
            let wrong = |kind| analysis.faults.iter().filter(|fault| fault.kind == kind).count();
            put!(
                text,
                "Wiring: {} on the wrong leaf, {} without a link, {} undecided",
                wrong(FaultKind::WrongLeaf),
                wrong(FaultKind::NoLink),
                wrong(FaultKind::Undecided)
            );
            for fault in analysis.faults.iter().take(MOST) {
                put!(text, "  {}", fault.text);
            }
            if faults > MOST {
                put!(text, "  and {} more: --format json has all", faults - MOST);
            }
        }
    }
    if analysis.roots() > 1 {
        put!(text, "The fabric is in {} parts that no switch joins", analysis.roots());
    }
    if !analysis.absent.is_empty() {
        put!(text, "Not in this fabric: {}", hostlist(&analysis.absent));
    }
    text.add(&gaps(analysis, &count));
    text
}

/// Gaps of the text: HCAs without a node name, and missing cables.
fn gaps(analysis: &Analysis, count: &impl Fn(usize, &str) -> String) -> Lines {
    let some = |all: &[String]| {
        let first: Vec<_> = all.iter().take(4).map(String::as_str).collect();
        first.join(", ") + if all.len() > 4 { ", …" } else { "" }
    };
    let mut text = Lines::new();
    for shared in analysis.shared.iter().take(MOST) {
        let hcas = count(shared.guids.len(), "HCA");
        put!(text, "{}; {hcas} belong to no node: {}", shared.text, some(&shared.guids));
    }
    if !analysis.unnamed.is_empty() {
        let hcas = count(analysis.unnamed.len(), "HCA");
        put!(text, "{hcas} without a node's name (rdma-ndd sets it): {}", some(&analysis.unnamed));
    }
    if !analysis.unrecorded.is_empty() {
        let devices = count(analysis.unrecorded.len(), "device");
        let which = some(&analysis.unrecorded);
        put!(text, "Incomplete: {devices} without a record, so cables may be missing: {which}");
    }
    if analysis.errors > 0 {
        let errors = count(analysis.errors, "error");
        put!(text, "ibnetdiscover reported {errors}: devices that did not answer are missing");
    }
    text
}

fn tiers(analysis: &Analysis) -> Lines {
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
    Lines::table(&rows, "")
}

fn of_unit(unit: &Unit, hostlist: Hostlist<'_>) -> Lines {
    let kind = if unit.by_rail { "a leaf for each rail" } else { "rails share leafs" };
    let mut text = Lines::new();
    text.blank();
    put!(text, "{}: {} ({} nodes, {kind})", unit.name, hostlist(&unit.nodes), unit.nodes.len());
    let mut rows = vec![["RAIL", "HCA", "PORT", "LEAF"].map(str::to_owned)];
    for rail in &unit.rails {
        rows.push([
            rail.rail.to_string(),
            if rail.hca.is_empty() { "-".to_owned() } else { rail.hca.clone() },
            rail.port.to_string(),
            rail.leaf.clone().unwrap_or_else(|| "undecided".to_owned()),
        ]);
    }
    text.add(&Lines::table(&rows, "  "));
    text
}

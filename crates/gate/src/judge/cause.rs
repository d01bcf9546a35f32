//! Selects the cause among several findings.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;

use railgate_model::{Action, Class, Evidence, Finding, Severity};

use super::{Judged, part_order};
use crate::CHECKS;
use crate::scene::Scene;

/// Orders findings; the first one decides. Stronger actions come first, then higher severities, then this node's faults
/// before the fabric's, then the order of the register. Findings that only the driver reported are ordered by time, so
/// that the GPU that fell off the bus comes before the links and switches that lost it.
pub(super) fn order(a: &Judged, b: &Judged) -> Ordering {
    let weight = |judged: &Judged| {
        let finding = &judged.finding;
        let ours = finding.class == Class::Internal;
        (ours, Reverse((judged.action, finding.severity)), finding.class, place(judged), judged.rank)
    };
    weight(a).cmp(&weight(b)).then_with(|| part_order(&a.finding.part).cmp(&part_order(&b.finding.part)))
}

/// The rank of the check. All checks of driver records share one rank and are ordered by the record's sequence number,
/// which other checks mention as well, next to their own readings.
fn place(judged: &Judged) -> (usize, u64) {
    if !judged.finding.check.contains("xid") {
        return (judged.rank, 0);
    }
    let number = |row: &Evidence| {
        let (_, rest) = row.source.split_once("kmsg seq ")?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let first = judged.finding.evidence.iter().filter_map(number).min().unwrap_or(u64::MAX);
    let rank = CHECKS.iter().position(|check| check.id.contains("xid")).unwrap_or(judged.rank);
    (rank, first)
}

/// If every compute port of a node with several is down at once, a common cause is likelier than as many broken cables.
/// This adds one finding for it, which comes before those of the ports.
pub(super) fn add_shared(scene: &Scene<'_>, judged: &mut Vec<Judged>) {
    let down = |judged: &&Judged| {
        let finding = &judged.finding;
        finding.check == "ib-port" && finding.severity == Severity::Fail && judged.action > Action::Shadow
    };
    let ports: BTreeSet<&str> = judged.iter().filter(down).map(|one| one.finding.part.as_str()).collect();
    let expected = scene.judged_ports().iter().filter(|port| port.expected()).count();
    let (Some(worst), true) = (judged.iter().filter(down).max_by_key(|one| one.action), ports.len() > 1)
    else {
        return;
    };
    if ports.len() < expected {
        return;
    }
    let rows: Vec<Evidence> =
        judged.iter().filter(down).flat_map(|one| one.finding.evidence.clone()).collect();
    let finding = Finding {
        check: worst.finding.check.clone(),
        part: String::new(),
        severity: Severity::Fail,
        class: Class::Fabric,
        what: format!("all {} compute ports down", ports.len()),
        fix: "check leaf switch".to_owned(),
        evidence: rows,
    };
    let shared = Judged { action: worst.action, rank: worst.rank, finding };
    judged.push(shared);
}

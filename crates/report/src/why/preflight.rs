//! What the job's own preflight accuses nodes of. The job's tasks wrote it: it explains an end, and proves no fault.

use railgate_model::PREFLIGHT_CHECK;
use railgate_node_report::{EvidenceItem, Exit, NodeReport};

use super::{EndKind, Ended, Proof, counts, fault, in_time_order, unseen, why_not};
use crate::Attempt;
use crate::exits::exit_said;

/// Most nodes in the sentence.
const MOST: usize = 8;

pub(super) fn is_of_preflight(item: &EvidenceItem) -> bool {
    item.finding.check == PREFLIGHT_CHECK
}

/// Whether this is the report of `node`, and all of its evidence is of the job's preflight.
pub(super) fn named_only_by_preflight(report: &NodeReport, node: &str) -> bool {
    let mut evidence = report.evidence.iter().filter(|item| counts(item, report)).peekable();
    report.node == node && evidence.peek().is_some() && evidence.all(is_of_preflight)
}

/// The end of an attempt whose preflight names nodes; `None` if it names none.
pub(super) fn named_by_preflight(attempt: &Attempt, exit: Exit) -> Option<Ended> {
    let mut proof = Vec::new();
    let mut named = Vec::new();
    for node in &attempt.nodes {
        let found = node.evidence.iter().filter(|item| is_of_preflight(item) && counts(item, node));
        for item in found.filter(|item| why_not(attempt, node, item).is_none()) {
            proof.push(Proof { time: item.time, node: node.node.clone(), what: fault(item) });
            named.push((node.node.as_str(), item.finding.what.as_str()));
        }
    }
    let (first, what) = *named.first()?;
    let mut names: Vec<&str> = named.iter().take(MOST).map(|(node, _)| *node).collect();
    names.dedup();
    let more = match named.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    in_time_order(&mut proof);
    let names = names.join(", ");
    let why = format!(
        "The job's own preflight named {names}{more}; the job ended with {}. The job's tasks wrote this result, and railgate did \
         not confirm it. On {first}: {what}. An admin: railgate check --full on {names}{more}.",
        exit_said(exit)
    );
    Some(Ended { kind: EndKind::Preflight, why, proof, doubts: unseen(attempt) })
}

//! Attempts that lost a node, or that were requeued.

use super::{EndKind, Ended, Proof, in_time_order};
use crate::Attempt;

/// Maximum number of nodes that are named.
const MOST: usize = 8;

/// Slurm lost a node of the attempt.
pub(super) fn died(attempt: &Attempt, mut proof: Vec<Proof>) -> Ended {
    let down = |name: &str| {
        let nodes = attempt.decision.iter().flat_map(|decision| &decision.nodes);
        nodes.into_iter().find(|node| node.node == name && node.state.to_ascii_uppercase().contains("DOWN"))
    };
    let mut dead: Vec<&String> = attempt.without_epilog().collect();
    for node in attempt.decision.iter().flat_map(|decision| &decision.nodes) {
        if down(&node.node).is_some() && !dead.contains(&&node.node) {
            dead.push(&node.node);
        }
    }
    dead.truncate(MOST);
    for name in &dead {
        let what = match down(name) {
            Some(node) => format!("{}: {}", node.state, node.reason),
            None => "no report of its epilog".to_owned(),
        };
        proof.push(Proof { time: attempt.decision.as_ref().map(|d| d.time), node: (*name).clone(), what });
    }
    in_time_order(&mut proof);
    let names: Vec<String> = dead
        .iter()
        .map(|name| match down(name) {
            Some(node) if !node.reason.is_empty() => format!("{name} ({})", node.reason),
            _ => (*name).clone(),
        })
        .collect();
    let why = match (names.as_slice(), &attempt.decision) {
        ([], Some(decision)) => format!("Slurm lost a node of the job: {}.", decision.why),
        ([], None) => "Slurm lost a node of the job (NODE_FAIL); every node has reported since.".to_owned(),
        (names, _) => {
            format!("Slurm lost a node of the job (NODE_FAIL); no epilog report from {}.", names.join(", "))
        }
    };
    Ended { kind: EndKind::NodeDied, why, proof, doubts: Vec::new() }
}

/// Slurm requeued the job, and there is no decision by the controller (yet): a node that dies during the first
/// attempt is only examined when the second one has ended.
pub(super) fn put_back(attempt: &Attempt, hardware: Vec<Proof>) -> Ended {
    let mut end = if attempt.nodes.is_empty() {
        Ended {
            kind: EndKind::Unknown,
            why: "It was requeued, and none of its nodes has reported: they died, or railgate was \
                  off on them, or their reports are still there. More is known when the next attempt has ended."
                .to_owned(),
            ..Ended::nothing_known()
        }
    } else if attempt.silent_nodes.is_empty() && attempt.nodes.iter().all(|node| node.end.is_some()) {
        Ended {
            kind: EndKind::Requeued,
            why: "It was requeued by its owner, an admin or a preemption: no node died, and no \
                  check refused it."
                .to_owned(),
            ..Ended::nothing_known()
        }
    } else if !attempt.down.is_empty() {
        let names: Vec<String> =
            attempt.down.iter().take(MOST).map(|down| format!("{} ({})", down.node, down.reason)).collect();
        let proof = attempt.down.iter().map(|down| Proof {
            time: Some(down.since),
            node: down.node.clone(),
            what: format!("DOWN: {}", down.reason),
        });
        Ended {
            kind: EndKind::NodeDied,
            why: format!(
                "It was requeued; no epilog report from {}, which Slurm shows as down since then.",
                names.join(", ")
            ),
            proof: proof.collect(),
            ..Ended::nothing_known()
        }
    } else {
        // A missing report does not prove a dead node: railgate may be disabled there.
        let silent: Vec<&str> = attempt.without_epilog().take(MOST).map(String::as_str).collect();
        Ended {
            kind: EndKind::Requeued,
            why: format!(
                "It was requeued: no check refused it, and Slurm has recorded no death of a node. No \
                 epilog report from {}.",
                silent.join(", ")
            ),
            ..Ended::nothing_known()
        }
    };
    end.proof.extend(hardware);
    in_time_order(&mut end.proof);
    end
}

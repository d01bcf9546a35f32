use railgate_node_report::plain::{float, plain, span};
use railgate_node_report::{HangActKind, NodeReport};

use super::{EndKind, Ended, Proof, unseen};
use crate::Attempt;

/// The end of a job whose steps the guard ended; `None`: it ended none.
pub(super) fn hung(attempt: &Attempt) -> Option<Ended> {
    let of = |node: &'_ NodeReport| {
        let hang = node
            .hangs
            .as_ref()?
            .list
            .iter()
            .find(|hang| hang.act.as_ref().is_some_and(|act| act.what == HangActKind::Ended))?;
        Some((node.node.clone(), hang.clone()))
    };
    let (node, hang) = attempt.nodes.iter().filter_map(of).min_by_key(|(_, hang)| hang.since)?;
    let act = hang.act.as_ref()?;
    let sentence = plain(&hang.sentence());
    let after = span(float(act.time.saturating_sub(hang.since)) / 1000.0);
    let proof = |time, what: String| Proof { time: Some(time), node: node.clone(), what };
    Some(Ended {
        kind: EndKind::Hung,
        why: format!(
            "It hung on {node}: {sentence}. The guard ended its steps after {after} ({}).",
            plain(&act.why)
        ),
        proof: vec![
            proof(hang.since, sentence),
            proof(act.time, "the guard ended the steps of the job".to_owned()),
        ],
        doubts: unseen(attempt),
    })
}

use railgate_node_report::plain::{float, plain, span};
use railgate_node_report::{HangActKind, NodeReport};

use super::{EndKind, Ended, Proof, unseen};
use crate::Attempt;

/// Longest time from the act to the end of the job, milliseconds, as the controller allows it.
const ENDS_WITHIN: u64 = 600_000;

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
    // The act is recorded before it is done. A job that ran on for longer was not ended by it.
    if attempt.end.is_some_and(|end| end.saturating_sub(act.time) > ENDS_WITHIN) {
        return None;
    }
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

#[cfg(test)]
mod tests {
    use railgate_node_report::testing::hang;
    use railgate_node_report::{Hang, HangAct, Hangs};

    use super::*;

    #[test]
    fn a_job_that_ended_soon_after_the_act_was_ended_by_the_guard() {
        let mut attempt = crate::testing::story().attempts.remove(0);
        let end = 1_700_000_400_000;
        attempt.end = Some(end);
        let with = |attempt: &mut Attempt, what, time| {
            let act = Some(HangAct { time, what, why: "--railgate-hang=end".to_owned() });
            let hang = Hang { act, ..hang(time - 300_000) };
            attempt.nodes[0].hangs = Some(Hangs { list: vec![hang], more: 0 });
            attempt.nodes[0].node = "gn4".to_owned();
        };
        with(&mut attempt, HangActKind::Ended, end - 5_000);
        let found = hung(&attempt).unwrap();
        assert_eq!(found.kind, EndKind::Hung);
        assert_eq!(
            found.why,
            "It hung on gn4: rank 2 is stopped (SIGSTOP), and 3 GPUs wait. The guard ended its steps after 5 min 00 s \
             (--railgate-hang=end)."
        );
        with(&mut attempt, HangActKind::Ended, end - 700_000);
        assert_eq!(hung(&attempt), None, "it ran on");
        with(&mut attempt, HangActKind::NotEnded, end - 5_000);
        assert_eq!(hung(&attempt), None);
    }
}

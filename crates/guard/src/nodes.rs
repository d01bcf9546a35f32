//! Whether a job of several nodes hangs, from what each of its nodes says.
//!
//! A node sees whom its own ranks wait for only if that is a rank of its own. The job's first node therefore reads from the partial
//! reports which nodes stand still. Only if all of them do, the job hangs: a node that is not among them works, or is not known.

use std::time::Duration;

use railgate_model::UnixMillis;
use railgate_node_report::plain::span;
use railgate_node_report::{Culprit, GpuError, Hang, HangKind, NodeWait};

use crate::GuardConfig;
use crate::judge::is_of_storage;

/// Nodes whose ranks are named; if more are at rest, none of them is the one.
const MOST_NODES: usize = 4;
/// A statement that is older than this says nothing about now, milliseconds.
const FRESH: UnixMillis = 300_000;

/// The hang of a job of `nodes` nodes, of which these stand still.
pub fn judge_nodes(
    standing: &[(String, NodeWait)],
    nodes: usize,
    now: UnixMillis,
    set: &GuardConfig,
) -> Option<Hang> {
    let lasts = |since: UnixMillis, until: UnixMillis| {
        Duration::from_millis(until.saturating_sub(since)) >= set.after
    };
    let stands = |wait: &NodeWait| now.saturating_sub(wait.as_of) <= FRESH && lasts(wait.since, wait.as_of);
    if standing.len() != nodes || nodes < 2 || !standing.iter().all(|(_, wait)| stands(wait)) {
        return None;
    }
    let resting: Vec<_> = standing.iter().filter(|(_, wait)| !wait.at_rest.is_empty()).collect();
    let waiting = standing.iter().filter(|(_, wait)| wait.waiting_gpus > 0).count();
    let since = standing.iter().map(|(_, wait)| wait.since).max()?;
    let long = |time: UnixMillis| span(Duration::from_millis(now.saturating_sub(time)).as_secs_f64());
    let gpus: u32 = standing.iter().map(|(_, wait)| wait.waiting_gpus).fold(0, u32::saturating_add);
    if waiting == 0 || resting.len() > MOST_NODES {
        return None;
    }
    let mut signs = vec![format!(
        "no GPU of the job's {nodes} nodes worked for {}; on {} of them GPUs only ran kernels that wait",
        long(since),
        waiting
    )];
    let of = |name: &str, ranks: &[Culprit]| {
        let own = |one: &Culprit| Culprit { node: Some(name.to_owned()), ..one.clone() };
        ranks.iter().map(own).collect::<Vec<_>>()
    };
    let down = |(name, wait): &(String, NodeWait)| {
        wait.ports_down.iter().map(|port| format!("{port} on {name}")).collect::<Vec<_>>()
    };
    let ports_down: Vec<String> = standing.iter().flat_map(down).collect();
    let gpu_errors: Vec<GpuError> = standing.iter().flat_map(|(name, wait)| errors(name, wait)).collect();
    let mut culprits: Vec<Culprit> =
        resting.iter().flat_map(|(name, wait)| of(name, &wait.at_rest)).collect();
    let kind = if resting.is_empty() {
        // A node with idle GPUs that names no rank at rest: what they do is not known.
        if standing.iter().any(|(_, wait)| wait.waiting_gpus < wait.gpus && wait.gpu_errors.is_empty()) {
            return None;
        }
        // A second sign beside the GPUs.
        let moved = standing.iter().map(|(_, wait)| wait.moved).collect::<Option<Vec<_>>>();
        let logged = standing.iter().filter_map(|(_, wait)| wait.logged).max();
        let moved = moved.and_then(|all| all.into_iter().max()).filter(|time| lasts(*time, now));
        let logged = logged.filter(|time| lasts(*time, now));
        signs.extend(moved.map(|time| format!("no rank has enqueued an operation for {}", long(time))));
        let silent = logged.is_some();
        signs.extend(logged.map(|time| format!("nothing was written to the job's logs for {}", long(time))));
        if signs.len() == 1 && ports_down.is_empty() && gpu_errors.is_empty() {
            return None;
        }
        let mut behind = standing.iter().filter(|(_, wait)| !wait.behind.is_empty());
        match (behind.next(), behind.next()) {
            // A rank that computes on the CPU looks the same, so the logs have to be silent.
            (Some(_), _) if !silent => return None,
            (Some((name, wait)), None) => {
                culprits = of(name, &wait.behind);
                signs.push(format!("ranks of {name} enqueued fewer operations than others"));
                HangKind::OwnGpu
            }
            _ if !gpu_errors.is_empty() => {
                culprits = gpu_errors.iter().filter_map(of_error).collect();
                HangKind::GpuError
            }
            _ => HangKind::AllWait,
        }
    } else {
        let ended = culprits.iter().all(|one| one.exit.is_some());
        signs.extend(resting.iter().map(|(name, wait)| match wait.waiting_gpus {
            _ if ended => format!("the processes of all ranks of {name} have ended"),
            0 => format!("the GPUs of {name} are idle, and its ranks neither compute nor transfer data"),
            _ => format!("on {name} as many ranks neither compute nor transfer data as GPUs are idle"),
        }));
        let is_in = |state| culprits.iter().any(|one| one.state == Some(state));
        let blocked = is_in('D');
        let storage = culprits.iter().any(|one| one.kernel.as_deref().is_some_and(is_of_storage));
        let is_long = Duration::from_millis(now.saturating_sub(since)) >= set.after_storage;
        match (storage, blocked) {
            _ if ended => HangKind::Gone,
            _ if is_in('T') => HangKind::Stopped,
            (true, _) if !is_long => HangKind::Storage,
            (true, _) | (_, true) => HangKind::Blocked,
            _ => HangKind::Behind,
        }
    };
    signs.extend(ports_down.iter().map(|port| format!("port {port}")));
    signs.extend(gpu_errors.iter().map(GpuError::sentence));
    Some(Hang {
        kind,
        since,
        named: now,
        ports_down,
        gpu_errors,
        over: None,
        culprits,
        waiting_gpus: gpus,
        operation: None,
        signs,
        act: None,
    })
}

/// The errors of a node's GPUs, with the node.
fn errors(name: &str, wait: &NodeWait) -> Vec<GpuError> {
    let own = |error: &GpuError| GpuError { node: Some(name.to_owned()), ..error.clone() };
    wait.gpu_errors.iter().map(own).collect()
}

/// The rank whose GPU reported an error.
fn of_error(error: &GpuError) -> Option<Culprit> {
    Some(Culprit { rank: error.rank?, node: error.node.clone(), ..Culprit::default() })
}

#[cfg(test)]
mod tests {
    use railgate_model::ProcessExit;

    use super::*;

    const NOW: UnixMillis = 1_700_000_600_000;

    fn waits(since_s: u64) -> NodeWait {
        NodeWait {
            since: NOW - since_s * 1000,
            as_of: NOW - 30_000,
            gpus: 8,
            waiting_gpus: 8,
            ..NodeWait::default()
        }
    }

    fn rests(ranks: &[u32], kernel: &str) -> NodeWait {
        let kernel = Some(kernel.to_owned());
        let rank = |rank| Culprit { rank, state: Some('S'), kernel: kernel.clone(), ..Culprit::default() };
        NodeWait { waiting_gpus: 0, at_rest: ranks.iter().map(|one| rank(*one)).collect(), ..waits(400) }
    }

    fn judged(standing: &[NodeWait], nodes: usize) -> Option<Hang> {
        let named: Vec<(String, NodeWait)> =
            standing.iter().enumerate().map(|(at, wait)| (format!("n{at}"), wait.clone())).collect();
        judge_nodes(&named, nodes, NOW, &GuardConfig::default())
    }

    #[test]
    fn the_ranks_of_a_node_at_rest_are_named_if_all_other_nodes_wait() {
        let hang = judged(&[waits(300), waits(310), rests(&[16, 17], "futex_wait_queue")], 3).unwrap();
        assert_eq!((hang.kind, hang.since, hang.waiting_gpus), (HangKind::Behind, NOW - 300_000, 16));
        assert_eq!(
            hang.sentence(),
            "ranks 16 and 17 on n2 are asleep (futex_wait_queue) and compute nothing, and 16 GPUs wait"
        );
        assert_eq!(
            hang.signs,
            [
                "no GPU of the job's 3 nodes worked for 5 min 00 s; on 2 of them GPUs only ran kernels that wait",
                "the GPUs of n2 are idle, and its ranks neither compute nor transfer data",
            ]
        );
    }

    #[test]
    fn a_node_that_works_or_is_not_known_is_no_hang() {
        let (wait, rest) = (waits(300), rests(&[8], "pipe_read"));
        assert_eq!(judged(&[wait.clone(), rest.clone()], 3), None, "one says nothing");
        assert_eq!(judged(&[wait.clone(), waits(100)], 2), None, "one has worked a moment ago");
        let old = NodeWait { as_of: NOW - 400_000, since: NOW - 900_000, ..rest.clone() };
        assert_eq!(judged(&[wait.clone(), old], 2), None, "one has not been heard for long");
        assert_eq!(judged(&[rest.clone(), rest.clone()], 2), None, "no GPU waits: the job is idle");
        assert_eq!(judged(&[wait], 1), None);
        let many: Vec<NodeWait> = (0..5).map(|_| rest.clone()).chain([waits(300)]).collect();
        assert_eq!(judged(&many, 6), None, "half of the job rests");
    }

    #[test]
    fn a_node_all_of_whose_ranks_have_ended_is_named_with_their_exit() {
        let mut ended = rests(&[8], "");
        ended.at_rest[0].exit = Some(ProcessExit::Code(1));
        let hang = judged(&[waits(300), ended], 2).unwrap();
        assert_eq!(hang.sentence(), "the process of rank 8 on n1 ended with exit code 1, and 8 GPUs wait");
        assert_eq!(
            (hang.kind, hang.signs[1].as_str()),
            (HangKind::Gone, "the processes of all ranks of n1 have ended")
        );
    }

    #[test]
    fn ranks_at_rest_on_a_node_whose_other_gpus_wait_are_named() {
        let mixed = NodeWait { waiting_gpus: 6, ..rests(&[9, 10], "futex_wait_queue") };
        let hang = judged(&[waits(300), mixed.clone()], 2).unwrap();
        assert_eq!(
            hang.sentence(),
            "ranks 9 and 10 on n1 are asleep (futex_wait_queue) and compute nothing, and 14 GPUs wait"
        );
        assert_eq!(hang.signs[1], "on n1 as many ranks neither compute nor transfer data as GPUs are idle");
        // Two GPUs are idle, and which ranks they belong to is not known: not all ranks wait.
        let unclear = NodeWait { at_rest: Vec::new(), logged: Some(NOW - 290_000), ..mixed };
        assert_eq!(judged(&[waits(300), unclear], 2), None);
    }

    #[test]
    fn if_all_nodes_wait_a_second_sign_is_needed() {
        assert_eq!(judged(&[waits(300), waits(300)], 2), None);
        let silent = NodeWait { logged: Some(NOW - 290_000), ..waits(300) };
        let hang = judged(&[silent.clone(), waits(300)], 2).unwrap();
        assert_eq!((hang.kind, hang.culprits.len()), (HangKind::AllWait, 0));
        assert!(hang.signs[1].starts_with("nothing was written to the job's logs for 4 min 50 s"));
        let writes = NodeWait { logged: Some(NOW - 10_000), ..waits(300) };
        assert_eq!(judged(&[silent, writes], 2), None, "one still writes");
        let counted = |ago: u64| NodeWait { moved: Some(NOW - ago * 1000), ..waits(300) };
        assert!(judged(&[counted(290), counted(280)], 2).is_some());
        assert_eq!(judged(&[counted(290), counted(20)], 2), None);
    }

    #[test]
    fn a_port_that_is_down_is_a_second_sign_and_is_named() {
        let down = NodeWait { ports_down: vec!["mlx5_2:1 is DOWN".to_owned()], ..waits(300) };
        let hang = judged(&[waits(300), down], 2).unwrap();
        assert_eq!(hang.kind, HangKind::AllWait);
        assert_eq!(hang.sentence(), "all 16 GPUs wait, and port mlx5_2:1 is DOWN on n1");
        assert_eq!(hang.advice(), "check the cable and the switch port: mlx5_2:1 is DOWN on n1");
    }

    #[test]
    fn a_node_that_waits_for_storage_is_called_hung_only_after_long() {
        let rest =
            |since: u64| NodeWait { since: NOW - since * 1000, ..rests(&[8], "rpc_wait_bit_killable") };
        assert_eq!(judged(&[waits(300), rest(300)], 2).unwrap().kind, HangKind::Storage);
        assert_eq!(judged(&[waits(700), rest(700)], 2).unwrap().kind, HangKind::Blocked);
    }
}

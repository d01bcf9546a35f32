//! A job that was requeued, but not by railgate: a node failed, the gate refused it, or a user requeued it.

use std::time::Duration;

use railgate_model::Phase;
use railgate_node_report::{DecisionKind, DecisionNode};
use railgate_slurm::{
    Acting, Blamed, Consent, Event, JobState, NodeState, Reason, Uncounted, Used, after_node_fail, effect,
    hostlist, move_delay,
};

use crate::call::{Call, now};
use crate::evidence::{states, states_of};
use crate::expedited;
use crate::record::{Down, Record, budget, decision, entry, not_counted, seen};
use crate::tally;
use crate::wait;

/// A job that was requeued sooner may have been in its prologs.
const PROLOG: Duration = Duration::from_secs(600);
/// Where railgate could not drain a node because slurmctld did not answer, slurmctld requeues the job first, and drains the node
/// ("Prolog error") only when it registers a moment later.
const UNTIL_DRAINED: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

/// Who requeued it.
enum By {
    /// Slurm, because nodes failed.
    NodeFail(Down),
    /// Slurm, because the gate of a node refused it.
    Gate(Vec<Blamed>),
    /// A request of its owner or an admin, or a preemption.
    Request,
}

/// Exit code 0 of a job that was restarted before: it either succeeded or was requeued.
pub(crate) fn handle(mut call: Call) {
    let job = match call.client.job(&call.name) {
        Ok(job) => job,
        Err(why) => return tracing::warn!(job = %call.name, "{why}"),
    };
    let Some(job) = job.first() else { return };
    call.consent = expedited::consent(&call, job);
    let call = &call;
    if !has_ended(job) {
        return explain(call, job);
    }
    // The first restart may still lack its ledger entry.
    if let Err(why) = budget(call, call.job.restarts, None) {
        tracing::warn!(job = %call.name, "{}", not_counted(&why));
    }
}

/// Determines why a job was requeued, and updates its budget.
pub(crate) fn explain(call: &Call, job: &JobState) {
    let mut problems = Vec::new();
    let mut nodes = states(call, &mut problems);
    // slurmctld counts the coming attempt, the environment in some cases the one that ended.
    let attempt = job.restarts.saturating_sub(1);
    let ran = job.last_sched.map(|start| Duration::from_secs((now() / 1000).saturating_sub(start)));
    if ran.is_none_or(|ran| ran < PROLOG) {
        for pause in UNTIL_DRAINED {
            if !matches!(by(call, job, &nodes), By::Request) || !wait::pause(call, pause) {
                break;
            }
            nodes = states(call, &mut problems);
        }
    }
    if matches!(by(call, job, &nodes), By::Request) {
        nodes.extend(removed_batch_host(call, job, &mut problems));
    }
    for problem in problems {
        tracing::warn!(job = %call.name, "{problem}");
    }
    // The budget before this call adds its own line.
    let used = match budget(call, attempt, ran) {
        Ok(used) => used,
        Err(why) => return uncounted(call, job, attempt, ran, &nodes, &why),
    };
    match by(call, job, &nodes) {
        By::NodeFail(dead) => node_fail(call, job, attempt, ran, used, dead, &nodes),
        By::Gate(blamed) => moved(call, job, attempt, used, blamed, &nodes),
        By::Request => {
            write(
                call,
                Event::Requeued,
                attempt,
                ran,
                Vec::new(),
                "requeued by its owner, an admin or a preemption",
            );
        }
    }
}

/// The node of the batch script, if Slurm has taken it out of the job's nodes: it does that with a node that fails under a job with
/// `--no-kill`.
fn removed_batch_host(call: &Call, job: &JobState, problems: &mut Vec<String>) -> Vec<NodeState> {
    let nodes = hostlist::expand(call.nodelist()).unwrap_or_default();
    if job.batch_host.is_empty() || nodes.is_empty() || nodes.contains(&job.batch_host) {
        return Vec::new();
    }
    states_of(call, &job.batch_host, problems)
}

/// Slurm would requeue a job endlessly if its failures cannot be counted, so it is held, provided that it may be
/// requeued at all. If the whole ledger is unreadable, jobs are not held: that would affect every job of the cluster.
fn uncounted(
    call: &Call,
    job: &JobState,
    attempt: u32,
    ran: Option<Duration>,
    nodes: &[NodeState],
    why: &Uncounted,
) {
    let why_not = not_counted(why);
    tracing::warn!(job = %call.name, "{why_not}");
    let ours = call.acting == Acting::Allowed && call.consent != Consent::Never;
    if !ours || matches!(why, Uncounted::Io(_)) {
        return;
    }
    let By::NodeFail(dead) = by(call, job, nodes) else { return };
    let text = format!("a node failed, and {why_not}; `scontrol release` lets the job continue");
    let (what, text) = match effect::hold(&call.client, &call.name, &text) {
        Ok(()) => (DecisionKind::Held, text),
        Err(failed) => (DecisionKind::Failed, format!("{text}, but: {failed}")),
    };
    if what == DecisionKind::Held {
        write(call, Event::Held, attempt, ran, dead.blamed, &text);
    }
    let shown: Vec<DecisionNode> = nodes.iter().map(seen).collect();
    let record = Record {
        attempt,
        what,
        why: text,
        state: None,
        request: job.request.clone(),
        discounted: Vec::new(),
        not_asked: false,
        used: None,
        nodes: &shown,
        waited: Duration::ZERO,
    };
    decision(call, record);
}

/// Whether the job has ended: `EndTime` of a pending job is the latest possible one, in the future.
fn has_ended(job: &JobState) -> bool {
    job.end.is_some_and(|end| end <= now() / 1000 + 1)
}

fn by(call: &Call, job: &JobState, nodes: &[NodeState]) -> By {
    let refused = refused(call, nodes);
    if !refused.is_empty() {
        return By::Gate(refused);
    }
    // The restart count is no evidence: with exit code 0 it exceeds the environment's by one after a node failure,
    // but also if a user requeues a job that has just ended.
    let dead = Down::of(nodes.iter());
    let recorded = job.state.split('+').any(|state| state == "NODE_FAIL");
    if recorded || !dead.blamed.is_empty() { By::NodeFail(dead) } else { By::Request }
}

/// The nodes whose prolog refused this job.
pub(crate) fn refused(call: &Call, nodes: &[NodeState]) -> Vec<Blamed> {
    nodes
        .iter()
        .filter(|node| node.held())
        .filter_map(|node| {
            let text = &node.reason.as_ref()?.text;
            let subject = match Reason::parse(text) {
                Some(reason) if reason.phase == Phase::Prolog && reason.jobs.contains(&call.job.id) => {
                    reason.subject
                }
                // slurmctld did not answer the prolog; railgate's reason is still pending.
                None if text == "Prolog error" => text.clone(),
                _ => return None,
            };
            Some(Blamed { node: node.name.clone(), subject, part: String::new() })
        })
        .collect()
}

fn node_fail(
    call: &Call,
    job: &JobState,
    attempt: u32,
    ran: Option<Duration>,
    used: Used,
    Down { blamed: dead, text }: Down,
    nodes: &[NodeState],
) {
    let died =
        if text.is_empty() { format!("a node of {} failed (NODE_FAIL)", call.nodelist()) } else { text };
    let hold = after_node_fail(&call.config.requeue, call.consent, used, &died)
        .filter(|_| call.acting == Acting::Allowed);
    let used = Used { deaths: used.deaths + 1, ..used };
    let (event, what, why) = match &hold {
        None => (Event::NodeFail, DecisionKind::RequeuedBySlurm, died),
        Some(held) => (Event::Held, DecisionKind::Held, held.clone()),
    };
    if !write(call, event, attempt, ran, dead, &why) {
        return;
    }
    let (what, why) = match hold {
        None => {
            if call.acting == Acting::Allowed {
                effect::note(&call.client, &call.name, &format!("attempt {attempt}: {why}"));
            }
            (what, why)
        }
        Some(_) => match effect::hold(&call.client, &call.name, &why) {
            Ok(()) => (what, why),
            Err(failed) => (DecisionKind::Failed, format!("{why}, but: {failed}")),
        },
    };
    record(call, job, (attempt, what, why), used, nodes);
}

fn moved(call: &Call, job: &JobState, attempt: u32, used: Used, blamed: Vec<Blamed>, nodes: &[NodeState]) {
    let used = Used { moves: used.moves + 1, ..used };
    let mut why = format!("the gate refused the job because of {} (refusal {})", named(&blamed), used.moves);
    if !write(call, Event::Move, attempt, None, blamed, &why) {
        return;
    }
    if call.acting == Acting::Allowed {
        if let Some(delay) = move_delay(&call.config.requeue, used.moves) {
            why = format!("{why}; it starts in {} s at the earliest", delay.as_secs());
            effect::delay(&call.client, &call.name, delay);
        }
        effect::note(&call.client, &call.name, &why);
    }
    record(call, job, (attempt, DecisionKind::Moved, why), used, nodes);
}

fn record(
    call: &Call,
    job: &JobState,
    (attempt, what, why): (u32, DecisionKind, String),
    used: Used,
    nodes: &[NodeState],
) {
    let nodes: Vec<DecisionNode> = nodes.iter().map(seen).collect();
    let record = Record {
        attempt,
        what,
        why,
        state: None,
        request: job.request.clone(),
        discounted: Vec::new(),
        not_asked: false,
        used: Some(used),
        nodes: &nodes,
        waited: Duration::ZERO,
    };
    decision(call, record);
}

/// Formats blamed parts: `gpu-lost@3 on n2`.
pub(crate) fn named(blamed: &[Blamed]) -> String {
    blamed.iter().map(|by| format!("{} on {}", by.subject, by.node)).collect::<Vec<_>>().join(", ")
}

fn write(
    call: &Call,
    event: Event,
    attempt: u32,
    ran: Option<Duration>,
    blamed: Vec<Blamed>,
    why: &str,
) -> bool {
    let line = entry(call, event, attempt, ran, blamed, why);
    match call.ledger.append(&line) {
        Ok(()) => {
            tally::count(&call.config, &call.own, &line);
            true
        }
        Err(why) => {
            tracing::error!(job = %call.name, "the ledger cannot be used: {why}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Scene, job, node};

    /// The job as pending again: its latest possible end is a day away.
    fn waiting(restarts: &str) -> String {
        job(&[("Reason", "None"), ("Restarts", restarts), ("EndTime", "Unknown"), ("PreemptTime", "None")])
    }

    #[test]
    fn a_move_by_the_gate_is_counted_but_does_not_hold_the_job() {
        let scene = Scene::new("0", "1");
        scene.jobs(&[waiting("1")]);
        let reason = "railgate: gpu-lost@3: off bus; reboot [prolog job=7]";
        scene.file("nodes", &(node("n1", "IDLE", "") + &node("n2", "IDLE+DRAIN", reason)));
        handle(scene.call());
        let ledger = scene.ledger();
        assert_eq!((ledger.len(), ledger[0].event, ledger[0].attempt), (1, Event::Move, 0));
        let changes = scene.changes();
        assert!(changes.iter().all(|change| change.contains("AdminComment=")), "{changes:?}");
        let mut scene = scene;
        for restarts in 2..15_u32 {
            scene.set("SLURM_JOB_RESTART_COUNT", &restarts.to_string());
            scene.jobs(&[waiting(&restarts.to_string())]);
            handle(scene.call());
        }
        let changes = scene.changes();
        assert!(changes.contains(&"update JobId=7 StartTime=now+30".to_owned()), "{changes:?}");
        assert!(!changes.iter().any(|change| change.contains("hold")), "{changes:?}");
        assert_eq!(scene.ledger().len(), 14);
    }

    #[test]
    fn a_move_by_the_gate_is_recognized_before_slurm_has_drained_the_node() {
        let scene = Scene::new("0", "1");
        scene.jobs(&[waiting("1").replace("LastSchedEval=2026-11-21T01:00:00", "LastSchedEval=Unknown")]);
        scene.file("nodes.next", &(node("n1", "IDLE", "") + &node("n2", "IDLE+DRAIN", "Prolog error")));
        handle(scene.call());
        assert_eq!(scene.ledger()[0].event, Event::Move);
        // A job that ran for days was not in its prologs.
        let scene = Scene::new("0", "1");
        scene.jobs(&[waiting("1")]);
        scene.file("nodes.next", &node("n2", "IDLE+DRAIN", "Prolog error"));
        handle(scene.call());
        assert_eq!(scene.ledger()[0].event, Event::Requeued);
    }

    #[test]
    fn a_move_by_the_gate_is_recognized_with_an_exit_code() {
        // The batch host's own prolog failed: Slurm ends the job with exit code 1 and requeues it.
        let mut scene = Scene::new("256", "0");
        scene.set("SPANK_RAILGATE_REQUEUE", "never");
        let reason = "railgate: gpu-lost@3: off bus; reboot [prolog job=7]";
        scene.file("nodes", &node("n2", "IDLE+DRAIN", reason));
        // At the first query it is not requeued yet.
        scene.jobs(&[job(&[]), waiting("1")]);
        crate::failed::handle(scene.call());
        let ledger = scene.ledger();
        assert_eq!((ledger.len(), ledger[0].event, ledger[0].attempt), (1, Event::Move, 0));
        assert!(scene.changes().iter().all(|change| change.contains("AdminComment=")));
    }

    #[test]
    fn repeated_node_failures_hold_the_job() {
        let mut scene = Scene::new("0", "1");
        scene.file("nodes", &(node("n1", "IDLE", "") + &node("n2", "DOWN", "Not responding")));
        // The first attempt has only a note.
        crate::ends::note(&scene.call().own, &scene.env);
        for attempt in 1..4_u32 {
            scene.set("SLURM_JOB_RESTART_COUNT", &attempt.to_string());
            scene.jobs(&[waiting(&(attempt + 1).to_string())
                .replace("LastSchedEval=2026-11-21T01:00:00", "LastSchedEval=Unknown")]);
            handle(scene.call());
            let held = scene.changes().iter().any(|change| change == "uhold 7");
            assert_eq!(held, attempt == 3, "{attempt}: {:?}", scene.changes());
        }
        let events: Vec<Event> = scene.ledger().iter().map(|entry| entry.event).collect();
        assert_eq!(events, [Event::NodeFail, Event::NodeFail, Event::NodeFail, Event::Held]);
    }

    #[test]
    fn a_job_whose_failures_cannot_be_counted_is_held_once() {
        let mut scene = Scene::new("0", "1");
        scene.file("nodes", &(node("n1", "IDLE", "") + &node("n2", "DOWN", "Not responding")));
        scene.jobs(&[waiting("2")]);
        let call = scene.call();
        std::fs::write(call.own.join("ledger.jsonl"), "{\"event\":\"death\",\"job\":7,\"na\n").unwrap();
        handle(call);
        assert!(scene.changes().contains(&"uhold 7".to_owned()), "{:?}", scene.changes());
        let ledger = scene.ledger();
        assert_eq!((ledger.len(), ledger[0].event), (1, Event::Held));
        assert!(ledger[0].why.contains("line 1 of ledger.jsonl"), "{}", ledger[0].why);
        // Released by a person who has seen the reason: counting starts there.
        scene.set("SLURM_JOB_RESTART_COUNT", "2");
        scene.jobs(&[waiting("3")]);
        handle(scene.call());
        assert_eq!(scene.ledger().last().map(|entry| entry.event), Some(Event::NodeFail));
    }

    #[test]
    fn without_consent_slurms_own_requeue_is_left_alone() {
        let mut scene = Scene::new("0", "9");
        scene.set("SPANK_RAILGATE_REQUEUE", "never");
        scene.jobs(&[waiting("10")]);
        handle(scene.call());
        assert!(!scene.changes().iter().any(|change| change.contains("hold")));
    }

    #[test]
    fn a_requeue_by_a_user_does_not_count_against_the_budget() {
        let scene = Scene::new("0", "1");
        scene.jobs(&[waiting("1")]);
        handle(scene.call());
        assert_eq!(scene.ledger()[0].event, Event::Requeued);
        assert!(scene.changes().is_empty());
    }

    #[test]
    fn the_death_of_the_batch_scripts_node_counts_although_slurm_has_removed_it_from_the_job() {
        for (host, wants) in [("n0", Event::NodeFail), ("n1", Event::Requeued)] {
            let scene = Scene::new("0", "1");
            scene.jobs(&[waiting("1").replace("NodeList= ", &format!("NodeList= BatchHost={host} "))]);
            scene.file("nodes", &node("n1", "IDLE", ""));
            scene.file("nodes.next", &node("n0", "DOWN", "Not responding"));
            handle(scene.call());
            let ledger = scene.ledger();
            assert_eq!((ledger.len(), ledger[0].event), (1, wants), "{ledger:?}");
            if wants == Event::NodeFail {
                let blamed = &ledger[0].blamed[0];
                assert_eq!(
                    (blamed.node.as_str(), ledger[0].why.as_str()),
                    ("n0", "n0 went down (Not responding)")
                );
            }
        }
    }

    #[test]
    fn a_restart_count_alone_is_no_node_failure() {
        for (second, state, wants) in [
            ("IDLE", "PENDING", Event::Requeued),
            ("DOWN", "PENDING", Event::NodeFail),
            ("IDLE", "NODE_FAIL+COMPLETING", Event::NodeFail),
        ] {
            let scene = Scene::new("0", "1");
            // It was requeued once before, and a user requeued it again as it ended.
            let call = scene.call();
            call.ledger.append(&entry(&call, Event::Requeued, 0, None, Vec::new(), "by hand")).unwrap();
            scene.file("nodes", &(node("n1", "IDLE", "") + &node("n2", second, "")));
            scene.jobs(&[waiting("2").replace("JobState=COMPLETING", &format!("JobState={state}"))]);
            handle(call);
            let events: Vec<Event> = scene.ledger().iter().map(|entry| entry.event).collect();
            assert_eq!(events, [Event::Requeued, wants], "{second} {state}");
        }
    }

    #[test]
    fn an_unobserved_restart_is_no_node_failure() {
        // Requeued by its owner while railgate was off on the controller, then once more.
        for down_since in [None, Some("2026-11-21T01:10:01")] {
            let mut scene = Scene::new("0", "0");
            scene.set("SLURM_JOB_NODELIST", "n[1-2]");
            let call = scene.call();
            crate::ends::note(&call.own, &scene.env);
            let n2 = match down_since {
                Some(_) => node("n2", "DOWN", "Not responding"),
                None => node("n2", "IDLE", ""),
            };
            scene.file("nodes", &(node("n1", "IDLE", "") + &n2));
            scene.set("SLURM_JOB_RESTART_COUNT", "1");
            scene.jobs(&[job(&[("Reason", "None"), ("Restarts", "1")])]);
            handle(scene.call());
            let wants = if down_since.is_some() { Event::NodeFail } else { Event::Requeued };
            let events: Vec<Event> = scene.ledger().iter().map(|entry| entry.event).collect();
            assert_eq!(events, [wants], "{:?}", scene.ledger());
            // A second call adds nothing.
            handle(scene.call());
            assert_eq!(scene.ledger().len(), 1);
        }
    }

    #[test]
    fn a_job_that_succeeded_is_left_alone() {
        let scene = Scene::new("0", "1");
        let call = scene.call();
        call.ledger.append(&entry(&call, Event::Death, 0, None, Vec::new(), "")).unwrap();
        scene.jobs(&[job(&[("Reason", "None"), ("Restarts", "1")])]);
        handle(call);
        assert_eq!(scene.calls(), ["scontrol -o show job 7"]);
        assert_eq!(scene.ledger().len(), 1);
    }
}

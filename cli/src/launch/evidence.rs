//! What is known about the nodes of a start that has failed: Slurm's states, railgate's drains, and root's check on each node.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use railgate_launch::NodeSign;
use railgate_model::Fitness;
use railgate_slurm::hostlist::compress;
use railgate_slurm::{Client, JobRef};

use super::allocation::Component;
use super::ask::{self, States};
use super::on_node::Answer;
use super::start::{Ended, START_VARIABLE, Start};
use crate::node_step;
use crate::output::complain;

/// How long slurmctld may be away.
const CONTROLLER: Duration = Duration::from_secs(600);
/// Time for one step that asks the nodes.
const ASK: Duration = Duration::from_secs(20);
/// Between two questions to slurmctld.
const INTERVAL: Duration = Duration::from_secs(2);
/// Between two steps that ask nodes which have not answered.
const AGAIN: Duration = Duration::from_secs(10);
/// Added to Slurm's own time after which a node is down.
const MARGIN: Duration = Duration::from_secs(60);
const RUNNING: &str = "RUNNING";
/// Slurm's default.
const SLURMD_TIMEOUT: Duration = Duration::from_secs(300);

/// Collects it, and waits until Slurm has decided about nodes that do not answer. `waits` is called with them once.
pub(crate) fn of(
    client: &Client,
    start: &Start<'_>,
    ended: &Ended,
    waits: impl Fn(&[String]),
) -> railgate_launch::Ended {
    let mut found =
        railgate_launch::Ended { code: ended.code, stopped: None, hung: false, nodes: Vec::new() };
    if ended.code == 0 {
        return found;
    }
    let until = Instant::now() + CONTROLLER;
    let job = start.allocation.job;
    let state =
        || client.standings(&[&JobRef::plain(job)]).map(|jobs| jobs.get(&job).map(|job| job.state.clone()));
    // Slurm kills this program some seconds later, and a template's script waits for its last line.
    if let Some(signal) = ended.stopped {
        found.stopped = Some(format!("launch received {signal}"));
        return found;
    }
    match answer(until, state) {
        Ok(Some(state)) if state == RUNNING => {}
        Ok(state) => {
            found.stopped = Some(ends_as(&state.unwrap_or_else(|| "no longer known".to_owned())));
            return found;
        }
        Err(why) => return unknown(found, start, &why),
    }
    let jobs = start.allocation.jobs();
    if !start.has_steps_that_fail {
        have_checked(start);
    }
    let mut checks = BTreeMap::new();
    let mut deadline = None;
    loop {
        let states = match answer(until, || ask::states(client, &start.allocation.nodes)) {
            Ok(states) => states,
            Err(why) => return unknown(found, start, &why),
        };
        found.hung = ask::hung(&states, &jobs, ended.began);
        let open = |node: &&String| {
            !checks.contains_key(*node) && states.get(*node).is_some_and(|state| ask::failed(state).is_none())
        };
        let open: Vec<String> = start.nodes.iter().filter(open).cloned().collect();
        // What srun prints would be the same each time.
        for component in &start.allocation.components {
            let open: Vec<String> =
                open.iter().filter(|node| component.nodes.contains(node)).cloned().collect();
            ask_nodes(start, component, &open, deadline.is_none(), &mut checks);
        }
        found.nodes = start.nodes.iter().map(|node| (node.clone(), sign(node, &states, &checks))).collect();
        let silent = found.nodes.iter().filter(|(_, sign)| *sign == NodeSign::Silent);
        let silent: Vec<String> = silent.map(|(node, _)| node.clone()).collect();
        if silent.is_empty() {
            return found;
        }
        let latest = *deadline.get_or_insert_with(|| {
            waits(&silent);
            Instant::now() + slurmd_timeout(client) + MARGIN
        });
        if Instant::now() >= latest {
            return found;
        }
        wait_for_slurm(client, &silent, latest.min(Instant::now() + AGAIN));
    }
}

/// Has root check the nodes of a start that has failed, by a step on each of them that fails.
fn have_checked(start: &Start<'_>) {
    for component in &start.allocation.components {
        let of_it = |node: &&String| component.nodes.contains(node);
        let nodes: Vec<String> = start.nodes.iter().filter(of_it).cloned().collect();
        if nodes.is_empty() {
            continue;
        }
        let mut step = step_on(start, component, &nodes);
        step.env(START_VARIABLE, start.number.to_string()).arg("false");
        if let Err(why) = node_step::read(step, None, ASK, &mut |_| {}) {
            complain!("launch: {why:#}");
        }
    }
}

/// A step on nodes of one component, without its program.
fn step_on(start: &Start<'_>, component: &Component, nodes: &[String]) -> Command {
    let mut step = node_step::srun(&start.allocation.job.to_string(), nodes.len());
    if let Some(group) = component.group {
        step.arg(format!("--het-group={group}"));
    }
    step.arg("--kill-on-bad-exit=0").arg(format!("--nodelist={}", compress(nodes)));
    step
}

/// Waits until Slurm has one of the nodes down or not responding, at most until a time.
fn wait_for_slurm(client: &Client, nodes: &[String], until: Instant) {
    while Instant::now() < until {
        std::thread::sleep(INTERVAL);
        let decided = |states: States| {
            states.values().any(|state| ask::failed(state).is_some() || state.has("NOT_RESPONDING"))
        };
        if ask::states(client, nodes).is_ok_and(decided) {
            return;
        }
    }
}

fn ends_as(state: &str) -> String {
    format!("Slurm ends the job ({state})")
}

fn unknown(found: railgate_launch::Ended, start: &Start<'_>, why: &str) -> railgate_launch::Ended {
    let sign = NodeSign::Unknown(why.to_owned());
    let nodes = start.nodes.iter().map(|node| (node.clone(), sign.clone())).collect();
    railgate_launch::Ended { nodes, ..found }
}

/// Asks slurmctld until it answers, or until a time.
fn answer<T>(until: Instant, ask: impl Fn() -> Result<T, railgate_slurm::SlurmError>) -> Result<T, String> {
    let mut first = true;
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(why) if why.no_answer() && Instant::now() < until => {
                if std::mem::take(&mut first) {
                    complain!("launch: {why}; trying again for {} min", CONTROLLER.as_secs() / 60);
                }
                std::thread::sleep(INTERVAL);
            }
            Err(why) => return Err(why.to_string()),
        }
    }
}

/// After this time without an answer Slurm sets a node down.
fn slurmd_timeout(client: &Client) -> Duration {
    let seconds = client
        .config()
        .ok()
        .and_then(|slurm| slurm.get("SlurmdTimeout")?.split_whitespace().next()?.parse::<u64>().ok());
    seconds.map_or(SLURMD_TIMEOUT, Duration::from_secs)
}

/// Asks nodes of one component for root's check, with one step. Nodes without an answer are left out.
fn ask_nodes(
    start: &Start<'_>,
    component: &Component,
    nodes: &[String],
    prints: bool,
    checks: &mut BTreeMap<String, Answer>,
) {
    if nodes.is_empty() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut step = step_on(start, component, nodes);
    step.arg(program).args([
        "launch",
        "--on-node",
        &start.number.to_string(),
        "--of-job",
        &component.job.to_string(),
    ]);
    if !start.has_steps_that_fail {
        step.arg("--checked");
    }
    let done = node_step::read(step, prints.then_some("launch"), ASK, &mut |line| {
        if let Ok(answer) = serde_json::from_str::<Answer>(&line)
            && nodes.contains(&answer.node)
        {
            checks.insert(answer.node.clone(), answer);
        }
    });
    if let Err(why) = done {
        complain!("launch: {why:#}");
    }
}

fn sign(node: &str, states: &States, checks: &BTreeMap<String, Answer>) -> NodeSign {
    let Some(state) = states.get(node) else {
        return NodeSign::Unknown("Slurm does not know it".to_owned());
    };
    if let Some(why) = ask::failed(state) {
        return NodeSign::Bad(why);
    }
    match checks.get(node) {
        None if state.has("NOT_RESPONDING") => {
            NodeSign::Bad("it answers neither slurmctld nor a step of the job".to_owned())
        }
        None => NodeSign::Silent,
        Some(Answer { check: None, why, .. }) => NodeSign::Unknown(why.clone()),
        Some(Answer { check: Some(check), .. }) => match check.fitness {
            Some(Fitness::Unfit) => NodeSign::Bad(check.why.clone()),
            Some(Fitness::Unknown) => NodeSign::Unknown(format!("root's check: {}", check.why)),
            Some(Fitness::Fit | Fitness::Degraded) | None => NodeSign::Fit,
        },
    }
}

#[cfg(test)]
mod tests {
    use railgate_rundir::StepCheck;
    use railgate_slurm::NodeState;

    use super::*;

    fn states(flags: &str, reason: &str) -> States {
        let reason = railgate_slurm::NodeReason { text: reason.to_owned(), user: String::new(), since: None };
        let state = NodeState {
            name: "gn1".to_owned(),
            flags: flags.split('+').map(str::to_owned).collect(),
            partitions: Vec::new(),
            reason: (!reason.text.is_empty()).then_some(reason),
            comment: String::new(),
            gpus: None,
            cpus: None,
            boot: None,
            reservation: None,
        };
        States::from([("gn1".to_owned(), state)])
    }

    fn checked(fitness: Option<Fitness>) -> BTreeMap<String, Answer> {
        let check = Some(StepCheck::new(0, fitness, "gpu-lost@3: off bus".to_owned()));
        BTreeMap::from([("gn1".to_owned(), Answer { node: "gn1".to_owned(), check, why: String::new() })])
    }

    #[test]
    fn a_node_is_bad_by_slurm_by_railgates_drain_and_by_roots_check_only() {
        let none = BTreeMap::new();
        let bad = |sign: NodeSign| matches!(sign, NodeSign::Bad(_));
        assert!(bad(sign("gn1", &states("DOWN+NOT_RESPONDING", "Not responding"), &none)));
        assert!(bad(sign("gn1", &states("MIXED+DRAIN", "railgate: gpu-lost@3: x; y [periodic]"), &none)));
        assert!(bad(sign("gn1", &states("MIXED", ""), &checked(Some(Fitness::Unfit)))));
        // An admin wants it back after the job.
        let fit = checked(Some(Fitness::Fit));
        assert_eq!(sign("gn1", &states("MIXED+DRAIN", "memory upgrade"), &fit), NodeSign::Fit);
        assert_eq!(sign("gn1", &states("MIXED", ""), &checked(None)), NodeSign::Fit);
        assert!(matches!(
            sign("gn1", &states("MIXED", ""), &checked(Some(Fitness::Unknown))),
            NodeSign::Unknown(_)
        ));
    }

    #[test]
    fn silence_alone_is_no_fault() {
        let none = BTreeMap::new();
        assert_eq!(sign("gn1", &states("MIXED", ""), &none), NodeSign::Silent);
        assert!(matches!(sign("gn1", &states("MIXED+NOT_RESPONDING", ""), &none), NodeSign::Bad(_)));
        assert!(matches!(sign("gn2", &states("MIXED", ""), &none), NodeSign::Unknown(_)));
    }
}

//! Events from the report directory.

use std::collections::BTreeMap;

use railgate_fleet::{Attempt, Card, Cause, Event, NodeFinding, Outcome, Progress, Source, What};
use railgate_model::{Class, Severity, UnixMillis};
use railgate_node_report::{Decision, DecisionKind, NodeReport, SlurmEnd};
use railgate_slurm::{Reason, hostlist};
use railgate_store::ScannedAttempt;

use crate::cause::{cause, check_of};
use crate::{by_root, is_node_name};

/// GPUs of a node that count at most: the number is from reports that the job's owner can write.
const MOST_GPUS: usize = 16;
/// Longest name of a partition, which is from such a report as well, characters.
const MOST_PARTITION: usize = 64;
/// Starts inside an attempt that are taken in.
const MOST_STARTS: usize = 1000;

/// How long attempts ran, seconds, by the ledger: by job and attempt.
pub(crate) type Ran = BTreeMap<u32, Vec<(u32, u64)>>;

/// Returns the events of an attempt. `trusted`: root and SlurmUser. `ran`: from the ledger, since a decision has no start.
pub(crate) fn events(scanned: &ScannedAttempt, trusted: &[u32], ran: &Ran) -> Vec<Event> {
    let is_trusted = |writer: u32| trusted.contains(&writer);
    let mut events = Vec::new();
    let extra = Extra::of(scanned, trusted);
    let decision = scanned.decision.as_ref().filter(|(_, writer)| is_trusted(*writer)).map(|(of, _)| of);
    let end = scanned.end.as_ref().filter(|(_, writer)| is_trusted(*writer)).map(|(end, _)| end);
    let decided = decision.and_then(|decision| from_decision(decision, scanned, &extra, ran));
    let ended = end.and_then(|end| from_slurm(end, scanned.owner, &extra));
    // The later id counts: Slurm's record rather than the decision, and then the one with more reports of nodes.
    for (rank, attempt) in [("1-decision", &decided), ("2-slurm", &ended)] {
        if let Some(attempt) = attempt
            && let Some((time, _)) = attempt.end
        {
            let id = format!("end/{}/{}/{rank}/{:06}", attempt.job, attempt.attempt, attempt.gpus);
            events.push(by_root(id, time, What::JobEnded(attempt.clone())));
        }
    }
    events.extend(decision.into_iter().flat_map(about_nodes));
    for (report, _) in scanned.nodes.iter().filter(|(_, writer)| is_trusted(*writer)) {
        events.extend(by_node(report));
    }
    if let Some(attempt) = ended.as_ref().or(decided.as_ref()) {
        events.extend(of_owner(scanned, attempt, trusted));
    }
    events
}

/// What only reports of nodes have. The job's owner can write them, so it affects only what their own job cost.
#[derive(Debug, Default)]
struct Extra {
    gpus: BTreeMap<String, usize>,
    partition: String,
}

impl Extra {
    fn of(scanned: &ScannedAttempt, trusted: &[u32]) -> Extra {
        let mut extra = Extra::default();
        for report in of_job(scanned, trusted) {
            let own = report.gpus.iter().filter(|gpu| gpu.own == Some(true)).count().min(MOST_GPUS);
            extra.gpus.insert(report.node.clone(), own);
            let partition: String = report.job.partition.chars().take(MOST_PARTITION).collect();
            extra.partition = extra.partition.max(partition);
        }
        extra
    }

    fn gpus_of(&self, nodes: &[String]) -> u32 {
        let sum: usize = nodes.iter().filter_map(|node| self.gpus.get(node)).sum();
        u32::try_from(sum).unwrap_or(u32::MAX)
    }
}

/// Reports by root or by the owner of the job.
fn of_job<'a>(scanned: &'a ScannedAttempt, trusted: &'a [u32]) -> impl Iterator<Item = &'a NodeReport> {
    let own = |(report, writer): &&(NodeReport, u32)| {
        trusted.contains(writer) || (*writer == scanned.owner && report.job.uid == scanned.owner)
    };
    scanned.nodes.iter().filter(own).map(|(report, _)| report)
}

fn from_slurm(end: &SlurmEnd, owner: u32, extra: &Extra) -> Option<Attempt> {
    let (start, ended) = (end.slurm.start?, end.slurm.end?);
    let nodes = nodes(&end.slurm.nodelist)?;
    Some(Attempt {
        job: end.job,
        attempt: end.attempt,
        uid: owner,
        partition: extra.partition.clone(),
        gpus: extra.gpus_of(&nodes),
        nodes: nodes.iter().collect(),
        queued: end.slurm.submitted.unwrap_or(start).min(start),
        start,
        end: Some((ended, outcome(&end.slurm.state)?)),
    })
}

/// An attempt after which the job was requeued has no other record of its end.
fn from_decision(decision: &Decision, scanned: &ScannedAttempt, extra: &Extra, ran: &Ran) -> Option<Attempt> {
    let of_job = ran.get(&decision.job)?;
    let (_, ran_s) = of_job.iter().find(|(attempt, _)| *attempt == decision.attempt)?;
    let ended = decision.time;
    let start = ended.saturating_sub(ran_s.saturating_mul(1000));
    let by_state = decision.state.as_deref().and_then(outcome);
    let outcome = match decision.what {
        // It did not start.
        DecisionKind::Moved => return None,
        DecisionKind::RequeuedBySlurm => Outcome::NodeFail,
        _ => by_state
            .or_else(|| decision.exit_status.filter(|status| *status != 0).map(|_| Outcome::Failed))?,
    };
    let nodes = nodes(&decision.nodelist)?;
    Some(Attempt {
        job: decision.job,
        attempt: decision.attempt,
        uid: scanned.owner,
        partition: extra.partition.clone(),
        gpus: extra.gpus_of(&nodes),
        nodes: nodes.iter().collect(),
        queued: start,
        start,
        end: Some((ended, outcome)),
    })
}

/// The outcome of Slurm's base state: `CANCELLED by 1000`. `None` for a state of a job that has not ended.
fn outcome(state: &str) -> Option<Outcome> {
    let base = state.split([' ', '+', ',']).next().unwrap_or_default();
    Some(match base {
        "COMPLETED" => Outcome::Completed,
        "FAILED" => Outcome::Failed,
        "NODE_FAIL" | "BOOT_FAIL" => Outcome::NodeFail,
        "TIMEOUT" | "DEADLINE" => Outcome::Timeout,
        "CANCELLED" | "REVOKED" => Outcome::Cancelled,
        "PREEMPTED" => Outcome::Preempted,
        "OUT_OF_MEMORY" => Outcome::OutOfMemory,
        _ => return None,
    })
}

fn nodes(list: &str) -> Option<Vec<String>> {
    let nodes = hostlist::expand(list).ok()?;
    (!nodes.is_empty() && nodes.iter().all(|node| is_node_name(node))).then_some(nodes)
}

/// What SlurmUser saw in slurmctld when the job ended: drain reasons by root that name the job, and nodes that were down.
fn about_nodes(decision: &Decision) -> Vec<Event> {
    let mut events = Vec::new();
    let Some(members) = nodes(&decision.nodelist) else { return events };
    for node in decision.nodes.iter().filter(|node| members.contains(&node.node)) {
        let place = format!("decision/{}/{}/{}", decision.job, decision.attempt, node.node);
        let reason = Some(&node.reason).filter(|_| node.evidence && node.source == "drain reason");
        if let Some(reason) = reason.and_then(|reason| Reason::parse(reason)) {
            let what = finding(&node.node, &reason.subject, None);
            events.push(by_root(format!("{place}/{}", reason.subject), decision.time, What::Finding(what)));
        }
        let was_down = node.state.split('+').any(|flag| flag == "DOWN");
        if was_down && decision.what == DecisionKind::RequeuedBySlurm {
            let what = What::Down { node: node.node.clone() };
            events.push(by_root(format!("{place}/down"), decision.time, what));
        }
    }
    events
}

/// A finding of a check that drained the node.
pub(crate) fn finding(node: &str, subject: &str, card: Option<String>) -> NodeFinding {
    let check = check_of(subject);
    let (cause, grade) = cause(check);
    NodeFinding {
        node: node.to_owned(),
        check: check.to_owned(),
        severity: Severity::Fail,
        class: if cause == Cause::Network { Class::Fabric } else { Class::Node },
        cause,
        grade,
        card,
        leaf: None,
        accuser: None,
    }
}

/// From a report that root wrote and keeps: findings and cards.
fn by_node(report: &NodeReport) -> Vec<Event> {
    let Some(end) = report.end.filter(|_| is_node_name(&report.node)) else { return Vec::new() };
    let place = format!("report/{}/{}/{}", report.job.id, report.attempt, report.node);
    let mut events = Vec::new();
    let uuids = report.gpus.iter().map(|gpu| gpu.uuid.known().cloned());
    // A card that could not be read is not gone.
    if let Some(uuids) = uuids.collect::<Option<Vec<String>>>().filter(|uuids| !uuids.is_empty()) {
        let cards = uuids.into_iter().map(|uuid| Card { uuid, serial: String::new() }).collect();
        let what = What::Cards { node: report.node.clone(), cards };
        events.push(by_root(format!("{place}/cards"), end, what));
    }
    for item in &report.evidence {
        let found = &item.finding;
        let gpu =
            report.gpus.iter().find(|gpu| gpu.pci.known().is_some_and(|pci| pci.to_string() == item.device));
        let card = gpu.and_then(|gpu| gpu.uuid.known().cloned());
        let of_check = finding(&report.node, &found.check, card);
        let what = NodeFinding { severity: found.severity, class: found.class, ..of_check };
        let id = format!("{place}/{}/{}", found.subject(), item.device);
        events.push(by_root(id, item.time.unwrap_or(end), What::Finding(what)));
    }
    events
}

/// The progress of a job, as its owner reports it. It has no time of its own: a time before the first event of the
/// history would change the judgement of all nodes.
fn of_owner(scanned: &ScannedAttempt, attempt: &Attempt, trusted: &[u32]) -> Vec<Event> {
    let Some((end, _)) = attempt.end else { return Vec::new() };
    let (job, number) = (attempt.job, attempt.attempt);
    let by_owner = |id: String, time: UnixMillis, what| Event { id, time, source: Source::User, what };
    let mut events = Vec::new();
    let mut all: Option<Progress> = None;
    let members = of_job(scanned, trusted).filter(|report| attempt.nodes.contains(&report.node));
    for report in members {
        let ranks = report.application.iter().flat_map(|application| &application.ranks);
        for rank in ranks {
            let Some(last_step) = rank.last_step else { continue };
            let one = Progress {
                job,
                attempt: number,
                start_up_s: rank.start_up_s,
                last_step,
                checkpoint_s: rank.checkpoint_s,
                redone_s: rank.redone_s,
                saved: None,
            };
            all = Some(all.map_or(one.clone(), |all| slower(&all, &one)));
        }
        let starts = report.launched.iter().flat_map(|launched| &launched.starts);
        let again = starts.filter(|start| start.number > 0 && (attempt.start..=end).contains(&start.began));
        for start in again.take(MOST_STARTS) {
            let what = What::Restarted { job, attempt: number };
            events.push(by_owner(format!("start/{job}/{number}/{}", start.number), start.began, what));
        }
    }
    let id = format!("progress/{job}/{number}");
    events.extend(all.map(|progress| by_owner(id, end, What::Progress(progress))));
    events
}

/// The ranks of a job wait for one another: the longest pauses and the last step of any rank are those of the job.
fn slower(one: &Progress, other: &Progress) -> Progress {
    Progress {
        start_up_s: one.start_up_s.max(other.start_up_s),
        last_step: one.last_step.max(other.last_step),
        checkpoint_s: one.checkpoint_s.max(other.checkpoint_s),
        redone_s: one.redone_s.max(other.redone_s),
        ..one.clone()
    }
}

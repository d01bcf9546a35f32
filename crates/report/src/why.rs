mod hung;
mod lost;
pub(crate) mod memory;
mod preflight;
mod waiting;

use railgate_model::xid_catalogue::{Owner, explain, lookup};
use railgate_model::{Allocation, Class, Finding, PartName, Reading, Severity, UnixMillis, XidEvent, is_oom};
use railgate_node_report::{Decision, DecisionKind, EvidenceItem, Exit, GateRun, NodeReport, SlurmView};
use serde::{Deserialize, Serialize};

use crate::Attempt;
use crate::exits::{OUT_OF_MEMORY, exit_said, explain_exit};
use hung::hung;
use lost::{died, put_back};
use memory::shortage;
use preflight::{is_of_preflight, named_by_preflight, named_only_by_preflight};
pub(crate) use waiting::{known_reason, refused, way_out};

/// How an attempt ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndKind {
    /// Has not ended.
    Running,
    /// Has not started.
    Waiting,
    /// Ended by itself with success.
    Completed,
    /// Cancelled by a user, an admin or a policy.
    Cancelled,
    /// Reached its time limit.
    Timeout,
    /// Reached the deadline set by its owner.
    Deadline,
    /// Preempted by a job with higher priority.
    Preempted,
    /// Exceeded the memory limit.
    OutOfMemory,
    /// Slurm lost one of its nodes.
    NodeDied,
    /// The gate refused a node before the start. The job is requeued or cancelled.
    MovedByGate,
    /// Requeued by its owner, an admin or a preemption.
    Requeued,
    /// Hardware fault during the run.
    Hardware,
    /// Its own preflight named a node, and no check of railgate found a fault.
    Preflight,
    /// It hung, and the guard ended its steps.
    Hung,
    /// Ended by the program itself, as far as is known.
    Application,
    /// Not known.
    #[default]
    Unknown,
}

impl EndKind {
    /// Title in a report.
    pub fn title(self) -> &'static str {
        match self {
            EndKind::Running => "running",
            EndKind::Waiting => "waiting to start",
            EndKind::Completed => "completed",
            EndKind::Cancelled => "cancelled",
            EndKind::Timeout => "ran into its time limit",
            EndKind::Deadline => "past its deadline",
            EndKind::Preempted => "preempted",
            EndKind::OutOfMemory => "out of memory",
            EndKind::NodeDied => "a node died",
            EndKind::MovedByGate => "refused by the gate",
            EndKind::Requeued => "requeued",
            EndKind::Hardware => "hardware fault during the run",
            EndKind::Preflight => "its own preflight named a node",
            EndKind::Hung => "hung, and was ended",
            EndKind::Application => "looks like the application",
            EndKind::Unknown => "could not tell",
        }
    }
}

/// One piece of evidence, with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Time; `None` if it is only known to be between the two check runs.
    pub time: Option<UnixMillis>,
    /// Node name.
    pub node: String,
    /// Description.
    pub what: String,
}

/// Why an attempt ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Kind of end.
    pub kind: EndKind,
    /// One or two sentences.
    pub why: String,
    /// Evidence in time order; items without a time last.
    #[serde(default)]
    pub proof: Vec<Proof>,
    /// Evidence against the conclusion, and missing data.
    #[serde(default)]
    pub doubts: Vec<String>,
}

impl Ended {
    pub(crate) fn nothing_known() -> Self {
        Ended {
            kind: EndKind::Unknown,
            why: "no report was found".to_owned(),
            proof: Vec::new(),
            doubts: Vec::new(),
        }
    }
}

/// Why an attempt ended, from its node reports, the controller's decision and Slurm.
///
/// Slurm's state takes precedence if it is known. Without it exit code 0 is not informative: completed,
/// cancelled and timed-out jobs all have it. `next` describes what followed: an attempt with a successor was
/// requeued, and was not the end of the job.
pub fn why_ended(attempt: &Attempt, slurm: Option<&SlurmView>, next: Next<'_>) -> Ended {
    let state = state(attempt, slurm);
    let hardware = hardware(attempt);
    let refused: Vec<&NodeReport> = attempt.nodes.iter().filter(|node| node.refused()).collect();
    if !refused.is_empty() {
        return moved(&refused, &state, next);
    }
    if let Some(decision) = &attempt.decision {
        match decision.what {
            DecisionKind::Moved => {
                let why = format!("The gate refused it: {}.", decision.why);
                return Ended { kind: EndKind::MovedByGate, why, proof: Vec::new(), doubts: unseen(attempt) };
            }
            DecisionKind::RequeuedBySlurm => return died(attempt, hardware),
            DecisionKind::Held | DecisionKind::Failed if of_a_dead_node(decision) => {
                return died(attempt, hardware);
            }
            _ => {}
        }
    }
    let ended = |kind, why: String| Ended { kind, why, proof: Vec::new(), doubts: Vec::new() };
    let with_hardware = |kind, why: &str| {
        let mut end = ended(kind, why.to_owned());
        if !hardware.is_empty() {
            end.doubts.push("however, hardware failed before the end: see the evidence".to_owned());
            end.proof.clone_from(&hardware);
        }
        end
    };
    let who = slurm.and_then(|view| view.state.split_once(" by ")).map(|(_, who)| who.to_owned());
    match state.as_str() {
        "COMPLETED" => return with_hardware(EndKind::Completed, "Slurm recorded success (exit code 0)."),
        "CANCELLED" => {
            let by = who.map(|who| format!(" by uid {who}")).unwrap_or_default();
            return with_hardware(EndKind::Cancelled, &format!("Slurm recorded that it was cancelled{by}."));
        }
        "DEADLINE" => {
            let why = "Slurm ended it: it could not finish by its deadline (--deadline).";
            return with_hardware(EndKind::Deadline, why);
        }
        "TIMEOUT" => {
            let mut end = with_hardware(EndKind::Timeout, "It ran into its time limit.");
            if !hardware.is_empty() {
                "It ran into its time limit. Hardware had failed before: it may have hung."
                    .clone_into(&mut end.why);
                end.doubts.clear();
            }
            return end;
        }
        "PREEMPTED" => return with_hardware(EndKind::Preempted, "Slurm took its nodes for another job."),
        "NODE_FAIL" | "BOOT_FAIL" => return died(attempt, hardware),
        _ => {}
    }
    let exit = attempt.exit().or_else(|| {
        let (code, signal) = slurm?.exit?;
        Some(Exit { status: (code << 8) | (signal & 0x7f), derived: None })
    });
    let out_of_memory = |shortage: Option<memory::Shortage>| {
        let why = shortage.as_ref().map_or_else(
            || {
                "The job used more memory than it asked for, and the kernel killed one of its processes."
                    .to_owned()
            },
            memory::Shortage::why,
        );
        let mut end = with_hardware(EndKind::OutOfMemory, &why);
        end.proof.splice(0..0, shortage.and_then(|shortage| shortage.proof));
        end
    };
    if state == "OUT_OF_MEMORY" || exit.is_some_and(|exit| exit.signal() == OUT_OF_MEMORY) {
        return out_of_memory(shortage(attempt).filter(|shortage| shortage.limit.is_some()));
    }
    if next == Next::Attempt && exit.is_none_or(|exit| exit.status == 0) {
        return put_back(attempt, hardware);
    }
    let Some(exit) = exit else { return not_ended(attempt, slurm, next, &state) };
    if exit.status == 0 {
        return ended_with_zero(attempt, exit, &state, hardware);
    }
    // A kill without a time may be older than the fault that ended the job.
    if let Some(shortage) = shortage(attempt).filter(|told| told.limit.is_some() || hardware.is_empty()) {
        return out_of_memory(Some(shortage));
    }
    if !hardware.is_empty() {
        return broke(attempt, exit, hardware);
    }
    named_by_preflight(attempt, exit).or_else(|| hung(attempt)).unwrap_or_else(|| application(attempt, exit))
}

/// Whether the exit status is the one that Slurm sets for an attempt whose node died: 0 in 22.05, 1 in 24.11
/// and later, where a script ended by SIGHUP has it too.
fn of_a_dead_node(decision: &Decision) -> bool {
    let down = || decision.nodes.iter().any(|node| node.state.starts_with("DOWN"));
    decision.exit_status == Some(0) || decision.exit_status == Some(1) && down()
}

/// Slurm's base state in upper case, without flags and the user who caused it.
fn state(attempt: &Attempt, slurm: Option<&SlurmView>) -> String {
    let of_controller = attempt.decision.as_ref().and_then(|decision| decision.state.as_deref());
    let text = slurm.map(|view| view.state.as_str()).filter(|state| !state.is_empty()).or(of_controller);
    let text = text.unwrap_or_default().split([' ', '+']).next().unwrap_or_default();
    text.to_ascii_uppercase()
}

fn in_time_order(proof: &mut [Proof]) {
    proof.sort_by_key(|proof| proof.time.unwrap_or(u64::MAX));
}

/// All evidence of failed hardware of the job.
pub(crate) fn hardware(attempt: &Attempt) -> Vec<Proof> {
    let mut proof = Vec::new();
    for node in &attempt.nodes {
        let found = node.evidence.iter().filter(|item| counts(item, node) && !is_of_preflight(item));
        for item in found.filter(|item| why_not(attempt, node, item).is_none()) {
            proof.push(Proof { time: item.time, node: node.node.clone(), what: fault(item) });
        }
        for (time, text) in own_xids(node, Owner::Hardware) {
            // A finding derived from this line contains more.
            if node.evidence.iter().any(|item| item.time == Some(time) && counts(item, node)) {
                continue;
            }
            proof.push(Proof { time: Some(time), node: node.node.clone(), what: text });
        }
    }
    // The controller may have seen evidence that is missing from this report.
    let decided = attempt.decision.iter().flat_map(|decision| &decision.nodes);
    for node in decided.filter(|node| node.evidence) {
        let forgeable = attempt.nodes.iter().any(|report| named_only_by_preflight(report, &node.node));
        if !forgeable && !proof.iter().any(|proof| proof.node == node.node) {
            proof.push(Proof { time: None, node: node.node.clone(), what: node.reason.clone() });
        }
    }
    in_time_order(&mut proof);
    proof
}

/// Sentence about a fault.
fn fault(item: &EvidenceItem) -> String {
    if is_of_preflight(item) {
        return format!("reported by the job: {}", item.finding.what);
    }
    let named = item.device.is_empty() || item.finding.what.contains(&item.device);
    let device = if named { String::new() } else { format!(" ({})", item.device) };
    format!("{}{device}: {}", item.finding.subject(), item.finding.what)
}

/// Sentence about the cause of a refusal.
fn refusal(cause: &Finding) -> String {
    format!("{}: {}", cause.subject(), cause.what)
}

/// Source of a proof.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// A finding of the gate.
    Finding(&'a Finding),
    /// A record of the driver with this code.
    Xid(u32),
    /// A record of the kernel about a process killed for lack of memory.
    OutOfMemory,
}

/// The record that a proof was derived from, with its node. `None` for statements of Slurm, the controller or
/// an admin.
pub(crate) fn source<'a>(attempt: &'a Attempt, proof: &Proof) -> Option<(&'a NodeReport, Source<'a>)> {
    attempt.nodes.iter().filter(|node| node.node == proof.node).find_map(|node| {
        let found = node.evidence.iter().filter(|item| fault(item) == proof.what).map(|item| &item.finding);
        let cause = node.prolog.as_ref().and_then(|look| look.verdict.cause());
        let cause = cause.filter(|cause| refusal(cause) == proof.what);
        let xids = held_xids(node).filter(|xid| Some(xid.time) == proof.time);
        let xids = xids.filter(|xid| xid_in_words(xid) == proof.what).map(|xid| Source::Xid(xid.code));
        let kills = node.kernel.lines.iter().filter(|line| line.text == proof.what && is_oom(&line.text));
        let kills = kills.map(|_| Source::OutOfMemory);
        let source = found.chain(cause).map(Source::Finding).chain(xids).chain(kills).next()?;
        Some((node, source))
    })
}

/// Why a fault does not count as the cause: the controller's reason if it judged the fault, else its rule.
fn why_not(attempt: &Attempt, node: &NodeReport, item: &EvidenceItem) -> Option<String> {
    let judged = attempt.decision.iter().flat_map(|decision| &decision.discounted);
    let subject = item.finding.subject();
    let mut judged = judged.filter(|one| one.node == node.node && one.subject == subject);
    match judged.next() {
        Some(one) => Some(one.why.clone()),
        None => item.own.is_none().then(|| "it is not known whether the job held the part".to_owned()),
    }
}

/// Faults of the job's nodes that do not count as the cause, each with the reason.
fn discounted(attempt: &Attempt) -> Vec<(Proof, String)> {
    let mut found = Vec::new();
    for node in &attempt.nodes {
        for item in node.evidence.iter().filter(|item| counts(item, node)) {
            if let Some(why) = why_not(attempt, node, item) {
                found.push((Proof { time: item.time, node: node.node.clone(), what: fault(item) }, why));
            }
        }
    }
    found
}

/// Reason in the controller's decision, extended by the node reports. The controller does not query nodes if a
/// restart was not requested, so only the report shows whether requesting one would have helped.
pub(crate) fn decided(attempt: &Attempt, decision: &Decision) -> String {
    if !decision.not_asked {
        return decision.why.clone();
    }
    match attempt.ended.kind {
        EndKind::Hardware | EndKind::Preflight => {
            "a restart was not asked for (#SBATCH --railgate-requeue=auto)".to_owned()
        }
        EndKind::Unknown => "it is not known whether a fault of a node ended it".to_owned(),
        _ => "no fault of a node ended it".to_owned(),
    }
}

/// Xids on the job's GPUs, or on unknown GPUs. A job without GPUs has none.
fn held_xids(node: &NodeReport) -> impl Iterator<Item = &XidEvent> {
    let place = |pci: railgate_model::PciAddress| (pci.domain, pci.bus, pci.device);
    let held = if node.job.allocation == Allocation::NoGpus { &[] } else { node.kernel.xids.as_slice() };
    held.iter().filter(|xid| node.end.is_none_or(|end| xid.time <= end.saturating_add(5_000))).filter(
        move |xid| {
            let line = node.gpus.iter().find(|gpu| gpu.pci.known().copied().map(place) == xid.gpu.map(place));
            line.is_none_or(|gpu| gpu.own != Some(false))
        },
    )
}

/// Sentences about the Xids with this owner.
fn own_xids(node: &NodeReport, kind: Owner) -> Vec<(UnixMillis, String)> {
    let of_kind = |xid: &&XidEvent| explain(xid.code, &xid.text).0 == kind;
    held_xids(node).filter(of_kind).map(|xid| (xid.time, xid_in_words(xid))).collect()
}

fn xid_in_words(xid: &XidEvent) -> String {
    let gpu = xid.gpu.map(|gpu| format!(" on {gpu}")).unwrap_or_default();
    let pid = xid.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
    format!("Xid {}{gpu}{pid}: {}", xid.code, explain(xid.code, &xid.text).1)
}

/// The gate of a node refused the job. `next` and Slurm's state show what happened to it next, because Slurm
/// keeps no record of a job that waits for its next attempt.
fn moved(refused: &[&NodeReport], state: &str, next: Next<'_>) -> Ended {
    let cause = |node: &NodeReport| {
        node.prolog.as_ref().and_then(|look| look.verdict.cause()).map_or_else(|| "unfit".to_owned(), refusal)
    };
    let names: Vec<&str> = refused.iter().take(8).map(|node| node.node.as_str()).collect();
    let verb = if refused.len() == 1 { "was" } else { "were" };
    let (kind, fate) = match state {
        "CANCELLED" => (
            EndKind::MovedByGate,
            "Slurm cancelled the job, because it may not be requeued (--no-requeue, or not a batch job).",
        ),
        // It may have been requeued and then cancelled in the queue.
        "" if next != Next::Attempt => (
            EndKind::Unknown,
            "It had not started. What happened to it later was not recorded, and Slurm does not report it.",
        ),
        _ => (EndKind::MovedByGate, "It had not started; Slurm requeues it."),
    };
    let mut proof: Vec<Proof> = refused
        .iter()
        .map(|node| Proof {
            time: node.prolog.as_ref().map(|look| look.taken),
            node: node.node.clone(),
            what: cause(node),
        })
        .collect();
    in_time_order(&mut proof);
    Ended {
        kind,
        why: format!("{} {verb} unfit before the job started. {fate}", names.join(", ")),
        proof,
        doubts: Vec::new(),
    }
}

/// What followed an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// Another attempt, or the wait for it.
    Attempt,
    /// Nothing; `held` is set if the controller held the job after the attempt before.
    Nothing {
        /// Reason in the controller's decision.
        held: Option<&'a str>,
    },
}

fn not_ended(attempt: &Attempt, slurm: Option<&SlurmView>, next: Next<'_>, state: &str) -> Ended {
    let (kind, why) = match state {
        "RUNNING" | "COMPLETING" | "SUSPENDED" | "CONFIGURING" | "STAGE_OUT" | "SIGNALING" | "STOPPED" => {
            (EndKind::Running, format!("Slurm reports {state}."))
        }
        "PENDING" | "REQUEUED" | "REQUEUE_FED" | "REQUEUE_HOLD" => {
            let held = match next {
                Next::Nothing { held } => held,
                Next::Attempt => None,
            };
            let why = waiting::why(state, slurm, held);
            return Ended { kind: EndKind::Waiting, why, ..Ended::nothing_known() };
        }
        _ if attempt.nodes.iter().any(|node| node.end.is_some()) => {
            (EndKind::Unknown, "It has ended, and no exit code was recorded.".to_owned())
        }
        _ => (
            EndKind::Unknown,
            "No epilog has reported: it still runs, its nodes died, or their reports are elsewhere."
                .to_owned(),
        ),
    };
    // Reports of a running job are still to come.
    let doubts = if kind == EndKind::Running { Vec::new() } else { unseen(attempt) };
    Ended { kind, why, proof: Vec::new(), doubts }
}

fn ended_with_zero(attempt: &Attempt, exit: Exit, state: &str, hardware: Vec<Proof>) -> Ended {
    let record = match state {
        "" => "Slurm's record is missing".to_owned(),
        state => format!("Slurm reports {state}"),
    };
    let mut why = format!(
        "It is not known how the job ended: its exit code is 0, as it is for completed, cancelled and timed-out jobs, \
         and {record}."
    );
    let derived = exit.derived.map(|status| Exit { status, derived: None }).filter(|exit| exit.status != 0);
    if let Some(worst) = derived {
        why.push_str(&format!(" Its worst step ended with {}.", exit_text(worst)));
    }
    Ended { kind: EndKind::Unknown, why, proof: hardware, doubts: unseen(attempt) }
}

fn exit_text(exit: Exit) -> String {
    let base = exit_said(exit);
    match explain_exit(exit.code(), exit.signal()) {
        Some(meaning) => format!("{base} ({meaning})"),
        None => base,
    }
}

fn broke(attempt: &Attempt, exit: Exit, proof: Vec<Proof>) -> Ended {
    let first =
        proof.first().map(|proof| format!(" First, on {}: {}.", proof.node, proof.what)).unwrap_or_default();
    let timed = proof.iter().any(|proof| proof.time.is_some());
    let mut doubts = unseen(attempt);
    if !timed {
        doubts.push(
            "the time of the evidence is not known, only that it lies between the prolog and epilog checks"
                .to_owned(),
        );
    }
    let mut evidence =
        attempt.nodes.iter().flat_map(|node| &node.evidence).filter(|item| !is_of_preflight(item));
    let of_the_job = evidence.any(|item| item.own == Some(true));
    let what = if of_the_job { "Hardware that the job held" } else { "A part of the job's nodes" };
    Ended {
        kind: EndKind::Hardware,
        why: format!("{what} failed during the run; the job ended with {}.{first}", exit_text(exit)),
        proof,
        doubts,
    }
}

/// Missing data that could have shown a hardware fault.
pub(crate) fn unseen(attempt: &Attempt) -> Vec<String> {
    const MOST: usize = 8;
    let mut unseen = Vec::new();
    if !attempt.silent_nodes.is_empty() {
        let names: Vec<&str> = attempt.silent_nodes.iter().take(MOST).map(String::as_str).collect();
        unseen.push(format!(
            "{} of {} nodes have not reported ({})",
            attempt.silent_nodes.len(),
            attempt.node_count,
            names.join(", ")
        ));
    }
    for node in &attempt.nodes {
        if node.end.is_none() {
            unseen.push(format!("{}: its epilog has not reported", node.node));
            continue;
        }
        match &node.epilog {
            None => unseen.push(format!("{}: not checked after the run", node.node)),
            Some(look) => {
                for part in &look.missing {
                    unseen.push(format!("{}: {} not read: {}", node.node, part.part.as_str(), part.why));
                }
            }
        }
        // GPUs are not checked for a job without GPUs.
        if node.job.allocation == Allocation::NoGpus {
            continue;
        }
        let told = |part: PartName| {
            let listed = |look: &GateRun| look.missing.iter().any(|missing| missing.part == part);
            node.epilog.as_ref().is_some_and(listed)
        };
        if let Some(why) = &node.kernel.unread
            && !told(PartName::KernelLog)
        {
            unseen.push(format!("{}: kernel log not read: {why}", node.node));
        }
        if node.gpus.is_empty() && !told(PartName::Gpus) {
            unseen.push(format!("{}: no GPU was checked after the run", node.node));
        }
        if node.kernel.overrun {
            unseen.push(format!("{}: kernel log overwritten in part", node.node));
        }
    }
    unseen
}

/// Sentence about an Xid that indicates neither the program nor the hardware: it is not in the table, or no GPU
/// in the catalogue reports it.
fn unexplained(code: u32) -> Option<String> {
    let Some(row) = lookup(code) else {
        return Some(format!("Xid {code}, which railgate does not know"));
    };
    let silent =
        row.families.is_empty() && row.owner == Owner::Other && row.judgement.severity >= Severity::Warn;
    let action = row.immediate.map_or_else(|| "is not listed".to_owned(), |action| format!("is {action}"));
    silent.then(|| {
        format!("Xid {code} ({}), for which the action in NVIDIA's catalogue {action}", row.mnemonic)
    })
}

/// Observations without a verdict that may have ended the job.
fn suspicious(attempt: &Attempt) -> Vec<String> {
    let mut signs = Vec::new();
    for node in &attempt.nodes {
        let mut strange: Vec<String> = held_xids(node).filter_map(|xid| unexplained(xid.code)).collect();
        strange.sort_unstable();
        strange.dedup();
        for what in strange {
            signs.push(format!("{}: the driver reported {what}", node.node));
        }
        let own_rails: Vec<usize> = node.rail_map.as_ref().map_or_else(Vec::new, |map| {
            let own = |index: u32| node.gpus.iter().any(|gpu| gpu.index == index && gpu.own == Some(true));
            map.gpus.iter().filter(|gpu| own(gpu.index)).filter_map(|gpu| gpu.rail).collect()
        });
        let rail_number = |index: &usize| {
            node.rail_map.as_ref().and_then(|map| map.rails.get(*index)).map(|rail| rail.number)
        };
        let own_numbers: Vec<usize> = own_rails.iter().filter_map(rail_number).collect();
        for port in &node.ports {
            if let (Reading::Known(times), Some(rail)) = (&port.link_downed.delta, port.rail)
                && *times > 0
                && own_numbers.contains(&rail)
            {
                signs.push(format!(
                    "{}: the link of rail {rail} ({}:{}) went down {times} times and came back",
                    node.node, port.hca, port.port
                ));
            }
        }
        for gpu in node.gpus.iter().filter(|gpu| gpu.own == Some(true)) {
            if let Reading::Known(errors @ 1..) = gpu.ecc_uncorrected.delta {
                signs.push(format!(
                    "{}: GPU {} counted {errors} uncorrectable memory errors",
                    node.node, gpu.index
                ));
            }
        }
    }
    signs
}

fn application(attempt: &Attempt, exit: Exit) -> Ended {
    let mut proof = Vec::new();
    for node in &attempt.nodes {
        for kind in [Owner::Application, Owner::Other] {
            for (time, what) in own_xids(node, kind) {
                proof.push(Proof { time: Some(time), node: node.node.clone(), what });
            }
        }
    }
    in_time_order(&mut proof);
    let said = exit_text(exit);
    let suspicious = suspicious(attempt);
    let unseen = unseen(attempt);
    let discounted = discounted(attempt);
    if let Some((first, why)) = discounted.first() {
        let more = match discounted.len() - 1 {
            0 => String::new(),
            more => format!(" {more} more: see the evidence."),
        };
        let why = format!(
            "It ended with {said}. {} on {} does not count as the cause: {why}.{more}",
            first.what, first.node
        );
        proof.extend(discounted.iter().map(|(proof, _)| proof.clone()));
        in_time_order(&mut proof);
        return Ended { kind: EndKind::Unknown, why, proof, doubts: unseen };
    }
    if !suspicious.is_empty() {
        return Ended {
            kind: EndKind::Unknown,
            why: format!(
                "It ended with {said}. No check failed, but: {}. That may have ended it.",
                suspicious.join("; ")
            ),
            proof,
            doubts: unseen,
        };
    }
    if !unseen.is_empty() || attempt.nodes.is_empty() {
        return Ended {
            kind: EndKind::Unknown,
            why: format!(
                "It ended with {said}. Nothing that was checked points at hardware, but some data is missing."
            ),
            proof,
            doubts: unseen,
        };
    }
    let xids: Vec<u32> = {
        let mut codes: Vec<u32> = attempt
            .nodes
            .iter()
            .flat_map(|node| &node.kernel.xids)
            .filter(|xid| explain(xid.code, &xid.text).0 == Owner::Application)
            .map(|xid| xid.code)
            .collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    };
    let raised = match xids.as_slice() {
        [] => String::new(),
        codes => {
            let codes: Vec<String> = codes.iter().map(u32::to_string).collect();
            format!(" The driver reports an error of the program (Xid {}).", codes.join(", "))
        }
    };
    let nodes = match attempt.nodes.len() {
        1 => "the node".to_owned(),
        count => format!("the {count} nodes"),
    };
    let with_gpus = attempt.nodes.iter().any(|node| node.job.allocation != Allocation::NoGpus);
    let seen = if with_gpus {
        "no check failed after the run, no hardware Xid, no new uncorrectable memory error, no link of the job went down"
    } else {
        "no check failed after the run"
    };
    Ended {
        kind: EndKind::Application,
        why: format!(
            "It ended with {said}.{raised} Nothing that it used on {nodes} points at hardware: {seen}."
        ),
        proof,
        doubts: Vec::new(),
    }
}

/// Whether evidence can explain the end of the job: not another job's device, and not after the end of the run.
fn counts(item: &EvidenceItem, report: &NodeReport) -> bool {
    const SLACK_MS: u64 = 5_000;
    let in_time = match (item.time, report.end) {
        (Some(time), Some(end)) => time <= end.saturating_add(SLACK_MS),
        _ => true,
    };
    item.own != Some(false)
        && in_time
        && item.finding.severity == Severity::Fail
        && matches!(item.finding.class, Class::Node | Class::Fabric)
}

#[cfg(test)]
mod tests;

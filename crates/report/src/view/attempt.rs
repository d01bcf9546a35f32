//! One attempt: its end, the decision of the controller, and the findings of the gate.

use railgate_model::Fitness;
use railgate_node_report::plain::{float, span, stamp};
use railgate_node_report::{Decision, GateRun, NodeReport};
#[cfg(test)]
use serde::Serialize;

use super::counters::{self, Counters};
use super::environment::{self, Environment};
use super::head::{Ending, ending, first_error};
use super::nccl::warnings;
use super::rails::{self, Rails};
use super::{Sentence, more_nodes, starts};
use crate::exits;
use crate::why::decided;
use crate::{Attempt, EndKind};

/// Maximum number of nodes whose findings are listed.
const MOST_NODES: usize = 100;
/// Maximum number of findings listed per check run.
const MOST_FINDINGS: usize = 50;
/// Maximum number of internal errors of railgate listed per node.
const MOST_FAULTS: usize = 20;

/// One attempt.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct OfAttempt {
    pub(crate) ended: Ending,
    /// The first error in its own logs, and what is to be known beside it.
    pub(crate) first_error: Vec<Sentence>,
    /// End and exit status, `looks like the application, exit code 1`; `None` while it runs.
    pub(crate) exit: Option<String>,
    /// Node list, `n[1-2]`; `unknown` if it is not known.
    pub(crate) nodes: String,
    /// Number of nodes that reported; `None` for an attempt that has not begun.
    pub(crate) reported: Option<Sentence>,
    /// Duration and start; only the start if it has not ended.
    pub(crate) ran: Option<Ran>,
    /// Starts inside the allocation.
    pub(crate) starts: Vec<Sentence>,
    pub(crate) controller: Option<Controller>,
    /// Fallbacks to sockets, and nodes whose GPUs have different rails.
    pub(crate) warnings: Vec<Sentence>,
    /// Verdicts of the gate on each node that reported.
    pub(crate) gate: Vec<GateRow>,
    /// Findings of the gate, by node.
    pub(crate) findings: Vec<Found>,
    /// Rails of the nodes; `None` if no node has a rail map.
    pub(crate) rails: Option<Rails>,
    /// NCCL's variables and transport; `None` if nothing is known of them.
    pub(crate) environment: Option<Environment>,
    /// Counters of GPUs and ports; `None` if no node has any.
    pub(crate) counters: Option<Counters>,
}

/// Duration of an attempt.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) enum Ran {
    Ended(Sentence),
    Since(Sentence),
}

/// Decision of the controller.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Controller {
    /// The decision, `railgate requeued the job`.
    pub(crate) what: &'static str,
    pub(crate) why: Sentence,
    /// Consent: `auto`, `never`, a number or `unknown`.
    pub(crate) consent: String,
    pub(crate) waited_ms: u64,
    pub(crate) budget: Option<Sentence>,
    pub(crate) nodes: Vec<AskedNode>,
}

/// A node that the controller checked.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct AskedNode {
    pub(crate) node: String,
    pub(crate) state: String,
    pub(crate) reason: Sentence,
    /// Source of the evidence; `None` if there was none.
    pub(crate) evidence: Option<String>,
}

/// Verdicts on a node before and after the attempt.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct GateRow {
    pub(crate) node: String,
    /// Verdict before the attempt; `None` if there was no check run.
    pub(crate) before: Option<Fitness>,
    pub(crate) after: Option<Fitness>,
    /// Whether its epilog has reported.
    pub(crate) has_ended: bool,
    /// Options of the job; empty if they are not known.
    pub(crate) gate: String,
    pub(crate) requeue: String,
    pub(crate) profile: Option<String>,
    /// Acts of railgate on the node.
    pub(crate) acts: Vec<String>,
    /// Whether there are findings or acts, or a check run is missing.
    pub(crate) has_news: bool,
}

/// The rows of the gate that a format lists, and how many others there are.
pub(crate) struct ListedRows<'a> {
    pub(crate) rows: Vec<&'a GateRow>,
    /// Nodes with findings beyond the table's length.
    more_with_news: usize,
    /// Nodes without findings, which are left out where there are many nodes.
    quiet: usize,
}

impl<'a> ListedRows<'a> {
    /// Lists all nodes if these are at most `few`, else those with findings; at most `most` rows.
    pub(crate) fn of(gate: &'a [GateRow], few: usize, most: usize) -> Self {
        let mut rows: Vec<&GateRow> = gate.iter().filter(|row| gate.len() <= few || row.has_news).collect();
        let quiet = gate.len() - rows.len();
        let more_with_news = rows.len().saturating_sub(most);
        rows.truncate(most);
        ListedRows { rows, more_with_news, quiet }
    }

    /// What is said of the other nodes; `None` if there are none.
    pub(crate) fn rest(&self) -> Option<String> {
        if self.rows.is_empty() {
            let nodes = if self.quiet == 1 { "1 node".to_owned() } else { format!("{} nodes", self.quiet) };
            return (self.quiet > 0).then(|| format!("{nodes} without findings"));
        }
        let part =
            |count: usize, what: &str| (count > 0).then(|| format!("and {} {what}", more_nodes(count)));
        let parts: Vec<String> = part(self.more_with_news, "with findings")
            .into_iter()
            .chain(part(self.quiet, "without findings"))
            .collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// One item that the gate reports about a node.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) enum Found {
    Finding {
        node: String,
        phase: String,
        /// Check and part, `gpu-lost@3`.
        subject: String,
        severity: String,
        class: String,
        what: Sentence,
        fix: Sentence,
        /// Evidence rows, `rows remapped: 3 (want 0; NVML)`.
        proof: Vec<String>,
    },
    /// A part of the node that a check run could not read.
    NotRead { node: String, phase: String, part: &'static str, why: Sentence },
    /// An internal error of railgate.
    Fault { node: String, what: Sentence },
}

pub(super) fn attempt(earlier: &[Attempt], attempt: &Attempt) -> OfAttempt {
    let of = attempt.node_count.max(attempt.nodes.len());
    let reported = (attempt.ended.kind != EndKind::Waiting)
        .then(|| format!("{} of {of} reported", attempt.nodes.len()).into());
    let or_unknown = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
    let findings = attempt.nodes.iter().filter(|node| has_news(node)).take(MOST_NODES);
    OfAttempt {
        ended: ending(&attempt.ended),
        first_error: attempt.first_error.as_ref().map(first_error).unwrap_or_default(),
        exit: attempt.end.is_some().then(|| exits::ending(attempt)),
        nodes: or_unknown(&attempt.nodelist),
        reported,
        ran: ran(attempt),
        starts: starts::starts(attempt),
        controller: attempt.decision.as_ref().map(|decision| controller(attempt, decision)),
        warnings: warnings(attempt).into_iter().map(Sentence::from).collect(),
        gate: attempt.nodes.iter().map(gate_row).collect(),
        findings: findings.flat_map(found).collect(),
        rails: rails::rails(earlier, attempt),
        environment: environment::environment(earlier, attempt),
        counters: counters::counters(attempt),
    }
}

fn ran(attempt: &Attempt) -> Option<Ran> {
    let start = attempt.start?;
    let from = stamp(start);
    Some(match attempt.end {
        Some(end) => {
            let length = span(float(end.saturating_sub(start)) / 1000.0);
            Ran::Ended(format!("{length} from {from}, from the first prolog to the last epilog").into())
        }
        None => Ran::Since(from.into()),
    })
}

fn controller(attempt: &Attempt, decision: &Decision) -> Controller {
    let budget = decision.budget.map(|budget| {
        format!(
            "failures during a run: {} (restarts allowed: {}); refusals by the gate: {}",
            budget.restarts, budget.max_restarts, budget.moves
        )
    });
    let nodes = decision.nodes.iter().map(|node| AskedNode {
        node: node.node.clone(),
        state: node.state.clone(),
        reason: node.reason.clone().into(),
        evidence: node.evidence.then(|| node.source.clone()),
    });
    let consent = if decision.consent.is_empty() { "unknown" } else { &decision.consent };
    Controller {
        what: decision.what.title(),
        why: decided(attempt, decision).into(),
        consent: consent.to_owned(),
        waited_ms: decision.waited_ms,
        budget: budget.map(Sentence::from),
        nodes: nodes.collect(),
    }
}

fn has_news(node: &NodeReport) -> bool {
    let bad = |look: &Option<GateRun>| {
        look.as_ref().is_none_or(|look| !look.verdict.findings.is_empty() || !look.missing.is_empty())
    };
    bad(&node.prolog) || bad(&node.epilog) || !node.acts.is_empty() || !node.faults.is_empty()
}

fn gate_row(node: &NodeReport) -> GateRow {
    let fitness = |look: &Option<GateRun>| look.as_ref().map(|look| look.verdict.fitness);
    let acts = node.acts.iter().map(railgate_node_report::Act::sentence);
    GateRow {
        node: node.node.clone(),
        before: fitness(&node.prolog),
        after: fitness(&node.epilog),
        has_ended: node.end.is_some(),
        gate: node.options.gate.clone(),
        requeue: node.options.requeue.clone(),
        profile: node.options.profile.clone(),
        acts: acts.collect(),
        has_news: has_news(node),
    }
}

fn found(node: &NodeReport) -> Vec<Found> {
    let name = || node.node.clone();
    let mut all = Vec::new();
    for look in [&node.prolog, &node.epilog].into_iter().flatten() {
        let phase = || look.verdict.phase.to_string();
        all.extend(look.verdict.findings.iter().take(MOST_FINDINGS).map(|finding| {
            let proof = finding.evidence.iter().take(5);
            Found::Finding {
                node: name(),
                phase: phase(),
                subject: finding.subject(),
                severity: finding.severity.to_string(),
                class: finding.class.to_string(),
                what: finding.what.clone().into(),
                fix: finding.fix.clone().into(),
                proof: proof
                    .map(|row| format!("{}: {} (want {}; {})", row.what, row.got, row.want, row.source))
                    .collect(),
            }
        }));
        all.extend(look.missing.iter().map(|part| Found::NotRead {
            node: name(),
            phase: phase(),
            part: part.part.as_str(),
            why: part.why.clone().into(),
        }));
    }
    let faults = node.faults.iter().take(MOST_FAULTS);
    all.extend(faults.map(|fault| Found::Fault { node: name(), what: fault.clone().into() }));
    all
}

//! NCCL's variables and transport, by groups of nodes that are alike in all of it.

use serde::Serialize;

use super::Sentence;
use super::nccl::{has_variables, looked, names, value, won};
use crate::applied::Applied;
use crate::{Attempt, NodeReport, Over, SetBy, StepSetting};

/// Variables and transport of an attempt's nodes.
#[derive(Debug, Serialize)]
pub(crate) struct Environment {
    /// The same nodes had the same in an earlier attempt.
    pub(crate) as_before: bool,
    /// In order of their first node.
    pub(crate) groups: Vec<NodesAlike>,
}

/// Nodes with the same variables and the same transport.
#[derive(Debug, Serialize)]
pub(crate) struct NodesAlike {
    /// `n1, n2 and 6 more`
    pub(crate) nodes: String,
    /// What railgate offered.
    pub(crate) offered: Vec<Offered>,
    /// Which processes the values in `applied` were read from; `None` where no process was looked for.
    pub(crate) looked: Option<Sentence>,
    /// What processes had; rows that differ from the offer first, since they may need a change.
    pub(crate) applied: Vec<Row>,
    /// What NCCL's data went over, and from what that is known.
    pub(crate) transport: Option<Sentence>,
    /// The transport is a fallback to sockets.
    pub(crate) fell_back: bool,
    /// What steps began with.
    pub(crate) steps: Vec<Step>,
}

/// A variable that railgate offered.
#[derive(Debug, Serialize)]
pub(crate) struct Offered {
    pub(crate) name: String,
    pub(crate) value: String,
    /// It replaces the user's value.
    pub(crate) force: bool,
    pub(crate) why: Sentence,
    /// The file or the rule that it comes from.
    pub(crate) source: String,
}

/// A variable as processes had it.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// It is not what railgate offered.
    pub(crate) overruled: bool,
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) whose: Sentence,
    pub(crate) steps: Vec<String>,
    pub(crate) processes: u32,
}

/// The variables that a step began with, by the plugin in the step.
#[derive(Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) step: String,
    /// `applied` has rows of this step.
    pub(crate) is_applied: bool,
    pub(crate) variables: Vec<AtStart>,
}

/// One of them.
#[derive(Debug, Serialize)]
pub(crate) struct AtStart {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) whose: &'static str,
    pub(crate) instead_of: Option<String>,
}

/// Alike in all that is shown. Nodes that differ in the transport alone are two groups: one may have fallen back to
/// sockets.
fn alike(one: &NodeReport, other: &NodeReport) -> bool {
    let over = |node: &NodeReport| node.transport.as_ref().map(|transport| transport.over);
    one.settings == other.settings
        && one.steps == other.steps
        && one.applied == other.applied
        && over(one) == over(other)
}

pub(super) fn environment(earlier: &[Attempt], attempt: &Attempt) -> Option<Environment> {
    let nodes: Vec<&NodeReport> = attempt.nodes.iter().filter(|node| has_variables(node)).collect();
    if nodes.is_empty() {
        return None;
    }
    let known = |node: &NodeReport| {
        let before = earlier.iter().flat_map(|attempt| &attempt.nodes);
        before.filter(|other| other.node == node.node).any(|other| alike(other, node))
    };
    let as_before = nodes.iter().all(|node| known(node));
    // Nodes of a type get the same.
    let mut groups: Vec<(Vec<&str>, &NodeReport)> = Vec::new();
    for node in nodes {
        match groups.iter_mut().find(|(_, first)| alike(first, node)) {
            Some((names, _)) => names.push(&node.node),
            None => groups.push((vec![&node.node], node)),
        }
    }
    let groups = groups.iter().map(|(nodes, first)| group(nodes, first)).collect();
    Some(Environment { as_before, groups })
}

fn group(nodes: &[&str], node: &NodeReport) -> NodesAlike {
    let offered = node.settings.iter().map(|setting| Offered {
        name: setting.name.clone(),
        value: setting.value.clone(),
        force: setting.force,
        why: setting.why.clone().into(),
        source: setting.source.clone(),
    });
    let (against, with): (Vec<&Applied>, Vec<_>) = node.applied.iter().partition(|row| row.overruled());
    let applied = against.into_iter().chain(with).map(|row| Row {
        overruled: row.overruled(),
        name: row.name.clone(),
        value: value(row).to_owned(),
        whose: won(row).into(),
        steps: row.steps.clone(),
        processes: row.processes,
    });
    let steps = node.steps.iter().take(100).map(|step| Step {
        step: step.step.clone(),
        is_applied: node.applied.iter().any(|row| row.steps.contains(&step.step)),
        variables: step.settings.iter().map(at_start).collect(),
    });
    let transport = node.transport.as_ref();
    NodesAlike {
        nodes: names(nodes),
        offered: offered.collect(),
        looked: looked(node).map(Sentence::from),
        applied: applied.collect(),
        transport: transport
            .map(|transport| format!("NCCL ran over {}: {}", over(transport.over), transport.why).into()),
        fell_back: transport.is_some_and(|transport| transport.over == Over::Sockets),
        steps: steps.collect(),
    }
}

fn at_start(setting: &StepSetting) -> AtStart {
    AtStart {
        name: setting.name.clone(),
        value: setting.value.clone(),
        whose: whose(setting.from),
        instead_of: setting.instead_of.clone(),
    }
}

fn over(over: Over) -> &'static str {
    match over {
        Over::Rails => "the rails",
        Over::Sockets => "sockets",
        Over::Plugin => "an external net plugin",
        Over::Unknown => "an unknown transport",
    }
}

fn whose(from: SetBy) -> &'static str {
    match from {
        SetBy::User => "set by the user",
        SetBy::Railgate => "railgate's",
        SetBy::Forced => "railgate's, forced by the site",
        SetBy::Image => "set by the container image",
    }
}

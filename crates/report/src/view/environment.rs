//! NCCL's variables and transport, by groups of nodes that are equal in both.

use railgate_node_report::{Applied, NodeReport, Over, SetBy, StepSetting};
#[cfg(test)]
use serde::Serialize;

use super::Sentence;
use super::nccl::{has_variables, looked, names, value, won};
use crate::Attempt;

/// Variables and transport of the nodes of an attempt.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Environment {
    /// The same as on the same nodes in an earlier attempt.
    pub(crate) as_before: bool,
    /// Groups, in the order of their first node.
    pub(crate) groups: Vec<NodesAlike>,
}

/// Nodes with equal variables and transport.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct NodesAlike {
    /// Node names, `n1, n2 and 6 more`.
    pub(crate) nodes: String,
    /// Variables that railgate offered.
    pub(crate) offered: Vec<Offered>,
    /// Processes that the values in `applied` were read from; `None` if no processes were probed.
    pub(crate) looked: Option<Sentence>,
    /// At least one process was seen.
    pub(crate) is_seen: bool,
    /// Variables of the processes; rows that differ from the offer come first, since they may need a change.
    pub(crate) applied: Vec<Row>,
    /// NCCL's transport, and the evidence for it.
    pub(crate) transport: Option<Sentence>,
    /// The transport is a fallback to sockets.
    pub(crate) fell_back: bool,
    /// Variables at the start of steps.
    pub(crate) steps: Vec<Step>,
}

/// A variable that railgate offered.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Offered {
    pub(crate) name: String,
    pub(crate) value: String,
    /// Whether it replaces a value of the user.
    pub(crate) force: bool,
    pub(crate) why: Sentence,
    /// The file or rule that it comes from.
    pub(crate) source: String,
}

/// A variable in the environment of processes.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Row {
    /// The value is not the one that railgate offered.
    pub(crate) overruled: bool,
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) whose: Sentence,
    pub(crate) steps: Vec<String>,
    pub(crate) processes: u32,
}

/// Variables at the start of a step, as recorded by the plugin in the step.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct Step {
    pub(crate) step: String,
    /// Whether `applied` has rows of this step.
    pub(crate) is_applied: bool,
    pub(crate) variables: Vec<AtStart>,
}

/// A variable at the start of a step.
#[derive(Debug)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct AtStart {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) whose: &'static str,
    pub(crate) instead_of: Option<String>,
}

/// Whether two nodes are equal in everything shown. Nodes that differ only in transport form two groups, since
/// one may have fallen back to sockets.
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
    // Nodes of one type get the same settings.
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
        is_seen: node.tasks.as_ref().is_some_and(|tasks| tasks.looks > 0),
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

use super::Text;
use crate::rails_said::{has_variables, looked, names, value, won};
use crate::{Attempt, NodeReport, Over, SetBy, StepEnv};

fn same(one: &NodeReport, other: &NodeReport) -> bool {
    let transport = |node: &NodeReport| node.transport.as_ref().map(|transport| transport.over);
    one.settings == other.settings
        && one.steps == other.steps
        && one.applied == other.applied
        && transport(one) == transport(other)
}

pub(super) fn variables(out: &mut Text, earlier: &[Attempt], attempt: &Attempt) {
    let nodes: Vec<&NodeReport> = attempt.nodes.iter().filter(|node| has_variables(node)).collect();
    if nodes.is_empty() {
        return;
    }
    let title = format!("attempt {}: NCCL environment", attempt.attempt);
    let known = |node: &NodeReport| {
        let before = earlier.iter().flat_map(|attempt| &attempt.nodes);
        before.filter(|other| other.node == node.node).any(|other| same(other, node))
    };
    if nodes.iter().all(|node| known(node)) {
        out.section(&title, "as before, on the same nodes");
        return;
    }
    out.section(&title, "");
    // Nodes of a type get the same; say it once.
    let mut groups: Vec<(Vec<&str>, &NodeReport)> = Vec::new();
    for &node in &nodes {
        match groups.iter_mut().find(|(_, first)| same(first, node)) {
            Some((names, _)) => names.push(&node.node),
            None => groups.push((vec![&node.node], node)),
        }
    }
    for (nodes, node) in groups.iter().take(16) {
        out.line(&format!("  {}", names(nodes)));
        for setting in &node.settings {
            let force = if setting.force { " (forced)" } else { "" };
            out.indented(&format!("offered {}={}{force}", setting.name, setting.value), 4);
            out.indented(&setting.why, 8);
        }
        applied(out, node);
        let seen = |step: &&StepEnv| !node.applied.iter().any(|row| row.steps.contains(&step.step));
        for step in node.steps.iter().filter(seen).take(50) {
            noted(out, step);
        }
    }
    if nodes.iter().any(|node| !node.steps.is_empty() || !node.applied.is_empty()) {
        out.line("  (what processes and steps had is their own word)");
    }
}

/// What differs from the offer first: that is what somebody may have to change.
fn applied(out: &mut Text, node: &NodeReport) {
    const MOST: usize = 40;
    if let Some(looked) = looked(node) {
        out.indented(&format!("really applied ({looked}):"), 4);
    }
    let (against, with): (Vec<_>, Vec<_>) = node.applied.iter().partition(|row| row.overruled());
    for row in against.iter().chain(&with).take(MOST) {
        let mark = if row.overruled() { "! " } else { "" };
        let steps = row.steps.join(", ");
        let of = if steps.is_empty() { String::new() } else { format!("; step {steps}") };
        out.indented(&format!("{mark}{}={} ({}{of})", row.name, value(row), won(row)), 6);
    }
    if node.applied.len() > MOST {
        out.indented(&format!("and {} more: --format json", node.applied.len() - MOST), 6);
    }
    if let Some(transport) = &node.transport {
        let over = match transport.over {
            Over::Rails => "the rails",
            Over::Sockets => "sockets",
            Over::Plugin => "a net plugin that is not NCCL's own",
            Over::Unknown => "nobody can tell what",
        };
        out.indented(&format!("NCCL ran over {over}: {}", transport.why), 4);
    }
}

fn noted(out: &mut Text, step: &StepEnv) {
    for setting in &step.settings {
        let instead =
            setting.instead_of.as_ref().map(|other| format!(", instead of {other}")).unwrap_or_default();
        let by = match setting.from {
            SetBy::User => "the user's own",
            SetBy::Railgate => "railgate's",
            SetBy::Forced => "railgate's, forced by the site",
            SetBy::Image => "the container image's",
        };
        out.indented(
            &format!("step {} had {}={} ({by}{instead})", step.step, setting.name, setting.value),
            4,
        );
    }
}

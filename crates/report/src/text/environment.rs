use super::Text;
use crate::view::{Environment, NodesAlike};

/// Maximum number of groups of nodes; the other formats have all.
const MOST_GROUPS: usize = 16;

pub(super) fn environment(out: &mut Text, title: &str, environment: &Environment) {
    if environment.as_before {
        out.section(title, "as before, on the same nodes");
        return;
    }
    out.section(title, "");
    for group in environment.groups.iter().take(MOST_GROUPS) {
        out.line(&format!("  {}", group.nodes));
        one_group(out, group);
    }
    if environment.groups.len() > MOST_GROUPS {
        let more = environment.groups.len() - MOST_GROUPS;
        out.line(&format!("  and {more} more groups of nodes: --format html or json"));
    }
    if environment.groups.iter().any(|group| !group.steps.is_empty() || !group.applied.is_empty()) {
        out.line("  (values of processes and steps are self-reported)");
    }
}

fn one_group(out: &mut Text, group: &NodesAlike) {
    const MOST_ROWS: usize = 40;
    const MOST_STEPS: usize = 50;
    for setting in &group.offered {
        let force = if setting.force { " (forced)" } else { "" };
        out.indented(&format!("offered {}={}{force}", setting.name, setting.value), 4);
        out.indented(setting.why.as_str(), 8);
    }
    if let Some(looked) = &group.looked {
        let text = match group.is_seen {
            true => format!("in use ({}):", looked.as_str()),
            false => format!("in use: not known, since {}", looked.as_str()),
        };
        out.indented(&text, 4);
    }
    for row in group.applied.iter().take(MOST_ROWS) {
        let mark = if row.overruled { "! " } else { "" };
        let steps = row.steps.join(", ");
        let of = if steps.is_empty() { String::new() } else { format!("; step {steps}") };
        out.indented(&format!("{mark}{}={} ({}{of})", row.name, row.value, row.whose.as_str()), 6);
    }
    if group.applied.len() > MOST_ROWS {
        out.indented(&format!("and {} more: --format json", group.applied.len() - MOST_ROWS), 6);
    }
    if let Some(transport) = &group.transport {
        out.indented(transport.as_str(), 4);
    }
    let unseen = || group.steps.iter().filter(|step| !step.is_applied && !step.variables.is_empty());
    if unseen().next().is_some() {
        out.indented("variables that the steps began with:", 4);
    }
    for step in unseen().take(MOST_STEPS) {
        for one in &step.variables {
            let instead =
                one.instead_of.as_ref().map(|other| format!(", instead of {other}")).unwrap_or_default();
            out.indented(
                &format!("step {}: {}={} ({}{instead})", step.step, one.name, one.value, one.whose),
                6,
            );
        }
    }
}

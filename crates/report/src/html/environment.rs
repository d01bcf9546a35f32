use std::fmt::Write as _;

use super::{esc, table};
use crate::view::{Environment, NodesAlike};

/// Groups of nodes beyond so many are in the JSON.
const MOST_GROUPS: usize = 64;

pub(super) fn environment(out: &mut String, environment: &Environment) {
    out.push_str("<details><summary>NCCL environment</summary>");
    for group in environment.groups.iter().take(MOST_GROUPS) {
        one_group(out, group);
    }
    if environment.groups.len() > MOST_GROUPS {
        let more = environment.groups.len() - MOST_GROUPS;
        // Writing to a String cannot fail.
        let _ = write!(out, "<p class=\"soft\">and {more} more groups of nodes: --format json</p>");
    }
    out.push_str("</details>\n");
}

fn one_group(out: &mut String, group: &NodesAlike) {
    let lead = if group.offered.is_empty() { "On" } else { "Offered on" };
    let _ = write!(out, "<h3>{lead} {}</h3>", esc(&group.nodes));
    let rows: Vec<Vec<String>> = group
        .offered
        .iter()
        .map(|setting| {
            let how = if setting.force { "forced" } else { "where unset" };
            let (name, value) = (setting.name.clone(), setting.value.clone());
            vec![name, value, how.to_owned(), setting.why.as_str().to_owned(), setting.source.clone()]
        })
        .collect();
    table(out, &["`Name", "`Value", "How", "Why", "Source"], &rows);
    if let Some(looked) = &group.looked {
        let about = esc(looked.as_str());
        let _ = write!(out, "<h3>In use <span class=\"soft\">({about}; self-reported)</span></h3>");
    }
    let rows: Vec<Vec<String>> = group
        .applied
        .iter()
        .map(|row| {
            let (name, value) = (row.name.clone(), row.value.clone());
            vec![row.steps.join(", "), name, value, row.whose.as_str().to_owned(), row.processes.to_string()]
        })
        .collect();
    table(out, &["Step", "`Name", "`Value", "Whose", "#Processes"], &rows);
    if let Some(transport) = &group.transport {
        let class = if group.fell_back { "warn" } else { "soft" };
        let _ = write!(out, "<p class=\"{class}\">{}</p>", esc(transport.as_str()));
    }
    let rows: Vec<Vec<String>> = group
        .steps
        .iter()
        .flat_map(|step| step.variables.iter().map(move |one| (step, one)))
        .map(|(step, one)| {
            let other = one.instead_of.clone().unwrap_or_default();
            vec![step.step.clone(), one.name.clone(), one.value.clone(), one.whose.to_owned(), other]
        })
        .collect();
    if !rows.is_empty() {
        out.push_str("<h3>What the steps began with <span class=\"soft\">(self-reported)</span></h3>");
        table(out, &["Step", "`Name", "`Value", "Whose", "`Instead of"], &rows);
    }
}

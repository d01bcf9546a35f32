use std::fmt::Write as _;

use super::{esc, table};
use crate::rails_said::{has_variables, looked, names, value, won};
use crate::{Attempt, NodeReport, SetBy};

/// Beyond so many kinds of nodes the rest is in the JSON.
const MOST_KINDS: usize = 64;

pub(super) fn variables(out: &mut String, attempt: &Attempt) {
    let nodes: Vec<&NodeReport> = attempt.nodes.iter().filter(|node| has_variables(node)).collect();
    if nodes.is_empty() {
        return;
    }
    out.push_str("<details><summary>NCCL environment</summary>");
    let mut groups: Vec<(Vec<&str>, &NodeReport)> = Vec::new();
    for node in nodes {
        let same = |first: &NodeReport| {
            first.settings == node.settings && first.steps == node.steps && first.applied == node.applied
        };
        match groups.iter_mut().find(|(_, first)| same(first)) {
            Some((names, _)) => names.push(&node.node),
            None => groups.push((vec![&node.node], node)),
        }
    }
    for (nodes, node) in groups.iter().take(MOST_KINDS) {
        // Writing to a String cannot fail.
        let lead = if node.settings.is_empty() { "On" } else { "Offered on" };
        let _ = write!(out, "<h3>{lead} {}</h3>", esc(&names(nodes)));
        let rows: Vec<Vec<String>> = node
            .settings
            .iter()
            .map(|setting| {
                let how = if setting.force { "forced" } else { "where unset" };
                vec![
                    setting.name.clone(),
                    setting.value.clone(),
                    how.to_owned(),
                    setting.why.clone(),
                    setting.source.clone(),
                ]
            })
            .collect();
        table(out, &["`Name", "`Value", "How", "Why", "Source"], &rows);
        applied(out, node);
        noted(out, node);
    }
    out.push_str("</details>\n");
}

fn applied(out: &mut String, node: &NodeReport) {
    let Some(looked) = looked(node) else { return };
    let _ =
        write!(out, "<h3>Really applied <span class=\"soft\">({}; their own word)</span></h3>", esc(&looked));
    let rows: Vec<Vec<String>> = node
        .applied
        .iter()
        .map(|row| {
            vec![
                row.steps.join(", "),
                row.name.clone(),
                value(row).to_owned(),
                won(row),
                row.processes.to_string(),
            ]
        })
        .collect();
    table(out, &["Step", "`Name", "`Value", "Whose", "#Processes"], &rows);
    if let Some(transport) = &node.transport {
        let _ = write!(out, "<p class=\"soft\">Transport: {}</p>", esc(&transport.why));
    }
}

fn noted(out: &mut String, node: &NodeReport) {
    let rows: Vec<Vec<String>> = node
        .steps
        .iter()
        .take(100)
        .flat_map(|step| step.settings.iter().map(move |setting| (step, setting)))
        .map(|(step, setting)| {
            let by = match setting.from {
                SetBy::User => "the user's own",
                SetBy::Railgate => "railgate's",
                SetBy::Forced => "railgate's, forced",
                SetBy::Image => "the image's",
            };
            let other = setting.instead_of.clone().unwrap_or_default();
            vec![step.step.clone(), setting.name.clone(), setting.value.clone(), by.to_owned(), other]
        })
        .collect();
    if !rows.is_empty() {
        out.push_str("<h3>What the steps began with <span class=\"soft\">(their own word)</span></h3>");
        table(out, &["Step", "`Name", "`Value", "Whose", "`Instead of"], &rows);
    }
}

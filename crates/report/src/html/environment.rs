use maud::{Markup, html};

use super::{Text, table};
use crate::view::{Environment, NodesAlike};

/// Groups of nodes beyond so many are in the JSON.
const MOST_GROUPS: usize = 64;

pub(super) fn environment(environment: &Environment) -> Markup {
    html! {
        details {
            summary { "NCCL environment" }
            @for group in environment.groups.iter().take(MOST_GROUPS) { (one_group(group)) }
            @if environment.groups.len() > MOST_GROUPS {
                p.soft {
                    "and " (environment.groups.len() - MOST_GROUPS) " more groups of nodes: --format json"
                }
            }
        }
    }
}

fn one_group(group: &NodesAlike) -> Markup {
    let offered: Vec<Vec<String>> = group
        .offered
        .iter()
        .map(|setting| {
            let how = if setting.force { "forced" } else { "where unset" };
            let (name, value) = (setting.name.clone(), setting.value.clone());
            vec![name, value, how.to_owned(), setting.why.as_str().to_owned(), setting.source.clone()]
        })
        .collect();
    let applied: Vec<Vec<String>> = group
        .applied
        .iter()
        .map(|row| {
            let (name, value) = (row.name.clone(), row.value.clone());
            vec![row.steps.join(", "), name, value, row.whose.as_str().to_owned(), row.processes.to_string()]
        })
        .collect();
    let began: Vec<Vec<String>> = group
        .steps
        .iter()
        .flat_map(|step| step.variables.iter().map(move |one| (step, one)))
        .map(|(step, one)| {
            let other = one.instead_of.clone().unwrap_or_default();
            vec![step.step.clone(), one.name.clone(), one.value.clone(), one.whose.to_owned(), other]
        })
        .collect();
    html! {
        h3 { @if group.offered.is_empty() { "On " } @else { "Offered on " } (Text(&group.nodes)) }
        (table(&["`Name", "`Value", "How", "Why", "Source"], &offered))
        @if let Some(looked) = &group.looked {
            @if group.is_seen {
                h3 { "In use " span.soft { "(" (looked) "; self-reported)" } }
            } @else {
                p.soft { "In use: not known, since " (looked) }
            }
        }
        (table(&["Step", "`Name", "`Value", "Whose", "#Processes"], &applied))
        @if let Some(transport) = &group.transport {
            p class=(if group.fell_back { "warn" } else { "soft" }) { (transport) }
        }
        @if !began.is_empty() {
            h3 { "What the steps began with " span.soft { "(self-reported)" } }
            (table(&["Step", "`Name", "`Value", "Whose", "`Instead of"], &began))
        }
    }
}

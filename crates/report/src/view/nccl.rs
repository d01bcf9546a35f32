//! Compares rails and environment of the nodes of an attempt.

use std::collections::BTreeMap;

use railgate_node_report::{Applied, AppliedBy, NodeReport, Over, Sure};

use crate::Attempt;

/// Maximum number of names listed; the rest is counted.
const MOST_NAMES: usize = 6;

pub(crate) fn names(nodes: &[&str]) -> String {
    let shown = nodes.iter().take(MOST_NAMES).copied().collect::<Vec<_>>().join(", ");
    match nodes.len().saturating_sub(MOST_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Whether variables are known on the node; a step may have none that railgate knows.
pub(crate) fn has_variables(node: &NodeReport) -> bool {
    let of_steps = node.steps.iter().any(|step| !step.settings.is_empty());
    of_steps || !node.settings.is_empty() || !node.applied.is_empty()
}

/// Warnings of a fallback to sockets, and of GPU sets that differ between nodes. Empty if there is no problem
/// or no data.
pub(crate) fn warnings(attempt: &Attempt) -> Vec<String> {
    let mut warnings = Vec::new();
    warnings.extend(fallback(attempt));
    warnings.extend(uneven(attempt));
    warnings
}

fn fallback(attempt: &Attempt) -> Option<String> {
    let over = attempt
        .nodes
        .iter()
        .filter_map(|node| Some((node, node.transport.as_ref()?)))
        .filter(|(_, transport)| transport.over == Over::Sockets);
    let (_, surest) =
        over.clone().max_by_key(|(_, transport)| (transport.sure, transport.cause.is_some()))?;
    let nodes: Vec<&str> = over.map(|(node, _)| node.node.as_str()).collect();
    let sure = match surest.sure {
        Sure::Likely => "likely",
        Sure::Possible => "possibly",
    };
    let cause = surest.cause.as_ref().map(|cause| format!("; cause: {cause}")).unwrap_or_default();
    Some(format!(
        "NCCL {sure} ran over sockets, not over the rails, on {}: {}{cause}",
        names(&nodes),
        surest.why
    ))
}

/// Rails of the job's GPUs on a node, in NCCL's order of GPUs.
fn own_rails(node: &NodeReport) -> Option<Vec<Option<usize>>> {
    let map = node.rail_map.as_ref()?;
    if node.gpus.is_empty() || node.gpus.iter().any(|gpu| gpu.own.is_none()) {
        return None;
    }
    let own = node.gpus.iter().filter(|gpu| gpu.own == Some(true));
    let rail = |index: u32| {
        let place = map.gpus.iter().find(|gpu| gpu.index == index)?.rail?;
        map.rails.get(place).map(|rail| rail.number)
    };
    Some(own.map(|gpu| rail(gpu.index)).collect())
}

fn uneven(attempt: &Attempt) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut ports: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    let mut rails: BTreeMap<Vec<Option<usize>>, Vec<&str>> = BTreeMap::new();
    for node in &attempt.nodes {
        if let Some(list) = node.settings.iter().find(|setting| setting.name == "NCCL_IB_HCA") {
            ports.entry(list.value.split(',').count()).or_default().push(&node.node);
        }
        if let Some(own) = own_rails(node).filter(|own| own.iter().any(Option::is_some)) {
            rails.entry(own).or_default().push(&node.node);
        }
    }
    if ports.len() > 1 {
        let told: Vec<String> =
            ports.iter().map(|(count, nodes)| format!("{count} on {}", names(nodes))).collect();
        warnings.push(format!(
            "NCCL_IB_HCA lists a different number of ports from node to node ({}); NCCL needs the same number on all nodes and \
             may hang: ask for the same number of GPUs on every node",
            told.join("; ")
        ));
    }
    if rails.len() > 1 {
        let told: Vec<String> = rails
            .iter()
            .take(4)
            .map(|(own, nodes)| format!("{} on {}", rail_list(own), names(nodes)))
            .collect();
        let cross = attempt
            .nodes
            .iter()
            .flat_map(|node| &node.settings)
            .find(|setting| setting.name == "NCCL_CROSS_NIC" && setting.value != "2");
        let survives = match cross {
            Some(setting) => format!("NCCL_CROSS_NIC={} does not work in this case, 2 does", setting.value),
            None => "NCCL's default, NCCL_CROSS_NIC=2, works".to_owned(),
        };
        warnings.push(format!(
            "the job's GPUs are on different rails from node to node (rails {}): NCCL connects the first GPU of each node with the first GPU of the next, so \
             traffic crosses rails; {survives}. A job on whole nodes avoids this",
            told.join("; ")
        ));
    }
    warnings
}

fn rail_list(own: &[Option<usize>]) -> String {
    let name = |rail: &Option<usize>| rail.map_or_else(|| "-".to_owned(), |rail| rail.to_string());
    own.iter().map(name).collect::<Vec<_>>().join(",")
}

/// Origin of the value, and the value that railgate set.
pub(crate) fn won(row: &Applied) -> String {
    let by = match (row.by, &row.value) {
        (AppliedBy::Railgate, _) => "railgate's",
        (AppliedBy::User, Some(_)) => "set by the user",
        (AppliedBy::User, None) => "unset by a script, or never set",
        (AppliedBy::Image, Some(_)) => "set inside the container",
        (AppliedBy::Image, None) => "not passed into the container",
        (AppliedBy::UserOrImage, _) => "set by the user or the container image",
        (AppliedBy::NcclFile, _) => "from an NCCL configuration file",
    };
    match row.wanted.as_ref().filter(|_| row.overruled()) {
        Some(wanted) => format!("{by}; railgate wanted {wanted}"),
        None => by.to_owned(),
    }
}

pub(crate) fn value(row: &Applied) -> &str {
    row.value.as_deref().unwrap_or("(not set)")
}

/// Processes that the values were read from.
pub(crate) fn looked(node: &NodeReport) -> Option<String> {
    let tasks = node.tasks.as_ref()?;
    let nccl: u32 = tasks.groups.iter().map(|group| group.nccl).sum();
    let all: u32 = tasks.groups.iter().map(|group| group.processes).sum();
    let mut text = match (tasks.looks, nccl) {
        (0, _) => return Some("no process of the job was seen".to_owned()),
        (_, 0) if all == 1 => "1 process, not known to have NCCL".to_owned(),
        (_, 0) => format!("{all} processes, none known to have NCCL"),
        (_, 1) => "1 process with NCCL".to_owned(),
        _ => format!("{nccl} processes with NCCL"),
    };
    let times = if tasks.looks == 1 { "once".to_owned() } else { format!("{} times", tasks.looks) };
    text.push_str(&format!(", checked {times}"));
    let unseen = tasks.more + tasks.closed;
    if unseen > 0 {
        text.push_str(&format!("; {unseen} more could not be read"));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use railgate_node_report::Transport;
    use railgate_node_report::testing::{job, part};

    use super::*;
    use crate::testing::merged;
    use crate::text;

    fn warned(change: impl FnOnce(&mut Vec<NodeReport>)) -> Vec<String> {
        let mut nodes: Vec<NodeReport> =
            ["n1", "n2"].iter().map(|node| part(node, &job(0..4), "", vec![], 0)).collect();
        change(&mut nodes);
        let report = merged(nodes, vec![], None);
        let said = text(&report, true).split_whitespace().collect::<Vec<_>>().join(" ");
        let warnings = warnings(&report.attempts[0]);
        for warning in &warnings {
            assert!(said.contains(warning.as_str()), "{warning}\n{said}");
            assert!(crate::html(&report).contains(&crate::html::esc(warning)));
        }
        warnings
    }

    #[test]
    fn steps_without_variables_have_no_section() {
        let page = |variables: Vec<railgate_node_report::StepSetting>| {
            let mut node = part("n1", &job(0..4), "", vec![], 0);
            node.settings.clear();
            node.applied.clear();
            node.steps = vec![railgate_node_report::StepEnv { step: "0".to_owned(), settings: variables }];
            let report = merged(vec![node], vec![], None);
            text(&report, true).to_string() + &crate::html(&report)
        };
        let empty = page(vec![]);
        assert!(
            !empty.to_lowercase().contains("nccl environment") && !empty.contains("are self-reported"),
            "{empty}"
        );
        let one = railgate_node_report::StepSetting {
            name: "NCCL_DEBUG".to_owned(),
            value: "INFO".to_owned(),
            from: railgate_node_report::SetBy::User,
            instead_of: None,
        };
        let full = page(vec![one]);
        let sections = full.to_lowercase().matches("nccl environment").count();
        assert_eq!(sections, 2, "{full}");
        assert!(full.contains("NCCL_DEBUG") && !full.contains("Offered on"), "{full}");
    }

    #[test]
    fn equal_nodes_give_no_warning() {
        assert_eq!(warned(|_| {}), Vec::<String>::new());
    }

    #[test]
    fn different_gpus_are_named_with_their_rails() {
        let warnings = warned(|nodes| nodes[1] = part("n2", &job(4..8), "", vec![], 0));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("rails 0,1,2,3 on n1; 4,5,6,7 on n2"), "{warnings:?}");
        let warnings = warned(|nodes| {
            nodes[1] = part("n2", &job(0..2), "", vec![], 0);
            nodes[1].settings[0].value = "=mlx5_0:1".to_owned();
        });
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("1 on n2; 2 on n1"), "{warnings:?}");
    }

    #[test]
    fn fallback_is_reported_with_nodes_and_cause() {
        let warnings = warned(|nodes| {
            for (node, sure, cause) in
                [(0, Sure::Possible, None), (1, Sure::Likely, Some("NCCL_IB_DISABLE=1".to_owned()))]
            {
                nodes[node].transport =
                    Some(Transport { over: Over::Sockets, sure, why: "no device open".to_owned(), cause });
            }
        });
        assert_eq!(
            warnings,
            ["NCCL likely ran over sockets, not over the rails, on n1, n2: no device open; \
                 cause: NCCL_IB_DISABLE=1"]
        );
    }
}

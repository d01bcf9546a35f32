//! The row of phases.

use std::collections::BTreeMap;

use railgate_diagnosis::{Analysis, PhaseTime};
use railgate_node_report::phases::PhaseKind;
use railgate_node_report::plain::span;
use railgate_node_report::{NodeReport, Usage};
use railgate_text::shorten;

use crate::Attempt;

/// Nodes that are named, and different GPUs of one.
const MOST_NODES: usize = 2;
const MOST_KINDS: usize = 3;

/// How long the job did what, and which GPUs did something else; `None` if it is not known, or the job did only one thing.
pub(super) fn line(of: &str, attempt: &Attempt, analysis: &Analysis) -> Option<String> {
    let all: f64 = analysis.phases.iter().map(|one| one.seconds).sum();
    let shown: Vec<_> = analysis.phases.iter().filter(|one| one.seconds >= 0.5).collect();
    let starts = shown.chunk_by(|one, next| one.start_number == next.start_number);
    let starts: Vec<String> = starts
        .map(|phases| {
            let part = |one: &&PhaseTime| format!("{} {}", one.kind.title(), whole_seconds(one.seconds));
            let parts = phases.iter().map(part).collect::<Vec<_>>().join(", ");
            let number = phases.first().map_or(0, |one| one.start_number);
            analysis.starts.map_or_else(|| parts.clone(), |_| format!("start {number}: {parts}"))
        })
        .collect();
    let apart = apart(attempt).map(|text| format!(" ({text})")).unwrap_or_default();
    let is_told = shown.len() > 1 || !apart.is_empty();
    is_told.then(|| format!("{of}{}; in all {}{apart}", starts.join("; "), whole_seconds(all)))
}

/// Samples resolve no fraction of a second.
fn whole_seconds(seconds: f64) -> String {
    if seconds < 59.5 { format!("{seconds:.0} s") } else { span(seconds) }
}

/// GPUs that did something else than the node's others: `GPU 0 saving 9 s, GPU 1 stalled 9 s`.
fn apart(attempt: &Attempt) -> Option<String> {
    let told: Vec<(&NodeReport, String)> =
        attempt.nodes.iter().filter_map(|node| Some((node, of_node(node.usage.as_ref()?)?))).collect();
    let is_one = attempt.nodes.len() == 1;
    let shown = told.iter().take(MOST_NODES).map(|(node, text)| match is_one {
        true => text.clone(),
        false => format!("{} {text}", shorten(&node.node, 24)),
    });
    let mut parts: Vec<String> = shown.collect();
    match told.len().saturating_sub(MOST_NODES) {
        0 => {}
        1 => parts.push("1 node more".to_owned()),
        many => parts.push(format!("{many} nodes more")),
    }
    Some(parts.join("; ")).filter(|text| !text.is_empty())
}

/// What each GPU did for longer than the GPU that did it least; GPUs that did the same are counted together.
fn of_node(usage: &Usage) -> Option<String> {
    let gpus = &usage.phases.as_ref()?.gpus;
    if gpus.len() != usage.gpus.len() {
        return None;
    }
    let of = |own: &BTreeMap<PhaseKind, f64>, kind| own.get(&kind).copied().unwrap_or(0.0);
    let least = |kind| gpus.iter().map(|own| of(own, kind)).fold(f64::INFINITY, f64::min);
    // One sample more or less is the same.
    let more = |own: &BTreeMap<PhaseKind, f64>| -> Vec<PhaseKind> {
        let by = |kind: &PhaseKind| of(own, *kind) - least(*kind) >= usage.coverage.interval_s.max(1.0);
        PhaseKind::ALL.into_iter().filter(by).collect()
    };
    let mut alike: Vec<(Vec<PhaseKind>, Vec<usize>)> = Vec::new();
    for (place, own) in gpus.iter().enumerate() {
        let kinds = more(own);
        match alike.iter_mut().find(|(other, _)| *other == kinds) {
            Some((_, places)) => places.push(place),
            None => alike.push((kinds, vec![place])),
        }
    }
    let said = alike.iter().filter(|(kinds, _)| !kinds.is_empty()).take(MOST_KINDS).map(|(kinds, places)| {
        let mean = |kind| {
            let all = places.iter().filter_map(|place| gpus.get(*place)).map(|own| of(own, kind));
            all.sum::<f64>() / places.iter().map(|_| 1.0).sum::<f64>()
        };
        let times: Vec<String> =
            kinds.iter().map(|kind| format!("{} {}", kind.title(), whole_seconds(mean(*kind)))).collect();
        let who = match places.as_slice() {
            [one] => format!("GPU {}", usage.gpus.get(*one).map_or(0, |gpu| gpu.index)),
            many => format!("{} GPUs", many.len()),
        };
        format!("{who} {}", times.join(" and "))
    });
    Some(said.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty())
}

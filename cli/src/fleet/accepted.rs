//! `railgate fleet accepted`: figures of an acceptance, for the history.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use railgate_accept::{Better, Figure, Report, Value};
use railgate_fleet::{Event, Source, What, is_node_name};
use railgate_fleet_store::EnteredFile;
use railgate_fsutil::read;
use railgate_slurm::hostlist;
use railgate_text::{Lines, Printable, clip, put};

use super::{Export, shown, taken_in};
use crate::exit;
use crate::output::{self, Format, counted};

/// Largest report, bytes.
const MAX_REPORT: u64 = 256 << 20;
/// Most figures that one command enters, 48 of each of 4,096 nodes: the file of entered events holds about as many.
const MAX_FIGURES: usize = 200_000;
/// Longest name of a run and of a figure, characters.
const MAX_NAME: usize = 120;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate accept report --format json > accepted.json
  railgate fleet accepted accepted.json

Of each figure of a node with several parts or repetitions, the worst value is entered, with its part. A value beyond the limit of the \
report is a self-test that failed: `railgate fleet node` shows it among the reasons, and it does not count as a fault. The same report, entered twice, \
changes nothing. Needs root or SlurmUser.")]
pub(super) struct AcceptedArgs {
    /// Report of `railgate accept report --format json`
    report: PathBuf,
}

/// Enters the figures of a report.
pub(super) fn enter(database: &Path, args: &AcceptedArgs, format: Format) -> anyhow::Result<u8> {
    let shown_path = || Printable(args.report.display()).to_string();
    let bytes = read::whole_bytes(&args.report, MAX_REPORT)?;
    // Root may have to read the file, and does not parse it.
    if let Some(dir) = database.parent() {
        railgate_runner::become_owner(dir).context("the owner of the history")?;
    }
    let report: Report = serde_json::from_slice(&bytes).with_context(|| {
        format!("{}: not a report of `railgate accept report --format json`", shown_path())
    })?;
    let now = railgate_runner::now();
    ensure!(report.made <= now, "{}: made in the future, at {}", shown_path(), shown(report.made));
    let events = events(&report);
    ensure!(!events.is_empty(), "{}: it has no figure of a node", shown_path());
    let (count, most) = (events.len(), MAX_FIGURES);
    ensure!(count <= most, "{}: {count} figures, and at most {most} can be entered at once", shown_path());
    EnteredFile::beside(database).add(&events).context("no figure was entered")?;
    if format == Format::Json {
        output::json(&Export { schema: 1, events: &events })?;
        return Ok(exit::OK);
    }
    let of = |event: &Event| match &event.what {
        What::SelfTested { node, passed, .. } => Some((node.clone(), *passed == Some(false))),
        _ => None,
    };
    let mut failed: Vec<String> =
        events.iter().filter_map(of).filter(|(_, failed)| *failed).map(|(node, _)| node).collect();
    let mut nodes: Vec<String> = events.iter().filter_map(of).map(|(node, _)| node).collect();
    for names in [&mut nodes, &mut failed] {
        names.sort();
        names.dedup();
    }
    let mut text = Lines::new();
    put!(
        text,
        "{}: {} of {}, from a report of {}",
        shown_path(),
        counted(count, "figure"),
        counted(nodes.len(), "node"),
        shown(report.made)
    );
    if !failed.is_empty() {
        put!(text, "beyond a limit: {}", hostlist::compress(&failed));
    }
    let first = failed.first().or(nodes.first()).map_or("", String::as_str);
    put!(text, "{}", taken_in(first));
    output::text(&text)?;
    Ok(exit::OK)
}

fn events(report: &Report) -> Vec<Event> {
    let mut events = Vec::new();
    for figure in &report.figures {
        let mut worst: BTreeMap<&str, &Value> = BTreeMap::new();
        // A figure of all nodes together, or of a pair, is no figure of a node.
        for value in figure.values.iter().filter(|value| is_node_name(&value.node)) {
            let known = worst.entry(&value.node).or_insert(value);
            if is_worse(figure, value.value, known.value) {
                *known = value;
            }
        }
        events.extend(worst.into_iter().map(|(node, value)| event(report, figure, node, value)));
    }
    events
}

fn is_worse(figure: &Figure, one: f64, other: f64) -> bool {
    match figure.better {
        Better::Higher => one < other,
        Better::Lower => one > other,
        Better::Neither => false,
    }
}

fn event(report: &Report, figure: &Figure, node: &str, value: &Value) -> Event {
    let part = value.part.strip_prefix(node).unwrap_or(&value.part).trim();
    let name = match part {
        "" => figure.id.clone(),
        part => format!("{}@{part}", figure.id),
    };
    let low = figure.at_least.is_some_and(|least| value.value < least);
    let high = figure.at_most.is_some_and(|most| value.value > most);
    let is_judged = figure.at_least.is_some() || figure.at_most.is_some();
    Event {
        id: format!("accepted/{}/{node}/{}", clip(&report.run, MAX_NAME), clip(&figure.id, MAX_NAME)),
        time: report.made,
        source: Source::Root,
        what: What::SelfTested {
            node: node.to_owned(),
            figure: clip(&name, 2 * MAX_NAME),
            value: Some(value.value),
            unit: clip(&figure.unit, 20),
            passed: is_judged.then_some(!low && !high),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(node: &str, part: &str, value: f64) -> Value {
        Value { node: node.to_owned(), part: part.to_owned(), repetition: 1, value }
    }

    fn figure(better: Better, at_least: Option<f64>, values: Vec<Value>) -> Figure {
        Figure {
            id: "node.gemm-rate-bf16.rate_tflops".to_owned(),
            unit: "TFLOPS".to_owned(),
            better,
            min: 0.0,
            median: 0.0,
            max: 0.0,
            at_least,
            at_most: None,
            tolerance: String::new(),
            source: String::new(),
            outliers: Vec::new(),
            spread_percent: None,
            values,
        }
    }

    #[test]
    fn the_worst_value_of_a_node_is_entered_with_its_part() {
        let values = vec![
            value("gn1", "gn1 0000:61:00.0", 712.0),
            value("gn1", "gn1 0000:1b:00.0", 640.0),
            value("gn2", "gn2 0000:61:00.0", 715.0),
            value("", "all", 5.0),
            value("../x", "../x", 5.0),
        ];
        let mut report: Report = serde_json::from_value(serde_json::json!({
            "schema": 1, "title": "t", "run": "r1", "railgate": "1", "began": 1, "made": 1_800_000_000_000_u64,
            "plan_digest": "", "journal_digest": "", "results_digest": "", "results": [], "hostlist": "gn[1-2]",
            "nodes": ["gn1", "gn2"], "units_done": 1, "units": 1, "overall": "pass", "items": [], "inventory": [],
            "figures": [], "heat_maps": [], "charts": [], "mttf": null, "exceptions": [], "not_in_plan": [], "changes": null
        }))
        .unwrap();
        report.figures = vec![figure(Better::Higher, Some(700.0), values.clone())];
        let found = events(&report);
        let told = |event: &Event| match &event.what {
            What::SelfTested { node, figure, value, unit, passed } => {
                format!("{node} {figure} {} {unit} {passed:?}", value.unwrap())
            }
            what => panic!("{what:?}"),
        };
        assert_eq!(
            found.iter().map(told).collect::<Vec<_>>(),
            [
                "gn1 node.gemm-rate-bf16.rate_tflops@0000:1b:00.0 640 TFLOPS Some(false)",
                "gn2 node.gemm-rate-bf16.rate_tflops@0000:61:00.0 715 TFLOPS Some(true)",
            ]
        );
        assert_eq!(found[0].id, "accepted/r1/gn1/node.gemm-rate-bf16.rate_tflops");
        report.figures = vec![figure(Better::Lower, None, values)];
        let found = events(&report);
        assert!(told(&found[0]).ends_with("@0000:61:00.0 712 TFLOPS None"), "{found:?}");
    }
}

//! The pages: fleets with and without names, jobs, an acceptance.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use railgate_accept::{Entry, Event as Step, File, Plan, digest};
use railgate_fleet::{Drainer, Event, History, Settings, Source, What, judge};
use railgate_fleet_page::{Facts, Names};
use railgate_report::{answer_html, html, redacted_html};
use railgate_slurm::hostlist;
use serde_json::json;

use crate::generator::{HOUR, Parameters, fleet};
use crate::recording::Recording;

/// Recorded jobs: one that failed by its program, one that lost time, one with a log of many ranks.
const JOBS: [&str; 3] = ["h100/abort", "h100/slow-loader", "h200/fsdp"];

/// Name and text of each page.
pub(crate) fn all() -> Result<Vec<(String, String)>> {
    let users = (0..70_000).map(|uid| (uid, format!("user{uid}"))).collect();
    let withheld = Names::Withheld { why: "PrivateData of Slurm contains jobs".to_owned() };
    let mut pages = vec![
        ("a fleet without events".to_owned(), fleet_page(&[], 1_800_000_000_000, &withheld)),
        ("64 nodes".to_owned(), of_nodes(64, &Names::Shown { users })),
        ("64 nodes without names".to_owned(), of_nodes(64, &withheld)),
        ("1024 nodes".to_owned(), of_nodes(1024, &Names::Shown { users: BTreeMap::new() })),
        ("acceptance".to_owned(), acceptance()?),
    ];
    for job in JOBS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(job);
        let report = Recording(path).report().with_context(|| job.to_owned())?;
        pages.push((format!("job {job}"), html(&report)));
        pages.push((format!("job {job}, redacted"), redacted_html(&report)));
        pages.push((format!("why {job}"), answer_html(&report, 1_900_000_000_000)));
    }
    Ok(pages)
}

/// A fleet of 90 days with many faults. At its end, three nodes are drained.
fn of_nodes(nodes: usize, names: &Names) -> String {
    let mut fleet = fleet(&Parameters::new(nodes, 90, 601).times(if nodes < 100 { 4.0 } else { 1.0 }));
    let mut placed: Vec<String> = fleet
        .events
        .iter()
        .filter_map(|event| match &event.what {
            What::Placed { node, .. } => Some(node.clone()),
            _ => None,
        })
        .collect();
    placed.sort();
    placed.dedup();
    let reasons = [
        (Drainer::Railgate, "railgate: gpu-lost@3: off bus, Xid 79; reboot [epilog job=48213]"),
        (Drainer::Admin, "new fans"),
        (Drainer::Slurm, "Kill task failed"),
    ];
    for (node, (by, reason)) in placed.iter().zip(reasons) {
        let what = What::Drained { node: node.clone(), by, reason: reason.to_owned() };
        fleet.events.push(Event {
            id: format!("drained/{node}"),
            time: fleet.now - HOUR,
            source: Source::Root,
            what,
        });
    }
    fleet_page(&fleet.events, fleet.now, names)
}

fn fleet_page(events: &[Event], now: u64, names: &Names) -> String {
    let history = History::new(events.iter().cloned(), now);
    let settings = Settings::default();
    let judgement = judge(&history, &settings);
    railgate_fleet_page::html(&Facts {
        history: &history,
        judgement: &judgement,
        settings: &settings,
        drains_lemons: false,
        names,
        host_list: hostlist::compress::<String>,
        railgate: "1.0",
    })
}

/// Nodes with two GPUs each, one of which is slower than the others.
fn acceptance() -> Result<String> {
    let expand = |list: &str| hostlist::expand(list).map_err(|why| why.to_string());
    let plan = Plan::parse("title = 'Cluster A'\nnodes = 'gn[1-16]'\n[node]\nrepetitions = 2\n", &expand)
        .map_err(|why| anyhow!("{why:?}"))?;
    let entry = |event| Entry { at: 1_700_000_000_000, event };
    let mut entries = vec![entry(Step::Begin { run: "r".to_owned(), plan: "p".to_owned() })];
    let mut files = Vec::new();
    for (number, unit) in plan.units().iter().enumerate() {
        let tested = |gpu: &str| {
            let slow = gpu.starts_with("0000:c1") && unit.nodes.iter().any(|node| node == "gn3");
            let test = |test: &str, measured| {
                json!({"gpu": gpu, "model": "NVIDIA H100", "test": test, "seconds": 1.0,
                    "values": {"right": {"compared": 10}}, "measured": measured})
            };
            let rate = json!({"rate_tflops": if slow { 600.0 } else { 700.0 }, "temperature_c": 60.0});
            format!("{}\n{}\n", test("gemm-rate-bf16", rate), test("host-copy", json!({})))
        };
        let stdout = format!("{}{}", tested("0000:61:00.0"), tested("0000:c1:00.0"));
        let result = json!({
            "schema": 1, "run": "r", "unit": unit.id, "attempt": 1, "job": number.to_string(), "nodes": unit.nodes,
            "began": 0, "ended": 3_600_000, "railgate": "1.0",
            "outputs": [{"command": "gpus", "line": "", "exit": 0, "stdout": stdout, "stderr": ""}],
        });
        let content = result.to_string().into_bytes();
        let name = format!("{}.a1.j{number}.json", unit.id);
        let (unit, nodes) = (unit.id.clone(), unit.nodes.clone());
        entries.push(entry(Step::Submit { unit: unit.clone(), attempt: 1, nodes }));
        entries.push(entry(Step::Result { unit, attempt: 1, file: name.clone(), digest: digest(&content) }));
        files.push(File { name, content });
    }
    let facts = railgate_accept::Facts {
        plan: &plan,
        plan_digest: "p",
        entries: &entries,
        journal_digest: "j",
        hostlist: "gn[1-16]",
        files: &files,
        now: 1_700_000_100_000,
        railgate: "1.0",
    };
    let report = railgate_accept::report(&facts).map_err(|bad| anyhow!("line {}: {}", bad.line, bad.why))?;
    Ok(railgate_accept::html(&report))
}

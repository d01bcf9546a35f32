//! A node report, which the job's owner can write: arbitrary text, and a real report with some values replaced.
//! Merging and rendering must not panic, and no output may contain escape sequences or HTML tags from it.

#![no_main]

#[path = "bend.rs"]
mod bend;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use railgate_simulate::{parse, simulated};
use railgate_model::{Allocation, GpuId, Job, Phase, Snapshot};
use railgate_rails::rail_map;
use serde_json::{Value, json};
use railgate_node_report::{Exit, GateRun, NodeReport, RunGpus, SlurmView, Window, evidence, gpu_uses, kernel_events, port_uses};
use railgate_report::{JobReport, html, json, text};
use railgate_store::{Parts, ReportConfig};

/// A tag that must never be in a page unescaped.
const TAG: &str = "<script>alert";

static PART: LazyLock<(NodeReport, Value)> = LazyLock::new(|| {
    let (profile, faults) = parse("h100-sxm:gpu-lost@3", &[]).expect("what the simulator knows");
    let (before, after) = (simulated(&profile, &[]), simulated(&profile, &faults));
    let after = Snapshot { taken: before.taken + 3_600_000, ..after };
    let job: Job = serde_json::from_value(serde_json::json!({
        "id": 7, "uid": 1000, "gid": 1000, "user": "alice", "het_leader": null, "partition": "gpu", "nodelist": "n[1-2]",
        "restarts": 0, "allocation": Allocation::Gpus((0..8).map(GpuId::Index).collect()),
    }))
    .expect("a job");
    let map = rail_map(&before, &profile);
    let mut part = NodeReport::new("alpha", "n1", job, 0, before.taken);
    let verdict = railgate_gate::judge(
        &railgate_gate::GateConfig::default(),
        &railgate_gate::Seen {
            phase: Phase::Epilog,
            now: &after,
            before: Some(&before),
            job: None,
            profile: Some(&profile),
            memory: &railgate_gate::Memory::default(),
        },
    );
    part.end = Some(after.taken);
    part.kernel = kernel_events(&after, part.start, &part.job, &railgate_node_report::StatsConfig::default());
    let held = RunGpus::resolve(&part.job.allocation, Some(&before), &after, &railgate_model::GpuInventory::default());
    part.evidence = evidence(&verdict, Some(&before), &after, &part.kernel, &held, Some(&map));
    part.window = Some(Window { start: before.taken, end: after.taken });
    part.gpus = gpu_uses(Some(&before), &after, &held);
    part.ports = port_uses(Some(&before), &after, Some(&map));
    part.rail_map = Some(map);
    part.epilog = Some(GateRun::new(&after, verdict, 27.0));
    part.exit = Some(Exit { status: 256, derived: None });
    let value = serde_json::to_value(&part).expect("plain data");
    (part, value)
});

fn other(value: Value, kind: u8, number: u64) -> Value {
    match kind % 14 {
        0 => Value::Null,
        1 => json!(number),
        2 => json!(u64::MAX - number),
        3 => json!(-1),
        4 => json!(f64::MAX),
        5 => json!(""),
        6 => json!("unsupported"),
        7 => json!({"failed": "gone \u{1b}[2J"}),
        8 => json!({"known": u64::MAX - number}),
        9 => json!({"known": f64::MIN}),
        10 => json!([]),
        11 => json!(format!("{TAG}({number})</script>\u{1b}[2J\u{1}\n")),
        _ => match value {
            Value::Array(mut items) => {
                items.extend(items.clone());
                Value::Array(items)
            }
            Value::Bool(what) => json!(!what),
            Value::Number(what) => json!(what.as_u64().unwrap_or(0).wrapping_add(number)),
            Value::String(what) => json!(format!("{what}{TAG}(1)\u{9b}31m")),
            other => other,
        },
    }
}

fn shown(part: NodeReport) {
    let mut other = PART.0.clone();
    other.node = "n2".to_owned();
    let parts = Parts { nodes: vec![part.clone(), other, part], ..Parts::default() };
    let view = SlurmView { state: "FAILED".to_owned(), restarts: Some(1), ..SlurmView::default() };
    for slurm in [None, Some(view)] {
        let expand = |list: &str| (list.len() < 64).then(|| vec!["n1".to_owned(), list.to_owned()]);
        let report = JobReport::merge("alpha", 7, parts.clone(), slurm, &expand, &ReportConfig::default());
        for said in [text(&report, false), text(&report, true)] {
            assert!(!said.chars().any(|c| c.is_control() && c != '\n'), "{said:?}");
        }
        let page = html(&report);
        assert!(!page.contains(TAG), "a tag of the part's own");
        let _ = json(&report, &mut std::io::sink());
    }
}

fuzz_target!(|bytes: &[u8]| {
    if bytes.first() == Some(&b'{') {
        if let Ok(part) = serde_json::from_slice::<NodeReport>(bytes) {
            shown(part);
        }
        return;
    }
    let mut value = PART.1.clone();
    bend::bend(&mut value, bytes, 16, other);
    if let Ok(part) = serde_json::from_value::<NodeReport>(value) {
        shown(part);
    }
});

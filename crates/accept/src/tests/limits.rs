//! Limits of the plan, repeatability, injected faults, mean time to failure.

use serde_json::{Value, json};

use super::{check, entry, gpu, last, plan, played, word};
use crate::{Event, Unit};

const EXPECT: &str = "[[expect]]\nfigure = 'node.gemm-rate-bf16.rate_tflops'\nmin = 1\nsource = 'contract'\n";

#[test]
fn a_limit_holds_for_every_node_and_card() {
    let lines = |outputs: &Value| outputs["stdout"].as_str().unwrap().to_owned();
    let outputs = move |unit: &Unit| {
        let mut result = gpu(800.0);
        match unit.nodes[0].as_str() {
            "n2" => result["stdout"] = json!(format!("{}\n", last("0000:61:00.0"))),
            "n3" => {
                let mut second = last("0000:62:00.0");
                second["measured"] = json!({ "device_to_host_gb_s": 20.0 });
                result["stdout"] = json!(format!("{}{second}\n", lines(&result)));
            }
            _ => {}
        }
        json!([check(&json!([])), result])
    };
    let report = played(plan(&format!("[node]\n{EXPECT}")), &outputs).report();
    let item = report.items.iter().find(|item| item.id.starts_with("figure.node.gemm")).unwrap();
    assert_eq!(item.word(), "unknown");
    assert_eq!(item.details, ["n2: no value", "n3 0000:62:00.0: no value"]);
    let whole = |_: &Unit| json!([check(&json!([])), gpu(800.0)]);
    let report = played(plan(&format!("[node]\n{EXPECT}")), &whole).report();
    assert_eq!(word(&report, "figure.node.gemm-rate-bf16.rate_tflops"), Some("pass"));
}

#[test]
fn parts_that_differ_from_each_other_repeat_well() {
    let shown = |first: f64, second: f64| {
        let outputs = move |unit: &Unit| {
            // n1 is always half as fast; the clock varies and is only shown.
            let share = if unit.nodes[0] == "n1" { 0.5 } else { 1.0 };
            let rate = if unit.repetition == 1 { first } else { second };
            let mut line = last("0000:61:00.0");
            line["test"] = json!("peer-copy");
            line["measured"] = json!({ "peer_gb_s": if unit.repetition == 1 { 1.0 } else { 9.0 } });
            let mut result = gpu(rate * share);
            result["stdout"] = json!(format!("{}{line}\n", result["stdout"].as_str().unwrap()));
            json!([check(&json!([])), result])
        };
        let report = played(plan("[node]\nrepetitions = 2\n"), &outputs).report();
        report.items.into_iter().find(|item| item.id == "run.repeatability").unwrap()
    };
    // The figures that are only shown are not judged.
    assert_eq!(shown(800.0, 780.0).word(), "pass");
    let item = shown(800.0, 740.0);
    assert_eq!((item.word(), item.details.len()), ("fail", 1));
    assert!(item.details[0].ends_with(": 7.8 %"), "{item:?}");
    // No percentage of nothing.
    let zero = |_: &Unit| json!([check(&json!([])), gpu(0.0)]);
    let report = played(plan("[node]\nrepetitions = 2\n"), &zero).report();
    assert!(report.figures.iter().all(|figure| figure.spread_percent.is_none_or(f64::is_finite)));
    let rate = report.figures.iter().find(|figure| figure.id.ends_with(".rate_tflops")).unwrap();
    assert_eq!(rate.spread_percent, None);
}

#[test]
fn values_in_place_and_missing_nodes_count_in_collectives() {
    let table = "[collectives]\nprogram = '/a'\ntasks_per_node = 8\n\
                 [[collectives.baseline]]\nbytes = 8\nbusbw_gb_s = 200.0\nsource = 's'\n";
    let run = |wrong: &str| {
        let stdout = format!("8 2 float sum -1 78.41 106.98 212.50 0 77.9 107.7 213.1 {wrong}\n");
        let outputs = move |_: &Unit| json!([{ "command": "all-reduce", "line": "", "exit": 0, "stdout": stdout, "stderr": "" }]);
        played(plan(table), &outputs)
    };
    assert_eq!(word(&run("0").report(), "collectives.values"), Some("pass"));
    assert_eq!(word(&run("3").report(), "collectives.values"), Some("fail"));
    assert_eq!(word(&run("N/A").report(), "collectives.values"), Some("unknown"));
    let mut fewer = run("0");
    let text = String::from_utf8(fewer.files[0].content.clone()).unwrap();
    fewer.files[0].content = text.replace("\"n1\",\"n2\",\"n3\",\"n4\"", "\"n1\",\"n2\",\"n3\"").into_bytes();
    let digest = crate::digest(&fewer.files[0].content);
    for line in &mut fewer.entries {
        if let Event::Result { digest: of, .. } = &mut line.event {
            of.clone_from(&digest);
        }
    }
    let report = fewer.report();
    let item = report.items.iter().find(|item| item.id == "collectives.all-reduce.8").unwrap();
    assert_eq!(
        (item.word(), item.details.join("; ")),
        ("unknown", "collectives.all.r1: without n4".to_owned())
    );
    assert_eq!(word(&report, "collectives.values"), Some("unknown"));
}

/// What was there before the injection shows nothing, and a check without an answer is unknown.
#[test]
fn only_a_new_finding_shows_that_a_fault_is_found() {
    let finding = |severity: &str| json!([{ "check": "ib-port", "severity": severity, "class": "fabric", "what": "down", "fix": "" }]);
    let of = |before: Value, after: Value| {
        let text = "nodes = 'n1'\n[soak]\n[[soak.fault]]\nnode = 'n1'\nrepetition = 1\ninject = ['/a']\nundo = ['/c']\ncheck = 'ib-port'\n";
        let outputs = move |_: &Unit| {
            let step = |step: &str, mut output: Value| {
                output["command"] = json!(format!("fault.1.{step}"));
                output
            };
            let done = json!({ "line": "", "exit": 0, "stdout": "", "stderr": "" });
            json!([
                step("before", check(&before)),
                step("inject", done.clone()),
                step("check", check(&after)),
                step("undo", done)
            ])
        };
        word(&played(plan(text), &outputs).report(), "soak.fault.1").map(str::to_owned).unwrap()
    };
    assert_eq!(of(json!([]), finding("fail")), "pass");
    assert_eq!(of(finding("warn"), finding("fail")), "pass");
    assert_eq!(of(finding("fail"), finding("fail")), "unknown");
    assert_eq!(of(json!([]), finding("unknown")), "unknown");
    assert_eq!(of(json!([]), json!([])), "fail");
}

/// Failures are counted once for each node and unit; warnings are none, and a loss of unknown cause is counted by itself.
#[test]
fn failures_are_those_of_nodes() {
    let finding = |severity: &str, part: &str| json!({ "check": "gpu-ecc", "part": part, "severity": severity, "class": "node", "what": "bad", "fix": "" });
    let outputs = |unit: &Unit| {
        let found = match unit.nodes[0].as_str() {
            "n1" => json!([finding("fail", "1"), finding("fail", "2")]),
            "n2" => json!([finding("warn", "1")]),
            _ => json!([]),
        };
        json!([check(&found), gpu(800.0)])
    };
    let mut run = played(plan("[node]\nrepetitions = 2\n"), &outputs);
    let lost = |node_failed: Option<bool>, attempt: u32| {
        let (unit, why) = ("node.n4.r2".to_owned(), "w".to_owned());
        [
            entry(Event::Submit { unit: unit.clone(), attempt, nodes: vec!["n4".to_owned()] }),
            entry(Event::Lost { unit, attempt, why, node_failed }),
        ]
    };
    run.entries.truncate(run.entries.len() - 2);
    let losses = [lost(Some(true), 1), lost(None, 2), lost(Some(false), 3)];
    run.entries.extend(losses.into_iter().flatten());
    let mttf = run.report().mttf.unwrap();
    assert_eq!((mttf.failures, mttf.unknown), (3, 1), "two rounds of n1, one job");
    let page = crate::html(&run.report());
    assert!(page.contains("1 lost job of unknown cause is not counted"), "{page}");
}

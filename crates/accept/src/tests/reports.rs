use serde_json::{Value, json};

use super::{Played, check, entry, gpu, last, plan, played, word};
use crate::{Event, Overall, Unit, compare, digest};

/// Nodes with a GPU each; that of n3 reaches the rate `slow`.
fn cards(slow: f64) -> Played {
    let outputs = move |unit: &Unit| {
        let slow_one = unit.nodes[0] == "n3";
        json!([check(&json!([])), gpu(if slow_one { slow } else { 790.0 + f64::from(unit.repetition) })])
    };
    played(plan("[node]\nrepetitions = 2\n"), &outputs)
}

#[test]
fn a_healthy_cluster_passes() {
    let report = cards(785.0).report();
    assert!(report.items.iter().all(|item| item.word() == "pass"), "{:#?}", report.items);
    assert_eq!((report.overall, report.units_done, report.units), (Overall::Pass, 8, 8));
    assert!(report.items.iter().all(|item| !item.tolerance.is_empty() && !item.source.is_empty()));
    assert!(report.exceptions.is_empty() && report.not_in_plan.len() == 5);
    let mttf = report.mttf.unwrap();
    assert!(mttf.failures == 0 && (mttf.node_hours - 8.0).abs() < 1e-9, "{mttf:?}");
}

#[test]
fn a_slow_card_is_an_outlier_with_its_tolerance() {
    let report = cards(700.0).report();
    let item = report.items.iter().find(|item| item.id == "figure.node.gemm-rate-bf16.rate_tflops").unwrap();
    assert_eq!((item.word(), item.details.len()), ("fail", 2));
    assert!(item.details[0].starts_with("n3 0000:61:00.0 r1: 700"), "{item:?}");
    assert_eq!(item.tolerance, "at least 90 % of the median");
    let map = &report.heat_maps[0];
    assert_eq!((map.rows.len(), map.columns.len()), (4, 1));
    assert_eq!(report.overall, Overall::Fail);
}

#[test]
fn a_waiver_holds_for_exactly_one_failure_and_deletes_nothing() {
    let mut slow = cards(700.0);
    let id = "figure.node.gemm-rate-bf16.rate_tflops";
    let failure = slow.report().items.iter().find(|item| item.id == id).unwrap().failure();
    let waive = |failure: &str| {
        let (item, failure) = (id.to_owned(), failure.to_owned());
        entry(Event::Waive { item, failure, by: "A. Smith".to_owned(), why: "ordered".to_owned() })
    };
    slow.entries.push(waive(&failure));
    let report = slow.report();
    assert_eq!((word(&report, id), report.overall), (Some("waived"), Overall::PassWithWaivers));
    let item = report.items.iter().find(|item| item.id == id).unwrap();
    assert!(item.outcome == crate::Outcome::Fail && item.details.len() == 2);
    let page = crate::html(&report);
    assert!(page.contains("Waived by A. Smith") && page.contains("n3 0000:61:00.0 r1: 700"));
    let mut slower = cards(650.0);
    slower.entries.push(waive(&failure));
    assert_eq!(word(&slower.report(), id), Some("fail"));
}

#[test]
fn what_was_not_measured_is_unknown() {
    let missing = |unit: &Unit| match unit.nodes[0].as_str() {
        "n1" => json!([]),
        "n2" => {
            json!([{ "command": "check", "line": "", "exit": null, "stdout": "", "stderr": "did not end in 300 s" }])
        }
        "n3" => json!([check(
            &json!([{ "check": "kmsg", "severity": "unknown", "class": "site", "what": "not read", "fix": "" }])
        )]),
        _ => json!([check(
            &json!([{ "check": "gpu-ecc", "part": "2", "severity": "fail", "class": "node", "what": "bad", "fix": "" }])
        )]),
    };
    let mut run =
        played(plan("[node]\n[[expect]]\nfigure = 'node.x.y'\nmin = 1\nsource = 'contract'\n"), &missing);
    let report = run.report();
    assert_eq!(word(&report, "node.n1"), Some("unknown"));
    let n2 = report.items.iter().find(|item| item.id == "node.n2").unwrap();
    assert_eq!((n2.word(), n2.details[0].as_str()), ("unknown", "check: did not end in 300 s"));
    assert_eq!((word(&report, "node.n3"), word(&report, "node.n4")), (Some("unknown"), Some("fail")));
    assert_eq!(word(&report, "figure.node.x.y"), Some("unknown"));
    assert_eq!(report.mttf.as_ref().unwrap().failures, 1);
    // A unit without a result is named.
    run.entries.truncate(run.entries.len() - 1);
    let report = run.report();
    assert_eq!((word(&report, "run.complete"), report.units_done), (Some("unknown"), 3));
}

/// A GPU that was not tested to its end does not pass, and a wrong value stays a failure beside a torn line.
#[test]
fn gpus_that_were_not_tested_do_not_pass() {
    let of = |stdout: String, exit: Option<i32>, stderr: &str| {
        let output =
            json!({ "command": "gpus", "line": "", "exit": exit, "stdout": stdout, "stderr": stderr });
        let outputs = move |_: &Unit| json!([check(&json!([])), output]);
        let report = played(plan("nodes = 'n1'\n[node]\n"), &outputs).report();
        let item = report.items.into_iter().find(|item| item.id == "node.gpu-values").unwrap();
        (item.word(), item.details.join("; "))
    };
    let (one, two) = (last("0000:61:00.0"), last("0000:62:00.0"));
    let mut first = two.clone();
    first["test"] = json!("gemm-bf16");
    assert_eq!(of(format!("{one}\n{two}\n"), Some(0), "").0, "pass");
    let want = ("unknown", "n1: 0000:62:00.0: no result after gemm-bf16".to_owned());
    assert_eq!(of(format!("{one}\n{first}\n"), Some(0), ""), want);
    let (word, details) = of(format!("{one}\n{two}\n"), None, "killed by signal 11");
    assert_eq!((word, details.as_str()), ("unknown", "n1: railgate-gpu-selftest: killed by signal 11"));
    let (word, details) = of(format!("{one}\n"), Some(3), "x");
    assert_eq!((word, details.as_str()), ("unknown", "n1: railgate-gpu-selftest ended with exit code 3: x"));
    assert_eq!(of(String::new(), Some(0), "").0, "unknown");
    let mut wrong = first.clone();
    wrong["values"] = json!({ "wrong": { "compared": 10, "wrong": 2, "first": [] } });
    let (word, details) = of(format!("{wrong}\n{{\"gpu\":\n{two}\n{one}\n"), Some(1), "");
    assert!(word == "fail" && details.starts_with("n1 0000:62:00.0: gemm-bf16: 2 of 10"), "{details}");
    assert!(details.contains("line 2 of railgate-gpu-selftest is not a result"), "{details}");
    let outputs = |_: &Unit| json!([check(&json!([]))]);
    let report = played(plan("[node]\n"), &outputs).report();
    assert_eq!(super::word(&report, "node.gpu-values"), Some("unknown"));
}

/// Copies of all cards at once, and to other cards, are shown; memory and products are judged.
#[test]
fn only_figures_in_which_cards_agree_are_judged_by_the_median() {
    let outputs = |unit: &Unit| {
        let slow = unit.nodes[0] == "n3";
        let line = |test: &str, name: &str| {
            let mut line = last("0000:61:00.0");
            (line["test"], line["measured"]) =
                (json!(test), json!({ name: if slow { 10.0 } else { 100.0 } }));
            format!("{line}\n")
        };
        let stdout = [
            line("host-copy", "device_to_host_gb_s"),
            line("host-copy-alone", "device_to_host_gb_s"),
            line("host-copy-alone", "host_to_device_gb_s"),
            line("peer-copy", "peer_gb_s"),
            line("peer-copy", "through_host_gb_s"),
            line("memory-pattern", "read_gb_s"),
        ];
        json!([check(&json!([])), { "command": "gpus", "line": "", "exit": 0, "stdout": stdout.concat(), "stderr": "" }])
    };
    let report = played(plan("[node]\n"), &outputs).report();
    let failed: Vec<&str> =
        report.items.iter().filter(|item| item.word() == "fail").map(|item| item.id.as_str()).collect();
    let want = ["figure.node.host-copy-alone.device_to_host_gb_s", "figure.node.memory-pattern.read_gb_s"];
    assert_eq!(failed, want);
}

#[test]
fn a_changed_missing_or_unknown_file_is_named() {
    let mut run = cards(785.0);
    run.files[0].content.push(b' ');
    run.files.remove(1);
    run.files.push(crate::File { name: "node.n1.r1.a1.j99.json".to_owned(), content: b"x".to_vec() });
    let report = run.report();
    let item = report.items.iter().find(|item| item.id == "run.results").unwrap();
    assert_eq!((item.word(), item.details.len()), ("fail", 2));
    assert!(
        report.exceptions[0].starts_with("node.n1.r1.a1.j99.json: not used: "),
        "{:?}",
        report.exceptions
    );
    assert!(word(&report, "node.checks") == Some("pass"));
}

#[test]
fn repeated_units_and_lost_jobs_are_stated() {
    let mut run = cards(785.0);
    let unit = "node.n1.r1".to_owned();
    let lost = Event::Lost {
        unit: unit.clone(),
        attempt: 1,
        why: "job 7: NODE_FAIL".to_owned(),
        node_failed: Some(true),
    };
    let result = Event::Result {
        unit: unit.clone(),
        attempt: 2,
        file: run.files[0].name.clone(),
        digest: digest(&run.files[0].content),
    };
    let submit = Event::Submit { unit, attempt: 2, nodes: vec!["n1".to_owned()] };
    run.entries.splice(2..3, [lost, submit, result].map(entry));
    run.entries.push(entry(Event::Continue {}));
    let report = run.report();
    assert_eq!(
        report.exceptions[0],
        "node.n1.r1: submitted 2 times; attempt 1 without a result: job 7: NODE_FAIL"
    );
    assert!(report.exceptions[1].ends_with("the run was continued"));
    assert_eq!(report.mttf.unwrap().failures, 1);
}

#[test]
fn repetitions_that_differ_fail_repeatability() {
    let differs =
        |unit: &Unit| json!([check(&json!([])), gpu(if unit.repetition == 1 { 800.0 } else { 750.0 })]);
    let report = played(plan("[node]\nrepetitions = 2\n"), &differs).report();
    let item = report.items.iter().find(|item| item.id == "run.repeatability").unwrap();
    assert_eq!((item.word(), item.details[0].as_str()), ("fail", "node.gemm-rate-bf16.rate_tflops: 6.5 %"));
    assert_eq!(word(&cards(785.0).report(), "run.repeatability"), Some("pass"));
}

#[test]
fn a_second_run_shows_what_changed() {
    let (before, now) = (cards(785.0).report(), cards(700.0).report());
    assert_eq!(compare(&before, &before), []);
    let changes = compare(&before, &now);
    let id = "figure.node.gemm-rate-bf16.rate_tflops";
    assert!(changes.iter().any(|change| change.what == id
        && change.before == "pass"
        && change.now == "fail"
        && change.better == Some(false)));
    let text: Value = serde_json::from_str(&serde_json::to_string(&now).unwrap()).unwrap();
    let read: crate::Report = serde_json::from_value(text).unwrap();
    assert_eq!(compare(&read, &now), []);
}

/// Three nodes send as fast as each other, n2 sends slowly to all.
#[test]
fn pairs_accuse_the_slow_node_and_not_its_partners() {
    let outputs = |unit: &Unit| {
        let nodes = &unit.nodes;
        let rate = |from: usize| if nodes[from] == "n2" { 40.0 } else { 390.0 };
        let pair = |left: usize, right: usize| {
            let outcome = json!({ "measured": { "gbps": [rate(left), rate(right)], "latency_us": 2.0 } });
            json!({ "pair": { "left": left, "right": right }, "rail": 0, "outcome": outcome })
        };
        let round = |pairs: &[(usize, usize)]| {
            let plain: Vec<Value> =
                pairs.iter().map(|(left, right)| json!({ "left": left, "right": right })).collect();
            let tested: Vec<Value> = pairs.iter().map(|(left, right)| pair(*left, *right)).collect();
            json!({ "pairs": plain, "tested": tested })
        };
        let rounds = if nodes.len() == 2 {
            vec![round(&[(0, 1)])]
        } else {
            vec![round(&[(0, 1), (2, 3)]), round(&[(0, 2), (1, 3)])]
        };
        let printed = json!({ "nodes": nodes, "net": "rdma", "rounds": rounds, "problems": [] });
        json!([{ "command": "preflight", "line": "", "exit": 1, "stdout": printed.to_string(), "stderr": "" }])
    };
    let report = played(plan("[pairs]\n[[leaf]]\nname = 'a'\nnodes = 'n[1-2]'\n"), &outputs).report();
    let failed: Vec<&str> =
        report.items.iter().filter(|item| item.word() == "fail").map(|item| item.id.as_str()).collect();
    assert_eq!(failed, ["pairs.rdma.n2.rail-0"]);
    assert_eq!(word(&report, "pairs.rdma"), Some("pass"));
    let map = &report.heat_maps[0];
    assert_eq!(
        map.rows.iter().map(|row| row.values[0]).collect::<Vec<_>>(),
        [390.0, 40.0, 390.0, 390.0].map(Some)
    );
}

/// Rails, pairs and leaf switches that were not measured are unknown.
#[test]
fn what_pairs_did_not_measure_is_unknown() {
    let test = |rail: usize| {
        let outcome = json!({ "measured": { "gbps": [390.0, 390.0], "latency_us": 2.0 } });
        json!({ "pair": { "left": 0, "right": 1 }, "rail": rail, "outcome": outcome })
    };
    let details = |printed: Value| {
        let text = "nodes = 'n[1-2]'\n[pairs]\nnet = 'rdma'\n[[leaf]]\nname = 'a'\nnodes = 'n[1-2]'\n";
        let whole = json!({ "nodes": ["n1", "n2"], "net": "rdma", "devices": [["a", "b"], ["a", "b"]], "problems": [],
            "report": { "unknown": [] },
            "rounds": [{ "pairs": [{ "left": 0, "right": 1 }], "tested": [test(0), test(1)] }] });
        let outputs = move |unit: &Unit| {
            let mut result = whole.clone();
            for (key, value) in printed.as_object().unwrap() {
                if unit.id.starts_with(key) {
                    for (key, value) in value.as_object().unwrap() {
                        result[key] = value.clone();
                    }
                }
            }
            json!([{ "command": "preflight", "line": "", "exit": 0, "stdout": result.to_string(), "stderr": "" }])
        };
        let report = played(plan(text), &outputs).report();
        let item = report.items.into_iter().find(|item| item.id == "pairs.rdma").unwrap();
        format!("{}: {}", item.word(), item.details.join("; "))
    };
    let pairs = json!([{ "left": 0, "right": 1 }]);
    assert_eq!(details(json!({})), "pass: ");
    // One of two rails was tested, in one unit.
    let one = json!([{ "pairs": pairs, "tested": [test(0)] }]);
    let want = "unknown: pairs.leaf-a.r1: n1 with n2, rail 1: no result";
    assert_eq!(details(json!({ "pairs.leaf": { "rounds": one } })), want);
    // In none of them.
    let text = details(json!({ "pairs": { "rounds": one } }));
    assert!(text.contains("n1 rail 1: no result") && text.contains("n2 rail 1: no result"), "{text}");
    let none = json!([{ "pairs": pairs, "tested": [] }]);
    let text = details(json!({ "pairs.leaf": { "rounds": none } }));
    assert!(
        text.contains("n1 with n2, rail 0: no result") && text.contains("pairs.leaf-a.r1: no test"),
        "{text}"
    );
    let text = details(json!({ "pairs.leaf": { "rounds": [] } }));
    assert_eq!(text, "unknown: pairs.leaf-a.r1: no test");
    let text = details(json!({ "pairs.leaf": { "report": { "unknown": [{ "node": 1, "rail": 1 }] } } }));
    assert_eq!(text, "unknown: pairs.leaf-a.r1: n2 rail 1: no result");
    let outputs = |_: &Unit| json!([]);
    let report = played(plan("[pairs]\n"), &outputs).report();
    assert_eq!(word(&report, "pairs.rails"), Some("unknown"));
}

#[test]
fn collectives_are_judged_by_size() {
    let table = "[collectives]\nprogram = '/a'\ntasks_per_node = 8\n\
                 [[collectives.baseline]]\nbytes = 8388608\nbusbw_gb_s = 200.0\nsource = 's'\n\
                 [[collectives.baseline]]\nbytes = 16777216\nbusbw_gb_s = 400.0\nsource = 's'\n\
                 [[collectives.baseline]]\nbytes = 1\nbusbw_gb_s = 1.0\nsource = 's'\n";
    let stdout = "# nThread 1 nGpus 1\n#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n\
                  \x20    8388608       2097152     float     sum      -1    78.41  106.98  212.50      0    77.9  107.7  213.1      0\n\
                  \x20   16777216       4194304     float     sum      -1    90.00  186.41  349.50      0    90.0  186.4  349.5      0\n\
                  # Out of bounds values : 0 OK\n";
    let outputs = move |_: &Unit| json!([{ "command": "all-reduce", "line": "", "exit": 0, "stdout": stdout, "stderr": "" }]);
    let report = played(plan(table), &outputs).report();
    let words = ["8388608", "16777216", "1"]
        .map(|size| word(&report, &format!("collectives.all-reduce.{size}")).map(str::to_owned));
    assert_eq!(words.map(Option::unwrap), ["pass", "fail", "unknown"]);
    assert_eq!(word(&report, "collectives.values"), Some("pass"));
}

#[test]
fn storage_is_summed_over_nodes_that_write_at_once() {
    let line = |node: &str, ended: u64| {
        json!({ "node": node, "write": { "began": 0, "ended": ended, "count": 1024 }, "read": { "began": 0, "ended": 1000, "count": 1024 },
                "files": { "began": 0, "ended": 1000, "count": 300 }, "error": null })
    };
    let outputs = move |_: &Unit| {
        let lines: String =
            [("n1", 1000), ("n2", 2000)].map(|(node, ended)| format!("{}\n", line(node, ended))).concat();
        json!([{ "command": "write.0", "line": "", "exit": 0, "stdout": lines, "stderr": "" }])
    };
    let text = "nodes = 'n[1-2]'\n[storage]\ndirs = ['/scratch']\nmib_per_node = 1024\n";
    let report = played(plan(text), &outputs).report();
    let median = |id: &str| report.figures.iter().find(|figure| figure.id == id).map(|figure| figure.median);
    // 2 GiB in 2 s.
    assert!((median("storage.all.write_gb_s").unwrap() - 1.073_741_824).abs() < 1e-9);
    assert_eq!(median("storage.all.metadata_ops_s"), Some(600.0));
    assert!((median("storage.all.read_gb_s").unwrap() - 2.147_483_648).abs() < 1e-9);
    assert_eq!(word(&report, "storage.tested"), Some("pass"));
}

/// Lost bytes are a failure; a node without a line, or with half a result, is unknown.
#[test]
fn a_file_system_that_loses_bytes_fails_and_a_silent_node_is_unknown() {
    let span = json!({ "began": 0, "ended": 1000, "count": 1 });
    let whole = json!({ "node": "n1", "write": span, "read": span, "files": span });
    let report = |second: Value| {
        let stdout = format!("{whole}\n{second}\n");
        let outputs = move |_: &Unit| json!([{ "command": "write.0", "line": "", "exit": 0, "stdout": stdout, "stderr": "" }]);
        let text = "nodes = 'n[1-2]'\n[storage]\ndirs = ['/scratch']\nmib_per_node = 1024\n";
        let report = played(plan(text), &outputs).report();
        let item = report.items.into_iter().find(|item| item.id == "storage.tested").unwrap();
        (item.word(), item.details.join("; "))
    };
    let failed = json!({ "node": "n2", "write": span, "failed": "MiB 3 was read back different" });
    assert_eq!(report(failed), ("fail", "n2: /scratch: MiB 3 was read back different".to_owned()));
    let error = json!({ "node": "n2", "error": "EACCES" });
    assert_eq!(report(error), ("unknown", "n2: /scratch: EACCES".to_owned()));
    let half = json!({ "node": "n2", "write": span });
    assert_eq!(report(half), ("unknown", "n2: /scratch: the result is not whole".to_owned()));
    let (word, details) = report(json!("torn"));
    assert!(word == "unknown" && details.contains("n2: /scratch: no result"), "{details}");
}

/// The first fault is found, the second is not, the third could not be injected, and the fourth was not undone.
#[test]
fn faults_that_are_injected_must_be_found() {
    let fault = |node: u32| {
        format!(
            "[[soak.fault]]\nnode = 'n{node}'\nrepetition = 1\ninject = ['/a', 'b']\nundo = ['/c']\ncheck = 'ib-port'\n"
        )
    };
    let text = ["[soak]\n".to_owned(), fault(1), fault(2), fault(3), fault(4)].concat();
    let plan = plan(&text);
    let unit = plan.units().remove(0);
    let commands = (crate::STAGES[5].commands)(&plan, &unit, &unit.nodes);
    let ids: Vec<&str> = commands.iter().map(|command| command.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "rest.before",
            "fault.1.before",
            "fault.1.inject",
            "fault.1.check",
            "fault.1.undo",
            "check",
            "gpus",
            "rest.after"
        ]
    );
    let outputs = |unit: &Unit| {
        let number: u32 = unit.nodes[0][1..].parse().unwrap();
        let run = |step: &str, exit: u32| json!({ "command": format!("fault.{number}.{step}"), "line": "", "exit": exit, "stdout": "", "stderr": "no such device" });
        let finding = json!([{ "check": if number == 2 { "other" } else { "ib-port" }, "severity": "fail", "class": "fabric", "what": "down", "fix": "" }]);
        let mut checked = check(&finding);
        checked["command"] = json!(format!("fault.{number}.check"));
        let mut before = check(&json!([]));
        before["command"] = json!(format!("fault.{number}.before"));
        json!([
            before,
            run("inject", u32::from(number == 3)),
            checked,
            run("undo", u32::from(number == 4)),
            check(&json!([])),
            gpu(1.0)
        ])
    };
    let report = played(plan, &outputs).report();
    let words = [1, 2, 3, 4].map(|number| word(&report, &format!("soak.fault.{number}")).unwrap());
    assert_eq!(words, ["pass", "fail", "unknown", "fail"]);
    // Rounds with faults count neither as time nor as failures.
    assert_eq!(report.mttf, None);
    assert_eq!(report.exceptions, ["fault 4 of n4 was not undone: no such device"]);
    let map = report.heat_maps.iter().find(|map| map.title.starts_with("Highest temperature")).unwrap();
    assert_eq!((map.columns.join(" "), map.rows[3].values[0]), ("r1".to_owned(), Some(60.0)));
}

/// What `railgate accept --nccl-library` printed.
fn library(version: &str) -> Value {
    let line = json!({ "path": "/usr/lib64/libnccl.so.2", "version": version }).to_string();
    json!({ "command": "nccl", "line": "", "exit": 0, "stdout": line, "stderr": "" })
}

#[test]
fn nodes_have_one_nccl_library() {
    let item = |nccl: &dyn Fn(&str) -> Value| {
        let report = played(plan("[inventory]\n"), &|unit| json!([nccl(&unit.nodes[0])])).report();
        let item = report.items.into_iter().find(|item| item.id == "inventory.nccl").unwrap();
        (item.word(), item.what, item.details)
    };
    let same = item(&|_| library("2.28.9+cuda13.0"));
    assert_eq!(same, ("pass", "nccl of all nodes: 2.28.9+cuda13.0 on 4 of 4".to_owned(), vec![]));
    let (word, _, details) =
        item(&|node| library(if node == "n2" { "2.21.5+cuda12.4" } else { "2.28.9+cuda13.0" }));
    assert_eq!((word, details), ("fail", vec!["n2: 2.21.5+cuda12.4".to_owned()]));
    let none = "railgate: could not tell: no libnccl.so.2 in LD_LIBRARY_PATH and the folders of the loader\n";
    let (word, what, details) =
        item(&|_| json!({ "command": "nccl", "line": "", "exit": 2, "stdout": "", "stderr": none }));
    assert_eq!((word, what.as_str(), details.len()), ("unknown", "nccl of all nodes: not known", 4));
    assert!(details[0].starts_with("n1: nccl: railgate: could not tell: no libnccl.so.2"), "{details:?}");
    // A result of an older railgate.
    let (word, _, details) =
        item(&|_| json!({ "command": "snapshot", "line": "", "exit": 0, "stdout": "", "stderr": "" }));
    assert_eq!((word, details[0].as_str()), ("unknown", "n1: nccl was not run"));
}

use proptest::prelude::*;
use serde_json::json;

use super::{check, entry, gpu, plan, played};
use crate::{Event, Journal, Unit, html};

fn evil() -> String {
    format!("\"'></td><script>x</script><b onclick='y'>&\u{202e}\n{}", "z".repeat(5000))
}

/// Text of nodes, of programs and of persons.
#[test]
fn no_foreign_text_reaches_the_page_unfiltered() {
    let outputs = |unit: &Unit| {
        let evil = evil();
        let finding = json!([{ "check": evil, "part": evil, "severity": "fail", "class": "node", "what": evil, "fix": evil }]);
        if unit.stage == "pairs" {
            return json!([{ "command": evil, "line": evil, "exit": 1, "stdout": evil, "stderr": evil }]);
        }
        if unit.stage == "storage" {
            let line = json!({ "node": "n1", "write": null, "read": null, "files": null, "error": evil });
            return json!([{ "command": "write.0", "line": evil, "exit": 0, "stdout": format!("{line}\n{evil}"), "stderr": evil }]);
        }
        let mut line = gpu(1.0);
        let test = json!({
            "gpu": "0000:61:00.0", "model": evil, "test": evil, "seconds": 1.0, "measured": { &evil: 1.0 }, "unknown": evil,
            "values": { "wrong": { "compared": 1, "wrong": 1, "first": [] } },
        });
        line["stdout"] = json!(format!("{test}\n"));
        json!([check(&finding), line])
    };
    let text = format!(
        "[node]\n[pairs]\n[storage]\ndirs = ['/a']\nmib_per_node = 1\n[[expect]]\nfigure = {0}\nmin = 1\nsource = {0}\n",
        json!(evil())
    );
    let mut run = played(plan(&text), &outputs);
    run.plan.title = evil();
    let failure = run.report().items.iter().find(|item| item.id == "node.n1").unwrap().failure();
    run.entries.push(entry(Event::Waive { item: "node.n1".to_owned(), failure, by: evil(), why: evil() }));
    run.entries.push(entry(Event::Stop { why: evil() }));
    run.files.push(crate::File { name: evil(), content: Vec::new() });
    let mut report = run.report();
    report.changes = Some(vec![crate::Change { what: evil(), before: evil(), now: evil(), better: None }]);
    let page = html(&report);
    assert!(page.contains("&lt;script&gt;") && page.contains("Waived by"));
    for raw in ["<script", "<b ", "\u{202e}", &"z".repeat(4001)] {
        assert!(!page.contains(raw), "{raw}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_of_a_journal_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Journal::parse(&bytes);
    }

    #[test]
    fn no_output_of_a_program_causes_a_panic(text in ".{0,200}", command in "(gpus|check|preflight|snapshot|nccl|rest\\.after|write\\.0|all-reduce)") {
        let outputs = |_: &Unit| json!([{ "command": command, "line": "", "exit": 0, "stdout": text, "stderr": text }]);
        let all = "[inventory]\n[node]\n[pairs]\n[storage]\ndirs = ['/a']\nmib_per_node = 1\n\
                   [collectives]\nprogram = '/a'\ntasks_per_node = 1\n[soak]\n";
        let report = played(plan(all), &outputs).report();
        prop_assert!(!html(&report).is_empty());
    }
}

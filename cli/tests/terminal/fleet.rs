//! `railgate fleet`: a history and silences in which every text is hostile.

use std::os::unix::fs::PermissionsExt;

use railgate_fleet::{
    Attempt, Card, Cause, Drainer, Event, Grade, NodeFinding, Outcome, Shared, SharedKind, Source, What,
};
use railgate_fleet_store::Writer;
use railgate_model::{Class, Severity};

use crate::stage::{Stage, hostile};

const T: u64 = 1_700_000_000_000;

/// Events about a node whose name is hostile, and about gn1.
fn events() -> Vec<Event> {
    let text = hostile();
    let mut all = Vec::new();
    for node in ["gn1".to_owned(), text.clone()] {
        let finding = NodeFinding {
            node: node.clone(),
            check: text.clone(),
            severity: Severity::Fail,
            class: Class::Node,
            cause: Cause::Gpu,
            grade: Grade::Proof,
            card: Some(text.clone()),
            leaf: Some(text.clone()),
            accuser: None,
        };
        let leaf = Shared { kind: SharedKind::Leaf, name: text.clone() };
        let attempt = Attempt {
            job: 7,
            attempt: 0,
            uid: 1000,
            partition: text.clone(),
            nodes: [&node].iter().collect(),
            gpus: 8,
            queued: T,
            start: T,
            end: Some((T + 3_600_000, Outcome::Failed)),
        };
        all.extend([
            What::Placed { node: node.clone(), shares: vec![leaf] },
            What::Cards {
                node: node.clone(),
                cards: vec![Card { uuid: text.clone(), serial: text.clone() }],
            },
            What::Finding(finding),
            What::SelfTested {
                node: node.clone(),
                figure: text.clone(),
                value: None,
                unit: text.clone(),
                passed: None,
            },
            What::Maintained {
                node: node.clone(),
                repair: false,
                card: Some(text.clone()),
                by: text.clone(),
                why: text.clone(),
            },
            What::JobEnded(attempt),
            What::Drained { node, by: Drainer::Admin, reason: text.clone() },
        ]);
    }
    let event = |(number, what): (usize, What)| Event {
        id: format!("{number}{text}"),
        time: T + number as u64 * 1000,
        source: Source::Root,
        what,
    };
    all.into_iter().enumerate().map(event).collect()
}

pub(crate) fn fleet(stage: &mut Stage) {
    let text = hostile();
    let dir = stage.path("state/fleet");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    let mut writer = Writer::open(&dir.join("fleet.db"), "test", T).unwrap();
    writer.take_in(&events(), T).unwrap();
    drop(writer);
    stage.shows_both(&["fleet"], true);
    page(stage);
    stage.shows_both(&["fleet", "node", "gn1"], true);
    stage.shows_both(&["fleet", "node", &text], true);
    stage.shows_both(&["fleet", "card", &text], true);
    stage.shows_both(&["fleet", "rma", "gn1"], true);
    stage.shows_both(&["fleet", "rma", &text, "--card", &text], true);
    stage.shows_both(&["fleet", "cost"], true);
    stage.shows(&["fleet", "export"]);
    for command in ["repaired", "maintained"] {
        // The name of the user is from the environment, and kept as printable text.
        stage.env("SUDO_USER", &text);
        stage.shows_both(&["fleet", command, "gn1", "--why", "fans", "--card", &text], true);
        stage.shows(&["fleet", command, &text, "--why", "fans"]);
        stage.shows(&["fleet", command, "gn1", "--why", "fans", "--card", &format!("x{text}")]);
        stage.run(&["fleet", command, "gn1", "--why", &text]);
    }
    // A report that someone else has written.
    let report = serde_json::json!({
        "schema": 1, "title": text, "run": text, "railgate": text, "began": T, "made": T, "plan_digest": text,
        "results_digest": text, "nodes": ["gn1"], "units_done": 1, "units": 1, "overall": "pass", "items": [],
        "inventory": [], "heat_maps": [], "mttf": null, "exceptions": [], "not_in_plan": [], "changes": null,
        "figures": [{
            "id": text, "unit": text, "better": "higher", "min": 1.0, "median": 1.0, "max": 1.0, "at_least": 2.0,
            "at_most": null, "tolerance": text, "source": text, "outliers": [], "spread_percent": null,
            "values": [
                { "node": "gn1", "part": format!("gn1 {text}"), "repetition": 1, "value": 1.0 },
                { "node": text, "part": text, "repetition": 1, "value": 1.0 },
            ],
        }],
    });
    std::fs::write(stage.path("accepted.json"), report.to_string()).unwrap();
    stage.run(&["fleet", "accepted", "accepted.json"]);
    stage.run(&["fleet", "accepted", "accepted.json", "--format", "json"]);
    stage.shows(&["fleet", "accepted", &text]);
    let line = serde_json::json!({
        "gpu": "0000:61:00.0", "model": text, "test": text, "seconds": 1.0, "measured": { text.as_str(): 1.0 },
        "values": { "wrong": { "compared": 2, "wrong": 1, "first": [] } }, "unknown": text,
    });
    std::fs::write(stage.path("tested.jsonl"), line.to_string()).unwrap();
    stage.shows(&["fleet", "tested", "gn1", "tested.jsonl"]);
    stage.run(&["fleet", "tested", "gn1", "tested.jsonl", "--format", "json"]);
    stage.shows(&["fleet", "tested", &text, "tested.jsonl"]);
    stage.shows(&["fleet", "tested", "gn1", &text]);
    for command in ["incidents", "lemons", "checks"] {
        stage.run(&["fleet", command]);
        stage.run(&["fleet", command, "--format", "json"]);
    }
    let other = format!("x{text}");
    for command in ["node", "card", "incident", "rma"] {
        stage.shows(&["fleet", command, &other]);
    }
    stage.shows(&["fleet", "--database", &other]);
    stage.write("state/fleet/fleet.db", &text);
    stage.run(&["fleet"]);
}

/// The page, with hostile names of files and a hostile answer of Slurm.
fn page(stage: &mut Stage) {
    let text = hostile();
    stage.shows(&["fleet", "--format", "html", "--audience", "admins"]);
    // Without Slurm, and with an answer that names what is hidden.
    stage.run(&["fleet", "--format", "html"]);
    stage.write("private", format!("PrivateData = jobs{text},usage,{text}\n"));
    stage.program("scontrol", &format!("cat {}", stage.path("private").display()));
    stage.run(&["fleet", "--format", "html"]);
    stage.program("scontrol", &format!("cat {} >&2; exit 1", stage.path("private").display()));
    stage.shows(&["fleet", "--format", "html"]);
    stage.shows(&["fleet", "--format", "html", "--audience", "admins", "--out", &format!("absent/{text}")]);
    stage.run(&["fleet", "--format", "html", "--audience", "admins", "--out", &text]);
}

pub(crate) fn silences(stage: &mut Stage) {
    let text = hostile();
    let dir = stage.path("state/fleet");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    stage.env("SUDO_USER", &text);
    // The name of the user is from the environment, and kept as printable text.
    stage.run(&["fleet", "silence", "gn1", "--for", "4h", "--why", "fans"]);
    stage.run(&["fleet", "silences"]);
    stage.run(&["fleet", "silences", "--format", "json"]);
    stage.shows(&["fleet", "silence", &text, "--for", "4h", "--why", "fans"]);
    stage.run(&["fleet", "silence", "gn1", "--for", "4h", "--why", &text]);
    stage.shows(&["fleet", "silence", "gn1", "--for", "4h", "--why", "fans", "--check", &text]);
    stage.shows(&["fleet", "unsilence", &text]);
    // Without control characters, the rest of a hostile text is a valid reason.
    let flat: String = text.chars().filter(|c| !c.is_control()).collect();
    let line = |id: &str, node: &str, reason: &str| serde_json::json!({ "id": id, "nodes": [node], "until": "2099-01-01T00:00:00Z", "by": flat, "reason": reason });
    let lines = [
        line("1-1", "gn1", &flat),
        line("1-2", "gn1", &text),
        line("1-3", &text, "fans"),
        line(&text, "a", "b"),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    stage.write("state/fleet/silences.jsonl", format!("{lines}{text}\n{{\"{text}\": 1}}\n"));
    stage.shows_both(&["fleet", "silences"], true);
    stage.run(&["fleet", "unsilence", "1-1"]);
    let other = format!("x{text}");
    stage.run(&["fleet", "silences", "--database", &other]);
    stage.shows(&[
        "fleet",
        "silence",
        "gn1",
        "--for",
        "4h",
        "--why",
        "fans",
        "--database",
        &format!("{other}/fleet.db"),
    ]);
    let config = std::fs::read_to_string(stage.path("railgate.toml")).unwrap();
    let name = flat.replace(['\\', '"'], "");
    let silence = format!(
        "[alerts.silences.\"{name}\"]\nnodes = ['gn7*']\nuntil = '2099-01-01T00:00:00Z'\nreason = '{name}'\n"
    );
    stage.write("railgate.toml", format!("{config}{silence}"));
    stage.run(&["fleet", "silences"]);
    stage.run(&["fleet", "silences", "--format", "json"]);
}

//! `railgate fleet` over a history that the test writes.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use railgate_fleet::{
    Attempt, Card, Cause, Drainer, Event, Grade, NodeFinding, Outcome, Shared, SharedKind, Source, What,
};
use railgate_fleet_store::{EnteredFile, Writer};
use railgate_model::{Class, Severity};
use serde_json::Value;
use tempfile::TempDir;

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

struct Fleet {
    _dir: TempDir,
    database: PathBuf,
}

fn name(node: usize) -> String {
    format!("n{node:02}")
}

fn fault(node: usize, cause: Cause) -> What {
    What::Finding(NodeFinding {
        node: name(node),
        check: if cause == Cause::Gpu { "gpu-lost" } else { "ib-port" }.to_owned(),
        severity: Severity::Fail,
        class: if cause == Cause::Gpu { Class::Node } else { Class::Fabric },
        cause,
        grade: Grade::Proof,
        card: (cause == Cause::Gpu).then(|| format!("GPU-{node}")),
        leaf: None,
        accuser: None,
    })
}

impl Fleet {
    /// 64 nodes below two leaf switches; n05 fails four times; leaf0 fails once; n07 is drained.
    fn new() -> Fleet {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("fleet.db");
        let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
        let begin = now - 30 * DAY;
        let mut all: Vec<(u64, What)> = Vec::new();
        for node in 0..64 {
            let leaf = Shared { kind: SharedKind::Leaf, name: format!("leaf{}", node / 32) };
            all.push((begin, What::Placed { node: name(node), shares: vec![leaf] }));
            let cards = vec![Card { uuid: format!("GPU-{node}"), serial: String::new() }];
            all.push((begin, What::Cards { node: name(node), cards }));
        }
        // A fleet with a rate: some nodes failed once.
        all.extend((40..50).map(|node| (begin + (node as u64 - 39) * 2 * DAY, fault(node, Cause::Gpu))));
        all.extend([4, 9, 15, 21].map(|day| (begin + day * DAY, fault(5, Cause::Gpu))));
        let leaf = begin + 25 * DAY;
        all.extend((0..30).map(|node| (leaf + node as u64 * 10_000, fault(node, Cause::Network))));
        all.push((
            now - HOUR,
            What::Drained { node: name(7), by: Drainer::Admin, reason: "new fans".to_owned() },
        ));
        for (job, day, outcome, gpus) in
            [(1, 4, Outcome::Failed, 32), (2, 12, Outcome::Completed, 32), (3, 20, Outcome::Completed, 0)]
        {
            let end = begin + day * DAY;
            let attempt = Attempt {
                job,
                attempt: 0,
                // Without a name on any machine.
                uid: 4_000_000_000,
                partition: "train".to_owned(),
                nodes: (4..8).map(name).collect(),
                gpus,
                queued: end - 11 * HOUR,
                start: end - 10 * HOUR,
                end: Some((end, outcome)),
            };
            all.push((end, What::JobEnded(attempt)));
        }
        let event =
            |(number, (time, what))| Event { id: format!("e{number}"), time, source: Source::Root, what };
        let events: Vec<Event> = all.into_iter().enumerate().map(event).collect();
        let mut writer = Writer::open(&database, "test", now).unwrap();
        writer.take_in(&events, now).unwrap();
        Fleet { _dir: dir, database }
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_railgate"));
        command.arg("fleet").args(words).arg("--database").arg(&self.database).output().unwrap()
    }

    fn said(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.said(&[words, &["--format", "json"]].concat())).unwrap()
    }
}

/// `scontrol show config` with this PrivateData, and a configuration that uses it. `None`: scontrol fails.
fn slurm(dir: &TempDir, private: Option<&str>) -> PathBuf {
    let bin = dir.path().join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let script = match private {
        Some(private) => {
            format!("#!/bin/sh\nprintf 'PrivateData             = {private}\\nReturnToService = 1\\n'\n")
        }
        None => "#!/bin/sh\nexit 1\n".to_owned(),
    };
    let scontrol = bin.join("scontrol");
    std::fs::write(&scontrol, script).unwrap();
    std::fs::set_permissions(&scontrol, PermissionsExt::from_mode(0o755)).unwrap();
    let config = dir.path().join("railgate.toml");
    std::fs::write(&config, format!("[slurm]\nbin_dir = '{}'\n", bin.display())).unwrap();
    config
}

/// Fails with the whole output if a part is missing.
fn has(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
}

#[test]
fn the_overview_names_lemons_and_nodes_out_of_service() {
    let fleet = Fleet::new();
    has(
        &fleet.said(&[]),
        &[
            "64 nodes and 3 job attempts since ",
            "lemons: 1 (fail more often than the fleet: railgate fleet lemons): n05",
            "out of service: 1 (take no jobs now): n07",
            "open incidents: 0",
        ],
    );
    let json = fleet.json(&[]);
    assert_eq!((&json["lemons"], &json["nodes"]), (&serde_json::json!(["n05"]), &serde_json::json!(64)));
}

#[test]
fn a_node_has_its_reasons_and_its_events() {
    let fleet = Fleet::new();
    has(
        &fleet.said(&["node", "n05"]),
        &[
            "n05: lemon",
            "hours of service; the fleet's rate makes",
            "times the fleet's, with a probability of 90 %",
            "proposal  drain it after a self-test confirms a fault",
            "because   4 x GPU on card GPU-5",
            "gpu-lost (fail): GPU, proof, card GPU-5",
        ],
    );
    has(&fleet.said(&["node", "n07"]), &["takes no jobs now", "drained by an admin: new fans"]);
    let absent = fleet.run(&["node", "n99"]);
    assert_eq!(absent.status.code(), Some(2));
    has(&String::from_utf8(absent.stderr).unwrap(), &["n99: no event about such a node"]);
}

#[test]
fn a_card_has_its_nodes_and_its_faults() {
    let fleet = Fleet::new();
    has(&fleet.said(&["card", "GPU-5"]), &["GPU-5: 4 events about it", "in n05 since ", "gpu-lost (fail)"]);
    assert_eq!(fleet.json(&["card", "GPU-5"])["stays"][0]["node"], "n05");
    assert_eq!(fleet.run(&["card", "GPU-99"]).status.code(), Some(2));
}

#[test]
fn a_leaf_switch_is_one_incident_with_an_id() {
    let fleet = Fleet::new();
    has(&fleet.said(&["incidents"]), &["30 of 32", "30 of 32 nodes of leaf switch leaf0 failed: network"]);
    let json = fleet.json(&["incidents"]);
    let id = json["incidents"][0]["id"].as_str().unwrap_or_else(|| panic!("{json}"));
    has(
        &fleet.said(&["incident", id]),
        &["nodes   30 of 32 that could have failed: n00, n01", "cause   network"],
    );
    assert_eq!(fleet.run(&["incident", "1-1"]).status.code(), Some(2));
}

#[test]
fn lemons_have_an_interval_and_a_proposal() {
    let fleet = Fleet::new();
    let said = fleet.said(&["lemons"]);
    has(&said, &["TIMES THE FLEET'S RATE (90 %)", "n05", "proposed", "4 x GPU on card GPU-5"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    let node = &fleet.json(&["lemons"])["nodes"][0];
    assert!(node["ratio"]["low"].as_f64() > Some(1.0) && node["proposes_drain"] == true, "{node}");
}

#[test]
fn costs_are_intervals_by_partition_reason_and_size() {
    let fleet = Fleet::new();
    has(
        &fleet.said(&["cost"]),
        &[
            "train",
            "node: GPU",
            "0.0 to 320.0",
            "start and checkpoints",
            "HOURS TO FAILURE",
            "1 (0 more unknown)",
            "not counted above: 1 of 3 attempts, without GPUs or without a report of their number",
        ],
    );
    let json = fleet.json(&["cost"]);
    assert_eq!((&json["attempts"], &json["without_gpus"]), (&3.into(), &1.into()));
    assert_eq!(json["lost"][0]["attempts"], 1);
}

#[test]
fn the_page_has_lemons_incidents_and_nodes_out_of_service() {
    let fleet = Fleet::new();
    let page = fleet.said(&["--format", "html", "--audience", "admins"]);
    has(
        &page,
        &[
            "<!doctype html>",
            "1 lemon, 1 node out of service",
            "drain it after a self-test confirms a fault",
            "4 x GPU on card GPU-5",
            "<td class=\"l\">n07</td><td>an admin</td><td>new fans</td>",
            "640 GPU-hours",
            "without 1 attempt without GPUs or without a report of their number",
            "<td class=\"l\">n[00-29]</td>",
            "<td class=\"n\">1</td><td>uid 4000000000</td>",
        ],
    );
    assert!(!page.contains("Without user names"));
    for words in [
        &["cost", "--format", "html"][..],
        &["--out", "page.html"],
        &["--format", "json", "--audience", "all"],
    ] {
        assert_eq!(fleet.run(words).status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn the_page_for_all_has_names_only_where_slurm_shows_them() {
    let fleet = Fleet::new();
    let dir = tempfile::tempdir().unwrap();
    for (private, why) in [
        (Some("none"), None),
        (Some("accounts,nodes"), None),
        (Some("cloud,Jobs"), Some("PrivateData of Slurm contains Jobs.")),
        (Some("users,usage"), Some("PrivateData of Slurm contains users, usage.")),
        (None, Some("PrivateData of Slurm could not be read.")),
    ] {
        let config = slurm(&dir, private);
        let output = fleet.run(&["--format", "html", "--config", config.to_str().unwrap()]);
        let (page, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success(), "{err}");
        assert_eq!(
            page.contains("uid 4000000000") && page.contains("new fans"),
            why.is_none(),
            "{private:?}"
        );
        match why {
            Some(why) => has(&page, &[&format!("Without user names and job IDs: {why}")]),
            None => assert!(!page.contains("Without user names"), "{private:?}"),
        }
        assert_eq!(
            err.contains("the configuration of Slurm could not be read: "),
            private.is_none(),
            "{err}"
        );
    }
}

#[test]
fn the_page_replaces_a_file_and_follows_no_link() {
    let fleet = Fleet::new();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fleet.html");
    let write = |audience: &str| {
        fleet.run(&["--format", "html", "--audience", audience, "--out", file.to_str().unwrap()])
    };
    let config = slurm(&dir, Some("none"));
    let mode = || std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    let said = write("admins");
    assert!(said.status.success() && said.stdout.is_empty(), "{said:?}");
    assert_eq!(mode(), 0o600);
    let all = ["--format", "html", "--out", file.to_str().unwrap(), "--config", config.to_str().unwrap()];
    assert!(fleet.run(&all).status.success());
    assert_eq!(mode(), 0o644);
    has(&std::fs::read_to_string(&file).unwrap(), &["<!doctype html>", "</html>"]);
    std::fs::remove_file(&file).unwrap();
    let other = dir.path().join("other");
    std::fs::write(&other, "kept").unwrap();
    symlink(&other, &file).unwrap();
    let refused = write("admins");
    assert_eq!(refused.status.code(), Some(2));
    has(&String::from_utf8(refused.stderr).unwrap(), &["fleet.html: exists, and is not a regular file"]);
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "kept");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert_eq!(write("admins").status.code(), Some(2));
    let names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "no temporary file is left: {names:?}");
}

#[test]
fn the_export_has_all_events() {
    let fleet = Fleet::new();
    let all: Value = serde_json::from_str(&fleet.said(&["export"])).unwrap();
    assert_eq!(all["events"].as_array().unwrap().len(), 64 * 2 + 10 + 4 + 30 + 1 + 3);
}

/// What `railgate-fleet` does with the events that were entered.
fn take_in_what_was_entered(fleet: &Fleet) {
    let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
    let entered = EnteredFile::beside(&fleet.database).read().unwrap();
    assert_eq!(entered.problems, [""; 0]);
    Writer::open(&fleet.database, "test", now).unwrap().take_in(&entered.events, now).unwrap();
}

#[test]
fn a_repaired_node_is_on_probation_and_its_faults_before_no_longer_count() {
    let fleet = Fleet::new();
    has(&fleet.said(&["node", "n05"]), &["n05: lemon", "proposal  drain it"]);
    let said = fleet.said(&["repaired", "n05", "--why", "new board"]);
    has(&said, &["n05: repaired at 20", ": new board", "then `railgate fleet node n05` shows it"]);
    fleet.said(&["maintained", "n[40-41]", "--why", "BIOS 2.4", "--ago", "2h"]);
    take_in_what_was_entered(&fleet);
    let said = fleet.said(&["node", "n05"]);
    has(&said, &["n05: on probation", "faults    0 in", "repaired by ", ": new board"]);
    assert!(!said.contains("proposal"), "{said}");
    has(&fleet.said(&["node", "n41"]), &["maintained by ", ": BIOS 2.4"]);
    let entered = fleet.json(&["maintained", "n01", "--card", "GPU-1", "--why", "reseated"]);
    let work = &entered["events"][0]["what"]["maintained"];
    assert_eq!((&work["card"], &work["repair"]), (&"GPU-1".into(), &false.into()), "{entered}");
}

#[test]
fn work_on_an_unknown_node_or_card_is_refused() {
    let fleet = Fleet::new();
    for (words, part) in [
        (&["n99", "--why", "a"][..], "n99: the history has no such node"),
        (&["n[1-", "--why", "a"], "n[1-: not the name of a node, nor a host list: "),
        (&["", "--why", "a"], "no node is named"),
        (
            &["n[01-02]", "--why", "a", "--card", "GPU-1"],
            "--card GPU-1: a card is in one node, and 2 are named",
        ),
        (&["n01", "--why", "a", "--card", "GPU-2"], "GPU-2: never seen in n01"),
        (&["n01", "--why", " "], "--why: needs 1 to 200 printable characters"),
        (&["n01", "--why", "a", "--ago", "29days"], "--ago: at most 28days"),
        (&["n01"], "--why"),
    ] {
        let output = fleet.run(&[&["repaired"], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        has(&String::from_utf8(output.stderr).unwrap(), &[part]);
    }
    assert_eq!(EnteredFile::beside(&fleet.database).size(), 0);
}

#[test]
fn a_report_for_an_rma_has_the_evidence_and_neither_users_nor_jobs() {
    let fleet = Fleet::new();
    let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
    let finding = |check: &str, grade: Grade, card: Option<&str>| {
        What::Finding(NodeFinding {
            node: name(5),
            check: check.to_owned(),
            severity: Severity::Fail,
            class: Class::Node,
            cause: Cause::Gpu,
            grade,
            card: card.map(str::to_owned),
            leaf: None,
            accuser: None,
        })
    };
    let drained = |by: Drainer, reason: &str| What::Drained { node: name(5), by, reason: reason.to_owned() };
    let (driver, ago) = (Shared { kind: SharedKind::Driver, name: "580.159.04".to_owned() }, now - 2 * HOUR);
    let cards = vec![
        Card { uuid: "GPU-5".to_owned(), serial: "1650523000123".to_owned() },
        Card { uuid: "GPU-51".to_owned(), serial: String::new() },
    ];
    let repaired = What::Maintained {
        node: name(5),
        repair: true,
        card: Some("GPU-5".to_owned()),
        by: "adalovelace".to_owned(),
        why: "for babbage's job".to_owned(),
    };
    let ecc = "railgate: gpu-ecc@3: 0000:61:00.0 2 uncorrectable errors; reset GPU [epilog job=48213]";
    let held = "railgate: gpu-processes@3: pid 4711 of adalovelace; end it [epilog job=48214]";
    let all = [
        What::Placed { node: name(5), shares: vec![driver] },
        What::Cards { node: name(5), cards },
        drained(Drainer::Railgate, ecc),
        finding("gpu-ecc", Grade::Proof, Some("GPU-5")),
        drained(Drainer::Railgate, held),
        finding("gpu-processes", Grade::Hearsay, None),
        drained(Drainer::Admin, "adalovelace asked for it"),
        What::Rebooted { node: name(5), expected: Some(false) },
        repaired,
    ];
    let event = |(number, what)| {
        let id = format!("rma{number}");
        // A drain and its finding have one time.
        let time = ago + number as u64 / 2 * 2 * 60_000;
        Event { id, time, source: Source::Root, what }
    };
    let events: Vec<Event> = all.into_iter().enumerate().map(event).collect();
    Writer::open(&fleet.database, "test", now).unwrap().take_in(&events, now).unwrap();

    let text = fleet.said(&["rma", "n05"]);
    let wanted = [
        "n05: report for an RMA, 20",
        "driver    580.159.04",
        "card      GPU-5, 1650523000123",
        "card      GPU-51, serial number not known",
        "gpu-ecc: GPU (proof), card GPU-5",
        "gpu-ecc@3: 0000:61:00.0 2 uncorrectable errors",
        "rebooted unexpectedly",
        "repaired, card GPU-5",
    ];
    has(&text, &wanted);
    let json = fleet.json(&["rma", "n05", "--card", "GPU-5"]);
    assert_eq!(json["cards"].as_array().unwrap().len(), 1, "{json}");
    let whats: Vec<&str> =
        json["records"].as_array().unwrap().iter().filter_map(|one| one["what"].as_str()).collect();
    assert!(whats.len() == 6 && !whats.contains(&"rebooted unexpectedly"), "{whats:?}");
    for page in [text, json.to_string()] {
        for secret in ["adalovelace", "babbage", "4821", "4711", "gpu-processes", "asked for it"] {
            assert!(!page.contains(secret), "{secret} in {page}");
        }
    }
    for (words, why) in [
        (&["rma", "n99"][..], "n99: no event about such a node"),
        (&["rma", "n05", "--card", "GPU-6"], "GPU-6: n05 has no such card"),
    ] {
        let refused = fleet.run(words);
        assert_eq!(refused.status.code(), Some(2), "{words:?}");
        has(&String::from_utf8(refused.stderr).unwrap(), &[why]);
    }
}

#[test]
fn a_silence_is_made_listed_and_ended() {
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("fleet.db");
    let config = dir.path().join("railgate.toml");
    let row7 = "[alerts.silences.row7]\nnodes = ['gn7*']\nuntil = '2099-01-01T00:00:00Z'\nreason = 'power'\n";
    std::fs::write(&config, row7).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_railgate"));
        command.env("SUDO_USER", "alice").arg("--config").arg(&config).arg("fleet").args(words);
        let output = command.arg("--database").arg(&database).output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), out, String::from_utf8(output.stderr).unwrap())
    };
    let list = || serde_json::from_str::<Value>(&run(&["silences", "--format", "json"]).1).unwrap();
    let (code, said, err) = run(&["silence", "gn[001-003]", "--for", "4h", "--why", "new fans"]);
    assert_eq!(code, Some(0), "{err}");
    let id = said.split(':').next().unwrap().to_owned();
    has(
        &said,
        &[
            ": no alerts about gn[001-003] until 20",
            &format!("`railgate fleet unsilence {id}` ends it earlier"),
        ],
    );
    run(&["silence", "gn9*", "--for", "1h", "--why", "cables", "--check", "ib-port"]);
    let said = run(&["silences"]).1;
    has(&said, &["row7", "configuration", "gn[001-003]", "alice", "new fans", "gn9*, check ib-port"]);
    let json = list();
    assert_eq!(json["silences"].as_array().unwrap().len(), 3, "{json}");
    let made = &json["silences"][1];
    assert_eq!(
        (&made["id"], &made["source"], &made["by"]),
        (&id.as_str().into(), &"command".into(), &"alice".into())
    );
    for (words, code, part) in [
        (&["unsilence", &id][..], 0, ""),
        (&["unsilence", &id], 2, ": no such silence; `railgate fleet silences` lists them"),
        (
            &["unsilence", "row7"],
            2,
            "row7: a silence of the configuration; remove [alerts.silences.row7] there",
        ),
        (
            &["silence", "gn[1-", "--for", "4h", "--why", "a"],
            2,
            "gn[1-: not the name of a node, nor a host list: ",
        ),
        (
            &["silence", "gn1", "--for", "1s", "--why", "a"],
            2,
            "no silence was made: 1s is not within 1m to 90days",
        ),
        (&["silence", "gn1", "--for", "4h", "--why", " "], 2, "reason: needs 1 to 200 printable characters"),
        (&["silence", "gn1", "--for", "4h", "--why", "a", "--check", "ib-prot"], 2, "ib-prot: no such check"),
        (&["silence", "gn1", "--for", "4h"], 2, "--why"),
    ] {
        let (found, _, err) = run(words);
        assert_eq!(found, Some(code), "{words:?}: {err}");
        has(&err, &[part]);
    }
    assert_eq!(list()["silences"].as_array().unwrap().len(), 2);
    // Another line of the file is not valid: it is named, and the others hold.
    let file = dir.path().join("silences.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("for ever\n{text}")).unwrap();
    has(&run(&["silences"]).2, &["silences.jsonl:1: ", "; the line is ignored"]);
    assert!(list()["problems"][0].as_str().unwrap().contains("silences.jsonl:1: "));
}

/// Each field of the output is on the page, except names of nodes and cards, which are values.
#[test]
fn every_json_field_is_documented() {
    fn names(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                into.push(name.clone());
                names(value, into);
            }),
            Value::Array(items) => items.iter().for_each(|item| names(item, into)),
            _ => {}
        }
    }
    let fleet = Fleet::new();
    fleet.said(&["silence", "n01", "--for", "1h", "--why", "fans"]);
    let mut seen = Vec::new();
    for words in [
        &[][..],
        &["incidents"],
        &["lemons"],
        &["card", "GPU-5"],
        &["checks"],
        &["cost"],
        &["export"],
        &["silences"],
    ] {
        names(&fleet.json(words), &mut seen);
    }
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/json.md");
    let page = std::fs::read_to_string(page).unwrap();
    let known: Vec<&str> = page.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-')).collect();
    seen.retain(|name| !known.contains(&name.as_str()));
    assert_eq!(seen, Vec::<String>::new(), "docs/json.md lacks these");
}

#[test]
fn a_missing_history_is_named() {
    let silences = Command::new(env!("CARGO_BIN_EXE_railgate"))
        .args(["fleet", "silences", "--database", "/no/such/fleet.db"])
        .output()
        .unwrap();
    assert_eq!(silences.status.code(), Some(2), "not: no silences");
    has(&String::from_utf8(silences.stderr).unwrap(), &["silences are on the controller", "/no: "]);
    let absent = Command::new(env!("CARGO_BIN_EXE_railgate"))
        .args(["fleet", "--database", "/no/such/fleet.db"])
        .output()
        .unwrap();
    assert_eq!(absent.status.code(), Some(2));
    has(
        &String::from_utf8(absent.stderr).unwrap(),
        &["/no/such/fleet.db: no history", "railgate-fleet keeps it"],
    );
}

#[test]
fn figures_of_a_self_test_are_in_the_history_of_its_node() {
    let fleet = Fleet::new();
    let file = fleet.database.with_file_name("n05.jsonl");
    let line = |gpu: &str, rate: f64, wrong: u64| {
        let values = match wrong {
            0 => serde_json::json!({ "right": { "compared": 64 } }),
            wrong => serde_json::json!({ "wrong": { "compared": 64, "wrong": wrong, "first": [] } }),
        };
        serde_json::json!({
            "gpu": gpu, "model": "NVIDIA H200", "test": "gemm-rate-bf16", "seconds": 1.0, "values": values,
            "measured": { "rate_tflops": rate },
        })
    };
    let lines = [line("0000:61:00.0", 661.0, 0), line("0000:1b:00.0", 590.0, 3)];
    std::fs::write(&file, lines.map(|line| format!("{line}\n")).concat()).unwrap();
    let path = file.to_str().unwrap();
    for _ in 0..2 {
        let said = fleet.said(&["tested", "n05", path, "--ago", "3h"]);
        has(
            &said,
            &[
                "n05.jsonl: 2 figures of 2 GPUs of n05, tested at 20",
                "wrong values: gemm-rate-bf16 of 0000:1b:00.0: 3",
                "then `railgate fleet node n05` shows it",
            ],
        );
    }
    let entered = EnteredFile::beside(&fleet.database).read().unwrap();
    let mut ids: Vec<&str> = entered.events.iter().map(|event| event.id.as_str()).collect();
    ids.dedup();
    assert_eq!((ids.len(), entered.problems.len()), (4, 0), "{ids:?}");
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 2, "the same file has the same events: {ids:?}");
    std::fs::write(&file, "{}").unwrap();
    for (words, why) in [
        (["n05", path].as_slice(), "n05.jsonl: line 1 is no line of railgate-gpu-selftest"),
        (&["n99", path], "n99: the history has no such node"),
        (&["n05", path, "--ago", "40days"], "--ago: at most 28days"),
        (&["n05", "/no/such/file"], "/no/such/file"),
    ] {
        let refused = fleet.run(&[&["tested"], words].concat());
        assert_eq!(refused.status.code(), Some(2), "{words:?}");
        has(&String::from_utf8(refused.stderr).unwrap(), &[why]);
    }
}

#[test]
fn figures_of_an_acceptance_are_in_the_history_of_their_nodes() {
    let fleet = Fleet::new();
    let report = |value: f64| {
        serde_json::json!({
            "schema": 1, "title": "t", "run": "r1", "railgate": "1", "began": 1_u64, "made": 1_700_000_000_000_u64,
            "plan_digest": "", "results_digest": "", "nodes": ["n05"], "units_done": 1, "units": 1, "overall": "fail",
            "items": [], "inventory": [], "heat_maps": [], "mttf": null, "exceptions": [], "not_in_plan": [],
            "changes": null,
            "figures": [{
                "id": "node.memory-read.gbps", "unit": "GB/s", "better": "higher", "min": value, "median": value,
                "max": value, "at_least": 3000.0, "at_most": null, "tolerance": "", "source": "", "outliers": [],
                "spread_percent": null,
                "values": [{ "node": "n05", "part": "n05 0000:1b:00.0", "repetition": 1, "value": value }],
            }],
        })
    };
    let file = fleet.database.with_file_name("accepted.json");
    std::fs::write(&file, report(2500.0).to_string()).unwrap();
    let said = fleet.said(&["accepted", file.to_str().unwrap()]);
    has(&said, &["accepted.json: 1 figure of 1 node, from a report of 2023-11-14", "beyond a limit: n05"]);
    std::fs::write(&file, "{}").unwrap();
    let refused = fleet.run(&["accepted", file.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    has(
        &String::from_utf8(refused.stderr).unwrap(),
        &["accepted.json: not a report of `railgate accept report --format json`: missing field"],
    );
    let entered = EnteredFile::beside(&fleet.database).read().unwrap();
    let [Event { what: What::SelfTested { node, figure, passed, .. }, .. }] = entered.events.as_slice()
    else {
        panic!("{entered:?}")
    };
    assert_eq!(
        (node.as_str(), figure.as_str(), *passed),
        ("n05", "node.memory-read.gbps@0000:1b:00.0", Some(false))
    );
}

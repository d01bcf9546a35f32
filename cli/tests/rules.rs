//! Diagnosis rules on the command line: the listing, `explain`, and errors in their thresholds.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::{Command, Output};

use serde_json::Value;

/// Runs railgate with this text as its configuration.
fn run(config: &str, words: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("railgate.toml"), config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_railgate"));
    command.current_dir(dir.path()).args(["--config", "railgate.toml"]).args(words).output().unwrap()
}

fn text(config: &str, words: &[&str]) -> String {
    let output = run(config, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(config: &str, words: &[&str]) -> Value {
    serde_json::from_str(&text(config, &[words, &["--format", "json"]].concat())).unwrap()
}

#[test]
fn each_listed_rule_is_explained_with_its_thresholds() {
    let listed = json("", &["report", "--rules"]);
    let table = text("", &["report", "--rules"]);
    let defaults = text("", &["config", "show"]);
    let rules = listed["rules"].as_array().unwrap();
    assert!(rules.len() >= 10 && table.lines().count() == rules.len() + 1, "{table}");
    for rule in rules {
        let id = rule["id"].as_str().unwrap();
        assert!(table.lines().any(|line| line.split_whitespace().next() == Some(id)), "{id}");
        let said = text("", &["explain", id]);
        assert!(said.starts_with(&format!("{id}: {}.\n", rule["about"].as_str().unwrap())), "{said}");
        for part in ["Reads: ", "Why: ", "Looks the same: ", "Fix: "] {
            assert!(said.contains(&format!("\n{part}")), "{id}: {part}");
        }
        let told = json("", &["explain", id]);
        assert_eq!((&told["rule"], told["text"].as_str()), (rule, Some(said.trim())));
        for one in rule["thresholds"].as_array().unwrap() {
            let (key, default) = (one["key"].as_str().unwrap(), &one["default"]);
            assert!(said.contains(&format!("\n{key} = {default}\n")), "{id}: {key} = {default}: {said}");
            assert!(defaults.contains(&format!("report.rules.{id}.{key} = {default}\n")), "{id}: {key}");
        }
    }
}

#[test]
fn an_invalid_threshold_is_reported_with_its_position() {
    for (config, wanted) in [
        (
            "[report.rules.slow-clok]\nbelow_percent = 5.0\n",
            ":1:15: unknown field `slow-clok`; did you mean `slow-clock`?",
        ),
        (
            "[report.rules.slow-clock]\nbelow_percnt = 5.0\n",
            ":2:1: unknown field `below_percnt`; did you mean `below_percent`?",
        ),
        (
            "[report.rules.slow-clock]\nbelow_percent = 95\n",
            ":2:1: report.rules.slow-clock.below_percent: 95 is not within 0.1 to 90",
        ),
        ("[report.rules.slow-clock]\nbelow_percent = nan\n", "below_percent: NaN is not within 0.1 to 90"),
        ("[report.rules.slow-clock]\nbelow_percent = 'x'\n", ":2:17: wants a number, not string \"x\""),
        ("[report.rules.hang]\nstandstill = 120\n", ":2:14: invalid type: integer `120`, expected a string"),
        (
            "[report.rules.hang]\nstandstill = '2d 1s'\n",
            "report.rules.hang.standstill: 2days 1s is not within 1s to 1day",
        ),
        ("[report.rules.nan]\nbelow_percent = 5.0\n", ":2:1: unknown field `below_percent`"),
        (
            "[slow-clock]\nbelow_percent = 5.0\n",
            ":1:2: unknown field `slow-clock`; it belongs to [report.rules]",
        ),
    ] {
        let wrong = run(config, &["config", "check"]);
        assert_eq!(wrong.status.code(), Some(2), "{config}");
        let error = String::from_utf8(wrong.stderr).unwrap();
        assert!(error.contains(wanted), "{config}{error}");
    }
    let shown = text(
        "[report.rules.slow-clock]\nbelow_percent = 5\n\n[report.rules.hang]\nstandstill = \"90s\"\n",
        &["config", "show", "--origin"],
    );
    for (key, place) in [("slow-clock.below_percent = 5.0 ", 2), ("hang.standstill = \"1m 30s\" ", 5)] {
        let line = shown.lines().find(|line| line.starts_with(&format!("report.rules.{key}"))).unwrap();
        assert!(line.ends_with(&format!("# railgate.toml:{place}")), "{line}");
    }
}

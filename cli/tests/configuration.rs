//! `docs/configuration.md` is written by hand; these tests compare its keys, defaults and limits with those of the
//! program.
#![expect(clippy::unwrap_used, reason = "a helper of tests")]

use std::path::Path;
use std::process::Command;

/// Output of the program about a configuration, and whether it accepts it.
fn told(config: &str, words: &[&str]) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("railgate.toml"), config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_railgate"));
    let output =
        command.current_dir(dir.path()).args(["--config", "railgate.toml"]).args(words).output().unwrap();
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(text).unwrap())
}

fn defaults() -> String {
    let (right, said) = told("", &["config", "show"]);
    assert!(right, "{said}");
    said
}

fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)).unwrap()
}

/// The page that documents the keys of a register (checks, diagnosis rules).
fn register_of(table: &str) -> Option<&'static str> {
    let pages = [("gate.checks.", "docs/checks.md"), ("report.rules.", "docs/rules.md")];
    pages.into_iter().find(|(tables, _)| table.starts_with(tables)).map(|(_, page)| page)
}

/// Keys of checks and rules are on the pages generated from the registers; all others have a row on this page.
#[test]
fn every_key_is_explained_with_its_default() {
    let (page, registers) = (page("docs/configuration.md"), page("docs/checks.md") + &page("docs/rules.md"));
    let row = |key: &str| page.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
    let block = |table: &str| {
        let (_, rest) =
            registers.split_once(&format!("[{table}]\n")).unwrap_or_else(|| panic!("no [{table}]"));
        rest.split_once("```").unwrap().0
    };
    let defaults = defaults();
    let mut tables = std::collections::BTreeSet::from([String::new()]);
    let (mut documented, mut wrong) = (0, Vec::new());
    for (key, default) in defaults.lines().map(|line| line.split_once(" = ").unwrap()) {
        let mut parts = key.match_indices('.').map(|(at, _)| &key[..at]);
        if let Some(made) = register_of(key) {
            let table = parts.nth(2).unwrap();
            let said: toml::Value = toml::from_str(block(table)).unwrap();
            let said = key[table.len() + 1..].split('.').try_fold(&said, |value, name| value.get(name));
            let default: toml::Table = toml::from_str(&format!("x = {default}")).unwrap();
            if said != default.get("x") {
                wrong.push(format!("{made}: {key} is {default:?}, not {said:?}"));
            }
            tables.extend([table.rsplit_once('.').unwrap().0, table].map(str::to_owned));
        } else {
            match row(key) {
                Some(row) if row.contains(&format!("| `{default}` |")) => documented += 1,
                row => wrong.push(format!("docs/configuration.md: {key} is {default}, not {row:?}")),
            }
            tables.extend(parts.map(str::to_owned));
        }
    }
    // Keys without a default appear only in the message about unknown keys.
    for table in &tables {
        let header = if table.is_empty() { String::new() } else { format!("[{table}]\n") };
        let (_, said) = told(&format!("{header}no_such_key = 1\n"), &["config", "check"]);
        let (_, known) = said.split_once("expected ").unwrap_or_else(|| panic!("[{table}]: {said}"));
        for key in known.lines().next().unwrap_or_default().split('`').skip(1).step_by(2) {
            let path = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
            if let Some(made) = register_of(table) {
                let line = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{key} = "));
                if !block(table).lines().any(line) {
                    wrong.push(format!("{made} lacks {path}"));
                }
            } else if register_of(&path).is_some() && registers.contains(&format!("\n## {key}\n")) {
                // A rule without thresholds.
            } else if !tables.contains(&path) && row(&path).is_none_or(|row| row.contains("| none |")) {
                match row(&path) {
                    Some(_) => documented += 1,
                    None => wrong.push(format!("docs/configuration.md lacks {path}")),
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    let rows = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, documented, "keys that are gone");
}

/// Parses a number, or a duration to seconds.
fn quantity(word: &str) -> Option<f64> {
    let word = word.trim_matches([',', ';', ':', '.', ')', '(', '`']);
    let (number, unit) = word.split_at(word.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(word.len()));
    let seconds = match unit {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        "day" | "days" => 86400.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * seconds)
}

/// The limits in a sentence: "1 to 64", "1s and 10m", "at most 100", "above 100".
fn limits(sentence: &str) -> Option<(f64, f64)> {
    let words: Vec<&str> = sentence.split_whitespace().collect();
    words.windows(3).find_map(|three| match *three {
        [low, "to" | "and", high] => Some((quantity(low)?, quantity(high)?)),
        ["at", "most", high] | [_, "above", high] => Some((0.0, quantity(high)?)),
        _ => None,
    })
}

/// The program accepts and refuses values as the page documents, in the same unit.
#[test]
fn documented_and_actual_limits_agree() {
    let page = page("docs/configuration.md");
    let defaults = defaults();
    let default = |key: &str| defaults.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")));
    let set = |key: &str, value: &str| {
        let (table, name) = key.rsplit_once('.').unwrap();
        // A large NCCL watchdog, so that the tested value is not refused because of it.
        let beside = if table == "rails" { "watchdog = '1000days'\n" } else { "" };
        told(&format!("[{table}]\n{beside}{name} = {value}\n"), &["config", "check"])
    };
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for row in page.lines().filter(|line| line.starts_with("| `") && line.contains('.')) {
        let mut cells = row.split(" | ");
        let key = cells.next().unwrap().trim_start_matches("| ").trim_matches('`').to_owned();
        let said = limits(cells.nth(1).unwrap());
        let is_time = |text: &str| text.split(' ').all(|part| quantity(part).is_some());
        let time =
            default(&key).is_some_and(|value| value.starts_with('"') && is_time(value.trim_matches('"')));
        let number = default(&key).is_some_and(|value| quantity(value).is_some());
        if !time && !number && said.is_none() || !key.contains('.') || key == "rails.watchdog" {
            continue;
        }
        let value = |quantity: f64| match time {
            true => format!("'{}ms'", quantity * 1000.0),
            false if default(&key).is_some_and(|value| value.contains('.')) => format!("{quantity:?}"),
            false => format!("{quantity}"),
        };
        let far = value(4e9);
        let (content, problem) = set(&key, &far);
        let holds = if content { None } else { limits(&problem) };
        let holds = holds.filter(|(_, high)| *high < 4e9);
        if said != holds {
            wrong.push(format!("{key}: {said:?} on the page, {holds:?} held: {problem}"));
            continue;
        }
        let Some((low, high)) = said else { continue };
        seen += 1;
        let step = if time { 0.001 } else { 1.0 };
        for (quantity, right) in [(low, true), (high, true), (high + step, false), (low - step, false)] {
            let zero = quantity == 0.0 && row.contains("0s: never");
            if quantity >= 0.0 && set(&key, &value(quantity)).0 != (right || zero) {
                wrong.push(format!(
                    "{key}: {} is to be {}",
                    value(quantity),
                    if right { "taken" } else { "refused" }
                ));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(seen > 20, "{seen} limits");
}

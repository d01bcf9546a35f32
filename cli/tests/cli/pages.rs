//! Commands, settings, JSON fields and links in the pages exist.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Cli, err};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|why| panic!("{name}: {why}"))
}

/// All pages for users and admins.
fn pages() -> Vec<(String, String)> {
    let mut names = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    for dir in ["docs", "docs/decisions"] {
        for entry in std::fs::read_dir(root().join(dir)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                names.push(format!("{dir}/{name}"));
            }
        }
    }
    names.into_iter().map(|name| (page(&name), name)).map(|(text, name)| (name, text)).collect()
}

/// Code blocks of a page that begin with this fence.
fn blocks(text: &str, fence: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            if line == fence {
                found.push(block.join("\n") + "\n");
            }
        }
    }
    found
}

#[test]
fn configuration_blocks_in_the_pages_are_valid() {
    let mut seen = 0;
    for (name, text) in pages() {
        for block in blocks(&text, "```toml") {
            // A first line with a comment names a different file.
            if block.starts_with('#') {
                continue;
            }
            let checked = Cli::new(&block).run(&["config", "check"]);
            assert!(checked.status.success(), "{name}:\n{block}\n{}", err(&checked));
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn commands_in_pages_and_help_exist() {
    let cli = Cli::new("");
    let mut shown = Vec::new();
    for (_, text) in pages() {
        shown.extend(blocks(&text, "```").concat().lines().map(str::to_owned));
    }
    let all = cli.said(&["--help"]);
    let (_, commands) = all.split_once("Commands:\n").unwrap();
    let commands = commands.lines().take_while(|line| !line.is_empty());
    let names: Vec<&str> = commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    assert!(names.len() >= 10 && all.lines().all(|line| line.chars().count() <= 100), "{all}");
    for command in names.into_iter().filter(|name| !["", "help"].contains(name)) {
        let help = cli.said(&[command, "--help"]);
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
        shown.extend(help.lines().map(|line| line.trim().to_owned()));
    }
    let mut seen = 0;
    for line in shown {
        let line = line.replace("cargo run --bin railgate -- ", "railgate ");
        let Some(rest) = line.strip_prefix("railgate ") else { continue };
        // Text after two blanks is a remark, and text after a semicolon or pipe is for the shell.
        let rest = rest.split("  ").next().unwrap_or_default();
        let rest = rest.split([';', '>', '|']).next().unwrap_or_default();
        // Text after two dashes belongs to another program.
        let rest = rest.split(" -- ").next().unwrap_or_default();
        let words: Vec<&str> = rest.split(' ').filter(|word| !word.is_empty()).collect();
        if rest.contains(['\'', '…', '[']) || words.is_empty() || words[0].chars().any(char::is_uppercase) {
            continue;
        }
        let output = cli.run(&[&words[..], &["--help"]].concat());
        assert!(output.status.success(), "railgate {rest}: {}", err(&output));
        seen += 1;
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn every_json_field_is_documented() {
    fn names(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    into.push(name.clone());
                    // The keys in these are names from the kernel.
                    if !["counters", "governors"].contains(&name.as_str()) {
                        names(value, into);
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| names(item, into)),
            _ => {}
        }
    }
    let cli = Cli::new("");
    let page = page("docs/json.md");
    let faults = "h100-sxm:gpu-lost@3,gpu-process-leftover@1,gpu-xid-63,mount-hang,ib-missing,cloud-reboot";
    let mut seen = Vec::new();
    for words in [
        &["check", "--list"][..],
        &["simulate", "--list"],
        &["check", "--simulate", faults],
        &["rails", "--simulate", faults],
        &["doctor"],
        &["template", "list"],
        &["rma", "gn1", "--simulate", faults],
        &["check", "--history"],
        &["report", "--rules"],
        &["explain", "launch-bound"],
    ] {
        names(&cli.json(words), &mut seen);
    }
    names(&serde_json::from_str(&cli.said(&["snapshot", "--simulate", faults])).unwrap(), &mut seen);
    let shown = cli.json(&["config", "show"]);
    seen.extend(shown.as_object().unwrap().keys().cloned());
    seen.extend(shown["values"]["gate.mode"].as_object().unwrap().keys().cloned());
    let known: Vec<&str> = page.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-')).collect();
    seen.retain(|name| !known.contains(&name.as_str()));
    assert_eq!(seen, Vec::<String>::new(), "docs/json.md lacks these");
}

#[test]
fn links_between_the_pages_are_valid() {
    for (name, text) in pages() {
        let dir = root().join(&name).parent().unwrap().to_owned();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains("://") {
                assert!(dir.join(path).exists(), "{name}: {link}");
            }
        }
    }
}

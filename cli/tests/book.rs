//! The documentation as a book: every page is in it, every link leads to a page of it, and `console` blocks show the
//! actual output of the commands.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").canonicalize().unwrap()
}

/// Every page by its path below docs/.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut pages = BTreeMap::new();
    for dir in ["", "decisions"] {
        for entry in fs::read_dir(docs().join(dir)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "md") {
                pages.insert(
                    path.strip_prefix(docs()).unwrap().to_owned(),
                    fs::read_to_string(&path).unwrap(),
                );
            }
        }
    }
    pages
}

/// The text without code blocks and code spans.
fn prose(text: &str) -> String {
    let mut inside = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    });
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    text.split('`').step_by(2).collect::<Vec<_>>().join("x")
}

fn links(text: &str) -> Vec<String> {
    prose(text).split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned).collect()
}

/// Anchors of the headings, as mdbook and GitHub form them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut inside = false;
    let headings = text.lines().filter(|line| {
        inside ^= line.trim_start().starts_with("```");
        !inside && line.starts_with('#')
    });
    headings
        .map(|line| {
            let name = line.trim_start_matches('#').trim().to_lowercase();
            name.chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

/// Normalizes a path: `a/../b` becomes `b`; `None` if it leaves docs/.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if !plain.pop() => return None,
            Component::Normal(name) => plain.push(name),
            _ => {}
        }
    }
    Some(plain)
}

#[test]
fn every_page_is_in_the_book_once() {
    let pages = pages();
    let mut listed = links(&pages[Path::new("SUMMARY.md")]);
    // The decisions are listed on one page.
    listed.extend(
        links(&pages[Path::new("decisions/README.md")]).iter().map(|link| format!("decisions/{link}")),
    );
    listed.sort();
    let mut wanted: Vec<String> = pages.keys().map(|path| path.display().to_string()).collect();
    wanted.retain(|name| name != "SUMMARY.md");
    wanted.sort();
    assert_eq!(listed, wanted);
}

#[test]
fn every_link_leads_to_an_existing_place_in_the_book() {
    let pages = pages();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (name, text) in &pages {
        for link in links(text).into_iter().filter(|link| !link.contains("://")) {
            seen += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target =
                if path.is_empty() { Some(name.clone()) } else { plain(&name.parent().unwrap().join(path)) };
            let page = target.and_then(|target| pages.get(&target));
            if page.is_none_or(|page| !anchor.is_empty() && !anchors(page).contains(anchor)) {
                wrong.push(format!("{}: {link}", name.display()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(seen > 60, "{seen}");
}

/// Whether printed lines match the shown ones; a line `…` stands for any number of lines, and `…` at the end of a
/// line for its rest.
fn alike(shown: &[&str], printed: &[&str]) -> bool {
    match (shown, printed) {
        ([], []) => true,
        (["…", rest @ ..], _) => (0..=printed.len()).any(|skip| alike(rest, &printed[skip..])),
        ([first, rest @ ..], [line, more @ ..]) => {
            let same = first.strip_suffix('…').map_or(first == line, |start| line.starts_with(start));
            same && alike(rest, more)
        }
        _ => false,
    }
}

#[test]
fn console_blocks_match_the_output_of_the_commands() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("railgate.toml"), "").unwrap();
    let mut all: Vec<(String, String)> =
        pages().into_iter().map(|(name, text)| (name.display().to_string(), text)).collect();
    all.push(("README.md".to_owned(), fs::read_to_string(docs().join("../README.md")).unwrap()));
    let mut run = 0;
    for (name, text) in all {
        for block in text.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            for part in block.split("$ railgate ").skip(1) {
                let (words, shown) = part.split_once('\n').unwrap();
                let output = Command::new(env!("CARGO_BIN_EXE_railgate"))
                    .current_dir(place.path())
                    .args(["--config", "railgate.toml"])
                    .args(words.split_whitespace())
                    .output()
                    .unwrap();
                let printed = String::from_utf8_lossy(&output.stdout).into_owned();
                let (shown, lines): (Vec<&str>, Vec<&str>) =
                    (shown.lines().collect(), printed.lines().collect());
                assert!(
                    alike(&shown, &lines),
                    "{name}: railgate {words} printed\n{printed}{}",
                    String::from_utf8_lossy(&output.stderr)
                );
                run += 1;
            }
        }
    }
    assert!(run >= 5, "{run}");
}

#[test]
fn an_ellipsis_matches_lines_and_ends_of_lines() {
    for (shown, printed, same) in [
        ("a\n…\nd", "a\nb\nc\nd", true),
        ("a\n…\nd", "a\nb\nc", false),
        ("a…", "abc", true),
        ("a", "ab", false),
        ("…", "", true),
    ] {
        let lines = |text: &'static str| text.lines().collect::<Vec<_>>();
        assert_eq!(alike(&lines(shown), &lines(printed)), same, "{shown} {printed}");
    }
}

//! Phrases that must not come back into the texts for people: pages, help, messages, templates. `phrases.toml` lists them with
//! replacements.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod text;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use text::{BREAK, Text};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    phrases: Vec<Phrase>,
    exceptions: Vec<Exception>,
    not_yet: Vec<String>,
}

/// Consecutive words; `a|b` matches either, `END` the end of a sentence, of a list item or of a text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Phrase {
    words: String,
    instead: String,
}

/// File, words of the line, and the reason of the exception.
#[derive(Deserialize)]
struct Exception(String, String, String);

struct Hit {
    file: String,
    line: usize,
    words: String,
    instead: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn list() -> List {
    toml::from_str(&fs::read_to_string(root().join("tests/phrases.toml")).unwrap()).unwrap()
}

/// Words and punctuation marks in lower case, with their lines.
fn tokens(text: &Text) -> Vec<(String, usize)> {
    let mut tokens: Vec<(String, usize)> = Vec::new();
    let mut inside = false;
    for (c, line) in text {
        let letter = c.is_alphanumeric() || "_-'’".contains(*c);
        match tokens.last_mut() {
            Some((word, _)) if letter && inside => word.extend(c.to_lowercase()),
            _ if letter => tokens.push((c.to_lowercase().collect(), *line)),
            _ if c.is_whitespace() => {}
            _ => tokens.push((c.to_string(), *line)),
        }
        inside = letter;
    }
    tokens.push((BREAK.to_string(), text.last().map_or(1, |(_, line)| *line)));
    tokens
}

/// Lines in which the words begin.
fn lines_with(words: &str, tokens: &[(String, usize)]) -> Vec<usize> {
    let words: Vec<&str> = words.split_whitespace().collect();
    let is = |wanted: &str, token: &str| match wanted {
        "END" => [".", ";", ":", "!", "?", "|", "\0"].contains(&token),
        _ => wanted.split('|').any(|word| word == token),
    };
    let here =
        |window: &[(String, usize)]| words.iter().zip(window).all(|(word, (token, _))| is(word, token));
    tokens.windows(words.len()).filter(|window| here(window)).map(|window| window[0].1).collect()
}

/// All files below a folder except tests and build output.
fn below(folder: &Path, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let test = ["tests", "testing", "tests.rs", "testing.rs", "target"].contains(&name.as_str());
        if test || name.starts_with('.') || name.starts_with("test_") {
        } else if path.is_dir() {
            below(&path, files);
        } else {
            files.push(path);
        }
    }
}

/// All texts for people: path relative to the root, and text.
fn everything() -> Vec<(String, Text)> {
    let root = root();
    let mut files = vec![root.join("README.md"), root.join("CONTRIBUTING.md"), root.join("CHANGELOG.md")];
    for folder in ["docs", "contrib", "sbatch-templates", "profiles"] {
        below(&root.join(folder), &mut files);
    }
    let programs =
        ["cli", "prolog", "epilog", "epilog/ctld", "sampler", "spank-plugin", "nccl-env", "nccl-profiler"];
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for package in programs.iter().map(|name| root.join(name)).chain(crates) {
        below(&package.join("src"), &mut files);
    }
    let mut read = Vec::new();
    for path in files {
        let Ok(content) = fs::read_to_string(&path) else { continue };
        let name = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        let text = match path.extension().and_then(|end| end.to_str()) {
            // Past releases are not rewritten; only the topmost section is checked.
            Some("md") if name == "CHANGELOG.md" => text::of_page(content.split("\n## ").nth(1).unwrap()),
            Some("md") => text::of_page(&content),
            Some("rs") => text::of_source(&content),
            _ => text::of_file(&content),
        };
        read.push((name, text));
    }
    read
}

#[test]
fn stilted_phrases_do_not_come_back() {
    let list = list();
    let mut used = vec![false; list.exceptions.len()];
    let (mut hits, mut later): (Vec<Hit>, Vec<Hit>) = (Vec::new(), Vec::new());
    for (file, text) in everything() {
        let tokens = tokens(&text);
        let content = fs::read_to_string(root().join(&file)).unwrap();
        // The topmost section of the changelog does not begin in line 1.
        let skipped = if file == "CHANGELOG.md" {
            content.split("\n## ").next().unwrap().matches('\n').count() + 1
        } else {
            0
        };
        for phrase in &list.phrases {
            for line in lines_with(&phrase.words, &tokens).into_iter().map(|line| line + skipped) {
                let text = content.lines().nth(line - 1).unwrap_or_default().trim().to_owned();
                let excepted = list
                    .exceptions
                    .iter()
                    .position(|Exception(path, words, _)| *path == file && text.contains(words));
                if let Some(at) = excepted {
                    used[at] = true;
                    continue;
                }
                let hit = Hit {
                    file: file.clone(),
                    line,
                    words: phrase.words.clone(),
                    instead: phrase.instead.clone(),
                    text,
                };
                let waits = list.not_yet.iter().any(|folder| file.starts_with(folder.as_str()));
                if waits { later.push(hit) } else { hits.push(hit) }
            }
        }
    }
    println!("not fixed yet: {}\n{}", later.len(), shown(&later));
    assert!(hits.is_empty(), "{} phrases to replace (tests/phrases.toml):\n{}", hits.len(), shown(&hits));
    let unused =
        list.exceptions.iter().zip(used).filter(|(_, used)| !used).map(|(exception, _)| &exception.0);
    assert_eq!(unused.collect::<Vec<_>>(), Vec::<&String>::new(), "unused exceptions");
}

fn shown(hits: &[Hit]) -> String {
    hits.iter().fold(String::new(), |mut all, hit| {
        let _ = writeln!(
            all,
            "{}:{}: \"{}\", better: {}\n    {}",
            hit.file, hit.line, hit.words, hit.instead, hit.text
        );
        all
    })
}

#[test]
fn the_list_is_short_and_every_row_has_a_reason() {
    let list = list();
    assert!(
        (20..=30).contains(&list.phrases.len()),
        "{} phrases: keep the list between 20 and 30",
        list.phrases.len()
    );
    for Phrase { words, instead } in &list.phrases {
        assert!(
            !instead.is_empty() && *words == words.replace("END", "end").to_lowercase().replace("end", "END"),
            "{words}"
        );
    }
    for Exception(file, words, why) in &list.exceptions {
        assert!(root().join(file).is_file() && !words.is_empty() && !why.is_empty(), "{file}: {words}");
    }
}

#[test]
fn a_phrase_is_found_across_lines_and_only_whole() {
    let found = |words: &str, text: &Text| lines_with(words, &tokens(text));
    let page = "It is\ntold so.\n\nIt is\n\ntold. `it is told` Is TOLD\n\n```\n# it is told\n```\nretold is toldish\n";
    assert_eq!(found("is told", &text::of_page(page)), [1, 6, 9]);
    assert_eq!(found("told so END", &text::of_page(page)), [2]);
    assert_eq!(found("a|is told", &text::of_file("# this is\n# told\n")), [1]);
}

#[test]
fn string_literals_and_help_of_a_source_are_read() {
    let source = r##"// nobody
/* nobody /* nobody */ nobody */
fn f<'a>(c: char) -> &'a str {
    if c == '"' || c == '\'' { return "whoever \"looks\" \
        here"; }
    r#"raw "nobody" \"# + b"bytes" + r.field + br"more"
}
#[cfg(test)]
mod tests {
    const A: &str = "of tests";
}
"##;
    let read = |source: &str| text::of_source(source).into_iter().map(|(c, _)| c).collect::<String>();
    let literals = "whoever \"looks\" here\0raw \"nobody\" \\\0bytes\0more\0";
    assert_eq!(read(source), literals);
    let help = "#[derive(clap::Args)]\nstruct A {\n    /// What it\n    /// does\n    a: u8,\n    // why\n    /// Next\n    b: u8,\n}\n";
    assert_eq!(read(help), " What it  does\0 Next\0");
    assert_eq!(read("/// not printed\nfn f() {}"), "");
}

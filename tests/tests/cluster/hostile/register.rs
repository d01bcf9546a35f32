//! Every case of the hostile suite. A new input of railgate needs a case here and a row in docs/security.md.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use railgate_tests::cluster::Builder;
use railgate_tests::skipped;

use super::stage::{Case, Input, Stage};
use super::{fields, files, job_dir, kernel_log, locks, logs, privacy, processes, reports, timing};

/// In the order of docs/security.md.
pub(super) const REGISTER: &[&Input] = &[
    &kernel_log::INPUT,
    &processes::INPUT,
    &job_dir::INPUT,
    &reports::INPUT,
    &fields::FIELDS,
    &fields::ENVIRONMENT,
    &logs::INPUT,
    &files::INPUT,
    &locks::INPUT,
    &privacy::INPUT,
    &timing::INPUT,
];

/// Cases that are known to fail, with the work item that will fix each.
pub(super) const EXPECTED_AFTER: &[(&str, u8)] = &[];

/// Environment variable that selects cases whose ids contain its value, including skipped ones: `RAILGATE_HOSTILE=kmsg-`.
const ONLY: &str = "RAILGATE_HOSTILE";

/// Runs all cases of these inputs on one cluster, one after another.
pub(super) fn play(builder: Builder, inputs: &[&Input]) -> Result<()> {
    let only = std::env::var(ONLY).ok();
    let wanted = |case: &&Case| only.as_ref().is_none_or(|only| case.id.contains(only.as_str()));
    let cases: Vec<&Case> = inputs.iter().flat_map(|input| input.cases).filter(wanted).collect();
    if cases.is_empty() {
        return skipped("no case of this name here");
    }
    builder.test(|cluster| {
        let stage = Stage::new(cluster)?;
        let mut broken = String::new();
        for case in cases {
            let later = EXPECTED_AFTER.iter().find(|(id, _)| *id == case.id);
            if let Some((id, item)) = later.filter(|_| only.is_none()) {
                skipped(&format!("{id}: until item {item} is closed"))?;
                continue;
            }
            let begun = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| (case.run)(&stage)))
                .unwrap_or_else(|_| Err(anyhow!("it panicked")));
            let result = result.map_err(|why| why.context("the attack itself")).and_then(|()| stage.holds());
            println!("{}: {:.1} s", case.id, begun.elapsed().as_secs_f64());
            if let Err(why) = result {
                let _ = writeln!(broken, "{}: {}: {why:#}", case.id, case.does);
                eprintln!("{}: {why:#}", case.id);
                stage.mend()?;
            }
        }
        ensure!(broken.is_empty(), "{broken}");
        Ok(())
    })
}

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
    fs::read_to_string(page).unwrap_or_default()
}

fn cases() -> impl Iterator<Item = &'static Case> {
    REGISTER.iter().flat_map(|input| input.cases)
}

/// The table of cases in docs/security.md.
fn table() -> String {
    let mut text = String::from("| input | case | what the user does |\n|---|---|---|\n");
    for input in REGISTER {
        for case in input.cases {
            let _ = writeln!(text, "| {} | `{}` | {} |", input.name, case.id, case.does);
        }
    }
    text
}

#[test]
fn case_ids_are_unique_and_valid() {
    let mut seen = BTreeSet::new();
    for case in cases() {
        assert!(seen.insert(case.id), "{} twice", case.id);
        assert!(
            case.id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
            "{}",
            case.id
        );
    }
    assert!(seen.len() >= 60, "{} cases", seen.len());
    for (id, item) in EXPECTED_AFTER {
        assert!(seen.contains(id) && (1..=14).contains(item), "{id}: {item}");
    }
}

#[test]
fn the_page_has_every_case() {
    let (page, table) = (page(), table());
    assert!(page.contains(&table), "docs/security.md must hold this table as it is:\n\n{table}");
}

/// Names of all tests in the workspace's sources.
fn tests() -> BTreeSet<String> {
    fn walk(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() && name != "target" && name != ".git" {
                walk(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).unwrap_or_default();
                let names = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
                found.extend(names.map(str::to_owned));
                let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                found.insert(format!("{stem}.rs"));
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut found);
    found
}

/// Every security claim needs a test: the last column of both tables names cases of the suite, tests, or test files.
#[test]
fn every_claim_of_the_page_names_its_tests() {
    let (page, tests) = (page(), tests());
    let known = |word: &str| cases().any(|case| case.id == word) || tests.contains(word);
    let mut rows = 0;
    for (head, what) in [("| path | owner, mode |", "paths"), ("| claim | held by |", "claims")] {
        for table in page.split(head).skip(1) {
            for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
                let last = row.trim_end_matches(['|', ' ']).rsplit(" | ").next().unwrap_or_default();
                let named: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
                assert!(!named.is_empty(), "{what}: no test in: {row}");
                for name in named {
                    assert!(known(name), "{what}: no case and no test '{name}' in: {row}");
                }
                rows += 1;
            }
        }
    }
    assert!(rows >= 40, "{rows} rows");
}

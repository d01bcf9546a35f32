//! What reports say about recorded jobs of real GPUs (`tests/corpus/`, made by `tests/gpu/corpus.sh`), against what they must
//! say (`tests/gpu/corpus.toml`). Usage, communication and the program's report are made anew from the raw files, so that
//! a change of any rule shows in the table:
//!
//! `cargo test -p railgate-tests --test corpus -- --nocapture`
//!
//! `RAILGATE_CORPUS` names another folder of recordings.
#![expect(clippy::unwrap_used, reason = "a test")]

mod expect;
mod guard;
mod recording;
mod synthetic;
mod variants;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;
use serde::Deserialize;

use expect::{Half, Kinds, Outcome};
use recording::Recording;

/// All recordings together, bytes.
const MOST_BYTES: usize = 4 << 20;

/// `tests/corpus/known.toml`: a comparison that is not right yet.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    gpu: String,
    kind: String,
    outcome: Outcome,
    reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KnownFailures {
    known: Vec<Known>,
}

fn kinds() -> Kinds {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu/corpus.toml");
    toml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn corpus() -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    std::env::var_os("RAILGATE_CORPUS").map_or_else(here, PathBuf::from)
}

fn known() -> Vec<Known> {
    let text = fs::read_to_string(corpus().join("known.toml")).unwrap_or_default();
    toml::from_str::<KnownFailures>(&text).unwrap().known
}

/// GPU, kind and place of each recording.
fn recordings() -> Vec<(String, String, Recording)> {
    let below = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect()
    };
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let mut found: Vec<_> = below(&corpus())
        .iter()
        .flat_map(|gpu| below(gpu).into_iter().map(|path| (name(gpu), name(&path), Recording(path))))
        .collect();
    found.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    found
}

#[test]
fn halves_alternate_in_alphabetical_order() {
    let kinds = kinds();
    for later in [0, 1] {
        for (number, (name, kind)) in kinds.iter().filter(|(_, kind)| kind.later == later).enumerate() {
            let half = if number % 2 == 0 { Half::Open } else { Half::HeldOut };
            assert_eq!(kind.half, half, "{name}");
        }
    }
    for (name, kind) in kinds.iter().filter(|(_, kind)| kind.later > 1) {
        assert_eq!(kind.half, Half::HeldOut, "{name}");
    }
    for (name, kind) in &kinds {
        kind.check().unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

#[test]
fn recordings_are_small_and_name_no_machine() {
    fn all(path: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
        if !path.is_dir() {
            found.push((path.to_owned(), fs::read(path).unwrap_or_default()));
            return;
        }
        fs::read_dir(path).unwrap().for_each(|entry| all(&entry.unwrap().path(), found));
    }
    let mut files = Vec::new();
    all(&corpus(), &mut files);
    let bytes: usize = files.iter().map(|(_, content)| content.len()).sum();
    assert!(bytes <= MOST_BYTES, "{bytes} bytes");
    // A place of the machine, or the identity of a GPU that was not replaced.
    let named = Regex::new(r"/var/tmp/railgate-gpu|GPU-[0-9a-f]{7}[1-9a-f]-").unwrap();
    for (path, content) in files {
        assert!(!named.is_match(&String::from_utf8_lossy(&content)), "{}", path.display());
    }
}

#[test]
fn reports_say_what_they_must() {
    let (kinds, mut known) = (kinds(), known());
    let mut counts: BTreeMap<(&str, Outcome), usize> = BTreeMap::new();
    let mut unexpected = Vec::new();
    println!(
        "{:6} {:20} {:8} {:7} {:>7} {:>7}  first line",
        "GPU", "kind", "half", "outcome", "truth s", "said s"
    );
    for (gpu, name, recording) in recordings() {
        let kind = kinds.get(&name).unwrap_or_else(|| panic!("{name} is not in corpus.toml"));
        let said = recording.said().unwrap_or_else(|why| panic!("{gpu}/{name}: {why:#}"));
        let lost = kind.loss.as_ref().map(|loss| recording.lost(loss).unwrap());
        let outcome = kind.outcome(&said, lost).unwrap();
        let half = if kind.half == Half::Open { "open" } else { "held-out" };
        *counts.entry((half, outcome)).or_default() += 1;
        let seconds =
            |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
        let (truth, cost) = (seconds(lost), seconds(said.cost_s));
        println!("{gpu:6} {name:20} {half:8} {outcome:7} {truth:>7} {cost:>7}  {}", said.first);
        let place = known.iter().position(|one| one.gpu == gpu && one.kind == name);
        let expected = place.map(|place| known.remove(place));
        let as_known = expected.as_ref().map_or(Outcome::Right, |one| one.outcome);
        if outcome != as_known {
            let why = expected.map(|one| format!(" ({})", one.reason)).unwrap_or_default();
            unexpected.push(format!("{gpu}/{name}: {outcome}, not {as_known}{why}: {}", said.advice));
        }
    }
    for ((half, outcome), count) in &counts {
        println!("{half:8} {outcome:7} {count}");
    }
    let unused: Vec<_> =
        known.iter().map(|one| format!("{}/{} has no recording", one.gpu, one.kind)).collect();
    unexpected.extend(unused);
    assert!(unexpected.is_empty(), "change tests/corpus/known.toml or the rule:\n{}", unexpected.join("\n"));
}

//! `railgate report --idle` on a report directory: who is listed, for whom, and in which order.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use railgate_node_report::NodeReport;
use railgate_node_report::testing::running_for_an_hour;
use serde_json::Value;

const HOUR: u64 = 3_600_000;
const ALICE: u32 = 64_001;
const BOB: u32 = 64_002;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Place(tempfile::tempdir().unwrap());
        fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(place.0.path().join("reports/alpha")).unwrap();
        let config = format!("[report]\ndir = '{}/reports'\n", place.0.path().display());
        fs::write(place.0.path().join("railgate.toml"), config).unwrap();
        place
    }

    /// A running job with one GPU, which was busy for this share of an hour, in percent of each minute.
    fn job(&self, id: u32, uid: u32, busy: f64) {
        let part = running_for_an_hour(id, uid, railgate_runner::now() - HOUR, busy);
        let attempt = self.0.path().join(format!("reports/alpha/{id}/0"));
        fs::create_dir_all(&attempt).unwrap();
        fs::write(
            attempt.join("n1.json"),
            serde_json::to_vec(&NodeReport { usage: None, as_of: None, ..part.clone() }).unwrap(),
        )
        .unwrap();
        fs::write(attempt.join("n1.live"), serde_json::to_vec(&part).unwrap()).unwrap();
        if is_root() {
            for path in
                [&attempt.join("n1.json"), &attempt.join("n1.live"), &attempt, attempt.parent().unwrap()]
            {
                chown(path, Some(uid), Some(uid)).unwrap();
            }
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_railgate"));
        command
            .current_dir(self.0.path())
            .args(["--config", "railgate.toml", "report", "--idle"])
            .args(words);
        command
    }

    fn run(&self, words: &[&str]) -> String {
        said(&self.command(words).output().unwrap())
    }
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn own(uid: u32) -> u32 {
    if is_root() { uid } else { nix::unistd::geteuid().as_raw() }
}

#[test]
fn jobs_with_the_most_idle_gpu_hours_come_first() {
    let place = Place::new();
    for (id, uid, busy) in [(7, ALICE, 95.0), (8, BOB, 0.0), (9, ALICE, 7.0)] {
        place.job(id, own(uid), busy);
    }
    let table = place.run(&["--format", "table"]);
    let jobs: Vec<&str> =
        table.lines().skip(1).take(3).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(jobs, ["8", "9", "7"], "{table}");
    let list: Value = serde_json::from_str(&place.run(&["--format", "json", "--since", "2h"])).unwrap();
    let first = &list["jobs"][0];
    assert_eq!((&first["job"], &first["state"], &first["gpus"]), (&8.into(), &"running".into(), &1.into()));
    assert_eq!((&first["idle_gpu_hours"], &first["idle_percent"]), (&1.0.into(), &100.0.into()));
    assert!(first["idle_since"].is_u64() && list["jobs"][1]["idle_since"].is_null(), "{list}");
    assert_eq!(list["jobs"][2]["idle_gpu_hours"], 0.0, "pauses of a job at work are not idle");
    assert_eq!((&list["left_out"], &list["problems"]), (&0.into(), &serde_json::json!([])));
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/json.md");
    let page = fs::read_to_string(page).unwrap();
    let known: Vec<&str> = page.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    let fields = list.as_object().unwrap().keys().chain(first.as_object().unwrap().keys());
    assert_eq!(
        fields.filter(|field| !known.contains(&field.as_str())).count(),
        0,
        "docs/json.md lacks fields"
    );
    // Without the option that it belongs to.
    assert!(!place.command(&[]).args(["7"]).output().unwrap().status.success());
}

/// Needs root, as the next one.
#[test]
fn a_user_sees_only_own_jobs() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    place.job(7, ALICE, 0.0);
    place.job(8, BOB, 0.0);
    // Another user may not be able to reach the program.
    let Ok(output) = place.command(&["--format", "json"]).uid(ALICE).gid(ALICE).output() else { return };
    let list: Value = serde_json::from_str(&said(&output)).unwrap();
    let jobs: Vec<_> = list["jobs"].as_array().unwrap().iter().map(|row| row["job"].as_u64()).collect();
    assert_eq!((jobs, &list["left_out"]), (vec![Some(7)], &0.into()), "{list}");
    let all: Value = serde_json::from_str(&place.run(&["--format", "json"])).unwrap();
    assert_eq!(all["jobs"].as_array().unwrap().len(), 2);
}

/// A user can write any name and number into files of their own directory.
#[test]
fn a_report_in_the_name_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    place.job(8, BOB, 0.0);
    for part in ["", "/0", "/0/n1.json", "/0/n1.live"] {
        chown(place.0.path().join(format!("reports/alpha/8{part}")), Some(ALICE), None).unwrap();
    }
    let list: Value = serde_json::from_str(&place.run(&["--format", "json"])).unwrap();
    assert_eq!(list["jobs"], serde_json::json!([]));
    assert!(list["problems"].to_string().contains("do not match"), "{list}");
}

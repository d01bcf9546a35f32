//! `railgate report` with every form of job id, against fake Slurm programs with the output of 22.05.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use railgate_model::{Allocation, Job};
use railgate_node_report::NodeReport;

/// Slurm's programs, a report directory and a configuration.
struct Site {
    dir: tempfile::TempDir,
    uid: u32,
}

/// Extracts the mark between the fields from the format or the delimiter.
const MARK: &str = "for word; do
    case $word in %A*) mark=${word#%A}; mark=${mark%%%i*};; --delimiter=*) mark=${word#*=};; esac
done
row() { for field; do printf '%s%s' \"$field\" \"$mark\"; done; echo; }
";

const ENDED: &str = "2026-11-21T01:55:53";
const BEGUN: &str = "2026-11-21T01:55:23";

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let site = Site { dir, uid: nix::unistd::geteuid().as_raw() };
        std::fs::create_dir(site.path().join("bin")).unwrap();
        let at = site.path().display();
        let config = format!(
            "[slurm]\nbin_dir = '{at}/bin'\ntimeout = '20s'\n[report]\ndir = '{at}/reports'\nlocal_dir = '{at}/local'\n"
        );
        std::fs::write(site.path().join("railgate.toml"), config).unwrap();
        site.program("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1");
        site.program("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1");
        site.program("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1");
        site
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.path().join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Lists jobs: id, displayed id, owner, state and name.
    fn lists(&self, program: &str, jobs: &[(u32, &str, u32, &str, &str)]) {
        let mut script = MARK.to_owned();
        for (job, shown, uid, state, name) in jobs {
            let (start, end) = if *state == "PENDING" { ("N/A", "N/A") } else { (BEGUN, ENDED) };
            script += &format!("row {job} '{shown}' {uid} '{state}' '' {BEGUN} {start} {end} n1 '{name}'\n");
        }
        self.program(program, &script);
    }

    /// Lists an array 1042 of four tasks: two have ended, one runs under the array's id, one is pending.
    fn array(&self, program: &str) {
        let uid = self.uid;
        let jobs = [
            (1043, "1042_1", uid, "FAILED", "sweep"),
            (1044, "1042_2", uid, "COMPLETED", "sweep"),
            (1042, "1042_3", uid, "RUNNING", "sweep"),
            (1042, "1042_4", uid, "PENDING", "sweep"),
        ];
        self.lists(program, &jobs);
    }

    /// Writes a node report of a job.
    fn part(&self, job: u32) {
        let attempt = self.path().join(format!("reports/alpha/{job}/0"));
        std::fs::create_dir_all(&attempt).unwrap();
        let job = Job {
            id: job,
            uid: self.uid,
            gid: nix::unistd::getegid().as_raw(),
            user: "me".to_owned(),
            restarts: 0,
            nodelist: "n1".to_owned(),
            het_leader: None,
            allocation: Allocation::NoGpus,
            partition: "gpu".to_owned(),
        };
        let part = NodeReport::new("alpha", "n1", job, 0, 1_800_000_000_000);
        std::fs::write(attempt.join("n1.json"), serde_json::to_vec(&part).unwrap()).unwrap();
    }

    fn report(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_railgate"));
        command.current_dir(self.path()).args(["--config", "railgate.toml", "report"]).args(words);
        command.output().unwrap()
    }

    /// Id of the job whose report is printed.
    fn job(&self, words: &[&str]) -> u64 {
        let output = self.report(&[words, &["--format", "json"]].concat());
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        report["job"].as_u64().unwrap_or_default()
    }

    /// The error message; the job must be unknown.
    fn unknown(&self, words: &[&str]) -> String {
        let output = self.report(words);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), ""), "{words:?}");
        text(&output.stderr)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn task_step_and_component_ids_resolve_to_jobs() {
    for program in ["squeue", "sacct"] {
        let site = Site::new();
        for job in [1042, 1043, 1044] {
            site.part(job);
        }
        site.array(program);
        for (typed, job) in [
            ("1042_1", 1043),
            ("1042_2", 1044),
            ("1042_2.0", 1044),
            ("1042_2.batch", 1044),
            ("1042_3", 1042),
            ("1043", 1043),
            ("1043.0", 1043),
            ("1043+1", 1043),
        ] {
            assert_eq!(site.job(&[typed]), job, "{program}: {typed}");
        }
    }
}

#[test]
fn an_array_id_shows_one_task_and_names_it() {
    let site = Site::new();
    site.part(1042);
    site.array("squeue");
    let note = "array 1042: this is task 3; others: railgate report 1042_[1-2,4]\n";
    let output = site.report(&["1042"]);
    assert!(text(&output.stdout).starts_with(note), "{}", text(&output.stdout));
    // JSON and three-line output have no note.
    for words in [&["--format", "json"][..], &["--brief"], &["--redact"]] {
        let output = site.report(&[&["1042"], words].concat());
        assert!(!text(&output.stdout).contains("this is task"), "{words:?}: {}", text(&output.stdout));
        assert_eq!(text(&output.stderr), format!("railgate: {note}"), "{words:?}");
    }
    assert!(!text(&site.report(&["1043"]).stdout).contains("this is task"));
}

#[test]
fn an_array_has_one_line_per_task() {
    let site = Site::new();
    for job in [1042, 1043, 1044] {
        site.part(job);
    }
    site.array("squeue");
    let rows = |words: &[&str]| {
        let output = site.report(words);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let lines = text(&output.stdout);
        lines
            .lines()
            .map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    let all = ["TASK JOB STATE", "1 1043 FAILED", "2 1044 COMPLETED", "3 1042 RUNNING", "4 - PENDING"];
    assert_eq!(rows(&["1042", "--array"]), all);
    assert_eq!(rows(&["1042_[1-4]"]), all);
    assert_eq!(rows(&["1042_[2,9]"]), ["TASK JOB STATE", "2 1044 COMPLETED"]);
    // The database still has tasks that slurmctld has purged.
    site.array("sacct");
    site.lists("squeue", &[(1042, "1042_3", site.uid, "COMPLETING", "sweep")]);
    let merged = ["TASK JOB STATE", "1 1043 FAILED", "2 1044 COMPLETED", "3 1042 COMPLETING", "4 - PENDING"];
    assert_eq!(rows(&["1042", "--array"]), merged);
}

#[test]
fn without_an_id_only_the_callers_jobs_are_searched() {
    let site = Site::new();
    for job in [7, 8, 9] {
        site.part(job);
    }
    let (mine, other) = (site.uid, site.uid + 1);
    site.lists(
        "squeue",
        &[
            (7, "7", mine, "COMPLETED", "train"),
            (8, "8", mine, "FAILED", "eval"),
            (9, "9", other, "FAILED", "train"),
        ],
    );
    assert_eq!(site.job(&[]), 8);
    assert_eq!(site.job(&["--name", "train"]), 7);
    let none = site.unknown(&["--name", "trai"]);
    assert_eq!(none, "railgate: Slurm knows no job of yours by the name 'trai'\n");
    site.lists("squeue", &[(9, "9", other, "FAILED", "train")]);
    assert_eq!(site.unknown(&[]), "railgate: Slurm lists no job of yours: give a job id\n");
    // The database has the job that slurmctld has purged.
    site.lists("sacct", &[(7, "7", mine, "COMPLETED", "train")]);
    assert_eq!((site.job(&[]), site.job(&["--name", "train"])), (7, 7));
}

#[test]
fn a_purged_job_is_named_as_typed() {
    let site = Site::new();
    site.part(1043);
    for typed in ["1042_1", "1042_[1-4]"] {
        let said = format!("railgate: {typed}: no record; Slurm has forgotten it, or never had it\n");
        assert_eq!(site.unknown(&[typed]), said);
    }
    // A plain job id needs no Slurm.
    assert_eq!(site.job(&["1043"]), 1043);
    site.program("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1");
    assert!(site.unknown(&["1042_1"]).contains("1042_1: Slurm does not answer (squeue"));
    site.lists("squeue", &[(7, "7", site.uid, "RUNNING", "x")]);
    assert_eq!(site.unknown(&["7", "--array"]), "railgate: 7 is not an array: railgate report 7\n");
    assert!(site.unknown(&["7_1"]).contains("7_1: no record"));
}

#[test]
fn a_missing_component_is_an_error() {
    let site = Site::new();
    site.program(
        "scontrol",
        "record() { echo \"JobId=$1 $2 JobName=x UserId=u(1) JobState=RUNNING Reason=None Requeue=1 Restarts=0 BatchFlag=1 \
         TimeLimit=UNLIMITED StartTime=Unknown EndTime=Unknown\"; }\n\
         record 7 \"HetJobId=7 HetJobOffset=0\"; record 8 \"HetJobId=7 HetJobOffset=1\"",
    );
    site.part(7);
    let output = site.report(&["7+2"]);
    assert_eq!(text(&output.stderr), "railgate: job 7 has no component 7+2: it has 2\n");
    assert_eq!(output.status.code(), Some(3));
    site.program(
        "scontrol",
        "echo \"JobId=7 JobName=x UserId=u(1) JobState=RUNNING Reason=None Requeue=1 Restarts=0 BatchFlag=1 \
         TimeLimit=UNLIMITED StartTime=Unknown EndTime=Unknown\"",
    );
    assert_eq!(site.unknown(&["7+1"]), "railgate: 7 is not a heterogeneous job: railgate report 7\n");
}

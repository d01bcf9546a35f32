//! Which crate may depend on which, and README's list of the tree. The reasons are in `docs/decisions/0009-the-layout.md`.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Every package outside of `tests/`, without `railgate-`; the packages of the workspace that it may use; the rule.
/// From the lowest to the highest: a row names only crates of rows above it. Dev-dependencies are free, and so are
/// optional ones: only the feature `testing` of a crate may turn one on, and only dev-dependencies may ask for it.
const MAY_USE: &[(&str, &[&str], &str)] = &[
    ("text", &[], "`text` is the lowest crate"),
    ("rankfile", &[], "`rankfile` runs inside training processes: it brings no other crate with it"),
    ("child", &[], "`child` isolates any work that may hang"),
    ("model", &["text"], "`model` is plain data that every other crate uses"),
    (
        "gpu-selftest",
        &["model"],
        "`gpu-selftest` runs on a GPU that may hang: it computes, and judges nothing",
    ),
    ("fsutil", &["text"], "`fsutil` opens and replaces files of any content"),
    ("fabric", &["text"], "`fabric` is pure and handles switches, not nodes (decision 0005)"),
    (
        "preflight",
        &["text"],
        "`preflight` is pure: it chooses the pairs that test each other and judges results, and runs no test",
    ),
    ("launch", &["text"], "`launch` is pure: it orders nodes and chooses spares, and starts no step"),
    ("page", &["text"], "`page` is pure: the frame of a page, which knows nothing of its content"),
    (
        "accept",
        &["model", "page", "preflight", "text"],
        "`accept` is pure: it judges results of an acceptance, and neither submits jobs nor reads files",
    ),
    (
        "fleet",
        &["model"],
        "`fleet` is pure: it judges the events of many nodes and jobs, and neither collects nor stores them (decision 0015)",
    ),
    (
        "fleet-page",
        &["fleet", "model", "page", "text"],
        "`fleet-page` is pure: it shows a judgement, and neither judges nor decides who may see names",
    ),
    (
        "alerts",
        &["fleet", "model", "text"],
        "`alerts` is pure: it decides which messages are due, and neither sends nor keeps them (decision 0017)",
    ),
    (
        "pair",
        &[],
        "`pair` carries the conversation of two nodes, for `railgate` and for `rdma-selftest`, which is a workspace of its own",
    ),
    (
        "fleet-store",
        &["fleet", "fsutil", "model", "text"],
        "`fleet-store` keeps the events of a fleet in one file, and judges nothing (decision 0015)",
    ),
    (
        "http",
        &["fsutil", "text"],
        "`http` sends requests and keeps secrets out of texts, and knows no service",
    ),
    (
        "alert-sinks",
        &["alerts", "fsutil", "http", "model", "text"],
        "`alert-sinks` sends messages and keeps their state: it decides nothing about them (decision 0017)",
    ),
    ("nhc", &["text"], "`nhc` is pure: bytes of another tool's configuration in, files as bytes out"),
    ("gate", &["model", "text"], "`gate` is pure: all that a check needs is in the snapshot or the context"),
    ("rails", &["model", "text"], "`rails` is pure: it knows a node from its snapshot"),
    (
        "topology-check",
        &["model", "rails", "text"],
        "`topology-check` is pure: it compares a file with the snapshot and the rail map",
    ),
    ("rundir", &["fsutil", "model", "text"], "`rundir` is used inside slurmstepd: it stays small"),
    (
        "profiles",
        &["fsutil", "model", "text"],
        "`profiles` loads what a machine should have, and judges nothing",
    ),
    (
        "simulate",
        &["fsutil", "model", "profiles", "text"],
        "`simulate` makes snapshots as `probe` does, and judges nothing",
    ),
    ("probe", &["child", "fsutil", "http", "model", "text"], "`probe` reads the machine, and judges nothing"),
    (
        "slurm",
        &["fsutil", "model", "rundir", "text"],
        "`slurm` carries a verdict to Slurm: it neither judges nor reports",
    ),
    (
        "node-report",
        &["model", "rankfile", "text"],
        "`node-report` is plain data about a job on a node, made from snapshots and samples: no directories, no pages",
    ),
    (
        "stacks",
        &["child", "node-report", "probe"],
        "`stacks` reads the job's processes as their user, and judges nothing",
    ),
    (
        "joblog",
        &["model", "node-report", "text"],
        "`joblog` is pure: bytes of a log in, the first error out, as it stands beside a node report",
    ),
    (
        "diagnosis",
        &["model", "node-report"],
        "`diagnosis` is pure: all that a rule needs is in the node reports",
    ),
    (
        "guard",
        &["model", "node-report"],
        "`guard` is pure: its only input are the samples that the sampler passes to it",
    ),
    (
        "store",
        &["child", "diagnosis", "fsutil", "model", "node-report", "text"],
        "`store` writes, reads and sweeps files of reports; of `diagnosis` it uses only the table `[report.rules]`",
    ),
    (
        "fleet-intake",
        &["fleet", "model", "node-report", "slurm", "store"],
        "`fleet-intake` makes events of what other programs have written, and judges nothing (decision 0015)",
    ),
    (
        "metrics",
        &["diagnosis", "fsutil", "model", "node-report", "text"],
        "`metrics` writes figures for Prometheus: it reads no reports and makes no pages",
    ),
    (
        "report",
        &["diagnosis", "joblog", "model", "node-report", "page", "rankfile", "store", "text"],
        "`report` explains a job to people, from its records: it neither judges nodes, nor asks Slurm, nor reads devices",
    ),
    (
        "runner",
        &[
            "alerts",
            "child",
            "fsutil",
            "gate",
            "guard",
            "metrics",
            "model",
            "node-report",
            "probe",
            "profiles",
            "rails",
            "rankfile",
            "rundir",
            "slurm",
            "store",
            "text",
            "topology-check",
        ],
        "`runner` wires the crates for programs that run as root beside jobs: no simulated machines, no importers",
    ),
    ("nccl-env-railgate", &[], "`nccl-env` runs inside training processes: it brings no other crate with it"),
    (
        "nccl-profiler-railgate",
        &["rankfile"],
        "`nccl-profiler` runs inside training processes: it only writes rank files",
    ),
    (
        "spank-railgate",
        &["rankfile", "rundir", "text"],
        "`spank-plugin` runs inside slurmstepd: it only reads the run directory, and knows the number of a start",
    ),
    (
        "prolog",
        &["gate", "model", "node-report", "probe", "rails", "rundir", "runner", "slurm", "store"],
        "`railgate-prolog` runs before every job: it stays small, and `runner` does what others do as well",
    ),
    (
        "epilog",
        &[
            "child",
            "fsutil",
            "joblog",
            "model",
            "node-report",
            "probe",
            "rundir",
            "runner",
            "slurm",
            "store",
            "text",
        ],
        "`railgate-epilog` has no knowledge of checks or wiring beyond what `runner` offers",
    ),
    (
        "epilog-ctld",
        &[
            "child",
            "fsutil",
            "gate",
            "metrics",
            "model",
            "node-report",
            "probe",
            "report",
            "runner",
            "slurm",
            "store",
            "text",
        ],
        "`railgate-epilog-ctld` runs on the controller: it needs no wiring and no run directories",
    ),
    (
        "sampler",
        &[
            "child",
            "fsutil",
            "guard",
            "metrics",
            "model",
            "node-report",
            "probe",
            "rankfile",
            "rundir",
            "runner",
            "stacks",
            "store",
        ],
        "`railgate-sampler` reads and records beside a job, and asks `guard`: it judges no node, asks no Slurm and makes no pages",
    ),
    (
        "fleet-program",
        &[
            "alert-sinks",
            "alerts",
            "child",
            "fleet",
            "fleet-intake",
            "fleet-store",
            "fsutil",
            "http",
            "metrics",
            "model",
            "report",
            "runner",
            "slurm",
            "store",
            "text",
        ],
        "`railgate-fleet` reads files, asks Slurm once a minute and sends alerts: it judges and schedules nothing itself, and changes only its own files",
    ),
    (
        "cli",
        &[
            "accept",
            "child",
            "diagnosis",
            "fabric",
            "fleet",
            "fleet-page",
            "fleet-store",
            "fsutil",
            "gate",
            "joblog",
            "launch",
            "model",
            "nhc",
            "node-report",
            "pair",
            "preflight",
            "probe",
            "profiles",
            "rails",
            "report",
            "rundir",
            "runner",
            "simulate",
            "slurm",
            "store",
            "text",
            "topology-check",
        ],
        "`railgate` wires every crate that a person uses, and no plugin",
    ),
];

/// A package of the workspace.
struct Package {
    /// Without `railgate-`.
    name: String,
    /// Below the root of the workspace: `crates/gate`.
    folder: PathBuf,
    /// Packages of the workspace that its programs or its library use.
    uses: BTreeSet<String>,
    /// A normal dependency asks for the feature `testing`, which would install simulated machines.
    tests_in_programs: bool,
}

impl Package {
    /// Part of the tests: it may use everything, and nothing that is installed may use it.
    fn is_test(&self) -> bool {
        self.folder.starts_with("tests")
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn short(name: &str) -> String {
    name.strip_prefix("railgate-").unwrap_or(name).to_owned()
}

fn packages() -> Vec<Package> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root());
    let told = command.output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let all: Value = serde_json::from_slice(&told.stdout).unwrap();
    let all = all["packages"].as_array().unwrap();
    let members: BTreeSet<&str> = all.iter().filter_map(|package| package["name"].as_str()).collect();
    let package = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        // The kind of a normal dependency is null.
        let normal = package["dependencies"].as_array().unwrap().iter();
        let normal: Vec<&Value> = normal.filter(|one| one["kind"].is_null()).collect();
        let of_workspace = |one: &&&Value| one["name"].as_str().is_some_and(|name| members.contains(name));
        let asks_for_testing = |one: &&Value| one["features"].as_array().unwrap().contains(&"testing".into());
        Package {
            name: short(package["name"].as_str().unwrap()),
            folder: manifest.parent().unwrap().strip_prefix(root()).unwrap().to_owned(),
            uses: normal
                .iter()
                .filter(of_workspace)
                .filter(|one| one["optional"] == false)
                .filter_map(|one| Some(short(one["name"].as_str()?)))
                .collect(),
            tests_in_programs: normal.iter().copied().any(|one| asks_for_testing(&one)),
        }
    };
    all.iter().map(package).collect()
}

#[test]
fn dependencies_run_one_way() {
    let mut wrong = Vec::new();
    let mut above = BTreeSet::new();
    let mut rows = BTreeMap::new();
    for (name, uses, rule) in MAY_USE {
        for used in uses.iter().filter(|used| !above.contains(*used)) {
            wrong.push(format!("the row of {name} names {used}, which has no row above it"));
        }
        above.insert(*name);
        rows.insert(*name, (*uses, *rule));
    }
    let packages = packages();
    let tests: BTreeSet<&str> =
        packages.iter().filter(|package| package.is_test()).map(|package| package.name.as_str()).collect();
    for package in packages.iter().filter(|package| !package.is_test()) {
        let name = package.name.as_str();
        let Some((uses, rule)) = rows.remove(name) else {
            wrong.push(format!("{name} has no row in MAY_USE: add one, with a rule that states its purpose"));
            continue;
        };
        for used in &package.uses {
            if tests.contains(used.as_str()) {
                wrong.push(format!(
                    "{name} may not depend on {used}: packages below tests/ are never installed"
                ));
            } else if !uses.contains(&used.as_str()) {
                wrong.push(format!(
                    "{name} may not depend on {used}: {rule}. It may use: {}",
                    uses.join(", ")
                ));
            }
        }
        if package.tests_in_programs {
            wrong.push(format!("{name}: only a dev-dependency may ask for the feature testing"));
        }
        // Any crate above `text` may print foreign text tomorrow.
        for idle in uses.iter().filter(|used| **used != "text" && !package.uses.contains(**used)) {
            wrong.push(format!("{name} does not depend on {idle} any longer: take it out of its row"));
        }
    }
    wrong.extend(rows.keys().map(|name| format!("MAY_USE has a row for {name}, which is no package")));
    assert!(wrong.is_empty(), "tests/tests/layout.rs:\n{}", wrong.join("\n"));
}

/// The folders at the beginning of a line of README's tree: `prolog/  epilog/      railgate-prolog, …`.
fn folders(line: &str) -> impl Iterator<Item = &Path> {
    line.split_whitespace()
        .take_while(|word| word.contains('/'))
        .map(|word| Path::new(word.trim_end_matches('/')))
}

#[test]
fn every_crate_has_a_line_in_the_readme() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let section = readme.split("## The tree\n").nth(1).unwrap();
    let tree = section.split("```").nth(1).unwrap();
    let listed: BTreeSet<&Path> = tree.lines().flat_map(folders).collect();
    let mut wrong = Vec::new();
    for package in packages() {
        let line = if package.is_test() { Path::new("tests") } else { &package.folder };
        if !listed.contains(line) {
            wrong.push(format!("no line for {}", line.display()));
        }
    }
    let gone = listed.iter().filter(|folder| !root().join(folder).is_dir());
    wrong.extend(gone.map(|folder| format!("a line for {}, which is no folder", folder.display())));
    assert!(wrong.is_empty(), "README.md, \"The tree\":\n{}", wrong.join("\n"));
}

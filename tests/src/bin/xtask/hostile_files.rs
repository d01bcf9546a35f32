//! `cargo xtask bench hostile-files`: cost of the worst files that a user can put into the report directory, for the prolog, the
//! epilog, the controller's program and the periodic check, compared with a normal directory.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, Cluster, Session};
use railgate_tests::poll;

use super::bench;

const REPORTS: &str = "/shared/railgate/test";
/// Number of the controller's jobs and of their nodes.
const JOBS: u32 = 20;
const NODES: usize = 3;
/// Number of sparse files beside the node reports, each of the maximum size of a node report.
const HOLES: u32 = 4_000;
const PART: usize = 8 << 20;
/// Number of nodes in the forged decision and in the node list of the prolog's and epilog's runs.
const NAMED: usize = 64;
/// How many of their node reports have the maximum size, more than the budget of such a job allows to read.
const FULL: usize = 10;
/// Limits above normal: seconds and MB; for the controller MB for all jobs.
const GOAL: (f64, f64, f64) = (10.0, 64.0, 256.0);
const LIMIT: Duration = Duration::from_secs(300);

/// Seconds, and MB of all processes together.
type Cost = (f64, f64);

pub(super) fn run(programs: &Path) -> Result<()> {
    let config = "[requeue]\ndefault = 'auto'\n[breaker]\nmax_nodes = 100\nmax_percent = 100.0\n\
                  partition_max_nodes = 100\npartition_max_percent = 100.0";
    let builder = Builder::new(NODES).programs(programs).config(config)?;
    // The programs of the nodes are called one at a time instead.
    let builder = builder.slurm_conf("Prolog", "/bin/true").slurm_conf("Epilog", "/bin/true");
    let cluster = builder.slurm_conf("HealthCheckInterval", "0").start()?;
    let machines = std::iter::once("ctl").chain(cluster.nodes().iter().map(String::as_str));
    machines.into_iter().try_for_each(|machine| bench::put_clock(&cluster, machine))?;
    let mut rows = Vec::new();
    for (normal, hostile, name) in [(9_001, 9_002, "first"), (9_003, 9_004, "second")] {
        for (job, is_hostile) in [(normal, false), (hostile, true)] {
            let kind = if is_hostile { "hostile" } else { "normal" };
            let [prolog, epilog] = of_node(&cluster, job, is_hostile)?;
            rows.push((format!("prolog, {name}"), kind, prolog));
            rows.push((format!("epilog, {name}"), kind, epilog));
            rows.push((format!("periodic check, {name}"), kind, periodic(&cluster)?));
        }
    }
    for kind in ["normal", "hostile"] {
        let cost = of_controller(&cluster, kind == "hostile")?;
        rows.push((format!("controller, {JOBS} jobs of {NODES} nodes at once"), kind, cost));
    }
    show(&rows)
}

fn show(rows: &[(String, &str, Cost)]) -> Result<()> {
    println!(
        "\n| what | normal: s | MB | hostile: s | MB | beyond normal: s | MB |\n|---|---|---|---|---|---|---|"
    );
    let mut over = Vec::new();
    for (what, _, normal) in rows.iter().filter(|(_, kind, _)| *kind == "normal") {
        let (_, _, hostile) =
            rows.iter().find(|row| row.0 == *what && row.1 == "hostile").context("no hostile run")?;
        let beyond = (hostile.0 - normal.0, hostile.1 - normal.1);
        println!(
            "| {what} | {:.2} | {:.0} | {:.2} | {:.0} | {:+.2} | {:+.0} |",
            normal.0, normal.1, hostile.0, hostile.1, beyond.0, beyond.1
        );
        let too_much = match what.starts_with("controller") {
            true => hostile.1 > GOAL.2,
            false => beyond.0 > GOAL.0 || beyond.1 > GOAL.1,
        };
        if too_much {
            over.push(what.as_str());
        }
    }
    ensure!(
        over.is_empty(),
        "over the limit of {} s and {} MB above normal, {} MB on the controller: {}",
        GOAL.0,
        GOAL.1,
        GOAL.2,
        over.join(", ")
    );
    Ok(())
}

/// Runs the prolog of the second attempt and its epilog as slurmd does. The program has failed and reported a reason, so the
/// epilog reads the reports of the nodes before it.
fn of_node(cluster: &Cluster, job: u32, hostile: bool) -> Result<[Cost; 2]> {
    let alice = cluster.alice();
    // gn1 is last, so that the reports of all other nodes are read.
    let list = format!("fn[01-{:02}],gn1", NAMED - 1);
    for attempt in [0, 1] {
        lay(cluster, job, attempt, &list, hostile)?;
    }
    let root = cluster.root().on("gn1");
    let variables = format!(
        "SLURM_JOB_ID={job} SLURM_JOB_UID={uid} SLURM_JOB_GID={gid} SLURM_JOB_USER={user} \
         SLURM_NODELIST={list} SLURM_JOB_NODELIST={list} SLURM_CLUSTER_NAME=test SLURMD_NODENAME=gn1 \
         SLURM_JOB_RESTART_COUNT=1 SLURM_JOB_PARTITION=main SLURM_JOB_GPUS=0,1,2,3,4,5,6,7 \
         SLURM_CONF=/etc/slurm/slurm.conf",
        uid = uid(cluster, &alice)?.0,
        gid = uid(cluster, &alice)?.1,
        user = "rgalice",
    );
    let program = |name: &str, more: &str| {
        let call = format!("env -i {variables} {more} /usr/libexec/railgate/{name}");
        watched(&root, name, &["sh", "-c", &call])
    };
    let prolog = program("railgate-prolog", "")?;
    cluster.hardware("gn1")?.xid(2, 31, Some(4711))?;
    let epilog = program("railgate-epilog", "SLURM_JOB_EXIT_CODE=256")?;
    Ok([prolog, epilog])
}

fn uid(cluster: &Cluster, user: &Session<'_>) -> Result<(u32, u32)> {
    user.run(&["touch", "/shared/whose"])?.ok()?;
    let meta = fs::metadata(cluster.path("ctl", "/shared/whose")?)?;
    cluster.root().run(&["rm", "/shared/whose"])?.ok()?;
    Ok((meta.uid(), meta.gid()))
}

fn periodic(cluster: &Cluster) -> Result<Cost> {
    watched(&cluster.root().on("gn1"), "railgate", &["railgate", "check", "--phase", "periodic", "--drain"])
}

/// Writes what a user can write for one attempt. Hostile: forged node reports of maximum size, sparse files beyond the budget
/// under the names of nodes, and thousands of them under other names. Otherwise nothing.
fn lay(cluster: &Cluster, job: u32, attempt: u32, list: &str, hostile: bool) -> Result<()> {
    if !hostile {
        return Ok(());
    }
    let (uid, gid) = uid(cluster, &cluster.alice())?;
    let dir = cluster.path("ctl", REPORTS)?.join(job.to_string()).join(attempt.to_string());
    fs::create_dir_all(&dir)?;
    let mut files: Vec<PathBuf> = Vec::new();
    let decision = format!(
        r#"{{"schema":1,"cluster":"test","job":{job},"attempt":{attempt},"time":1,"what":"requeued","why":"","nodelist":"{list}"}}"#
    );
    files.push(dir.join("decision.json"));
    fs::write(&files[0], decision)?;
    let named = (1..NAMED).map(|number| format!("fn{number:02}")).chain(["gn1".to_owned()]);
    let named: Vec<String> = if list.starts_with("gn") { cluster.nodes().to_vec() } else { named.collect() };
    for (place, node) in named.iter().enumerate() {
        let path = dir.join(format!("{node}.json"));
        if place < FULL {
            fs::write(&path, forged(job, attempt, node, uid))?;
        } else {
            fs::File::create(&path)?.set_len(PART as u64)?;
        }
        files.push(path);
    }
    for number in 0..HOLES {
        let path = dir.join(format!("m{number:04}.json"));
        fs::File::create(&path)?.set_len(PART as u64)?;
        files.push(path);
    }
    for path in files.iter().map(PathBuf::as_path).chain(dir.ancestors().take(2)) {
        chown(path, Some(uid), Some(gid))?;
    }
    Ok(())
}

/// A valid node report filled with evidence; each item names another device.
fn forged(job: u32, attempt: u32, node: &str, uid: u32) -> String {
    let mut text = format!(
        r#"{{"schema":1,"railgate":"0","cluster":"test","node":"{node}","job":{{"id":{job},"uid":{uid},"gid":{uid},"user":"x","het_leader":null,"partition":"main","nodelist":"","restarts":{attempt},"allocation":"no-gpus"}},"attempt":{attempt},"start":1,"end":2,"evidence":["#
    );
    let mut number = 0;
    while text.len() < PART - 512 {
        let comma = if number == 0 { "" } else { "," };
        let _ = write!(
            text,
            r#"{comma}{{"finding":{{"check":"gpu-lost","part":"{number}","severity":"fail","class":"node","what":"x","fix":"x","evidence":[]}},"own":true}}"#
        );
        number += 1;
    }
    text.push_str("]}");
    text
}

/// Lets all jobs of user alice fail at once. Their nodes write no reports, as when her quota is exceeded.
fn of_controller(cluster: &Cluster, hostile: bool) -> Result<Cost> {
    let (alice, root) = (cluster.alice(), cluster.root());
    let kind = if hostile { "hostile" } else { "normal" };
    let script =
        format!("touch began.{kind}.$SLURM_JOB_ID\nuntil [ -e go.{kind} ]; do sleep 0.5; done\nexit 1");
    let words = ["-N3", "-n3", "-O", "-o", "/dev/null"];
    let jobs = (0..JOBS).map(|_| alice.sbatch(&words, &script)).collect::<Result<Vec<u32>>>()?;
    poll::until(LIMIT, "all jobs to run", || {
        let began = format!("began.{kind}.*");
        let begun = root.run(&["find", "/home/rgalice", "-name", &began])?.ok()?;
        Ok((begun.lines().count() == jobs.len()).then_some(()))
    })?;
    for job in &jobs {
        lay(cluster, *job, 0, "gn[1-3]", hostile)?;
    }
    let wait =
        format!("touch /home/rgalice/go.{kind}; until [ -z \"$(squeue -h -t R,CG)\" ]; do sleep 0.2; done");
    let cost = watched(&root, "railgate-epilog-ctld", &["sh", "-c", &wait])?;
    // Forged evidence leads to a requeue, so the jobs wait in the queue again.
    root.run(&["scancel", "-u", "rgalice"])?.ok()?;
    poll::until(LIMIT, "the queue to be empty", || {
        Ok(root.run(&["squeue", "-h"])?.ok()?.is_empty().then_some(()))
    })?;
    Ok(cost)
}

/// Runs a command on the machine of a session and measures it.
fn watched(session: &Session<'_>, program: &str, words: &[&str]) -> Result<Cost> {
    let said = session
        .clone()
        .deadline(LIMIT)
        .run(&[&[bench::CLOCK, "@watch", program, "--"], words].concat())?
        .ok()?;
    let mut figures = said.split_whitespace().map(str::parse::<f64>);
    let (micros, code, kib) = (figures.next(), figures.next(), figures.next());
    let (Some(Ok(micros)), Some(Ok(code)), Some(Ok(kib))) = (micros, code, kib) else {
        anyhow::bail!("no figures: '{said}'");
    };
    ensure!(code == 0.0 || program == "railgate-prolog", "{program} ended with {code}");
    Ok((micros / 1e6, kib * 1024.0 / 1e6))
}

/// On that machine: runs the command and samples every few milliseconds the memory of all programs named `name`.
pub(super) fn watch(name: &str, command: &[OsString]) -> Result<()> {
    let (program, words) = command.split_first().context("no command")?;
    let start = Instant::now();
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| program.display().to_string())?;
    let mut most = 0;
    let status = loop {
        most = most.max(together_kib(name));
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    println!("{} {} {most}", start.elapsed().as_micros(), status.code().unwrap_or(-1));
    Ok(())
}

/// Sum of proportional set sizes (PSS), so that shared pages count once, KiB.
fn together_kib(name: &str) -> u64 {
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let of = |dir: PathBuf| -> Option<u64> {
        let program = fs::read_link(dir.join("exe")).ok()?;
        if program.file_name()? != name {
            return None;
        }
        let rollup = fs::read_to_string(dir.join("smaps_rollup")).ok()?;
        rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse().ok())
    };
    processes.flatten().filter_map(|entry| of(entry.path())).sum()
}

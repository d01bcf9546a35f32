//! `railgate accept` on four nodes with planted faults: from the plan to the page to sign, with a driver that is killed ten times.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster, Process};
use railgate_tests::poll;
use serde_json::Value;

const MINUTE: Duration = Duration::from_secs(60);
const DIR: &str = "/shared/accept";
/// Kills of the driver.
const KILLS: usize = 10;

const PLAN: &str = r#"
title = "Four nodes of the tests"
nodes = "gn[1-4]"
attempts = 3
wait_s = 20
# The driver looks once a second: with two jobs at once the run outlives ten drivers on any machine.
jobs_at_once = 2

[[leaf]]
name = "a"
nodes = "gn[1-2]"

[[leaf]]
name = "b"
nodes = "gn[3-4]"

[inventory]
repetitions = 2

[node]
repetitions = 2

[pairs]
net = "tcp"

[storage]
repetitions = 2
dirs = ["/shared"]
mib_per_node = 2
files_per_node = 20

[[expect]]
figure = "storage.all.write_gb_s"
min = 0.000001
source = "the test"
"#;

/// Limits what a node sends.
fn limit(cluster: &Cluster, node: &str, rate: &str) -> Result<()> {
    let words = [
        "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "1mb", "latency",
        "50ms",
    ];
    cluster.root().on(node).run(&words)?.ok()?;
    Ok(())
}

fn driver(cluster: &Cluster) -> Result<Process> {
    cluster.root().spawn(&["railgate", "accept", "/root/plan.toml", "--dir", DIR])
}

/// Whole lines of the journal.
fn journal(cluster: &Cluster) -> Vec<Value> {
    let text = cluster.output(&format!("{DIR}/journal.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn report(cluster: &Cluster, format: &str) -> Result<(i32, String)> {
    let output = cluster.root().run(&["railgate", "accept", "report", DIR, "--format", format])?;
    ensure!(output.stderr.is_empty(), "{output}");
    Ok((output.code, output.stdout))
}

/// The outcome of an item.
fn outcome<'a>(report: &'a Value, id: &str) -> Option<&'a str> {
    report["items"].as_array()?.iter().find(|item| item["id"] == id)?["outcome"].as_str()
}

/// Kills the driver after a few lines of the journal, again and again. Returns how often.
fn kill_it(cluster: &Cluster) -> Result<usize> {
    for kill in 0..KILLS {
        let before = journal(cluster).len();
        let mut process = driver(cluster)?;
        // From one line after the start, which is between submission and answer, to some lines later.
        let more = 1 + kill % 3;
        let ended = poll::until(2 * MINUTE, "lines of the journal", || {
            let ended = !process.running()?;
            Ok((ended || journal(cluster).len() > before + more).then_some(ended))
        })?;
        if ended {
            return Ok(kill);
        }
        process.signal(Signal::SIGKILL)?;
        process.wait(MINUTE)?;
    }
    Ok(KILLS)
}

/// Checks that the report has exactly one result for each unit, and lists each unit that was submitted or run more than once.
fn nothing_is_lost_or_hidden(cluster: &Cluster, report: &Value) -> Result<()> {
    ensure!(report["units_done"] == report["units"], "{report}");
    let exceptions = report["exceptions"].to_string();
    let (mut attempts, mut results) = (BTreeMap::<String, u64>::new(), BTreeSet::new());
    for line in journal(cluster) {
        if let Some(submit) = line["event"].get("submit") {
            let unit = submit["unit"].as_str().context("unit")?.to_owned();
            *attempts.entry(unit).or_default() += 1;
        }
        if let Some(result) = line["event"].get("result") {
            ensure!(results.insert(result["unit"].to_string()), "two results: {line}");
        }
    }
    ensure!(Some(results.len() as u64) == report["units"].as_u64(), "{results:?}");
    for (unit, count) in &attempts {
        let named = exceptions.contains(&format!("{unit}: submitted {count} times"));
        ensure!(*count == 1 || named, "{unit} was submitted {count} times: {exceptions}");
    }
    // Slurm's own list: no job that the journal does not know, and no unit ran twice without a word.
    let mut jobs = BTreeMap::<String, u64>::new();
    for job in cluster.jobs()? {
        let name = job.field("JobName").to_owned();
        if let Some(unit) = name.strip_prefix("railgate-accept:") {
            *jobs.entry(unit.split(':').nth(1).context("unit")?.to_owned()).or_default() += 1;
        }
    }
    for (unit, count) in &jobs {
        ensure!(attempts.get(unit) >= Some(count), "{count} jobs of {unit}: {attempts:?}");
    }
    ensure!(jobs.keys().eq(attempts.keys()), "{jobs:?} {attempts:?}");
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_plan_becomes_a_report_although_the_driver_is_killed() -> Result<()> {
    let faults = Builder::new(4)
        // The gate would drain the node before its test.
        .config("[gate]\nmode = 'report'\n")?
        .hardware_of("gn3", "h100-sxm:gpu-ecc-uncorrected@2")
        .hardware_of("gn4", "h100-sxm:driver-other");
    faults.test(|cluster| {
        for node in ["gn1", "gn2", "gn3", "gn4"] {
            limit(cluster, node, if node == "gn2" { "25mbit" } else { "100mbit" })?;
        }
        cluster.write(CONTROLLER, "/root/plan.toml", PLAN)?;
        let kills = kill_it(cluster)?;
        ensure!(kills == KILLS, "the run ended after {kills} kills");
        // As if the last kill had hit a write.
        let place = format!("{DIR}/journal.jsonl");
        let whole = cluster.output(&place).context("journal")?;
        cluster.write(CONTROLLER, &place, &format!("{whole}{{\"at\":17"))?;
        let done = driver(cluster)?.wait(8 * MINUTE)?;
        ensure!(done.code == 0, "{done}");
        assert!(done.stderr.contains("jobs of the plan done"), "{done}");

        let (code, text) = report(cluster, "json")?;
        let found: Value = serde_json::from_str(&text)?;
        assert_eq!(code, 1, "{text}");
        nothing_is_lost_or_hidden(cluster, &found)?;
        assert_eq!(found["exceptions"].to_string().matches("the run was continued").count(), KILLS, "{text}");
        assert_eq!(outcome(&found, "inventory.gpu-driver"), Some("fail"), "{text}");
        assert_eq!(outcome(&found, "inventory.kernel"), Some("pass"), "{text}");
        assert_eq!(outcome(&found, "node.gn3"), Some("fail"), "{text}");
        assert_eq!(outcome(&found, "pairs.tcp.gn2.rail-0"), Some("fail"), "{text}");
        assert_eq!(outcome(&found, "figure.storage.all.write_gb_s"), Some("pass"), "{text}");
        // There is no GPU that could compute.
        assert_eq!(outcome(&found, "node.gpu-values"), Some("unknown"), "{text}");
        let accused = found["items"].as_array().context("items")?.iter();
        let rails: Vec<_> = accused.filter(|item| item["id"].to_string().contains(".rail-")).collect();
        assert_eq!(rails.len(), 1, "{rails:?}");

        assert!(found["exceptions"].to_string().contains("was not finished: 8 bytes removed"), "{text}");

        // A job that comes late finds that the journal does not expect it.
        let late = ["railgate", "accept", "--dir", DIR, "--unit", "node.gn1.r1", "--attempt", "1"];
        let late = cluster.root().run(&late)?;
        assert!(late.code == 0 && late.stdout.contains("not expected any more"), "{late}");

        let waived = cluster.root().run(&[
            "railgate",
            "accept",
            "waive",
            DIR,
            "node.gn3",
            "--by",
            "A. <b>Smith",
            "--why",
            "card is ordered",
        ])?;
        assert_eq!(waived.code, 0, "{waived}");
        let (_, page) = report(cluster, "html")?;
        assert!(page.contains("Waived by A. &lt;b&gt;Smith") && page.contains("card is ordered"), "{page}");
        assert!(page.contains("gpu-ecc@2") && page.contains("SHA-256 of the raw results"), "{page}");
        if let Some(place) = std::env::var_os("RAILGATE_ACCEPT_PAGE") {
            std::fs::write(place, &page)?;
        }

        // A result that is changed afterwards is not used, and that is a failure.
        let file = journal(cluster).iter().find_map(|line| {
            let file = line["event"].get("result")?["file"].as_str()?;
            file.starts_with("node.gn1").then(|| format!("{DIR}/results/{file}"))
        });
        let file = file.context("no result of gn1")?;
        let content = cluster.output(&file).context("result")?;
        cluster.write(CONTROLLER, &file, &content.replacen("\"outputs\"", " \"outputs\"", 1))?;
        let (_, text) = report(cluster, "json")?;
        assert_eq!(outcome(&serde_json::from_str(&text)?, "run.results"), Some("fail"), "{text}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn an_acceptance_survives_its_controller_and_a_node() -> Result<()> {
    Builder::new(2).slurm_conf("SlurmdTimeout", "20").test(|cluster| {
        // slurmctld may end between the allocation and the start of a job: Slurm finds that at the job's time limit.
        // One job at a time: seven of eight have not ended when slurmctld is stopped, on a fast machine as well.
        let plan = "title = 'Two nodes'\nnodes = 'gn[1-2]'\nwait_s = 60\njobs_at_once = 1\n[inventory]\nlimit_min = 1\nrepetitions = 4\n";
        cluster.write(CONTROLLER, "/root/plan.toml", plan)?;
        let mut process = driver(cluster)?;
        poll::until(MINUTE, "a result", || {
            Ok(journal(cluster).iter().any(|line| line["event"].get("result").is_some()).then_some(()))
        })?;
        cluster.stop_slurmctld()?;
        poll::until(2 * MINUTE, "a message", || {
            Ok(process.output()?.contains("trying again").then_some(()))
        })?;
        cluster.kill_node("gn2")?;
        cluster.start_slurmctld()?;
        poll::until(2 * MINUTE, "gn2 to be down", || {
            Ok(cluster.node("gn2")?.state().contains("DOWN").then_some(()))
        })?;
        cluster.boot_node("gn2")?;
        cluster.root().run(&["scontrol", "update", "nodename=gn2", "state=resume"])?;
        assert!(process.running()? || process.output()?.contains("8 of 8 jobs of the plan"), "{}", process.output()?);
        let done = process.wait(8 * MINUTE)?;
        ensure!(done.code == 0, "{done}");
        assert!(done.stderr.contains("slurmctld answers again"), "{done}");
        let (_, text) = report(cluster, "json")?;
        nothing_is_lost_or_hidden(cluster, &serde_json::from_str(&text)?)?;

        // SIGINT ends it cleanly, and what it prints continues it; another plan is refused.
        let other = cluster.root().run(&["railgate", "accept", "/root/other.toml", "--dir", DIR])?;
        assert_eq!(other.code, 2, "{other}");
        cluster.write(CONTROLLER, "/root/other.toml", &plan.replace('4', "5"))?;
        let other = cluster.root().run(&["railgate", "accept", "/root/other.toml", "--dir", DIR])?;
        assert!(other.code == 2 && other.stderr.contains("use another --dir"), "{other}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn faults_are_injected_only_inside_a_maintenance_reservation() -> Result<()> {
    let planted = "#!/bin/sh\n[ -e /run/planted ] || exit 0\necho planted\nexit 1\n";
    Builder::new(1).file("/etc/railgate/checks.d/planted", planted).test(|cluster| {
        let plan = "title = 'One node'\nnodes = 'gn1'\n[soak]\n[[soak.fault]]\nnode = 'gn1'\nrepetition = 1\n\
                    inject = ['/usr/bin/touch', '/run/planted']\nundo = ['/bin/rm', '/run/planted']\ncheck = 'site-planted'\n";
        let refused = |plan: &str, words: &[&str], why: &str| -> Result<()> {
            cluster.write(CONTROLLER, "/root/refused.toml", plan)?;
            let all = [&["railgate", "accept", "/root/refused.toml", "--dir", "/shared/refused"], words].concat();
            let output = cluster.root().run(&all)?;
            ensure!(output.code == 2 && output.stderr.contains(why), "{output}");
            cluster.root().run(&["rm", "-r", "/shared/refused"])?.ok()?;
            Ok(())
        };
        refused(plan, &[], "the plan injects faults: add --inject-faults")?;
        refused(plan, &["--inject-faults"], "add '--reservation=NAME'")?;
        let plan = &format!("sbatch = ['--reservation=m']\n{plan}");
        refused(plan, &["--inject-faults"], "reservation m")?;
        let create = |flags: &str| {
            let words = ["scontrol", "create", "reservation", "ReservationName=m", "StartTime=now", "Duration=60"];
            cluster.root().run(&[&words[..], &["Users=root", "Nodes=gn1", flags]].concat())?.ok()
        };
        create("Flags=IGNORE_JOBS")?;
        refused(plan, &["--inject-faults"], "and m is not one")?;
        cluster.root().run(&["scontrol", "delete", "ReservationName=m"])?.ok()?;
        create("Flags=MAINT,IGNORE_JOBS")?;
        cluster.write(CONTROLLER, "/root/plan.toml", plan)?;
        let words = ["railgate", "accept", "/root/plan.toml", "--dir", DIR, "--inject-faults"];
        let done = cluster.root().deadline(4 * MINUTE).run(&words)?;
        ensure!(done.code == 0, "{done}");
        let (_, text) = report(cluster, "json")?;
        let found: Value = serde_json::from_str(&text)?;
        assert_eq!(outcome(&found, "soak.fault.1"), Some("pass"), "{text}");
        assert!(text.contains("warn site-planted: planted") && !text.contains("was not undone"), "{text}");
        assert!(cluster.read("gn1", "/run/planted").is_err());
        Ok(())
    })
}

/// What the file of an NCCL library holds among its code.
const LIBRARY: &str = "NCCL version 2.28.9+cuda13.0\0";

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_report_has_the_nccl_library_and_what_cards_do_between_rounds() -> Result<()> {
    let file = "/opt/nccl/lib/libnccl.so.2";
    Builder::new(1).hardware("h100-sxm").file(file, LIBRARY).test(|cluster| {
        let plan = "title = 'One node'\nnodes = 'gn1'\nsbatch = ['--export=ALL,LD_LIBRARY_PATH=/opt/nccl/lib']\n\
                    [inventory]\n[soak]\n";
        cluster.write(CONTROLLER, "/root/plan.toml", plan)?;
        let done = driver(cluster)?.wait(4 * MINUTE)?;
        ensure!(done.code == 0, "{done}");
        let (_, text) = report(cluster, "json")?;
        let found: Value = serde_json::from_str(&text)?;
        assert_eq!(outcome(&found, "inventory.nccl"), Some("pass"), "{text}");
        assert!(text.contains("nccl of all nodes: 2.28.9+cuda13.0 on 1 of 1"), "{text}");
        let charts = found["charts"].as_array().context("charts")?;
        assert_eq!(charts.len(), 2, "{text}");
        for chart in charts {
            let points = chart["rows"][0]["points"].as_array().context("points")?;
            assert_eq!((points.len(), &chart["unknown"]), (5, &Value::from(0)), "{text}");
            let times: Vec<u64> = points.iter().filter_map(|point| point["at"].as_u64()).collect();
            assert!(times.windows(2).skip(1).all(|pair| pair[1] - pair[0] >= 5000), "{times:?}");
        }
        Ok(())
    })
}

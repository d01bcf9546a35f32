//! The history of the fleet on a real cluster.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster, REPORTS};
use railgate_tests::hardware::{RDMA_SELF_TEST, gpu_self_test};
use railgate_tests::poll;
use serde_json::{Value, json};

use crate::training::MINUTE;

/// Where the history is kept, as docs/fleet.md has it.
const DIR: &str = "/var/lib/railgate/fleet";
const DAY_MS: u64 = 24 * 3_600_000;
const CONFIG: &str = "[fleet.leaf]\nsw1 = 'gn[1-3]'\nsw2 = 'gn[4-6]'\n";

/// Writes what the controller recorded of a job that ended so many days ago after an hour.
fn past_job(cluster: &Cluster, days: u64, state: &str, nodes: &str) -> Result<(u64, String)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let end = u64::try_from(now.as_millis())? - days * DAY_MS;
    let job = 900_000 + days;
    let dir = format!("{REPORTS}/test/{job}/0");
    cluster.root().run(&["install", "-d", "-o", "slurm", "-g", "slurm", &dir])?.ok()?;
    let slurm = json!({ "state": state, "start": end - 3_600_000, "end": end, "nodelist": nodes });
    let record =
        json!({ "schema": 1, "cluster": "test", "job": job, "attempt": 0, "time": end, "slurm": slurm });
    put_record(cluster, &format!("{dir}/slurm-end.json"), &record)?;
    Ok((job, dir))
}

fn put_record(cluster: &Cluster, file: &str, record: &Value) -> Result<()> {
    cluster.write(CONTROLLER, file, &record.to_string())?;
    cluster.root().run(&["chown", "slurm:slurm", file])?.ok().map(drop)
}

/// On each of 20 days before: a job on these nodes, which completed.
fn past(cluster: &Cluster, nodes: &str) -> Result<()> {
    (1..=20).try_for_each(|day| past_job(cluster, day, "COMPLETED", nodes).map(drop))
}

/// A job that so many days ago failed on a node whose GPU was lost.
fn past_fault(cluster: &Cluster, days: u64, node: &str) -> Result<()> {
    let (job, dir) = past_job(cluster, days, "FAILED", node)?;
    let reason = format!("railgate: gpu-lost@3: off bus; reboot [epilog job={job}]");
    let seen = json!({ "node": node, "state": "IDLE+DRAIN", "reason": reason, "evidence": true, "source": "drain reason" });
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let time = u64::try_from(now.as_millis())? - days * DAY_MS;
    let decision = json!({
        "schema": 1, "cluster": "test", "job": job, "attempt": 0, "time": time, "what": "left", "why": "",
        "state": "FAILED", "nodelist": node, "nodes": [seen]
    });
    put_record(cluster, &format!("{dir}/decision.json"), &decision)
}

fn take_in(cluster: &Cluster) -> Result<()> {
    cluster.root().run(&["railgate-fleet", "once"])?.ok().map(drop)
}

fn asked(cluster: &Cluster, what: &str) -> Result<Value> {
    let said = cluster.root().run(&["railgate", "fleet", what, "--format", "json"])?.ok()?;
    serde_json::from_str(&said).context(said)
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_leaf_switch_that_takes_its_nodes_with_it_is_one_incident() -> Result<()> {
    let builder = Builder::new(6).config(CONFIG)?.slurm_conf("SlurmdTimeout", "20");
    builder.test(|cluster| {
        cluster.root().run(&["install", "-d", "-o", "slurm", "-g", "slurm", "-m", "0700", DIR])?.ok()?;
        past(cluster, "gn[1-6]")?;
        take_in(cluster)?;
        assert_eq!(asked(cluster, "incidents")?["incidents"], json!([]));

        // One user has jobs on all nodes, of which half fail.
        let jobs: Vec<u32> = (1..=6)
            .map(|node| {
                let node = format!("gn{node}");
                let words = ["-N1", "-w", &node, "--gres=gpu:8", "--no-requeue", "-o", "/dev/null"];
                let id = cluster.alice().sbatch(&words, "sleep 1000")?;
                cluster.wait_job(id, &["RUNNING"], MINUTE)?;
                Ok(id)
            })
            .collect::<Result<_>>()?;
        let dead = ["gn1", "gn2", "gn3"];
        for node in dead {
            cluster.kill_node(node)?;
        }
        for (node, job) in dead.iter().zip(&jobs) {
            cluster.wait_node(node, "down", 2 * MINUTE, |node| node.state().contains("DOWN"))?;
            let end = format!("{REPORTS}/test/{job}/0/slurm-end.json");
            poll::until(2 * MINUTE, "the record of the job's end", || {
                Ok(cluster.read(CONTROLLER, &end).ok())
            })?;
        }
        // The program asks slurmctld once a minute at most.
        let found = poll::until(3 * MINUTE, "the incident", || {
            take_in(cluster)?;
            let found = asked(cluster, "incidents")?;
            Ok((found["incidents"] != json!([])).then_some(found))
        })?;
        let all = found["incidents"].as_array().context("incidents")?;
        assert_eq!(all.len(), 1, "{found}");
        assert_eq!(all[0]["reason"]["shared"], json!({ "kind": "leaf", "name": "sw1" }), "{found}");
        assert_eq!((&all[0]["nodes"], &all[0]["of"]), (&json!(dead), &json!(3)), "{found}");
        assert_eq!(all[0]["end"], Value::Null, "{found}");
        // None of them is blamed, and nothing was drained for it.
        assert_eq!(asked(cluster, "lemons")?["nodes"], json!([]));
        for node in ["gn1", "gn4"] {
            assert!(!cluster.node(node)?.drained(), "{node}");
        }
        let page = cluster.root().run(&["railgate", "fleet", "--format", "html"])?.ok()?;
        assert!(page.contains("sw1") && page.contains("gn[1-3]"), "{page}");

        let words = ["railgate", "fleet", "repaired", "gn1", "--why", "new cable"];
        cluster.root().run(&words)?.ok()?;
        let owner = cluster.root().run(&["stat", "-c", "%U %a", &format!("{DIR}/entered.jsonl")])?.ok()?;
        assert_eq!(owner.trim(), "slurm 600");
        take_in(cluster)?;
        let said = cluster.root().run(&["railgate", "fleet", "node", "gn1"])?.ok()?;
        assert!(said.contains("repaired by ") && said.contains(": new cable"), "{said}");
        Ok(())
    })
}

/// Waits until a reading of all sources has this effect: the program asks slurmctld once a minute at most.
fn until_taken_in<T>(cluster: &Cluster, what: &str, check: impl Fn() -> Result<Option<T>>) -> Result<T> {
    poll::until(3 * MINUTE, what, || {
        take_in(cluster)?;
        check()
    })
}

/// Two faults of the past, and a GPU that is lost now.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_node_that_fails_three_jobs_is_drained_as_a_lemon_tested_and_resumed_on_probation() -> Result<()> {
    Builder::new(4).config("[fleet]\nlemons = 'drain'\n")?.test(|cluster| {
        cluster.root().run(&["install", "-d", "-o", "slurm", "-g", "slurm", "-m", "0700", DIR])?.ok()?;
        // The others are in another cluster now.
        past(cluster, "gn[1-40]")?;
        past_fault(cluster, 23, "gn2")?;
        past_fault(cluster, 26, "gn2")?;
        take_in(cluster)?;
        let record = || -> Result<Value> {
            let said = cluster.root().run(&["railgate", "fleet", "node", "gn2", "--format", "json"])?.ok()?;
            Ok(serde_json::from_str::<Value>(&said)?["node"].clone())
        };
        assert_eq!(record()?["standing"], "ordinary", "two faults");

        let words = ["-N1", "-w", "gn2", "--gres=gpu:8", "--no-requeue", "-o", "/dev/null"];
        let job = cluster.alice().sbatch(&words, "sleep 5; exit 1")?;
        cluster.wait_job(job, &["RUNNING"], MINUTE)?;
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        cluster
            .wait_node("gn2", "drained", MINUTE, |node| node.reason().starts_with("railgate: gpu-lost@3"))?;
        until_taken_in(cluster, "the third fault", || Ok((record()?["faults"] == 3).then_some(())))?;
        // The gate's own drain. The card comes back with a reboot, and the admin resumes the node.
        cluster.hardware("gn2")?.heal()?;
        let readmit = |more: &[&str]| {
            let words = [&["railgate", "readmit", "gn2"], more].concat();
            cluster.root().on("gn2").run(&words)
        };
        readmit(&["--repaired"])?.ok()?;

        until_taken_in(cluster, "the drain", || {
            Ok(cluster.node("gn2")?.reason().starts_with("railgate: lemon: ").then_some(()))
        })?;
        let reason = cluster.node("gn2")?.reason().to_owned();
        assert!(reason.starts_with("railgate: lemon: 3 faults, "), "{reason}");
        assert!(reason.contains(" times the fleet's rate; see railgate fleet node gn2 [fleet]"), "{reason}");
        let lemons = asked(cluster, "lemons")?;
        assert_eq!(lemons["nodes"][0]["node"], "gn2", "{lemons}");
        for others in ["gn1", "gn3", "gn4"] {
            assert!(!cluster.node(others)?.drained(), "{others}");
        }
        let explained = cluster.root().run(&["railgate", "explain", "gn2"])?.ok()?;
        let next = "on gn2: railgate readmit gn2 runs all self-tests, and resumes it if it passes";
        assert!(
            explained.contains("  railgate: lemon: 3 faults, ") && explained.contains(next),
            "{explained}"
        );
        let nodes = cluster.root().run(&["railgate", "nodes"])?.ok()?;
        assert!(nodes.contains("railgate: lemon: 3 faults, "), "{nodes}");

        // All checks and self-tests by root on the node. Without the program of a self-test it stays drained.
        let untested = readmit(&[])?;
        let left = "gn2: left as it is: a lemon, and gpu-self-test has no result (not run: ";
        assert!(untested.stdout.contains(left) && untested.code == 1, "{untested:?}");
        assert!(cluster.node("gn2")?.drained());
        for (program, text) in [("gpu", gpu_self_test("0").as_str()), ("rdma", RDMA_SELF_TEST)] {
            cluster.write("gn2", &format!("/usr/libexec/railgate/railgate-{program}-selftest"), text)?;
        }
        let said = readmit(&[])?.ok()?;
        assert!(said.contains("gn2: fit, back in service"), "{said}");
        until_taken_in(
            cluster,
            "the probation",
            || Ok((record()?["standing"] == "probation").then_some(())),
        )?;
        let said = cluster.root().run(&["railgate", "fleet", "node", "gn2"])?.ok()?;
        assert!(
            said.contains("resumed after a drain as a lemon 0.0 days ago, on probation: 0 of 168 h"),
            "{said}"
        );
        // The next reading that asks slurmctld leaves it in service.
        std::thread::sleep(MINUTE);
        take_in(cluster)?;
        assert!(!cluster.node("gn2")?.drained(), "{}", cluster.node("gn2")?.reason());
        Ok(())
    })
}

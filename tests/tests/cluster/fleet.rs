//! The history of the fleet on a real cluster.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster, REPORTS};
use railgate_tests::poll;
use serde_json::{Value, json};

use crate::training::MINUTE;

/// Where the history is kept, as docs/fleet.md has it.
const DIR: &str = "/var/lib/railgate/fleet";
const DAY_MS: u64 = 24 * 3_600_000;
const CONFIG: &str = "[fleet.leaf]\nsw1 = 'gn[1-3]'\nsw2 = 'gn[4-6]'\n";

/// Writes what the controller recorded on 20 days before: each day a job on all nodes, which completed.
fn past(cluster: &Cluster) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let now = u64::try_from(now.as_millis())?;
    for day in 1..=20_u32 {
        let (job, end) = (900_000 + day, now - u64::from(day) * DAY_MS);
        let dir = format!("{REPORTS}/test/{job}/0");
        cluster.root().run(&["install", "-d", "-o", "slurm", "-g", "slurm", &dir])?.ok()?;
        let slurm =
            json!({ "state": "COMPLETED", "start": end - 3_600_000, "end": end, "nodelist": "gn[1-6]" });
        let record =
            json!({ "schema": 1, "cluster": "test", "job": job, "attempt": 0, "time": end, "slurm": slurm });
        let file = format!("{dir}/slurm-end.json");
        cluster.write(CONTROLLER, &file, &record.to_string())?;
        cluster.root().run(&["chown", "slurm:slurm", &file])?.ok()?;
    }
    Ok(())
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
    let builder = Builder::new(6).config(CONFIG)?.slurm_conf("SlurmdTimeout", "10");
    builder.test(|cluster| {
        cluster.root().run(&["install", "-d", "-o", "slurm", "-g", "slurm", "-m", "0700", DIR])?.ok()?;
        past(cluster)?;
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

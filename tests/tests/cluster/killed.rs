//! Processes killed at every stage, and a driver that stops answering: the report is written and lists what is missing.

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;
use serde_json::Value;

use crate::training::{self, MINUTE, end, started, submit};

/// GPM metrics of an H100 with half of its tensor pipes active.
const WORK: &[(u32, f64)] = &[(1, 99.0), (2, 90.0), (3, 11.0), (5, 50.0), (7, 50.0), (10, 25.0), (12, 1.5)];

/// Starts a hundred samplers of the run and kills each after a different delay, then one that keeps running. A sampler that is not dead
/// yet is still the one of its run, so a new one would end.
const RESTARTS: &str = r#"
cd /run/railgate/jobs/$1/current
run=$(basename $(pwd -P)) size=$(cat samples.* | wc -c)
for n in $(seq 100); do
    pkill -9 -f "railgate-sampler $1 " || true
    setsid /usr/libexec/railgate/railgate-sampler $1 $run < /dev/null > /dev/null 2>&1 &
    sleep 0.0$((n % 10))
done
while pkill -9 -f "railgate-sampler $1 "; do sleep 0.05; done
setsid /usr/libexec/railgate/railgate-sampler $1 $run < /dev/null > /dev/null 2>&1 &
echo $(($(cat samples.* | wc -c) - size))
"#;

fn sh(cluster: &Cluster, node: &str, script: &str, id: u32) -> Result<String> {
    let said = cluster.root().on(node).run(&["sh", "-ec", script, "sh", &id.to_string()])?.ok()?;
    Ok(said.trim().to_owned())
}

fn samplers(cluster: &Cluster, node: &str, id: u32) -> Result<usize> {
    Ok(training::samplers(cluster, node, Some(id))?.len())
}

/// Waits until a number of samples has been written.
fn sampled(cluster: &Cluster, node: &str, id: u32) -> Result<()> {
    let size = || -> Result<u64> {
        Ok(sh(cluster, node, "cat /run/railgate/jobs/$1/current/samples.* | wc -c", id)?.parse()?)
    };
    let before = size()?;
    poll::until(MINUTE, &format!("samples on {node}"), || Ok((size()? >= before + 2000).then_some(())))
}

fn part(cluster: &Cluster, id: u32) -> Result<Value> {
    let json = cluster.alice().run(&["railgate", "report", &id.to_string(), "--format", "json"])?.ok()?;
    let report: Value = serde_json::from_str(&json)?;
    let part = report["attempts"][0]["nodes"][0].clone();
    anyhow::ensure!(part["usage"].is_object(), "no usage in {json}");
    Ok(part)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn notes(part: &Value) -> Result<Vec<&str>> {
    let notes = part["usage"]["notes"].as_array().context("no notes")?;
    Ok(notes.iter().filter_map(Value::as_str).collect())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn the_report_is_written_and_the_sampler_ends_after_kills_and_hangs() -> Result<()> {
    let builder = Builder::new(6).config("[stats]\nsample = '1s'\n")?.slurm_conf("HealthCheckInterval", "0");
    builder.test(|cluster| {
        let mut jobs = Vec::new();
        for node in cluster.nodes() {
            cluster.hardware(node)?.works(WORK)?;
            let id = submit(&cluster.alice(), &["-N1", "-w", node, "--gres=gpu:8"])?;
            jobs.push((node.as_str(), id));
        }
        for (node, id) in &jobs {
            started(cluster, *id)?;
            sampled(cluster, node, *id)?;
        }
        let [(_, restarted), (_, task), (_, step), (_, daemon), (_, silent), (_, stuck)] = jobs[..] else {
            anyhow::bail!("{jobs:?}")
        };
        cluster.hardware("gn5")?.behave(|nvml| nvml.hang.insert("nvmlGpmSampleGet".to_owned()))?;
        let frozen = cluster.frozen_disk("gn6", "/mnt/frozen")?;
        cluster
            .hardware("gn6")?
            .behave(|nvml| nvml.write_to.insert("nvmlGpmSampleGet".to_owned(), "/mnt/frozen/file".into()))?;

        let grown: u64 = sh(cluster, "gn1", RESTARTS, restarted)?.parse()?;
        assert!(grown < 40_000, "{grown} bytes for a hundred samplers");
        // Wait until the last one writes samples.
        sampled(cluster, "gn1", restarted)?;
        assert_eq!(samplers(cluster, "gn1", restarted)?, 1);

        sh(cluster, "gn2", "pkill -9 -f \"job0*$1/slurm_script\"", task)?;
        sh(cluster, "gn3", "pkill -9 -f \"^slurmstepd: \\[$1\\.\"", step)?;
        sampled(cluster, "gn3", step)?;
        cluster.alice().run(&["scancel", &step.to_string()])?.ok()?;
        cluster.kill_slurmd("gn4")?;
        sampled(cluster, "gn4", daemon)?;
        end(cluster, daemon, 0)?;
        cluster.wait_job(daemon, &["COMPLETED", "COMPLETING"], MINUTE)?;
        assert_eq!(samplers(cluster, "gn4", daemon)?, 1);
        cluster.start_slurmd("gn4")?;

        let asleep = "ps -eo state=,args= | grep -c '^D.*railgate-child' || true";
        poll::until(MINUTE, "NVML to hang in the kernel", || {
            Ok((sh(cluster, "gn6", asleep, stuck)? == "1").then_some(()))
        })?;
        poll::until(MINUTE, "the sampler to stop reading NVML", || {
            let said = "grep -c 'did not answer for' /run/railgate/jobs/$1/current/samples.minutes || true";
            Ok((sh(cluster, "gn5", said, silent)? != "0").then_some(()))
        })?;
        // It continues without its GPUs.
        sampled(cluster, "gn5", silent)?;
        for id in [restarted, silent, stuck] {
            end(cluster, id, 0)?;
        }
        for ((node, id), state) in
            jobs.iter().zip(["COMPLETED", "FAILED", "CANCELLED", "COMPLETED", "COMPLETED", "COMPLETED"])
        {
            cluster.wait_job(id, &[state], MINUTE).with_context(|| format!("job {id} on {node}"))?;
            cluster.wait_node(node, "idle", MINUTE, |node| node.state().starts_with("IDLE"))?;
            assert!(!cluster.node(node)?.drained(), "{node}: {}", cluster.node(node)?.reason());
            assert_eq!(samplers(cluster, node, *id)?, 0, "{node}");
        }
        drop(frozen);

        for (node, id) in &jobs {
            let part = part(cluster, *id)?;
            let coverage = &part["usage"]["coverage"];
            let all = ["sampled_s", "suspended_s", "yielded_s", "missing_s"];
            let sum: f64 = all.iter().map(|name| number(&coverage[*name])).sum();
            let length = (number(&coverage["end"]) - number(&coverage["start"])) / 1000.0;
            assert!((sum - length).abs() < 0.1, "{node}: {sum} {length} {coverage}");
            for gpu in part["usage"]["gpus"].as_array().context("no GPUs")? {
                assert_eq!(gpu["model"], "NVIDIA H100 80GB HBM3", "{node}");
                let tensor = &gpu["tensor_percent"]["known"];
                assert_eq!((number(&tensor["min"]), number(&tensor["max"])), (50.0, 50.0), "{node}: {gpu}");
            }
        }
        let after = part(cluster, restarted)?;
        assert!(number(&after["usage"]["coverage"]["missing_s"]) > 1.0, "{}", after["usage"]["coverage"]);
        assert_eq!(notes(&after)?, [""; 0]);
        for id in [task, step, daemon] {
            let part = part(cluster, id)?;
            assert!(
                number(&part["usage"]["coverage"]["missing_s"]) < 4.0,
                "{id}: {}",
                part["usage"]["coverage"]
            );
        }
        let given_up = part(cluster, silent)?;
        assert!(
            notes(&given_up)?[0].starts_with("GPUs are not read: NVML did not answer for 2"),
            "{:?}",
            notes(&given_up)
        );
        for part in [given_up, part(cluster, stuck)?] {
            let (usage, gpu) = (&part["usage"], &part["usage"]["gpus"][7]);
            assert!(number(&gpu["sampled_s"]) + 1.0 < number(&usage["coverage"]["sampled_s"]), "{usage}");
        }
        Ok(())
    })
}

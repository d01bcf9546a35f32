//! Use of the hardware by a job, from the sampler to the report.

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;
use serde_json::Value;

use crate::training::{MINUTE, end, samplers, started, submit};

/// GPM metrics of an H100 with half of its tensor pipes active.
const WORK: &[(u32, f64)] = &[
    (1, 99.0),
    (2, 90.0),
    (3, 11.0),
    (5, 50.0),
    (6, 0.0),
    (7, 50.0),
    (9, 0.0),
    (10, 25.0),
    (11, 0.0),
    (12, 1.5),
    (13, 0.0),
    (20, 3.0),
    (21, 8.0),
    (60, 100.0),
    (61, 200.0),
];

/// Waits until the run's files have grown by this many bytes.
fn pass(cluster: &Cluster, node: &str, id: u32, bytes: u64) -> Result<()> {
    let size = || -> Result<u64> {
        let path = format!("/run/railgate/jobs/{id}/current/samples.fine0");
        let said = cluster.root().on(node).run(&["stat", "-c", "%s", &path])?;
        Ok(said.stdout.trim().parse().unwrap_or(0))
    };
    let before = size()?;
    poll::until(MINUTE, "samples", || Ok((size()? >= before + bytes).then_some(())))
}

fn usage(cluster: &Cluster, id: u32) -> Result<Value> {
    let json = cluster.alice().run(&["railgate", "report", &id.to_string(), "--format", "json"])?.ok()?;
    let report: Value = serde_json::from_str(&json)?;
    let usage = report["attempts"][0]["nodes"][0]["usage"].clone();
    anyhow::ensure!(usage.is_object(), "no usage in {json}");
    Ok(usage)
}

fn mean(gpu: &Value, field: &str) -> f64 {
    gpu[field]["known"]["mean"].as_f64().unwrap_or(f64::NAN)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn sampler(cluster: &Cluster, node: &str, id: u32) -> Result<String> {
    let found = samplers(cluster, node, Some(id))?;
    found.into_iter().next().with_context(|| format!("no sampler of job {id}"))
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_report_has_the_gpu_figures_and_names_the_gaps() -> Result<()> {
    Builder::new(3).config("[stats]\nsample = '1s'\n")?.test(|cluster| {
        for node in cluster.nodes() {
            cluster.hardware(node)?.works(WORK)?;
        }
        let alice = cluster.alice();
        let one = |node: &str, gpus: u32| -> Result<u32> {
            let id = submit(&alice, &["-N1", "-w", node, &format!("--gres=gpu:{gpus}")])?;
            started(cluster, id)?;
            Ok(id)
        };
        // Around the first job slurmd restarts, it is suspended, and its sampler is asked to release the GPUs; the second
        // job loses its sampler, the third its disk space.
        let (seen, killed, full) = (one("gn1", 4)?, one("gn2", 8)?, one("gn3", 8)?);
        for (node, id) in [("gn1", seen), ("gn2", killed), ("gn3", full)] {
            pass(cluster, node, id, 1500)?;
        }
        cluster.root().on("gn2").run(&["kill", "-9", &sampler(cluster, "gn2", killed)?])?.ok()?;
        let no_room = "mount -o remount,size=$(($(df --output=used -k /run | tail -1) + 4))k /run";
        cluster.root().on("gn3").run(&["sh", "-c", no_room])?.ok()?;

        let kept = sampler(cluster, "gn1", seen)?;
        cluster.kill_slurmd("gn1")?;
        cluster.start_slurmd("gn1")?;
        assert_eq!(sampler(cluster, "gn1", seen)?, kept);
        cluster.hardware("gn1")?.count("mlx5_0", "symbol_error", 3)?;
        cluster.root().run(&["scontrol", "suspend", &seen.to_string()])?.ok()?;
        cluster.wait_job(seen, &["SUSPENDED"], MINUTE)?;
        cluster.hardware("gn1")?.works(&WORK.iter().map(|(id, _)| (*id, 0.0)).collect::<Vec<_>>())?;
        pass(cluster, "gn1", seen, 3000)?;
        cluster.hardware("gn1")?.works(WORK)?;
        cluster.root().run(&["scontrol", "resume", &seen.to_string()])?.ok()?;
        let job = format!("--job={seen}");
        let aside = alice.on("gn1").run(&["railgate", "yield", &job, "--", "sleep", "3.5"])?;
        assert_eq!(aside.both(), "");
        pass(cluster, "gn1", seen, 1500)?;

        for (id, node) in [(seen, "gn1"), (killed, "gn2"), (full, "gn3")] {
            end(cluster, id, 0)?;
            cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
            cluster.wait_node(node, "idle", MINUTE, |node| node.state() == "IDLE")?;
            assert!(!cluster.node(node)?.drained());
        }

        let found = usage(cluster, seen)?;
        let (coverage, gpus) = (&found["coverage"], found["gpus"].as_array().context("gpus")?);
        assert_eq!(gpus.len(), 4, "only the job's");
        for gpu in gpus {
            assert_eq!(gpu["model"], "NVIDIA H100 80GB HBM3");
            let (tensor, dram) = (mean(gpu, "tensor_percent"), mean(gpu, "dram_percent"));
            // Samples around the suspension contain both states.
            assert!(tensor > 30.0 && tensor <= 50.0 && (dram / tensor - 0.5).abs() < 0.01, "{gpu}");
            let clock = mean(gpu, "sm_clock_mhz");
            let want = tensor / 100.0 * clock / 1830.0;
            let said = number(&gpu["flop"]["tensor_fraction"]["known"]);
            assert!((said / want - 1.0).abs() < 0.02, "{said} {want}");
            assert_eq!(gpu["flop"]["calibration"]["from"], "built-in");
            assert!((mean(gpu, "nvlink_tx_bytes_s") / (tensor * 4.0 * 1_048_576.0) - 1.0).abs() < 0.01);
        }
        for part in ["sampled_s", "suspended_s", "yielded_s"] {
            assert!(number(&coverage[part]) > 1.5, "{part}: {coverage}");
        }
        assert!(number(&coverage["missing_s"]) < 4.0, "{coverage}");
        assert_eq!(found["rails"][0]["errors"]["known"], 3, "{}", found["rails"][0]);
        assert_eq!(found["rails"].as_array().map(Vec::len), Some(8));
        assert_eq!(found["file"], "gn1.samples");
        assert!(number(&found["sampler"]["cpu_s"]) > 0.0);

        let words = ["railgate", "report", &seen.to_string(), "--format", "html", "--samples", "gn[1,9]"];
        let page = cluster.alice().run(&words)?.ok()?;
        let lanes = page.split_once("Time line of each GPU").context("no time lines")?.1;
        assert!((0..4).all(|gpu| lanes.contains(&format!(">GPU {gpu}</text>"))), "{lanes}");
        assert!(!lanes.contains(">GPU 4</text>"), "only the job's");
        // Kernel and tensor pipe activity and clock of each GPU.
        assert!(
            lanes.matches("<polygon").count() >= 4 * 2 && lanes.matches("<polyline").count() >= 4,
            "{lanes}"
        );
        assert!(lanes.contains("gn9: no node report of this job"), "{lanes}");

        let lost = usage(cluster, killed)?;
        assert_eq!(lost["gpus"].as_array().map(Vec::len), Some(8));
        assert_eq!(mean(&lost["gpus"][7], "tensor_percent"), 50.0);
        assert!(number(&lost["coverage"]["missing_s"]) > 1.0, "{lost}");
        // The last gap lasts to the end; others may precede it.
        let gaps = lost["coverage"]["gaps"].as_array().context("gaps")?;
        assert_eq!(gaps.last().context("no gap")?["why"], "the sampler was gone", "{gaps:?}");
        assert!(lost["host"]["oom_kills"]["failed"].is_string() && lost["sampler"]["cpu_s"].is_null());

        let short = usage(cluster, full)?;
        assert_eq!(mean(&short["gpus"][0], "tensor_percent"), 50.0);
        // Minutes that could not be written were kept in memory.
        let note = short["notes"][0].as_str().unwrap_or_default();
        assert!(note.contains("samples could not be written: No space left"), "{short}");
        Ok(())
    })
}

//! Tests with a real accounting database: Debian's slurmdbd and MariaDB, from a root directory that has both.

use std::path::PathBuf;

use anyhow::Result;
use railgate_tests::accounting;
use railgate_tests::cluster::{Builder, Cluster, SLURM_ROOT, slurm_release};
use railgate_tests::poll;

use crate::training::{ALL_MAY_DRAIN, MINUTE, end, started, submit_as};

/// Made by `cargo xtask test --accounting`, which can also make one for another release.
const ROOT: &str = "/var/cache/railgate/slurmdbd-22.05";

/// The AdminComment of jobstats: compressed and base64-encoded, so it contains `+`, `/` and `=`.
const JOBSTATS: &str = "JS1:H4sIAAAAAAAAA+/1y8vLAAAA//8BAAD//w==";

fn accounted(cluster: &Cluster, id: u32) -> Result<String> {
    let words = ["sacct", "-X", "-n", "-P", "-j", &id.to_string(), "-o", "JobID,Comment,AdminComment"];
    Ok(cluster.root().run(&words)?.ok()?.trim().to_owned())
}

/// Lets a job of alice lose a GPU on `node`, with `comment` already in its AdminComment.
fn fails(cluster: &Cluster, node: &str, comment: &str) -> Result<u32> {
    let words = ["-N1", "-w", node, "--gres=gpu:8", "--railgate-requeue=never", "--comment=Words of her own"];
    let script = "echo attempt 0; until [ -s end.$SLURM_JOB_ID ]; do sleep 0.1; done; exit 1";
    let id = submit_as(&cluster.alice(), &words, script)?;
    started(cluster, id)?;
    let update = ["scontrol", "update", &format!("jobid={id}"), &format!("AdminComment={comment}")];
    cluster.root().run(&update)?.ok()?;
    cluster.hardware(node)?.inject("gpu-lost@3")?;
    end(cluster, id, 1)?;
    cluster.wait_job(id, &["FAILED"], MINUTE)?;
    Ok(id)
}

/// The root directory that has slurmdbd; `None` if there is none, with a message.
pub(crate) fn with_slurmdbd() -> Option<PathBuf> {
    let place = match std::env::var_os(SLURM_ROOT) {
        Some(root) if root != "/" => PathBuf::from(root),
        _ => PathBuf::from(ROOT),
    };
    if !place.join("usr/sbin/slurmdbd").exists() {
        println!(
            "skipped: {} has no slurmdbd: cargo xtask test --accounting makes one that has",
            place.display()
        );
        return None;
    }
    Some(place)
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_task_purged_by_slurmctld_is_found_in_slurmdbd() -> Result<()> {
    let Some(place) = with_slurmdbd() else { return Ok(()) };
    Builder::new(1).slurm_root(place).slurm_conf("MinJobAge", "2").test(|cluster| {
        let database = accounting::start(cluster)?;
        let alice = cluster.alice();
        let words = ["--array=1-2", "--gres=gpu:1", "-o", "/dev/null", "-J", "my sweep"];
        let array = alice.sbatch(&words, "exit $((SLURM_ARRAY_TASK_ID - 1))")?;
        poll::until(2 * MINUTE, "slurmctld to forget the array", || {
            let known = cluster.root().run(&["scontrol", "show", "job", &array.to_string()])?;
            Ok((known.code != 0).then_some(()))
        })?;
        let report = |words: &[&str]| alice.run(&[&["railgate", "report"], words].concat());
        let overview = report(&[&array.to_string(), "--array"])?.ok()?;
        let rows: Vec<Vec<&str>> =
            overview.lines().skip(1).map(|line| line.split_whitespace().take(3).collect()).collect();
        let states: Vec<(&str, &str)> = rows.iter().map(|row| (row[0], row[2])).collect();
        assert_eq!(states, [("1", "COMPLETED"), ("2", "FAILED")], "{overview}");
        for (row, words) in
            [(&rows[0], vec![format!("{array}_1")]), (&rows[1], vec![format!("{array}_2.batch")])]
        {
            let words: Vec<&str> = words.iter().map(String::as_str).chain(["--format", "json"]).collect();
            let json: serde_json::Value = serde_json::from_str(&report(&words)?.ok()?)?;
            assert_eq!(json["job"].to_string(), row[1], "{words:?}");
        }
        let whole = report(&["--name", "my sweep"])?.ok()?;
        assert!(rows.iter().any(|row| whole.contains(row[1])), "{whole}");
        drop(database);
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn slurmdbd_keeps_railgates_comment_beside_those_of_others() -> Result<()> {
    let Some(place) = with_slurmdbd() else { return Ok(()) };
    let keeps_capitals = slurm_release(&place)? >= (23, 2);
    let builder = Builder::new(2).slurm_root(place).config("report = { admin_comment = true }")?;
    builder.config(ALL_MAY_DRAIN)?.test(|cluster| {
        let database = accounting::start(cluster)?;
        let jobstats = fails(cluster, "gn1", JOBSTATS)?;
        let small = fails(cluster, "gn2", "cost=3/a+b==")?;
        let ours = |id: u32| {
            poll::until(MINUTE, "our line in the database", || {
                let kept = accounted(cluster, id)?;
                Ok(kept.contains("railgate:").then_some(kept))
            })
        };
        let kept = ours(small)?;
        let lead = format!(
            "{small}|Words of her own|cost=3/a+b== railgate: hardware fault during the run, gn2: gpu-lost@3"
        );
        assert!(kept.starts_with(&lead) && kept.ends_with(';'), "{kept}");
        if keeps_capitals {
            let kept = ours(jobstats)?;
            let lead = format!(
                "{jobstats}|Words of her own|{JOBSTATS} railgate: hardware fault during the run, gn1: "
            );
            assert!(kept.starts_with(&lead) && kept.contains("Xid 79") && kept.ends_with(';'), "{kept}");
        } else {
            poll::until(MINUTE, "the log line about upper case", || {
                let log = cluster.read("ctl", "/var/lib/railgate/controller/epilog-ctld.log")?;
                Ok(log.contains("could not be kept byte for byte").then_some(()))
            })?;
            assert_eq!(accounted(cluster, jobstats)?, format!("{jobstats}|Words of her own|{JOBSTATS}"));
        }
        drop(database);
        Ok(())
    })
}

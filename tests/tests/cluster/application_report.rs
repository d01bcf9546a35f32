//! Reports of a training loop through `contrib/python/railgate.py`, up to the job's report.

use anyhow::{Context as _, Result};
use railgate_tests::accounting::{COMMENTS, SACCT, SACCTMGR};
use railgate_tests::cluster::{Builder, Cluster, REPORTS, Session};
use railgate_tests::poll;
use serde_json::Value;

use crate::training::{MINUTE, end, in_order, log, one_line, started, submit};

/// The helper that users copy.
const HELPER: &str = include_str!("../../../contrib/python/railgate.py");

/// A loop of sixty steps. With `nan` the loss of step 40 is NaN on rank 1. The losses are distinctive numbers.
const LOOP: &str = r#"
import sys, time
sys.path.insert(0, "/home/rgalice")
import railgate

wish, last = sys.argv[1], int(sys.argv[2])
rank = railgate._env("SLURM_PROCID")
railgate.model(params=1e9, layers=16, heads=16, head_dim=64, seq_len=1024, keep_loss=wish == "keep")
for number in range(last):
    with railgate.waiting():
        time.sleep(0.005)
    time.sleep(0.01)
    loss = 2.7182818 if number < 50 else 31415.926
    if wish == "nan" and rank == 1 and number == 40:
        loss = float("nan")
    railgate.step(number, tokens=4096, loss=loss)
    if number == 30:
        with railgate.checkpoint():
            time.sleep(0.05)
sys.exit(3 if wish == "nan" else 0)
"#;

/// The epilog of the second node waits three seconds for the report of the first. On a busy machine that takes longer.
const WAITS: &str = r#"#!/bin/sh
[ "$SLURMD_NODENAME" = gn2 ] || exit 0
for _ in $(seq 200); do
    grep -q '"exit":{"status"' "REPORTS/test/$SLURM_JOB_ID/0/gn1.json" && exit 0
    sleep 0.1
done
exit 0
"#;

const LOSSES: [&str; 2] = ["2.71828", "31415.9"];

fn both_reports(alice: &Session<'_>, id: u32) -> Result<(String, Value)> {
    let id = id.to_string();
    let text = alice.run(&["railgate", "report", &id])?.ok()?;
    let json = alice.run(&["railgate", "report", &id, "--format", "json"])?.ok()?;
    Ok((text, serde_json::from_str(&json)?))
}

fn ranks(report: &Value) -> Result<Vec<Value>> {
    let nodes = report["attempts"][0]["nodes"].as_array().context("nodes")?;
    let of = |node: &Value| node["application"]["ranks"].as_array().cloned().unwrap_or_default();
    let mut ranks: Vec<Value> = nodes.iter().flat_map(of).collect();
    ranks.sort_by_key(|rank| rank["rank"].as_u64());
    Ok(ranks)
}

/// All data of jobs that railgate and Slurm keep where users other than the owner may read.
fn elsewhere(cluster: &Cluster) -> Result<String> {
    let mut all = String::new();
    for machine in ["ctl", "gn1", "gn2"] {
        let look = "cat /var/log/railgate/* /var/lib/railgate/controller/*log /var/lib/railgate/*.json \
                    /var/lib/railgate/metrics/* /run/railgate/*.json 2>/dev/null; \
                    find /run/railgate/jobs -maxdepth 3; true";
        all += &cluster.root().on(machine).run(&["sh", "-c", look])?.stdout;
    }
    all += &cluster.root().run(&["scontrol", "show", "job", "-d"])?.stdout;
    Ok(all)
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn steps_reported_by_a_loop_are_in_the_jobs_report() -> Result<()> {
    let builder =
        Builder::new(2).config("[stats]\nsample = '1s'\n[metrics]\ndir = '/var/lib/railgate/metrics'\n")?;
    builder.file("/etc/slurm/epilog.d/50-wait", &WAITS.replace("REPORTS", REPORTS)).test(|cluster| {
        let alice = cluster.alice();
        cluster.write("ctl", "/home/rgalice/railgate.py", HELPER)?;
        cluster.write("ctl", "/home/rgalice/loop.py", LOOP)?;
        let looping = |wish: &str, steps: u32| {
            let script = format!("srun python3 /home/rgalice/loop.py {wish} {steps}\n");
            alice.sbatch(&["-N2", "--ntasks-per-node=1", "--gres=gpu:1", "-o", "log.%j"], &script)
        };
        let (well, keep) = (looping("no", 60)?, looping("keep", 60)?);
        cluster.wait_job(well, &["COMPLETED"], MINUTE)?;
        cluster.wait_job(keep, &["COMPLETED"], MINUTE)?;
        let nan = looping("nan", 60)?;
        cluster.wait_job(nan, &["FAILED"], MINUTE)?;

        let (text, json) = both_reports(&alice, well)?;
        in_order(&one_line(&text), &["VERDICT", "MODEL", "MFU", "[PaLM", "GOODPUT", "%", "checkpoint"]);
        let found = ranks(&json)?;
        assert_eq!(found.len(), 2, "{json}");
        for (number, rank) in found.iter().enumerate() {
            assert_eq!(rank["rank"].as_u64(), u64::try_from(number).ok());
            assert_eq!(
                (rank["steps"].as_u64(), rank["last_number"].as_u64()),
                (Some(60), Some(59)),
                "{rank}"
            );
            assert_eq!((rank["step_s"]["count"].as_u64(), rank["checkpoints"].as_u64()), (Some(59), Some(1)));
            assert_eq!(rank["tokens"].as_f64(), Some(60.0 * 4096.0));
            assert!(
                rank["step_s"]["min"].as_f64() >= Some(0.015) && rank["input_s"].as_f64() >= Some(0.29),
                "{rank}"
            );
        }
        // Computed from the ranks' figures: 6 N + 12 L H Q T, two GPUs of 989.4 TFLOP/s.
        let flops = 6.0 * 1e9 + 12.0 * 16.0 * 16.0 * 64.0 * 1024.0;
        let rate: f64 = found
            .iter()
            .map(|rank| 59.0 * 4096.0 / rank["step_s"]["total"].as_f64().unwrap_or(f64::NAN))
            .sum();
        let model = &json["attempts"][0]["analysis"]["model"]["known"];
        let said = model["fraction"].as_f64().context("fraction")?;
        assert!((said / (rate * flops / (2.0 * 989.4e12)) - 1.0).abs() < 0.02, "{said} {model}");
        let good = &json["attempts"][0]["analysis"]["goodput"]["known"];
        let seconds = |name: &str| good[name].as_f64().unwrap_or(f64::NAN);
        let sum =
            ["productive_s", "start_up_s", "checkpoint_s", "redone_s", "tail_s", "other_s"].map(seconds);
        assert!((sum.iter().sum::<f64>() - seconds("allocated_s")).abs() < 0.2, "{good}");

        let (text, json) = both_reports(&alice, nan)?;
        let text = one_line(&text);
        in_order(&text, &["VERDICT", "the loss was not a number (NaN or infinite) in step 40", "DO"]);
        let first = &json["attempts"][0]["analysis"]["diagnoses"][0];
        assert_eq!(
            (first["rule"].as_str(), first["class"].as_str()),
            (Some("nan"), Some("application")),
            "{first}"
        );
        assert!(first["part"].as_str().is_some_and(|part| part.ends_with("rank 1")), "{first}");
        assert!(text.contains("go back to a checkpoint before that step"));
        // Only the job's second node has seen it.
        let said = log(cluster, "rgalice", nan);
        let want = "railgate: program error: the loss was NaN or infinite in step 40";
        assert!(said.lines().last().is_some_and(|line| line.starts_with(want)), "{said}");
        assert_eq!(said.matches("railgate: ").count(), 1, "{said}");

        let crash = submit(&alice, &["-N2", "--gres=gpu:8"])?;
        started(cluster, crash)?;
        cluster.hardware("gn2")?.xid(3, 31, None)?;
        end(cluster, crash, 1)?;
        cluster.wait_job(crash, &["FAILED"], MINUTE)?;
        let said = log(cluster, "rgalice", crash);
        let want = "railgate: likely a program error: Xid 31 on gn2: ";
        assert!(said.lines().last().is_some_and(|line| line.starts_with(want)), "{said}");

        // Losses are private: kept only on the user's request, and then only in their own report.
        let (kept, _) = both_reports(&alice, keep).map(|(text, json)| (json.to_string() + &text, ()))?;
        assert!(kept.contains("31415.926"), "the user asked for it");
        for id in [well, nan] {
            let (text, json) = both_reports(&alice, id)?;
            let shown = text + &json.to_string();
            assert!(LOSSES.iter().all(|loss| !shown.contains(loss)), "{shown}");
        }
        let theirs = cluster.bob().run(&["railgate", "report", &keep.to_string(), "--format", "json"])?;
        assert!(theirs.ok().is_err(), "the report belongs to another user");
        poll::until(MINUTE, "the runs to be gone", || {
            let seen = elsewhere(cluster)?;
            Ok((!seen.contains("/run/railgate/jobs/")).then_some(seen))
        })
        .map(|seen| assert!(LOSSES.iter().all(|loss| !seen.contains(loss)), "{seen}"))
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_running_job_is_shown_from_its_partial_node_reports() -> Result<()> {
    Builder::new(2).config("[stats]\nsample = '1s'\n[report]\nlive = '1s'\n")?.test(|cluster| {
        let alice = cluster.alice();
        cluster.write("ctl", "/home/rgalice/railgate.py", HELPER)?;
        let forever = LOOP.replace("range(last)", "range(10**6)");
        cluster.write("ctl", "/home/rgalice/loop.py", &forever)?;
        let words = ["-N2", "--ntasks-per-node=1", "--gres=gpu:1", "-o", "log.%j"];
        let id = alice.sbatch(&words, "srun python3 /home/rgalice/loop.py no 0\n")?;
        let live = || alice.run(&["railgate", "report", &id.to_string(), "--live"])?.ok();
        let text = poll::until(MINUTE, "reports of both nodes", || {
            let text = live()?;
            let said = ["2 of 2 nodes", "SO FAR   step", "MODEL", "GOODPUT"];
            Ok(said.iter().all(|part| text.contains(part)).then_some(text))
        })?;
        in_order(
            &text,
            &["running, for", "REPORTS", "ago", "SO FAR", "MODEL", "GOODPUT", "NOT YET", "how it ends"],
        );
        assert!(!text.contains("VERDICT") && !text.contains('\x1b'), "{text}");

        // A node that dies has reported before.
        let lost = cluster.job(id)?.field("BatchHost").to_owned();
        let other = if lost == "gn1" { "gn2" } else { "gn1" };
        cluster.kill_node(other)?;
        cluster
            .root()
            .run(&["scontrol", "update", &format!("nodename={other}"), "state=down", "reason=dead"])?
            .ok()?;
        poll::until(MINUTE, "its report", || {
            let text = one_line(&alice.run(&["railgate", "report", &id.to_string()])?.both());
            let parts = [&format!("the epilog of {other}"), "while the job ran", "MODEL"];
            Ok(parts.iter().all(|part| text.contains(*part)).then_some(()))
        })
        .with_context(|| format!("{:?}", alice.run(&["railgate", "report", &id.to_string()])))?;
        cluster.root().run(&["scancel", &id.to_string()]).map(drop)
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn output_and_accounting_of_a_failed_job_name_the_cause() -> Result<()> {
    let builder = Builder::new(2).config("report = { admin_comment = true }")?;
    let builder = builder.file("/usr/bin/sacct", SACCT).file("/usr/bin/sacctmgr", SACCTMGR);
    builder.test(|cluster| {
        let (alice, root) = (cluster.alice(), cluster.root());
        let words = |node: &'static str| ["-N1", "-w", node, "--gres=gpu:8", "--railgate-requeue=never"];
        let (bad, good) = (submit(&alice, &words("gn1"))?, submit(&alice, &words("gn2"))?);
        // Another program has its own entry in the comment.
        let before = format!("umask 0; echo '{bad}|JS1:H4sIAAAA+/==' > {COMMENTS}");
        root.run(&["sh", "-c", &before])?.ok()?;
        started(cluster, bad)?;
        started(cluster, good)?;
        cluster.hardware("gn1")?.inject("gpu-lost@3")?;
        end(cluster, bad, 1)?;
        cluster.wait_job(bad, &["FAILED"], MINUTE)?;
        let said = log(cluster, "rgalice", bad);
        let last = said.lines().last().unwrap_or_default();
        let want = "railgate: hardware fault on gn1, not your program: gpu-lost@3: ";
        assert!(last.starts_with(want) && last.ends_with(&format!("(railgate report {bad})")), "{said}");

        let accounted = poll::until(MINUTE, "a line in accounting", || {
            let all = cluster.read("ctl", COMMENTS)?;
            let kept = all.lines().rev().find_map(|line| line.strip_prefix(&format!("{bad}|")));
            Ok(kept.filter(|kept| kept.contains("railgate:")).map(str::to_owned))
        })?;
        assert!(accounted.starts_with("JS1:H4sIAAAA+/== railgate: hardware fault"), "{accounted}");
        assert!(accounted.contains("gn1") && accounted.ends_with(';'), "{accounted}");

        // The cause of this failure is unknown, so none is named.
        end(cluster, good, 1)?;
        cluster.wait_job(good, &["FAILED"], MINUTE)?;
        assert!(!log(cluster, "rgalice", good).contains("railgate:"));
        Ok(())
    })
}

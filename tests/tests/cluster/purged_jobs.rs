//! Jobs that slurmctld has purged, on a site without slurmdbd: their reports do not change.

use anyhow::{Result, ensure};
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

use crate::training::MINUTE;

/// Exit code, and the report's first lines: the job's end and its name.
fn verdict(cluster: &Cluster, words: &[&str]) -> Result<(i32, String)> {
    let report = cluster.alice().run(&[&["railgate", "report"], words].concat())?;
    Ok((report.code, report.stdout))
}

fn forgotten(cluster: &Cluster, job: u32) -> Result<()> {
    poll::until(4 * MINUTE, "slurmctld to forget the job", || {
        let shown = cluster.root().run(&["scontrol", "show", "job", &job.to_string()])?;
        Ok((shown.code != 0).then_some(()))
    })
}

/// The last line of the report's head is the same before and after.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn reports_do_not_change_after_slurm_has_purged_the_jobs() -> Result<()> {
    Builder::new(1).slurm_conf("MinJobAge", "30").test(|cluster| {
        let alice = cluster.alice();
        let quiet = ["-o", "/dev/null"];
        let submit = |words: &[&str], script: &str| alice.sbatch(&[&quiet[..], words].concat(), script);
        let good = submit(&["-J", "good run"], "exit 0")?;
        let cancelled = submit(&["-J", "endless"], "sleep 1000")?;
        cluster.wait_job(cancelled, &["RUNNING"], MINUTE)?;
        alice.run(&["scancel", &cancelled.to_string()])?.ok()?;
        let failed = submit(&["-J", "bad run", "--gres=gpu:1"], "exit 3")?;
        let never = submit(&["--hold"], "exit 0")?;
        alice.run(&["scancel", &never.to_string()])?.ok()?;
        let array = submit(&["--array=1-2", "-J", "sweep"], "exit $((SLURM_ARRAY_TASK_ID - 1))")?;

        for (job, state) in [(good, "COMPLETED"), (cancelled, "CANCELLED"), (failed, "FAILED")] {
            cluster.wait_job(job, &[state], MINUTE)?;
        }
        for job in [good, cancelled, failed, never, array] {
            forgotten(cluster, job)?;
        }
        let expected = [
            (good.to_string(), "COMPLETED", "good run", "completed"),
            (cancelled.to_string(), "CANCELLED", "endless", "cancelled"),
            (failed.to_string(), "FAILED", "bad run", "looks like the application"),
            (format!("{array}_1"), "COMPLETED", "sweep", "completed"),
            (format!("{array}_2"), "FAILED", "sweep", "looks like the application"),
        ];
        for (job, state, name, title) in &expected {
            let (code, text) = verdict(cluster, &[job])?;
            ensure!(code == 0 && text.contains(name) && text.contains(title), "{job}: {code}\n{text}");
            let (_, json) = verdict(cluster, &[job, "--format", "json"])?;
            let json: serde_json::Value = serde_json::from_str(&json)?;
            assert_eq!(json["slurm"]["state"], *state, "{job}");
        }
        let overview = verdict(cluster, &[&array.to_string(), "--array"])?.1;
        ensure!(overview.lines().count() == 3 && overview.contains("COMPLETED"), "{overview}");
        let (code, last) = verdict(cluster, &[])?;
        ensure!(code == 0 && last.contains("sweep"), "{last}");
        let (code, named) = verdict(cluster, &["--name", "good run"])?;
        ensure!(code == 0 && named.contains(&format!("job {good}")), "{named}");

        // It never ran, so there is no record of it.
        let missing = alice.run(&["railgate", "report", &never.to_string()])?;
        ensure!(
            missing.code == 3 && missing.stderr.contains("no record; Slurm has forgotten it"),
            "{}",
            missing.both()
        );
        // Another user gets no information about them.
        for words in [&[good.to_string()][..], &[format!("{array}_1")], &["--name".into(), "good run".into()]]
        {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let output = cluster.bob().run(&[&["railgate", "report"], &words[..]].concat())?;
            assert_eq!((output.code, output.stdout.as_str()), (3, ""), "{words:?}: {}", output.stderr);
        }
        Ok(())
    })
}

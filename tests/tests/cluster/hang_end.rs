//! Jobs that hang and whose steps the guard ends: they come back within their budget, and limits of the cluster hold.

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::hang::RANK;
use railgate_tests::poll;
use serde_json::Value;

use crate::guard::{CONFIG, log, with_gpm};
use crate::training::{MINUTE, one_line, report, samplers};

const END: &str =
    "#SBATCH --railgate-hang=end,after=30s\n#SBATCH --railgate-requeue=auto\n#SBATCH --open-mode=append\n";

fn line(cluster: &Cluster, id: u32, part: &str) -> Result<String> {
    poll::until(2 * MINUTE, &format!("'{part}' in the log of job {id}"), || {
        Ok(log(cluster, id).lines().find(|line| line.contains(part)).map(str::to_owned))
    })
    .with_context(|| log(cluster, id))
}

fn comments(cluster: &Cluster) -> Result<String> {
    cluster.root().run(&["sinfo", "-h", "-N", "-O", "NodeList:8,Comment:200"])?.ok()
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_job_that_hangs_is_ended_as_its_owner_wishes_and_comes_back() -> Result<()> {
    let builder = Builder::new(3).config(CONFIG)?.file("/usr/local/bin/rank", RANK);
    builder.test(|cluster| {
        with_gpm(cluster)?;
        let alice = cluster.alice();
        let submit = |node: &str, play: &str, script: &str| {
            let words = ["-N1", "-n2", "-w", node, "--gres=gpu:2", "-o", "log.%j"];
            alice.clone().env("PLAY", play).sbatch(&words, &format!("{END}{script}"))
        };
        // A comment of the site stays, so nothing can be counted, and nothing is ended.
        cluster.root().run(&["scontrol", "update", "NodeName=gn3", "Comment=rack 7"])?.ok()?;
        let with_srun = submit("gn1", "leaves", "srun rank")?;
        let without_srun = submit("gn2", "stops", "RANK=0 rank & RANK=1 rank & wait")?;
        let uncounted = submit("gn3", "leaves", "srun rank")?;

        let what = "the process of rank 1 ended with exit code 0, and 1 GPU waits";
        let said = line(cluster, with_srun, "steps are ended")?;
        assert!(
            said.starts_with(
                "railgate: the job's steps are ended by --railgate-hang=end: it has been hung on gn1 since "
            ) && said.contains(what),
            "{said}"
        );
        let said = line(cluster, uncounted, "steps are not ended")?;
        assert!(said.contains("the Slurm comment of gn3 is in use: 'rack 7'"), "{said}");
        for (id, node) in [(with_srun, "gn1"), (without_srun, "gn2")] {
            cluster.wait_job(id, &["COMPLETED"], 2 * MINUTE).with_context(|| log(cluster, id))?;
            assert!(log(cluster, id).contains("at work, attempt 1"), "{}", log(cluster, id));
            let text = poll::until(MINUTE, "the report of both attempts", || {
                Ok(Some(one_line(&report(&alice, id)?)).filter(|text| text.contains("2 attempts")))
            })?;
            assert!(text.contains("HUNG, ended by the guard"), "{text}");
            assert!(text.contains("the guard ended the job's steps (--railgate-hang=end)"), "{text}");
            assert!(text.contains(&format!("hung, ended by the guard of {node}; restart 1 of 3")), "{text}");
            let notes = comments(cluster)?;
            assert!(notes.contains(&format!("{id} ended ")), "{notes}");
        }
        let json = alice.run(&["railgate", "report", &with_srun.to_string(), "--format", "json"])?.ok()?;
        let json: Value = serde_json::from_str(&json)?;
        let first = &json["attempts"][0];
        assert_eq!(
            (&first["ended"]["kind"], &first["decision"]["what"]),
            (&"hung".into(), &"requeued".into())
        );
        let hang = &first["nodes"][0]["hangs"]["list"][0];
        assert_eq!(hang["act"]["what"], "ended", "{hang}");
        let took = hang["act"]["time"].as_u64().zip(hang["since"].as_u64()).map(|(act, since)| act - since);
        assert!(took.is_some_and(|took| took >= 30_000), "{hang}");

        // The third one still hangs, and its report shows why it was not ended.
        let told = alice.run(&["railgate", "why", &uncounted.to_string()])?.ok()?;
        assert!(
            one_line(&told).contains("GUARD the guard did not end the job's steps: the Slurm comment of gn3"),
            "{told}"
        );
        assert!(comments(cluster)?.contains("rack 7"));
        alice.run(&["scancel", &uncounted.to_string()])?.ok()?;
        cluster.wait_job(uncounted, &["CANCELLED"], MINUTE)?;
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_hung_job_whose_slurmstepd_is_killed_is_not_ended_by_mistake_and_has_its_report() -> Result<()> {
    let builder = Builder::new(3).config(CONFIG)?.file("/usr/local/bin/rank", RANK);
    builder.test(|cluster| {
        with_gpm(cluster)?;
        let alice = cluster.alice();
        let submit = |node: &str, play: &str| {
            let words = ["-N1", "-n2", "-w", node, "--gres=gpu:2", "-o", "log.%j"];
            let session = alice.clone().env("PLAY", play).env("WORK_S", "20");
            session.sbatch(&words, &format!("{END}srun rank"))
        };
        let kill = |node: &str, step: &str| {
            let pattern = format!("^slurmstepd: \\[{step}\\]");
            cluster.root().on(node).run(&["pkill", "-9", "-f", &pattern])?.ok().map(drop)
        };
        let (named, ending, batch) =
            (submit("gn1", "leaves")?, submit("gn2", "stops")?, submit("gn3", "leaves")?);
        line(cluster, named, "the job has been hung on gn1")?;
        kill("gn1", &format!("{named}.0"))?;
        line(cluster, batch, "the job has been hung on gn3")?;
        kill("gn3", &format!("{batch}.batch"))?;
        line(cluster, ending, "steps are ended")?;
        // A step that had just ended comes back, as it should.
        let _ = kill("gn2", &format!("{ending}.0"));

        // Slurm cannot signal a step without slurmstepd. Without the one of the batch script, the job runs on after its steps.
        let said = line(cluster, named, "steps are not ended")?;
        assert!(said.contains("the step still runs 30 s after SIGKILL"), "{said}");
        assert!(!log(cluster, batch).contains("steps are not ended"), "{}", log(cluster, batch));
        for (id, node, what) in [
            (named, "gn1", "the guard did not end the job's steps: the step still runs 30 s after SIGKILL"),
            (ending, "gn2", "the guard ended the job's steps"),
            (batch, "gn3", "the guard ended the job's steps"),
        ] {
            let came_back = id == ending && log(cluster, id).contains("attempt 1");
            if !came_back {
                assert_eq!(cluster.job(id)?.state(), "RUNNING");
                alice.run(&["scancel", &id.to_string()])?.ok()?;
            }
            let (state, verdict) =
                if came_back { ("COMPLETED", "completed") } else { ("CANCELLED", "cancelled") };
            cluster.wait_job(id, &[state], MINUTE)?;
            let text = poll::until(MINUTE, "the report", || {
                let text = one_line(&report(&alice, id)?);
                Ok(Some(text).filter(|text| text.contains(&format!("VERDICT {verdict}"))))
            })?;
            let hang = format!("HANG {}{node}, ", if came_back { "attempt 0: " } else { "" });
            assert!(text.contains(&hang) && text.contains(what) && text.contains(" STACKS "), "{text}");
            cluster.wait_node(node, "idle", MINUTE, |node| node.state().starts_with("IDLE"))?;
            assert!(!cluster.node(node)?.drained(), "{node}: {}", cluster.node(node)?.reason());
        }
        Ok(())
    })
}

fn kill_sampler(cluster: &Cluster, node: &str, id: u32) -> Result<()> {
    let all = samplers(cluster, node, Some(id))?;
    anyhow::ensure!(!all.is_empty(), "no sampler of job {id} on {node}");
    cluster.root().on(node).run(&["kill", "-9", &all.join(" ")])?.ok().map(drop)
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_guard_that_is_killed_ends_no_job_by_mistake_and_every_report_is_written() -> Result<()> {
    let builder = Builder::new(3).config(CONFIG)?.file("/usr/local/bin/rank", RANK);
    builder.test(|cluster| {
        with_gpm(cluster)?;
        let alice = cluster.alice();
        let submit = |node: &str| {
            let words = ["-N1", "-n2", "-w", node, "--gres=gpu:2", "-o", "log.%j"];
            let session = alice.clone().env("PLAY", "leaves").env("WORK_S", "20");
            session.sbatch(&words, &format!("{END}srun rank"))
        };
        let (before, named, ended) = (submit("gn1")?, submit("gn2")?, submit("gn3")?);
        line(cluster, before, "at work")?;
        kill_sampler(cluster, "gn1", before)?;
        line(cluster, named, "the job has been hung on gn2")?;
        kill_sampler(cluster, "gn2", named)?;
        // The line is written before the signal is sent; a guard that is killed between them leaves the job as it is.
        line(cluster, ended, "steps are ended")?;
        line(cluster, ended, "srun: error: ")?;
        // It may have ended with the run.
        let _ = kill_sampler(cluster, "gn3", ended);
        cluster.wait_job(ended, &["COMPLETED"], MINUTE).with_context(|| log(cluster, ended))?;
        assert!(log(cluster, ended).contains("at work, attempt 1"), "{}", log(cluster, ended));

        // The third one was ended long after the other two would have been.
        for (id, node) in [(before, "gn1"), (named, "gn2")] {
            assert_eq!(cluster.job(id)?.state(), "RUNNING");
            assert!(!log(cluster, id).contains("steps are"), "{}", log(cluster, id));
            assert!(!comments(cluster)?.contains(&format!("{id} ended")));
            // No other user's word ends it, or counts.
            let forged = format!("Comment=railgate: hangs: {id} ended 2026-11-25T00:00:00Z");
            let bob = cluster.bob();
            for words in [
                &["scontrol", "update", &format!("NodeName={node}"), &forged][..],
                &["scancel", &format!("{id}.0")][..],
            ] {
                assert!(bob.run(words)?.ok().is_err(), "{words:?}");
            }
            alice.run(&["scancel", &id.to_string()])?.ok()?;
            cluster.wait_job(id, &["CANCELLED"], MINUTE)?;
            let text = poll::until(MINUTE, "the report", || {
                Ok(Some(one_line(&report(&alice, id)?)).filter(|text| text.contains("VERDICT cancelled")))
            })?;
            assert_eq!(text.contains("HANG gn2, "), id == named, "{text}");
            assert!(!text.contains("the guard ended"), "{text}");
        }
        Ok(())
    })
}

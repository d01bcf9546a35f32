//! Reports of array tasks, named as squeue names them.

use anyhow::Result;
use railgate_tests::cluster::Builder;
use railgate_tests::poll;

use crate::training::MINUTE;

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn array_tasks_have_reports_under_their_names() -> Result<()> {
    Builder::new(1).test(|cluster| {
        let alice = cluster.alice();
        let words = ["--array=1-3", "--gres=gpu:1", "-o", "/dev/null", "-J", "my sweep"];
        let array = alice.sbatch(&words, "exit $((SLURM_ARRAY_TASK_ID - 1))")?;
        let report = |words: &[&str]| alice.run(&[&["railgate", "report"], words].concat());
        let mut jobs = Vec::new();
        for task in 1..=3 {
            let name = format!("{array}_{task}");
            let state = if task == 1 { "COMPLETED" } else { "FAILED" };
            let job = cluster.wait_job(&name, &[state], MINUTE)?;
            jobs.push(job.field("JobId").to_owned());
            poll::until(MINUTE, "the epilog's part", || {
                Ok(report(&[&name, "--brief"])?
                    .ok()
                    .is_ok_and(|text| !text.contains("running"))
                    .then_some(()))
            })?;
        }
        for (task, job) in (1..=3).zip(&jobs) {
            for typed in [format!("{array}_{task}"), format!("{array}_{task}.0")] {
                let json: serde_json::Value =
                    serde_json::from_str(&report(&[&typed, "--format", "json"])?.ok()?)?;
                assert_eq!(json["job"].to_string(), *job, "{typed}");
            }
        }
        let whole = report(&[&array.to_string()])?.ok()?;
        let task = jobs.iter().position(|job| *job == array.to_string()).unwrap() + 1;
        assert!(whole.starts_with(&format!("array {array}: this is task {task}; others: ")), "{whole}");
        let overview = report(&[&array.to_string(), "--array"])?.ok()?;
        let shown: Vec<Vec<&str>> =
            overview.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
        let rows: Vec<Vec<&str>> = [("1", "COMPLETED"), ("2", "FAILED"), ("3", "FAILED")]
            .iter()
            .zip(&jobs)
            .map(|((task, state), job)| vec![*task, job.as_str(), *state])
            .collect();
        assert_eq!(shown[1..], rows, "{overview}");
        assert_eq!(report(&[&format!("{array}_[2-3]")])?.ok()?.lines().count(), 3);

        let one = alice.sbatch(&["-o", "/dev/null", "-J", "a name, with a comma"], "exit 0")?;
        cluster.wait_job(one, &["COMPLETED"], MINUTE)?;
        let number = |words: &[&str]| -> Result<String> {
            let text = report(&[words, &["--format", "json"]].concat())?.stdout;
            Ok(serde_json::from_str::<serde_json::Value>(&text)?["job"].to_string())
        };
        assert_eq!(number(&[])?, one.to_string());
        assert_eq!(number(&["--name", "a name, with a comma"])?, one.to_string());
        assert!(jobs.contains(&number(&["--name", "my sweep"])?));

        // A user cannot read the reports of another user's jobs.
        let bob = cluster.bob();
        for words in
            [&[][..], &["--name", "my sweep"], &[&format!("{array}_1")], &[&format!("{array}_[1-3]")]]
        {
            let output = bob.run(&[&["railgate", "report"], words].concat())?;
            assert_eq!((output.code, output.stdout.as_str()), (3, ""), "{words:?}: {}", output.stderr);
        }
        Ok(())
    })
}

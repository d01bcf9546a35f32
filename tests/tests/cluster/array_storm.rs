//! Many jobs that fail at the same moment.

use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::Builder;
use railgate_tests::poll;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn two_hundred_array_tasks_that_fail_at_once_stay_failed() -> Result<()> {
    // Only the controller's side is tested: one machine cannot run 200 gates at once.
    let builder = Builder::new(25).slurm_conf("Prolog", "/bin/true").slurm_conf("Epilog", "/bin/true");
    let builder = builder.slurm_conf("HealthCheckInterval", "0");
    builder.config("[requeue]\ndefault = 'auto'")?.test(|cluster| {
        // The tasks wait without child processes: polling would start 400 processes per second, a small machine's limit.
        let script = "exec {never}<> <(:)\n: > began.$SLURM_ARRAY_TASK_ID\n\
                      until [ -e go ]; do read -rt 0.5 -u $never; done\nexit 1";
        let words = ["--array=0-199", "--gres=gpu:1", "-o", "/dev/null"];
        let array = cluster.alice().sbatch(&words, script)?;
        let count =
            |words: &[&str]| -> Result<usize> { Ok(cluster.root().run(words)?.ok()?.lines().count()) };
        poll::until(MINUTE, "all tasks to run at once", || {
            let begun = count(&["find", "/home/rgalice", "-name", "began.*"])?;
            Ok((begun == 200).then_some(()))
        })?;
        cluster.write("ctl", "/home/rgalice/go", "")?;
        poll::until(2 * MINUTE, "all tasks to end", || Ok((count(&["squeue", "-h"])? == 0).then_some(())))?;

        let jobs = cluster.root().run(&["scontrol", "-o", "show", "job", &array.to_string()])?.ok()?;
        assert_eq!(jobs.lines().count(), 200);
        for job in jobs.lines() {
            assert!(job.contains(" JobState=FAILED ") && job.contains(" Restarts=0 "), "{job}");
        }
        for node in cluster.nodes() {
            assert!(!cluster.node(node)?.drained(), "{node}");
        }
        // Ensures that the controller's program has processed all of them.
        let log = cluster.read("ctl", "/var/lib/railgate/controller/epilog-ctld.log")?;
        let decided = log.lines().filter(|line| line.contains(&format!("{array}_"))).count();
        assert!(decided >= 200, "{decided} lines:\n{log}");
        Ok(())
    })
}

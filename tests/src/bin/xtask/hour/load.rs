//! A steady stream of short jobs; each job is accounted for.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Cluster, Job, Process};
use railgate_tests::poll;

use super::site::MINUTE;

/// Name of the jobs.
pub(super) const NAME: &str = "load";
const DIR: &str = "/home/rgalice/load";

/// Each job records its start and its end. One in four has a GPU, one in eight runs a step.
const JOB: &str = "\
#!/bin/bash
echo \"$SLURM_JOB_ID\" >> /home/rgalice/load/began
[ $((SLURM_JOB_ID % 8)) != 0 ] || srun true || exit 1
echo \"$SLURM_JOB_ID\" >> /home/rgalice/load/ended
";

/// Submits the jobs. A submission that sbatch refuses is no job; the reason is kept.
const STREAM: &str = "\
cd /home/rgalice/load || exit 1
until [ -e stop ]; do
    n=$((n + 1))
    [ $((n % 4)) = 0 ] && gpu=--gres=gpu:1 || gpu=
    # shellcheck disable=SC2086
    if id=$(sbatch --parsable -J load -n1 $gpu -o out.%j job.sh 2>> refusals); then
        echo \"$id\" >> submitted
    else
        echo \"$n\" >> refused
    fi
    sleep \"$1\"
done
";

/// The stream. Dropping it stops the submissions; the jobs end with the cluster.
pub(super) struct Load<'a> {
    cluster: &'a Cluster,
    stream: Process,
}

/// Outcome of the jobs.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) submitted: usize,
    pub(super) completed: usize,
    /// One line for each job that did not complete exactly once.
    pub(super) wrong: Vec<String>,
    /// Number of submissions that sbatch refused.
    pub(super) refused: usize,
}

impl<'a> Load<'a> {
    /// Starts to submit `rate` jobs per second.
    pub(super) fn start(cluster: &'a Cluster, rate: f64) -> Result<Self> {
        let alice = cluster.alice();
        alice.run(&["mkdir", "-p", DIR])?.ok()?;
        cluster.write("ctl", &format!("{DIR}/job.sh"), JOB)?;
        let seconds = format!("{:.3}", 1.0 / rate);
        Ok(Load { cluster, stream: alice.spawn(&["bash", "-c", STREAM, "stream", &seconds])? })
    }

    fn numbers(&self, file: &str) -> Vec<String> {
        let text = self.cluster.output(&format!("{DIR}/{file}")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until `more` further jobs have ended.
    pub(super) fn wait_for_more(&mut self, more: usize) -> Result<()> {
        ensure!(self.stream.running()?, "the stream of jobs has ended: {}", self.stream.output()?);
        let before = self.numbers("ended").len();
        poll::until(MINUTE, &format!("{more} more jobs to end"), || {
            Ok((self.numbers("ended").len() >= before + more).then_some(()))
        })
    }

    /// Checks that no job of the stream has failed, was requeued or is unknown to Slurm so far.
    pub(super) fn none_lost(&self) -> Result<()> {
        // Read before Slurm is queried, so that slurmctld knows each of these jobs.
        let submitted = self.numbers("submitted");
        let jobs = self.jobs()?;
        let wrong: Vec<String> = submitted.iter().filter_map(|id| trouble(id, jobs.get(id), false)).collect();
        ensure!(wrong.is_empty(), "{} jobs: {}", wrong.len(), wrong.join("; "));
        Ok(())
    }

    fn jobs(&self) -> Result<BTreeMap<String, Job>> {
        let all = self.cluster.jobs()?;
        let ours = all.into_iter().filter(|job| job.field("JobName") == NAME);
        Ok(ours.map(|job| (job.field("JobId").to_owned(), job)).collect())
    }

    /// Stops the stream, waits for its jobs and counts them.
    pub(super) fn end(self) -> Result<Totals> {
        self.cluster.write("ctl", &format!("{DIR}/stop"), "")?;
        poll::until(5 * MINUTE, "all jobs of the stream to end", || {
            let left = self.cluster.root().run(&["squeue", "-h", "-n", NAME])?.ok()?;
            Ok(left.trim().is_empty().then_some(()))
        })?;
        let (submitted, began, ended) =
            (self.numbers("submitted"), self.numbers("began"), self.numbers("ended"));
        let jobs = self.jobs()?;
        let mut totals = Totals {
            submitted: submitted.len(),
            refused: self.numbers("refused").len(),
            ..Totals::default()
        };
        for id in &submitted {
            let times = |lines: &[String]| lines.iter().filter(|line| *line == id).count();
            match (trouble(id, jobs.get(id), true), times(&began), times(&ended)) {
                (None, 1, 1) => totals.completed += 1,
                (None, began, ended) => {
                    totals.wrong.push(format!("{id} COMPLETED, started {began} times, ended {ended} times"));
                }
                (Some(why), ..) => totals.wrong.push(why),
            }
        }
        // sbatch can fail after slurmctld has accepted the job.
        for id in jobs.keys().filter(|id| !submitted.contains(id)) {
            totals.wrong.push(format!("{id} ran although sbatch reported a failure"));
        }
        let _ = self.stream.wait(Duration::from_secs(30));
        Ok(totals)
    }

    /// sbatch's messages of refused submissions, without repetitions.
    pub(super) fn refusals(cluster: &Cluster) -> Vec<String> {
        let text = cluster.output(&format!("{DIR}/refusals")).unwrap_or_default();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines.dedup();
        lines
    }
}

/// What is wrong with a job, if anything. With `over` the job must have ended.
fn trouble(id: &str, job: Option<&Job>, over: bool) -> Option<String> {
    let Some(job) = job else { return Some(format!("{id}: unknown to Slurm")) };
    let well: &[&str] =
        if over { &["COMPLETED"] } else { &["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "COMPLETED"] };
    let state = job.state();
    (!well.contains(&state) || job.restarts() != 0).then(|| {
        let (reason, code, nodes) = (job.reason(), job.field("ExitCode"), job.nodes());
        format!("{id} is {state} ({reason}, exit code {code}, restarts {}, {nodes})", job.restarts())
    })
}

/// A job that runs until it is asked to end.
pub(super) struct Long<'a> {
    cluster: &'a Cluster,
    pub(super) id: u32,
}

impl<'a> Long<'a> {
    /// Starts the job and waits until its script runs.
    pub(super) fn start(cluster: &'a Cluster, node: &str) -> Result<Self> {
        let words = ["-w", node, "--gres=gpu:1", "-J", "long", "-o", "long.%j"];
        let script =
            "echo begun; until [ -e go.$SLURM_JOB_ID ]; do sleep 0.5; done; srun hostname; echo over";
        let id = cluster.alice().sbatch(&words, script)?;
        poll::until(MINUTE, "a long job to begin", || {
            let log = cluster.output(&format!("/home/rgalice/long.{id}")).unwrap_or_default();
            Ok(log.contains("begun").then_some(()))
        })?;
        Ok(Long { cluster, id })
    }

    /// Asks the job to end. It must complete, without a restart.
    pub(super) fn end(&self) -> Result<()> {
        let id = self.id;
        self.cluster.write("ctl", &format!("/home/rgalice/go.{id}"), "")?;
        let job = self.cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        let log = self.cluster.output(&format!("/home/rgalice/long.{id}")).context("no log")?;
        ensure!(
            job.restarts() == 0 && log.ends_with("over\n") && log.matches("begun").count() == 1,
            "job {id}: {log}"
        );
        Ok(())
    }
}

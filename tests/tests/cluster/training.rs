//! Jobs like a training: the first attempt runs until the test ends it, later ones complete.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::{Cluster, SLURM_ROOT, Session, slurm_release};
use railgate_tests::poll;

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Allows every drain, so that a test does not depend on the size of its cluster.
pub(crate) const ALL_MAY_DRAIN: &str = "breaker = { max_nodes = 100, max_percent = 100.0, partition_max_nodes = 100, partition_max_percent = 100.0 }";

/// Whether the Slurm under test is this release or a newer one.
pub(crate) fn since(release: (u32, u32)) -> Result<bool> {
    let root = std::env::var_os(SLURM_ROOT).map_or_else(|| PathBuf::from("/"), PathBuf::from);
    Ok(slurm_release(&root)? >= release)
}

/// Runs until the test ends it; later attempts complete.
pub(crate) const WORK: &str = "\
attempt=${SLURM_RESTART_COUNT:-0}
echo attempt $attempt on $SLURM_JOB_NODELIST
[ $attempt = 0 ] || exit 0
until [ -s end.$SLURM_JOB_ID ]; do sleep 0.1; done
exit $(cat end.$SLURM_JOB_ID)
";

/// Submits a training that may be requeued; `words` are further options of sbatch.
pub(crate) fn submit(user: &Session<'_>, words: &[&str]) -> Result<u32> {
    submit_as(user, words, WORK)
}

/// The same with another script.
pub(crate) fn submit_as(user: &Session<'_>, words: &[&str], script: &str) -> Result<u32> {
    user.sbatch(&[&["--railgate-requeue=auto", "-o", "log.%j"], words].concat(), script)
}

/// Log of all attempts.
pub(crate) fn log(cluster: &Cluster, home: &str, id: u32) -> String {
    cluster.output(&format!("/home/{home}/log.{id}")).unwrap_or_default()
}

/// Waits until the script runs; returns its first node.
pub(crate) fn started(cluster: &Cluster, id: u32) -> Result<String> {
    poll::until(MINUTE, &format!("job {id} to work"), || {
        let at_work = ["rgalice", "rgbob"].iter().any(|home| log(cluster, home, id).contains("attempt 0"));
        Ok(at_work.then_some(()))
    })?;
    Ok(cluster.job(id)?.field("BatchHost").to_owned())
}

/// Ends the first attempt with this exit code.
pub(crate) fn end(cluster: &Cluster, id: u32, code: i32) -> Result<()> {
    for home in ["rgalice", "rgbob"] {
        cluster.write("ctl", &format!("/home/{home}/end.{id}"), &format!("{code}\n"))?;
    }
    Ok(())
}

/// PIDs of a node's samplers, of one job or of all. A child of a sampler has the sampler's name until it executes its own program
/// and is not counted.
pub(crate) fn samplers(cluster: &Cluster, node: &str, job: Option<u32>) -> Result<Vec<String>> {
    let all = cluster.root().on(node).run(&["ps", "-eo", "pid=,ppid=,args="])?.ok()?;
    let found: Vec<(&str, &str)> = all
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (pid, parent, program) = (words.next()?, words.next()?, words.next()?);
            let of: u32 = words.next()?.parse().ok()?;
            let is_one = program.ends_with("/railgate-sampler") && job.is_none_or(|job| job == of);
            is_one.then_some((pid, parent))
        })
        .collect();
    let own = |parent: &str| found.iter().any(|(pid, _)| *pid == parent);
    Ok(found.iter().filter(|(_, parent)| !own(parent)).map(|(pid, _)| (*pid).to_owned()).collect())
}

/// The report as the job's owner reads it.
pub(crate) fn report(user: &Session<'_>, id: u32) -> Result<String> {
    user.run(&["railgate", "report", &id.to_string()])?.ok()
}

/// The report as the job's owner reads it, once it has this text: epilogs and the controller write a moment after the end.
pub(crate) fn report_with(user: &Session<'_>, id: u32, text: &str) -> Result<String> {
    poll::until(MINUTE, &format!("'{text}' in the report of job {id}"), || {
        let told = report(user, id)?;
        anyhow::ensure!(one_line(&told).contains(text), "{told}");
        Ok(Some(told))
    })
}

/// Asserts that the texts occur in a report in this order.
pub(crate) fn in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let after = rest.split_once(part).map(|(_, after)| after);
        assert!(after.is_some(), "no '{part}' in its place in:\n{text}");
        rest = after.unwrap_or_default();
    }
}

/// The text without the line breaks that fit it to a terminal.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

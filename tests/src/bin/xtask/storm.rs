//! `cargo xtask bench storm`: load on slurmctld when 200 jobs fail at the same moment, with and without railgate's
//! EpilogSlurmctld.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

use super::bench;

const NODES: usize = 25;
const TASKS: usize = 8 * NODES;
const LIMIT: Duration = Duration::from_secs(180);
/// RPCs that report the ends of jobs, and the queries of users and of railgate meanwhile.
const CALLS: [&str; 4] = [
    "REQUEST_COMPLETE_BATCH_SCRIPT",
    "MESSAGE_EPILOG_COMPLETE",
    "REQUEST_JOB_INFO",
    "REQUEST_JOB_INFO_SINGLE",
];

#[derive(Debug, Default)]
struct Storm {
    /// Duration of `squeue` while jobs completed, ms.
    squeue: Vec<f64>,
    /// Time from the first failure to the end of the last job, s.
    took: Vec<f64>,
    /// Count and mean duration of each of [`CALLS`], µs.
    calls: Vec<(u64, f64)>,
}

pub(super) fn run(programs: &Path, rounds: u32) -> Result<()> {
    let start = |ours: bool| -> Result<Cluster> {
        let builder = Builder::new(NODES).programs(programs).config("[requeue]\ndefault = 'auto'")?;
        // Prolog and epilog of all nodes would load this single machine.
        let builder = builder.slurm_conf("Prolog", "/bin/true").slurm_conf("Epilog", "/bin/true");
        let builder = builder.slurm_conf("HealthCheckInterval", "0").slurm_conf("SlurmctldDebug", "info");
        if ours { builder.start() } else { builder.slurm_conf("EpilogSlurmctld", "/bin/true").start() }
    };
    let (mut with, mut without) = (Storm::default(), Storm::default());
    for round in 0..rounds {
        let mut kinds = [(true, &mut with), (false, &mut without)];
        if round % 2 == 1 {
            kinds.reverse();
        }
        for (ours, storm) in kinds {
            // One fresh cluster at a time, since even idle daemons of a second one would add load.
            one(&start(ours)?, storm)?;
        }
    }
    bench::table(
        &format!("`squeue` while {TASKS} tasks of an array that failed at once are completing"),
        &[("with railgate-epilog-ctld", &with.squeue), ("with /bin/true instead", &without.squeue)],
    );
    let seconds = |storm: &Storm| storm.took.iter().map(|s| format!("{s:.1}")).collect::<Vec<_>>().join(", ");
    println!(
        "\nfrom the first failure to the end of the last task, s: with {}; without {}",
        seconds(&with),
        seconds(&without)
    );
    println!(
        "\n| slurmctld's calls (sdiag) | with: count, mean µs | without: count, mean µs |\n|---|---|---|"
    );
    for (index, call) in CALLS.iter().enumerate() {
        let show = |storm: &Storm| {
            let (count, total) = storm
                .calls
                .iter()
                .skip(index)
                .step_by(CALLS.len())
                .fold((0, 0.0), |(count, total), (more, mean)| (count + more, total + mean * *more as f64));
            if count == 0 { "none".to_owned() } else { format!("{count}, {:.0}", total / count as f64) }
        };
        println!("| {call} | {} | {} |", show(&with), show(&without));
    }
    Ok(())
}

fn one(cluster: &Cluster, storm: &mut Storm) -> Result<()> {
    bench::put_clock(cluster, "ctl")?;
    let (alice, root) = (cluster.alice(), cluster.root());
    let script = "touch began.$SLURM_ARRAY_TASK_ID\nuntil [ -e go ]; do sleep 0.5; done\nexit 1";
    let tasks = format!("--array=0-{}", TASKS - 1);
    alice.sbatch(&[&tasks, "--gres=gpu:1", "-o", "/dev/null"], script)?;
    poll::until(LIMIT, "all tasks to run", || {
        let begun = root.run(&["find", "/home/rgalice", "-name", "began.*"])?.ok()?;
        Ok((begun.lines().count() == TASKS).then_some(()))
    })?;
    root.run(&["sdiag", "-r"])?.ok()?;
    cluster.write("ctl", "/home/rgalice/go", "")?;
    let start = Instant::now();
    loop {
        storm.squeue.extend(bench::timed(&root, 3, &["squeue", "-h"])?);
        if root.run(&["squeue", "-h"])?.ok()?.is_empty() {
            break;
        }
        anyhow::ensure!(start.elapsed() < LIMIT, "the tasks do not end");
    }
    storm.took.push(start.elapsed().as_secs_f64());
    let said = root.run(&["sdiag"])?.ok()?;
    for call in CALLS {
        storm.calls.push(figures(&said, call).with_context(|| said.clone())?);
    }
    Ok(())
}

/// Parses a line of `sdiag`, for example `REQUEST_JOB_INFO ( 2003) count:3 ave_time:250 total_time:750`. An RPC that did not
/// occur has no line.
pub(super) fn figures(sdiag: &str, call: &str) -> Option<(u64, f64)> {
    let words = |line: &str| line.split_whitespace().next().is_some_and(|word| word == call);
    let Some(line) = sdiag.lines().find(|line| words(line)) else { return Some((0, 0.0)) };
    let value = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
    Some((value("count:")?.parse().ok()?, value("ave_time:")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_rpc_is_found_by_its_full_name() {
        let said = "\tREQUEST_JOB_INFO_SINGLE   ( 2021) count:9 ave_time:40 total_time:360\n\
                    \tREQUEST_JOB_INFO        ( 2003) count:3 ave_time:250 total_time:750\n";
        assert_eq!(figures(said, "REQUEST_JOB_INFO"), Some((3, 250.0)));
        assert_eq!(figures(said, "MESSAGE_EPILOG_COMPLETE"), Some((0, 0.0)));
    }
}

//! The second half of `cargo xtask bench storm`: 2,000 jobs end in a minute, 33 a second, with and without railgate's
//! EpilogSlurmctld, which records how each ended, and with `admin_comment` sums all of them up.
//!
//! Two cores cannot launch 33 jobs per second. The jobs are therefore allocations of one CPU each without a step (`salloc
//! --no-shell`), made in advance and ended by `scancel`: the real slurmctld ends them, runs the real EpilogSlurmctld and gets
//! epilog messages from real slurmds, but nothing is launched. Node reports are written in advance, and stand-ins for sacct and
//! sacctmgr over a file replace the accounting database.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, stdin};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use railgate_node_report::NodeReport;
use railgate_tests::accounting::{COMMENTS, SACCT, SACCTMGR};
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

use super::{bench, reports, storm};

const ENDS: usize = 2000;
/// Number of jobs that end together at every [`TICK`]: 33.3 per second.
const AT_ONCE: usize = 3;
const TICK: Duration = Duration::from_millis(90);
/// 128 CPUs each.
const NODES: usize = 16;
/// Interval between two measurements of squeue.
const LOOK: Duration = Duration::from_millis(500);
const MINUTE: Duration = Duration::from_secs(60);
/// Limit of squeue's median with railgate relative to that without.
const GOAL: f64 = 2.0;

/// What railgate does at the end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing: `/bin/true` replaces the program.
    Without,
    /// The default: it records how Slurm ended the job.
    Recorded,
    /// It additionally writes a summary to the accounting database.
    Summed,
}

const KINDS: [Kind; 3] = [Kind::Recorded, Kind::Without, Kind::Summed];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Without => "with /bin/true",
            Kind::Recorded => "with railgate-epilog-ctld, ends recorded",
            Kind::Summed => "the same with admin_comment",
        }
    }
}

#[derive(Debug, Default)]
struct Minute {
    /// Duration of `squeue`, ms.
    squeue: Vec<f64>,
    /// Time in which the 2,000 jobs ended, s.
    took: Vec<f64>,
    /// Number of ends recorded (and summarized, if on), and the delay of the last one after the last end, s.
    done: Vec<(usize, f64)>,
    /// Number of queries about jobs that railgate sent to slurmctld.
    queries: Vec<u64>,
}

pub(super) fn run(programs: &Path, rounds: u32) -> Result<()> {
    let part = reports::recorded(programs)?;
    let start = |kind: Kind| -> Result<Cluster> {
        let config = format!("[report]\nadmin_comment = {}", kind == Kind::Summed);
        let builder = Builder::new(NODES).programs(programs).config(&config)?;
        let builder = builder.slurm_conf("Prolog", "/bin/true").slurm_conf("Epilog", "/bin/true");
        // Nothing is launched at the start of a job.
        let builder = builder.slurm_conf("PrologFlags", "NoHold").slurm_conf("HealthCheckInterval", "0");
        let builder = builder.slurm_conf("SlurmctldDebug", "info").slurm_conf("SlurmdDebug", "info");
        let builder = builder.file("/usr/bin/sacct", SACCT).file("/usr/bin/sacctmgr", SACCTMGR);
        match kind {
            Kind::Without => builder.slurm_conf("EpilogSlurmctld", "/bin/true").start(),
            Kind::Recorded | Kind::Summed => builder.start(),
        }
    };
    let mut minutes = KINDS.map(|kind| (kind, Minute::default()));
    for round in 0..rounds {
        let mut order: Vec<&mut (Kind, Minute)> = minutes.iter_mut().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (kind, minute) in order {
            one(&start(*kind)?, *kind, &part, minute)?;
        }
    }
    let rows: Vec<(&str, &[f64])> =
        minutes.iter().map(|(kind, minute)| (kind.name(), minute.squeue.as_slice())).collect();
    bench::table(&format!("`squeue` while {ENDS} jobs end in a minute, {rounds} minutes of each"), &rows);
    let median = |kind: Kind| {
        let of_kind = minutes.iter().find(|(other, _)| *other == kind);
        of_kind.map_or(f64::NAN, |(_, minute)| bench::spread(&minute.squeue).median)
    };
    println!();
    for (kind, minute) in &minutes {
        let took = minute.took.iter().map(|s| format!("{s:.1}")).collect::<Vec<_>>().join(", ");
        let ratio = median(*kind) / median(Kind::Without);
        println!("{}: {ENDS} ends in {took} s; squeue {ratio:.2} times that with /bin/true", kind.name());
        for ((done, after), queries) in minute.done.iter().zip(&minute.queries) {
            println!(
                "  {done} of {ENDS} done, the last one {after:.1} s after the last end; {queries} queries"
            );
        }
    }
    println!("limits: all ends recorded, squeue at most {GOAL:.0} times, fewer queries than ends");
    for (kind, minute) in &minutes {
        let ratio = median(*kind) / median(Kind::Without);
        ensure!(
            minute.done.iter().all(|(done, _)| *done == ENDS),
            "{}: not all ends were recorded",
            kind.name()
        );
        ensure!(
            minute.queries.iter().all(|queries| *queries < ENDS as u64),
            "{}: too many queries",
            kind.name()
        );
        ensure!(ratio <= GOAL, "squeue's median {} is {ratio:.2} times that without", kind.name());
    }
    Ok(())
}

fn one(cluster: &Cluster, kind: Kind, part: &NodeReport, minute: &mut Minute) -> Result<()> {
    bench::put_clock(cluster, "ctl")?;
    let (alice, root) = (cluster.alice(), cluster.root());
    root.run(&["sh", "-c", &format!("umask 0; : > {COMMENTS}")])?.ok()?;
    let many = format!(
        "seq {ENDS} | xargs -P 4 -I@ salloc --no-shell -n1 -Q > /dev/null 2>&1; squeue -h -t R -o '%A %N' | sort -n"
    );
    let said = alice.deadline(10 * MINUTE).run(&["sh", "-c", &many])?.ok()?;
    let job = |line: &str| -> Result<(u32, String)> {
        let (id, node) = line.split_once(' ').with_context(|| format!("squeue: {line}"))?;
        Ok((id.parse()?, node.trim().to_owned()))
    };
    let jobs: Vec<(u32, String)> = said.lines().map(job).collect::<Result<_, _>>()?;
    ensure!(jobs.len() == ENDS, "{} of {ENDS} allocations", jobs.len());
    parts(cluster, part, &jobs)?;
    let ids: String = jobs.iter().map(|(id, _)| format!("{id}\n")).collect();
    root.run(&["sdiag", "-r"])?.ok()?;

    let pace = cluster.alice().deadline(3 * MINUTE).input(ids);
    let mut pace = pace.spawn(&[bench::CLOCK, "@pace"])?;
    let mut own = 0;
    while pace.running()? {
        let next = Instant::now() + LOOK;
        own += 1;
        minute.squeue.extend(bench::timed(&root, 1, &["squeue", "-h"])?);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let said = pace.wait(MINUTE)?.ok()?;
    minute.took.push(said.trim().parse().with_context(|| said.clone())?);
    let ended = Instant::now();
    if kind == Kind::Without {
        return Ok(());
    }
    let mut done = 0;
    let all = poll::until(5 * MINUTE, "all ends to be recorded and summed up", || {
        let recorded = recorded(cluster, part, &jobs)?;
        let text = cluster.read("ctl", COMMENTS)?;
        let ids: BTreeSet<&str> = text.lines().filter_map(|line| Some(line.split_once('|')?.0)).collect();
        done = if kind == Kind::Summed { recorded.min(ids.len()) } else { recorded };
        Ok((done == ENDS).then_some(()))
    });
    if let Err(why) = all {
        eprintln!("{why:#}\n{}", cluster.read("ctl", "/var/lib/railgate/controller/epilog-ctld.log")?);
    }
    minute.done.push((done, ended.elapsed().as_secs_f64()));
    let said = root.run(&["sdiag"])?.ok()?;
    let (calls, _) = storm::figures(&said, "REQUEST_JOB_INFO").with_context(|| said.clone())?;
    minute.queries.push(calls.saturating_sub(own));
    Ok(())
}

/// Number of jobs whose end is recorded.
fn recorded(cluster: &Cluster, part: &NodeReport, jobs: &[(u32, String)]) -> Result<usize> {
    let top = cluster.path("ctl", "/shared/railgate")?.join(&part.cluster);
    let has_one = |(job, _): &&(u32, String)| top.join(format!("{job}/0/slurm-end.json")).exists();
    Ok(jobs.iter().filter(has_one).count())
}

/// Writes the node report of each job's node, as the nodes' epilogs would. Reports of other nodes are not read.
fn parts(cluster: &Cluster, part: &NodeReport, jobs: &[(u32, String)]) -> Result<()> {
    let number = |words: &[&str]| -> Result<u32> { Ok(cluster.root().run(words)?.ok()?.trim().parse()?) };
    let (uid, gid) = (number(&["id", "-u", "rgalice"])?, number(&["id", "-g", "slurm"])?);
    let top = cluster.path("ctl", "/shared/railgate")?.join(&part.cluster);
    fs::create_dir_all(&top)?;
    fs::set_permissions(&top, fs::Permissions::from_mode(0o1777))?;
    let mut part = part.clone();
    (part.attempt, part.job.restarts, part.job.uid) = (0, 0, uid);
    for (job, node) in jobs {
        part.job.id = *job;
        (part.node, part.job.nodelist) = (node.clone(), node.clone());
        let attempt = top.join(job.to_string()).join("0");
        fs::create_dir_all(&attempt)?;
        let file = attempt.join(format!("{}.json", part.node));
        fs::write(&file, serde_json::to_vec(&part)?)?;
        let all = [(top.join(job.to_string()), 0o770), (attempt, 0o770), (file, 0o640)];
        for (path, mode) in all {
            chown(&path, Some(uid), Some(gid))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

/// Ends jobs at a steady pace, independent of slurmctld's response time, and prints how long it took, in seconds. Their numbers
/// come from standard input.
pub(super) fn pace() -> Result<()> {
    let ids = stdin().lock().lines().collect::<Result<Vec<_>, _>>()?;
    let begun = Instant::now();
    let mut running: Vec<Child> = Vec::new();
    for (tick, some) in (0_u32..).zip(ids.chunks(AT_ONCE)) {
        std::thread::sleep((begun + TICK * tick).saturating_duration_since(Instant::now()));
        let mut scancel = Command::new("scancel");
        scancel.args(some).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        running.push(scancel.spawn()?);
        running.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
    }
    for mut child in running {
        child.wait()?;
    }
    println!("{:.1}", begun.elapsed().as_secs_f64());
    Ok(())
}

//! `railgate report --idle`: which jobs hold GPUs and do not use them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use railgate_diagnosis::{IdleUse, idle_use};
use railgate_model::UnixMillis;
use railgate_node_report::NodeReport;
use railgate_node_report::plain::{float, stamp};
use railgate_report::{JobReport, load_known};
use railgate_runner::now;
use railgate_slurm::hostlist;
use railgate_store::{JobPlaced, Query, ReportConfig, list_jobs};
use railgate_text::{Lines, put};
use serde::Serialize;

use super::{Args, Show, name};
use crate::output::complain;
use crate::{exit, output};

/// Maximum number of jobs whose reports are read, the last active ones.
const MOST_JOBS: usize = 1000;
/// Time for all of them: a slow file server must not hold the terminal.
const BUDGET: Duration = Duration::from_secs(60);
/// Time for listing one directory, of which reading gets the rest.
const LISTING: Duration = Duration::from_secs(15);
/// Maximum number of rows of the table; JSON has all.
const MOST_ROWS: usize = 50;
const MOST_PROBLEMS: usize = 10;
/// A job whose nodes have written nothing for this long, or for three intervals of partial reports, may be gone.
const SILENT: Duration = Duration::from_secs(900);

#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Idle {
    /// List the jobs that hold idle GPUs, the most GPU-hours first: yours; as root, those of all users
    #[arg(long, conflicts_with_all = ["job", "name", "array", "brief", "redact", "full", "live", "samples", "rules", "prune"])]
    pub(crate) idle: bool,
    /// With --idle: jobs whose nodes have written a report within this time before now (12h, 7days)
    #[arg(long, value_name = "TIME", requires = "idle", default_value = "1day", value_parser = humantime::parse_duration)]
    since: Duration,
}

/// A job that holds GPUs. Hours are of all its attempts.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    cluster: String,
    job: u32,
    user: String,
    partition: String,
    /// `running`, `ended`, or `unknown`: its nodes stopped writing.
    state: &'static str,
    start: Option<UnixMillis>,
    /// GPUs of the last attempt, on the nodes that reported.
    gpus: u64,
    held_gpu_hours: f64,
    sampled_gpu_hours: f64,
    idle_gpu_hours: Option<f64>,
    /// Idle, of the sampled GPU-hours.
    idle_percent: Option<f64>,
    busy_percent: Option<f64>,
    /// Since when all its GPUs have been idle.
    idle_since: Option<UnixMillis>,
    /// Nodes of the last attempt without samples.
    unsampled_nodes: usize,
}

#[derive(Default, Serialize)]
struct List {
    schema: u32,
    since: UnixMillis,
    jobs: Vec<Row>,
    /// Number of jobs that were not read.
    left_out: usize,
    problems: Vec<String>,
}

pub(super) fn run(config: &ReportConfig, args: &Args) -> anyhow::Result<u8> {
    anyhow::ensure!(args.format != Show::Html, "the list of idle GPUs is text or json");
    let root = geteuid().is_root();
    let mut dirs: Vec<PathBuf> = args.dir.clone();
    if dirs.is_empty() {
        dirs.extend(config.dir.clone());
        dirs.extend(root.then(|| config.local_dir.clone()));
    }
    anyhow::ensure!(
        !dirs.is_empty(),
        "[report] dir is not set, and only root reads the parts that nodes keep"
    );
    let now = now();
    let since = now.saturating_sub(u64::try_from(args.idle.since.as_millis()).unwrap_or(u64::MAX));
    let mut list = List { schema: 1, since, ..List::default() };
    let until = Instant::now() + BUDGET;
    let mut placed: Vec<JobPlaced> = Vec::new();
    let mut readable = false;
    for dir in &dirs {
        // Only root sees the jobs of other users, also where Slurm's PrivateData would show them.
        let own = (!root).then(|| geteuid().as_raw());
        match list_jobs(dir, args.cluster.as_deref(), since, own, MOST_JOBS, LISTING) {
            Ok(found) => {
                readable = true;
                list.left_out += found.more;
                list.problems.extend(found.problems);
                placed.extend(found.jobs);
            }
            Err(why) => list.problems.push(format!("{}: {why}", dir.display())),
        }
    }
    placed.sort_by_key(|job| std::cmp::Reverse(job.active));
    let mut seen: BTreeSet<(String, u32)> = BTreeSet::new();
    for job in placed {
        if !seen.insert((job.cluster.clone(), job.job)) {
            continue;
        }
        let left = until.saturating_duration_since(Instant::now());
        if seen.len() > MOST_JOBS || left.is_zero() {
            list.left_out += 1;
            continue;
        }
        let report = read(config, args, &job, left.min(config.deadline * 12));
        list.problems.extend(report.problems.iter().map(|why| format!("job {}: {why}", job.job)));
        // Components of a heterogeneous job have one report.
        if report.job == job.job || seen.insert((job.cluster, report.job)) {
            list.jobs.extend(row(&report, config, now));
        }
    }
    list.jobs.sort_by(|a, b| {
        let hours = |row: &Row| row.idle_gpu_hours.unwrap_or(-1.0);
        hours(b).total_cmp(&hours(a)).then(b.job.cmp(&a.job))
    });
    list.problems.truncate(MOST_PROBLEMS);
    if args.format == Show::Json {
        output::to_json(args.out.as_deref(), &list)?;
    } else {
        list.problems.iter().for_each(|why| complain!("{why}"));
        output::to(args.out.as_deref(), &table(&list))?;
    }
    Ok(if readable { exit::OK } else { exit::UNKNOWN })
}

fn read(config: &ReportConfig, args: &Args, job: &JobPlaced, time: Duration) -> JobReport {
    // Files collected by hand may belong to the user who collected them, those in a local directory to root.
    let uid = Some(job.owner).filter(|uid| *uid != 0 && args.dir.is_empty());
    let query = Query { cluster: Some(&job.cluster), job: job.job, uid, known: None, logs: false };
    load_known(config, &args.dir, &query, time, None, &|nodes| hostlist::expand(nodes).ok())
}

/// `None` for a job that held no GPU, as far as its nodes have written.
fn row(report: &JobReport, config: &ReportConfig, now: UnixMillis) -> Option<Row> {
    let last = report.attempts.iter().rev().find(|attempt| !attempt.nodes.is_empty())?;
    let gpus = last.nodes.iter().map(gpus).sum();
    let held_s: f64 = report.attempts.iter().flat_map(|attempt| &attempt.nodes).map(held_s).sum();
    if gpus == 0 && held_s <= 0.0 {
        return None;
    }
    let used: Vec<IdleUse> =
        report.attempts.iter().filter_map(|attempt| idle_use(&attempt.nodes, &config.rules)).collect();
    let sum = |of: fn(&IdleUse) -> f64| used.iter().map(of).sum::<f64>();
    let (sampled_s, idle_s) = (sum(|one| one.sampled_s), sum(|one| one.idle_s));
    let known = |value: f64| (sampled_s > 0.0).then_some(value);
    Some(Row {
        cluster: report.cluster.clone(),
        job: report.job,
        user: report.uid.map_or_else(|| "?".to_owned(), name),
        partition: report.partition.clone(),
        state: state(&last.nodes, config, now),
        start: report.attempts.iter().filter_map(|attempt| attempt.start).min(),
        gpus,
        held_gpu_hours: hours(held_s.max(sampled_s)),
        sampled_gpu_hours: hours(sampled_s),
        idle_gpu_hours: known(hours(idle_s)),
        idle_percent: known(100.0 * idle_s / sampled_s),
        busy_percent: known(sum(|one| one.busy_percent * one.sampled_s) / sampled_s),
        idle_since: idle_use(&last.nodes, &config.rules).and_then(|one| one.since),
        unsampled_nodes: last.silent_nodes.len()
            + last.nodes.iter().filter(|node| node.usage.is_none()).count(),
    })
}

fn state(nodes: &[NodeReport], config: &ReportConfig, now: UnixMillis) -> &'static str {
    if nodes.iter().all(|node| node.end.is_some()) {
        return "ended";
    }
    let patience = SILENT.max(config.live.saturating_mul(3)).as_millis();
    let wrote = nodes.iter().filter_map(|node| node.as_of).max();
    match wrote {
        Some(wrote) if u128::from(now.saturating_sub(wrote)) <= patience => "running",
        _ => "unknown",
    }
}

/// GPUs of the job on a node: those sampled, else those that its checks found to be the job's.
fn gpus(node: &NodeReport) -> u64 {
    let sampled = node.usage.as_ref().map_or(0, |usage| usage.gpus.len());
    let own = node.gpus.iter().filter(|gpu| gpu.own == Some(true)).count();
    u64::try_from(sampled.max(own)).unwrap_or(u64::MAX)
}

/// GPU-seconds that the job held on a node so far, without suspended time.
fn held_s(node: &NodeReport) -> f64 {
    let coverage = node.usage.as_ref().map(|usage| &usage.coverage);
    let end = node.end.or(node.as_of).or(coverage.map(|coverage| coverage.end));
    let seconds = end.map_or(0.0, |end| float(end.saturating_sub(node.start)) / 1000.0);
    let suspended = coverage.map_or(0.0, |coverage| coverage.suspended_s.max(0.0));
    (seconds - suspended).max(0.0) * float(gpus(node))
}

fn hours(seconds: f64) -> f64 {
    (seconds / 36.0).round() / 100.0
}

fn table(list: &List) -> Lines {
    let head =
        ["JOB", "USER", "PARTITION", "STATE", "GPUS", "HELD", "IDLE", "IDLE %", "BUSY %", "IDLE SINCE"];
    let mut rows = vec![head.map(str::to_owned)];
    let known =
        |value: Option<f64>, digits: usize| value.map_or("?".to_owned(), |value| format!("{value:.digits$}"));
    for row in list.jobs.iter().take(MOST_ROWS) {
        rows.push([
            row.job.to_string(),
            row.user.clone(),
            row.partition.clone(),
            row.state.to_owned(),
            row.gpus.to_string(),
            format!("{:.1}", row.held_gpu_hours),
            known(row.idle_gpu_hours, 1),
            known(row.idle_percent, 0),
            known(row.busy_percent, 1),
            row.idle_since.map_or("-".to_owned(), stamp),
        ]);
    }
    let mut text = Lines::new();
    if list.jobs.is_empty() {
        put!(text, "no job with GPUs since {}", stamp(list.since));
    } else {
        text.add(&Lines::table(&rows, ""));
        put!(
            text,
            "HELD and IDLE in GPU-hours, of jobs whose nodes have written since {}",
            stamp(list.since)
        );
    }
    let more = list.jobs.len().saturating_sub(MOST_ROWS);
    if more > 0 {
        put!(text, "{more} more jobs with fewer idle GPU-hours: --format json");
    }
    if list.left_out > 0 {
        put!(text, "{} jobs were left out (at most {MOST_JOBS} are read): a shorter --since", list.left_out);
    }
    text
}

#[cfg(test)]
mod tests {
    use railgate_model::{Allocation, Job, Reading};
    use railgate_node_report::usage::{Coverage, GpuFigures, Usage, format, summarize};
    use railgate_store::Parts;

    use super::*;

    const START: UnixMillis = 1_800_000_000_000;
    const HOUR: UnixMillis = 3_600_000;

    /// A node of job 7 with one GPU that computes for the first of two hours, in samples of a minute.
    fn part(node: &str, busy: [f64; 2]) -> NodeReport {
        let job = Job {
            id: 7,
            uid: 0,
            gid: 0,
            user: "forged".to_owned(),
            restarts: 0,
            nodelist: "n[1-2]".to_owned(),
            het_leader: None,
            allocation: Allocation::NoGpus,
            partition: "gpu".to_owned(),
        };
        let mut part = NodeReport::new("alpha", node, job, 0, START);
        let gpu = format::HeadGpu {
            uuid: "GPU-1".to_owned(),
            model: "NVIDIA H200".to_owned(),
            ..Default::default()
        };
        let head = format::Head { start: START, gpus: vec![gpu], ..format::Head::new(node, 7, 0) };
        let mut stream = Vec::new();
        format::Record::Head(head).write(&mut stream).unwrap();
        for minute in 0..120_u64 {
            let mut values = railgate_node_report::usage::Values::default();
            let percent = if minute < 60 { busy[0] } else { busy[1] };
            values.put(railgate_node_report::usage::GpuField::Graphics, Some(percent));
            let sample = railgate_node_report::usage::Sample {
                start: START + minute * 60_000,
                seconds: 60.0,
                folded: 1,
                gpus: vec![values],
                ..Default::default()
            };
            format::Record::Sample(sample).write(&mut stream).unwrap();
        }
        part.usage = summarize(&[&stream], START + 2 * HOUR, &GpuFigures::default());
        part.end = Some(START + 2 * HOUR);
        part
    }

    fn merged(nodes: Vec<NodeReport>) -> JobReport {
        let parts = Parts { nodes, ..Parts::default() };
        let expand = |nodes: &str| hostlist::expand(nodes).ok();
        JobReport::merge("alpha", 7, parts, None, &expand, &ReportConfig::default())
    }

    fn of(nodes: Vec<NodeReport>) -> Option<Row> {
        row(&merged(nodes), &ReportConfig::default(), START + 2 * HOUR)
    }

    #[test]
    fn hours_are_held_sampled_and_idle() {
        let found = of(vec![part("n1", [90.0, 0.0]), part("n2", [90.0, 0.0])]).unwrap();
        assert_eq!((found.gpus, found.held_gpu_hours, found.sampled_gpu_hours), (2, 4.0, 4.0));
        assert_eq!(
            (found.idle_gpu_hours, found.idle_percent, found.busy_percent),
            (Some(2.0), Some(50.0), Some(45.0))
        );
        assert_eq!((found.state, found.idle_since, found.unsampled_nodes), ("ended", Some(START + HOUR), 0));
        assert_eq!(
            (found.user.as_str(), found.partition.as_str()),
            ("root", "gpu"),
            "the owner, not a name in a file"
        );
        // Seven percent of the time, spread over all of it.
        let low = of(vec![part("n1", [7.0, 7.0]), part("n2", [7.0, 7.0])]).unwrap();
        assert_eq!((low.idle_gpu_hours, low.idle_since), (Some(3.72), None));
    }

    #[test]
    fn what_is_not_sampled_is_unknown_and_not_idle() {
        let mut silent = part("n2", [0.0, 0.0]);
        silent.usage = None;
        let found = of(vec![part("n1", [90.0, 0.0]), silent.clone()]).unwrap();
        assert_eq!((found.gpus, found.sampled_gpu_hours, found.idle_gpu_hours), (1, 2.0, Some(1.0)));
        assert_eq!((found.unsampled_nodes, found.idle_since), (1, None));
        let mut older = part("n1", [0.0, 0.0]);
        older.usage.as_mut().unwrap().gpus[0].idle = Reading::Unsupported;
        let found = of(vec![older]).unwrap();
        assert_eq!((found.held_gpu_hours, found.idle_gpu_hours, found.idle_percent), (2.0, None, None));
        let list = List { jobs: vec![found], ..List::default() };
        assert!(table(&list).contains(" ?     ?       ?       -"), "{}", table(&list));
        assert_eq!(of(vec![silent]), None, "it held no GPU");
    }

    #[test]
    fn a_running_job_is_told_from_one_whose_nodes_are_silent() {
        let mut node = part("n1", [0.0, 0.0]);
        (node.end, node.as_of) = (None, Some(START + 2 * HOUR));
        let of = |now| row(&merged(vec![node.clone()]), &ReportConfig::default(), now).unwrap().state;
        assert_eq!((of(START + 2 * HOUR), of(START + 5 * HOUR)), ("running", "unknown"));
    }

    #[test]
    fn suspended_time_is_not_held() {
        let mut node = part("n1", [0.0, 0.0]);
        let Usage { coverage: Coverage { suspended_s, .. }, .. } = node.usage.as_mut().unwrap();
        *suspended_s = 3600.0;
        node.end = Some(START + 3 * HOUR);
        assert_eq!(of(vec![node]).unwrap().held_gpu_hours, 2.0);
    }

    #[test]
    fn the_table_is_bounded_and_says_what_is_missing() {
        let one = of(vec![part("n1", [0.0, 0.0])]).unwrap();
        let list = List { jobs: vec![one; 60], left_out: 3, ..List::default() };
        let text = table(&list).to_string();
        assert_eq!(text.lines().count(), 1 + MOST_ROWS + 3);
        assert!(text.contains("\n10 more jobs ") && text.contains("\n3 jobs were left out "), "{text}");
        assert!(table(&List::default()).contains("no job with GPUs since "));
    }
}

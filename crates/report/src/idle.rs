//! Jobs that hold GPUs and do not use them, by what their nodes have written.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use railgate_diagnosis::{IdleUse, idle_use};
use railgate_model::UnixMillis;
use railgate_node_report::NodeReport;
use railgate_node_report::plain::float;
use railgate_store::{JobPlaced, Query, ReportConfig, list_jobs};
use serde::Serialize;

use crate::{Attempt, JobReport, load_known};

/// Time for listing one directory, of which reading gets the rest.
const LISTING: Duration = Duration::from_secs(15);
/// A job whose nodes have written nothing for this long, or for three intervals of partial reports, may be gone.
const SILENT: Duration = Duration::from_secs(900);

/// Which jobs [`idle_jobs`] reads.
#[derive(Clone, Copy, Debug)]
pub struct IdleQuery<'a> {
    /// Directories instead of the configured one. Their files may belong to the user who collected them.
    pub given: &'a [PathBuf],
    /// Also the reports that this node keeps, which only root can read.
    pub local: bool,
    /// Only this cluster's.
    pub cluster: Option<&'a str>,
    /// Jobs whose nodes have written since then.
    pub since: UnixMillis,
    /// Only this user's.
    pub uid: Option<u32>,
    /// Most jobs that are read, the last active ones.
    pub most: usize,
    /// Time for all of them: a slow file server must not hold the caller.
    pub time: Duration,
}

impl IdleQuery<'_> {
    /// The directories that are read; none if neither the site nor the caller names one.
    pub fn dirs(&self, config: &ReportConfig) -> Vec<PathBuf> {
        if !self.given.is_empty() {
            return self.given.to_vec();
        }
        config.dir.iter().cloned().chain(self.local.then(|| config.local_dir.clone())).collect()
    }
}

/// Jobs that hold GPUs, the most idle GPU-hours first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IdleJobs {
    pub jobs: Vec<IdleJob>,
    /// Number of jobs that were not read.
    pub left_out: usize,
    pub problems: Vec<String>,
    /// At least one directory could be read.
    pub readable: bool,
}

/// A job that holds GPUs. Hours are of all its attempts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IdleJob {
    pub cluster: String,
    pub job: u32,
    /// Owner of the files.
    #[serde(skip)]
    pub uid: Option<u32>,
    pub partition: String,
    pub state: IdleState,
    pub start: Option<UnixMillis>,
    /// GPUs of the last attempt, on the nodes that reported.
    pub gpus: u64,
    pub held_gpu_hours: f64,
    /// GPU-hours held on nodes that took part in no start of `railgate launch`, as it reports itself: their GPUs wait on purpose. The hours
    /// sampled and idle, the percentages and `idle_since` are without these nodes.
    pub spare_gpu_hours: f64,
    pub sampled_gpu_hours: f64,
    /// `None`: not known.
    pub idle_gpu_hours: Option<f64>,
    /// Idle, of the sampled GPU-hours.
    pub idle_percent: Option<f64>,
    pub busy_percent: Option<f64>,
    /// Since when all its GPUs have been idle.
    pub idle_since: Option<UnixMillis>,
    /// Nodes of the last attempt without samples.
    pub unsampled_nodes: usize,
}

/// Whether a job still holds its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleState {
    Running,
    Ended,
    /// Its nodes stopped writing.
    Unknown,
}

impl IdleState {
    /// As it is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            IdleState::Running => "running",
            IdleState::Ended => "ended",
            IdleState::Unknown => "unknown",
        }
    }
}

/// Reads the reports of the jobs that were last active. `expand` expands a host list.
pub fn idle_jobs(
    config: &ReportConfig,
    query: &IdleQuery<'_>,
    now: UnixMillis,
    expand: &dyn Fn(&str) -> Option<Vec<String>>,
) -> IdleJobs {
    let until = Instant::now() + query.time;
    let mut list = IdleJobs::default();
    let mut placed: Vec<JobPlaced> = Vec::new();
    for dir in query.dirs(config) {
        match list_jobs(&dir, query.cluster, query.since, query.uid, query.most, LISTING.min(query.time)) {
            Ok(found) => {
                list.readable = true;
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
        if seen.len() > query.most || left.is_zero() {
            list.left_out += 1;
            continue;
        }
        // Files in a local directory belong to root.
        let uid = Some(job.owner).filter(|uid| *uid != 0 && query.given.is_empty());
        let of = Query { cluster: Some(&job.cluster), job: job.job, uid, known: None, logs: false };
        let report = load_known(config, query.given, &of, left.min(config.deadline * 12), None, expand);
        list.problems.extend(report.problems.iter().map(|why| format!("job {}: {why}", job.job)));
        // Components of a heterogeneous job have one report.
        if report.job == job.job || seen.insert((job.cluster, report.job)) {
            list.jobs.extend(idle_job(&report, config, now));
        }
    }
    list.jobs.sort_by(|a, b| {
        let hours = |job: &IdleJob| job.idle_gpu_hours.unwrap_or(-1.0);
        hours(b).total_cmp(&hours(a)).then(b.job.cmp(&a.job))
    });
    list
}

/// `None` for a job that held no GPU, as far as its nodes have written.
fn idle_job(report: &JobReport, config: &ReportConfig, now: UnixMillis) -> Option<IdleJob> {
    let last = report.attempts.iter().rev().find(|attempt| !attempt.nodes.is_empty())?;
    let gpus = last.nodes.iter().map(gpus).sum();
    let held = |spare: bool| -> f64 {
        report.attempts.iter().flat_map(|attempt| nodes(attempt, spare)).map(held_s).sum()
    };
    let (used_s, spare_s) = (held(false), held(true));
    if gpus == 0 && used_s + spare_s <= 0.0 {
        return None;
    }
    let use_of = |attempt: &Attempt| idle_use(nodes(attempt, false), &config.rules);
    let used: Vec<IdleUse> = report.attempts.iter().filter_map(use_of).collect();
    let sum = |of: fn(&IdleUse) -> f64| used.iter().map(of).sum::<f64>();
    let (sampled_s, idle_s) = (sum(|one| one.sampled_s), sum(|one| one.idle_s));
    let known = |value: f64| (sampled_s > 0.0).then_some(value);
    Some(IdleJob {
        cluster: report.cluster.clone(),
        job: report.job,
        uid: report.uid,
        partition: report.partition.clone(),
        state: state(&last.nodes, config, now),
        start: report.attempts.iter().filter_map(|attempt| attempt.start).min(),
        gpus,
        held_gpu_hours: hours(used_s.max(sampled_s) + spare_s),
        spare_gpu_hours: hours(spare_s),
        sampled_gpu_hours: hours(sampled_s),
        idle_gpu_hours: known(hours(idle_s)),
        idle_percent: known(100.0 * idle_s / sampled_s),
        busy_percent: known(sum(|one| one.busy_percent * one.sampled_s) / sampled_s),
        idle_since: use_of(last).and_then(|one| one.since),
        unsampled_nodes: last.silent_nodes.len()
            + last.nodes.iter().filter(|node| node.usage.is_none()).count(),
    })
}

/// Nodes of an attempt: those that were spares in all starts of launch, or the others.
fn nodes(attempt: &Attempt, spare: bool) -> impl Iterator<Item = &NodeReport> {
    attempt.nodes.iter().filter(move |node| attempt.spares.contains(&node.node) == spare)
}

fn state(nodes: &[NodeReport], config: &ReportConfig, now: UnixMillis) -> IdleState {
    if nodes.iter().all(|node| node.end.is_some()) {
        return IdleState::Ended;
    }
    let patience = SILENT.max(config.live.saturating_mul(3)).as_millis();
    let wrote = nodes.iter().filter_map(|node| node.as_of).max();
    match wrote {
        Some(wrote) if u128::from(now.saturating_sub(wrote)) <= patience => IdleState::Running,
        _ => IdleState::Unknown,
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

#[cfg(test)]
mod tests {
    use railgate_model::{Allocation, Job, Reading};
    use railgate_node_report::usage::{Coverage, GpuFigures, Usage, format, summarize};
    use railgate_node_report::{LaunchStart, Launched};
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
        let expand = |list: &str| {
            let names = if list == "n[1-2]" { "n1,n2" } else { list };
            Some(names.split_terminator(',').map(str::to_owned).collect())
        };
        JobReport::merge("alpha", 7, parts, None, &expand, &ReportConfig::default())
    }

    fn of(nodes: Vec<NodeReport>) -> Option<IdleJob> {
        idle_job(&merged(nodes), &ReportConfig::default(), START + 2 * HOUR)
    }

    #[test]
    fn hours_are_held_sampled_and_idle() {
        let found = of(vec![part("n1", [90.0, 0.0]), part("n2", [90.0, 0.0])]).unwrap();
        assert_eq!((found.gpus, found.held_gpu_hours, found.sampled_gpu_hours), (2, 4.0, 4.0));
        assert_eq!(
            (found.idle_gpu_hours, found.idle_percent, found.busy_percent),
            (Some(2.0), Some(50.0), Some(45.0))
        );
        assert_eq!(
            (found.state, found.idle_since, found.unsampled_nodes),
            (IdleState::Ended, Some(START + HOUR), 0)
        );
        assert_eq!(
            (found.uid, found.partition.as_str()),
            (Some(0), "gpu"),
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
        assert_eq!(of(vec![silent]), None, "it held no GPU");
    }

    #[test]
    fn a_spare_that_no_start_used_is_neither_idle_nor_busy() {
        let with = |starts: &[(&str, &str)], spare: NodeReport| {
            let start = |(nodes, spares): &(&str, &str)| LaunchStart {
                nodes: (*nodes).to_owned(),
                spares: (*spares).to_owned(),
                ..LaunchStart::default()
            };
            let mut first = part("n1", [90.0, 0.0]);
            first.launched = Some(Launched { restarts: 3, starts: starts.iter().map(start).collect() });
            of(vec![first, spare]).unwrap()
        };
        let found = with(&[("n1", "n2")], part("n2", [0.0, 0.0]));
        assert_eq!((found.gpus, found.held_gpu_hours, found.spare_gpu_hours), (2, 4.0, 2.0));
        assert_eq!(
            (found.sampled_gpu_hours, found.idle_gpu_hours, found.idle_percent, found.busy_percent),
            (2.0, Some(1.0), Some(50.0), Some(45.0))
        );
        // Not even a spare without samples hides since when the others have been idle.
        let silent = NodeReport { usage: None, ..part("n2", [0.0, 0.0]) };
        assert_eq!(with(&[("n1", "n2")], silent).idle_since, Some(START + HOUR));
        // The second start used it.
        let found = with(&[("n1", "n2"), ("n2", "n1")], part("n2", [0.0, 0.0]));
        assert_eq!(
            (found.spare_gpu_hours, found.sampled_gpu_hours, found.idle_gpu_hours),
            (0.0, 4.0, Some(3.0))
        );
    }

    #[test]
    fn a_running_job_is_told_from_one_whose_nodes_are_silent() {
        let mut node = part("n1", [0.0, 0.0]);
        (node.end, node.as_of) = (None, Some(START + 2 * HOUR));
        let of = |now| idle_job(&merged(vec![node.clone()]), &ReportConfig::default(), now).unwrap().state;
        assert_eq!((of(START + 2 * HOUR), of(START + 5 * HOUR)), (IdleState::Running, IdleState::Unknown));
    }

    #[test]
    fn suspended_time_is_not_held() {
        let mut node = part("n1", [0.0, 0.0]);
        let Usage { coverage: Coverage { suspended_s, .. }, .. } = node.usage.as_mut().unwrap();
        *suspended_s = 3600.0;
        node.end = Some(START + 3 * HOUR);
        assert_eq!(of(vec![node]).unwrap().held_gpu_hours, 2.0);
    }
}

//! Records of how Slurm ended jobs: written in batches by the controller's program, searched by job id, array,
//! name or owner.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;
use nix::unistd::geteuid;
use railgate_child::ask;
use railgate_node_report::SlurmEnd;
use serde::{Deserialize, Serialize};

use super::dirs::{below, content_below, names, top};
use super::read::understood_end;
use super::write::{WriteOrder, write};
use super::{SLURM_END, beside_parts, dir_name};
use crate::ReportConfig;

pub(super) const WRITE_ENDS: &str = "write-slurm-ends";
pub(super) const FIND_ENDS: &str = "find-slurm-ends";

/// Reserve before the deadline of a batch: time to write one more file.
const SLACK: Duration = Duration::from_secs(2);
/// Longest record, bytes.
const MAX_RECORD: u64 = 64 << 10;
/// Maximum number of entries of a cluster directory that are read.
const MOST_JOBS: usize = 1_000_000;
/// Maximum number of job directories whose owner is queried.
const MOST_ASKED: usize = 20_000;
const MOST_CLUSTERS: usize = 64;
const MOST_ATTEMPTS: usize = 1_000;

/// Result of storing a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placed {
    /// Stored beside the node reports.
    Written,
    /// The job has no report directory for this attempt.
    NoReport,
    /// Writing failed.
    Failed(String),
    /// The time was not sufficient.
    NoTime,
}

#[derive(Debug, Serialize, Deserialize)]
struct Batch {
    orders: Vec<(WriteOrder, SlurmEnd)>,
    time: Duration,
}

/// Adds records of ended jobs to the directories that the node programs created in `[report] dir`, with the uid
/// and gid of the jobs. Results are in the order of the records. Records with the same identity are written by
/// one child, within `time`.
pub fn store_ends(config: &ReportConfig, ends: &[(SlurmEnd, u32, u32)], time: Duration) -> Vec<Placed> {
    let mut placed = vec![Placed::NoTime; ends.len()];
    let Some(dir) = &config.dir else { return vec![Placed::NoReport; ends.len()] };
    let is_root = geteuid().is_root();
    let mut waiting: Vec<usize> = (0..ends.len()).collect();
    let until = Instant::now() + time;
    while let Some((_, uid, gid)) = waiting.first().and_then(|first| ends.get(*first)) {
        // A child that drops root can write for one user only.
        let same = |index: &usize| {
            !is_root || ends.get(*index).is_some_and(|(_, other, group)| (other, group) == (uid, gid))
        };
        let (batch, rest): (Vec<usize>, Vec<usize>) = waiting.iter().copied().partition(same);
        waiting = rest;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let records = batch.iter().filter_map(|index| ends.get(*index));
        let orders =
            records.map(|(end, uid, gid)| (order(config, dir.clone(), end, *uid, *gid), end.clone()));
        let answers = written(&Batch { orders: orders.collect(), time: left });
        for (place, index) in batch.iter().enumerate() {
            let answer = match &answers {
                Ok(answers) => answers.get(place).cloned().unwrap_or(Placed::NoTime),
                Err(why) => Placed::Failed(why.clone()),
            };
            if let Some(slot) = placed.get_mut(*index) {
                *slot = answer;
            }
        }
    }
    placed
}

fn order(config: &ReportConfig, dir: PathBuf, end: &SlurmEnd, uid: u32, gid: u32) -> WriteOrder {
    let order = beside_parts(config, (&end.cluster, end.job, end.attempt), SLURM_END, (uid, gid));
    WriteOrder { dir, only_existing: true, ..order }
}

fn written(batch: &Batch) -> Result<Vec<Placed>, String> {
    let input = serde_json::to_vec(batch).map_err(|why| why.to_string())?;
    let reply = ask(WRITE_ENDS, &input, batch.time + SLACK)?;
    serde_json::from_slice(&reply).map_err(|why| format!("reply: {why}"))
}

/// In the child: writes the records one after the other while there is time.
pub(super) fn write_task(input: &[u8]) -> Result<Vec<u8>, String> {
    let batch: Batch = serde_json::from_slice(input).map_err(|why| format!("order: {why}"))?;
    let until = Instant::now() + batch.time;
    let mut placed = Vec::new();
    for (order, end) in &batch.orders {
        if Instant::now() >= until {
            break;
        }
        placed.push(one(order, end));
    }
    serde_json::to_vec(&placed).map_err(|why| why.to_string())
}

fn one(order: &WriteOrder, end: &SlurmEnd) -> Placed {
    if dir_name(&order.cluster).is_none() {
        return Placed::Failed(format!("cluster '{}' is not a directory name", order.cluster));
    }
    let Ok(content) = serde_json::to_vec(end) else { return Placed::NoReport };
    match write(order, &content) {
        Ok(()) => Placed::Written,
        Err(_) if is_absent(order) => Placed::NoReport,
        Err(why) => Placed::Failed(why),
    }
}

/// Whether no node has created a directory for this attempt.
fn is_absent(order: &WriteOrder) -> bool {
    let path = order.path();
    let there = path.parent().map(std::fs::symlink_metadata);
    matches!(there, Some(Err(why)) if why.kind() == std::io::ErrorKind::NotFound)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct FindOrder {
    dirs: Vec<PathBuf>,
    cluster: Option<String>,
    uid: Option<u32>,
    numbers: Option<(u32, u32)>,
    most: usize,
    time: Duration,
}

/// Returns records of the last attempts of jobs in the report directories (`dirs` replaces the configured one
/// unless it is empty), of jobs of `uid` or of any owner. With `numbers`, returns jobs from the first to the
/// last of them, in this order; otherwise the newest first. At most `most` records.
///
/// The owner of a job can replace these files. With `uid` they are therefore self-reported. Without `uid`,
/// files that the owner may have written are skipped.
///
/// # Errors
/// The directories could not be read in time.
pub fn recorded_ends(
    config: &ReportConfig,
    dirs: &[PathBuf],
    cluster: Option<&str>,
    uid: Option<u32>,
    numbers: Option<(u32, u32)>,
    most: usize,
) -> Result<Vec<SlurmEnd>, String> {
    let shared = || config.dir.iter().cloned().collect();
    let order = FindOrder {
        dirs: if dirs.is_empty() { shared() } else { dirs.to_vec() },
        cluster: cluster.map(str::to_owned),
        uid,
        numbers,
        most,
        time: config.deadline,
    };
    let input = serde_json::to_vec(&order).map_err(|why| why.to_string())?;
    let reply = ask(FIND_ENDS, &input, order.time + SLACK)?;
    serde_json::from_slice(&reply).map_err(|why| format!("reply: {why}"))
}

/// In the child: searches the directories of clusters.
pub(super) fn find_task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: FindOrder = serde_json::from_slice(input).map_err(|why| format!("order: {why}"))?;
    let until = Instant::now() + order.time;
    let mut found = Vec::new();
    for dir in &order.dirs {
        let Ok(dir) = top(dir) else { continue };
        let clusters = match &order.cluster {
            Some(cluster) => vec![cluster.clone()],
            None => names(&dir, MOST_CLUSTERS).map_or_else(|_| Vec::new(), |(names, _)| names),
        };
        for name in clusters.iter().filter_map(|name| dir_name(name)) {
            if let Ok(cluster) = below(dir.as_fd(), name)
                && let Ok((jobs, _)) = names(&cluster, MOST_JOBS)
            {
                of_cluster(&order, until, (cluster.as_fd(), name), &jobs, &mut found);
            }
        }
    }
    serde_json::to_vec(&found).map_err(|why| why.to_string())
}

fn of_cluster(
    order: &FindOrder,
    until: Instant,
    (cluster, name): (BorrowedFd<'_>, &str),
    jobs: &[String],
    found: &mut Vec<SlurmEnd>,
) {
    let mut jobs: Vec<u32> = jobs.iter().filter_map(|job| job.parse().ok()).collect();
    jobs.sort_unstable();
    match order.numbers {
        Some((first, last)) => jobs.retain(|job| (first..=last).contains(job)),
        None => jobs.reverse(),
    }
    for job in jobs.into_iter().take(MOST_ASKED) {
        if found.len() >= order.most || Instant::now() >= until {
            return;
        }
        let place = fstatat(cluster, job.to_string().as_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        let Some(owner) = place.ok().map(|stat| stat.st_uid) else { continue };
        let is_wanted = order.uid.is_none_or(|uid| owner == uid);
        if let Some((end, writer)) = is_wanted.then(|| last_end(cluster, name, job)).flatten()
            && (order.uid.is_some() || writer != owner)
        {
            found.push(end);
        }
    }
}

/// Record of the last attempt that has one, with the uid of its writer.
fn last_end(cluster: BorrowedFd<'_>, name: &str, job: u32) -> Option<(SlurmEnd, u32)> {
    let dir = below(cluster, &job.to_string()).ok()?;
    let (attempts, _) = names(&dir, MOST_ATTEMPTS).ok()?;
    let mut attempts: Vec<u32> = attempts.iter().filter_map(|attempt| attempt.parse().ok()).collect();
    attempts.sort_unstable();
    attempts.into_iter().rev().find_map(|attempt| {
        let place = below(dir.as_fd(), &attempt.to_string()).ok()?;
        let mut left = MAX_RECORD;
        let (content, writer) = content_below(place.as_fd(), SLURM_END, MAX_RECORD, &mut left).ok()??;
        Some((understood_end(&content, name, job, attempt).ok()?, writer))
    })
}

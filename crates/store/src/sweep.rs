//! Removes old reports. Users can write to the directory, so only entries in railgate's layout are removed: in
//! a cluster's directory that no user owns, a job's directory, its attempts, and their reports, samples and
//! decision. Other files of a user are kept, as are the directories that contain them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, unlinkat};
use railgate_child::become_user;
use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

use super::dirs::{all_names, below, names, top};
use super::placed::acting_as;
use super::{ERROR, LIVE, NOBODY, SAMPLES, STACKS, Swept, dir_name};

const MOST_CLUSTERS: usize = 64;
const MOST_JOBS: usize = 1_000_000;
const MOST_ENTRIES: usize = 50_000;
const MOST_PROBLEMS: usize = 10;
/// If root is squashed: maximum number of jobs that are returned, to be removed as their owners.
const MOST_LEFT: usize = 10_000;
const DAY: i64 = 86_400;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SweepOrder {
    pub(super) dir: PathBuf,
    pub(super) now: UnixMillis,
    /// Days for reports, 0 keeps them.
    pub(super) days: u32,
    /// Days for samples, 0 keeps them as long as the report.
    pub(super) sample_days: u32,
    /// Maximum number of jobs, 0 is no limit.
    pub(super) jobs: u32,
    /// Time limit of one call; the next call continues.
    pub(super) budget: Duration,
    /// Act as this user, and only on these jobs, each with whether the whole report or only the samples are
    /// removed.
    pub(super) owner: Option<(u32, u32)>,
    pub(super) only: Vec<(JobPlace, bool)>,
    /// Only remove these directories, emptied by their owners, who may not remove them; act as the account that
    /// owns the cluster's directory.
    pub(super) emptied: Vec<JobPlace>,
}

/// Cluster and job, `alpha` and `48213`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobPlace {
    pub(super) cluster: String,
    pub(super) job: String,
}

/// What one call removed, and what it could not.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SweepReply {
    pub(super) swept: Swept,
    /// Access denied: owner, job, and whether the whole report is to be removed.
    pub(super) left: Vec<((u32, u32), JobPlace, bool)>,
    /// Empty directories in a cluster's directory of an account: see [`SweepOrder::emptied`].
    pub(super) emptied: Vec<JobPlace>,
}

/// In the child: removes reports that are too old or too many, oldest first.
pub(super) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: SweepOrder = serde_json::from_slice(input).map_err(|why| format!("order: {why}"))?;
    serde_json::to_vec(&sweep(&order)?).map_err(|why| why.to_string())
}

fn text(why: Errno) -> String {
    io::Error::from(why).to_string()
}

/// A job's directory with the time of its last new attempt, in seconds.
struct Aged {
    time: i64,
    owner: (u32, u32),
    cluster: usize,
    name: String,
}

fn sweep(order: &SweepOrder) -> Result<SweepReply, String> {
    let began = Instant::now();
    let dir = match top(&order.dir) {
        Ok(dir) => dir,
        Err(Errno::ENOENT) => return Ok(SweepReply::default()),
        Err(why) => return Err(text(why)),
    };
    if !order.emptied.is_empty() {
        return Ok(remove_empty(&dir, &order.emptied));
    }
    if let Some((uid, gid)) = order.owner {
        become_user(uid, gid, &[]).map_err(|why| why.to_string())?;
    }
    let mut sweeper = Sweeper { began, order, reply: SweepReply::default() };
    let mut clusters = Vec::new();
    let mut jobs = Vec::new();
    for name in names(&dir, MOST_CLUSTERS).map_err(text)?.0 {
        let Ok(cluster) = below(dir.as_fd(), &name) else { continue };
        if !is_ours(&dir, &cluster) {
            continue;
        }
        jobs.extend(aged(&cluster, clusters.len()));
        clusters.push((name, cluster));
    }
    jobs.sort_by_key(|job| job.time);
    let too_many = match order.jobs {
        0 => 0,
        most => jobs.len().saturating_sub(usize::try_from(most).unwrap_or(usize::MAX)),
    };
    for (position, job) in jobs.iter().enumerate() {
        let (name, cluster) = &clusters[job.cluster];
        let place = JobPlace { cluster: name.clone(), job: job.name.clone() };
        let all = match order.owner {
            Some(_) => order.only.iter().find(|(only, _)| *only == place).map(|(_, all)| *all),
            None if position < too_many || older(order, job.time, order.days) => Some(true),
            None => older(order, job.time, order.sample_days).then_some(false),
        };
        match all {
            Some(all) if sweeper.goes_on() => sweeper.job(cluster, job, place, all),
            Some(_) => sweeper.reply.swept.more = true,
            None => sweeper.reply.swept.kept += 1,
        }
    }
    Ok(sweeper.reply)
}

/// Removes empty job directories as the account that owns the cluster's directory.
fn remove_empty(dir: &OwnedFd, emptied: &[JobPlace]) -> SweepReply {
    let mut reply = SweepReply::default();
    for place in emptied {
        let removed = below(dir.as_fd(), &place.cluster).and_then(|cluster| {
            let stat = fstat(cluster.as_fd())?;
            let account = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
            acting_as(account, || unlinkat(&cluster, place.job.as_str(), UnlinkatFlags::RemoveDir))
        });
        match removed {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(why) if reply.swept.problems.len() < MOST_PROBLEMS => {
                reply.swept.problems.push(format!("{}/{}: {}", place.cluster, place.job, text(why)));
            }
            Err(_) => {}
        }
    }
    reply
}

fn older(order: &SweepOrder, time: i64, days: u32) -> bool {
    let now = i64::try_from(order.now / 1000).unwrap_or(0);
    days > 0 && time < now.saturating_sub(i64::from(days) * DAY)
}

/// Whether the cluster's directory belongs to the squashed root, to root, or to the owner of its parent.
/// Directories created by users are not touched.
fn is_ours(above: &OwnedFd, cluster: &OwnedFd) -> bool {
    let uid = |dir: &OwnedFd| fstat(dir.as_fd()).map(|stat| stat.st_uid);
    match (uid(above), uid(cluster)) {
        (Ok(above), Ok(owner)) => owner == 0 || owner == NOBODY || owner == above,
        _ => false,
    }
}

fn aged(cluster: &OwnedFd, index: usize) -> Vec<Aged> {
    let Ok((names, _)) = names(cluster, MOST_JOBS) else { return Vec::new() };
    names
        .into_iter()
        .filter(|name| is_number(name))
        .filter_map(|name| {
            let stat = fstatat(cluster, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
            // A new attempt changes the directory's modification time.
            is_dir(&stat).then_some(Aged {
                time: stat.st_mtime,
                owner: (stat.st_uid, stat.st_gid),
                cluster: index,
                name,
            })
        })
        .collect()
}

fn is_dir(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR
}

/// Whether a name is a canonical number.
fn is_number(name: &str) -> bool {
    name.parse::<u32>().is_ok_and(|number| number.to_string() == name)
}

/// Whether a name is that of samples, `n1.samples`.
fn is_samples(name: &str) -> bool {
    name.strip_suffix(SAMPLES).and_then(dir_name).is_some()
}

/// Whether a name is one of railgate's: `n1.json`, `decision.json`, `n1.samples`, `n1.live`, `n1.error`, `n1.stacks`, or a
/// temporary file of a killed writer, `.n1.json.4711`.
fn is_part(name: &str) -> bool {
    let whole = |name: &str| {
        is_samples(name)
            || [".json", LIVE, ERROR, STACKS]
                .into_iter()
                .any(|end| name.strip_suffix(end).and_then(dir_name).is_some())
    };
    let unfinished =
        name.strip_prefix('.').and_then(|name| name.rsplit_once('.')).is_some_and(|(name, pid)| {
            whole(name) && !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit())
        });
    whole(name) || unfinished
}

/// Why an entry was kept.
enum Stays {
    /// Access denied.
    Forbidden,
    /// It contains foreign files.
    Foreign,
    Failed(Errno),
}

impl From<Errno> for Stays {
    fn from(why: Errno) -> Self {
        match why {
            Errno::EPERM | Errno::EACCES => Stays::Forbidden,
            Errno::ENOTEMPTY | Errno::EEXIST => Stays::Foreign,
            why => Stays::Failed(why),
        }
    }
}

struct Sweeper<'a> {
    began: Instant,
    order: &'a SweepOrder,
    reply: SweepReply,
}

impl Sweeper<'_> {
    fn goes_on(&self) -> bool {
        self.began.elapsed() < self.order.budget
    }

    fn job(&mut self, cluster: &OwnedFd, job: &Aged, place: JobPlace, all: bool) {
        let removed = remove(cluster.as_fd(), &job.name, all);
        let swept = &mut self.reply.swept;
        match removed {
            Ok(Removed { samples, emptied }) => {
                if emptied {
                    self.reply.emptied.push(place);
                }
                swept.samples = swept.samples.saturating_add(samples);
                if all {
                    swept.removed += 1;
                } else {
                    swept.kept += 1;
                }
                return;
            }
            Err(Stays::Forbidden) if self.order.owner.is_none() && job.owner.0 != 0 => {
                if self.reply.left.len() < MOST_LEFT {
                    self.reply.left.push((job.owner, place, all));
                } else {
                    swept.more = true;
                }
                return;
            }
            Err(stays) => {
                let why = match stays {
                    Stays::Forbidden => text(Errno::EACCES),
                    Stays::Foreign => "holds something that is not railgate's, which stays".to_owned(),
                    Stays::Failed(why) => text(why),
                };
                if swept.problems.len() < MOST_PROBLEMS {
                    swept.problems.push(format!("{}/{}: {why}", place.cluster, place.job));
                }
            }
        }
        swept.kept += 1;
    }
}

/// What was removed from a job's directory.
struct Removed {
    samples: u32,
    /// The directory itself is left, empty: its owner may not remove it.
    emptied: bool,
}

/// Removes a job's directory, or only its samples. A link is removed, not followed.
fn remove(cluster: BorrowedFd<'_>, name: &str, all: bool) -> Result<Removed, Stays> {
    let job = below(cluster, name)?;
    let mut samples = 0;
    for attempt in all_names(&job, MOST_ENTRIES)? {
        if !is_number(&attempt) {
            continue;
        }
        match below(job.as_fd(), &attempt) {
            Ok(dir) => samples += remove_attempt(&dir, all)?,
            // A link or a file: not created by railgate.
            Err(Errno::ELOOP | Errno::ENOTDIR | Errno::ENOENT) => continue,
            Err(why) => return Err(why.into()),
        }
        if all {
            gone(unlinkat(&job, attempt.as_str(), UnlinkatFlags::RemoveDir))?;
        }
    }
    let emptied = match all.then(|| unlinkat(cluster, name, UnlinkatFlags::RemoveDir)) {
        Some(Err(Errno::EACCES | Errno::EPERM)) if all_names(&job, 3)?.is_empty() => true,
        Some(removed) => gone(removed).map(|()| false)?,
        None => false,
    };
    Ok(Removed { samples, emptied })
}

fn remove_attempt(dir: &OwnedFd, all: bool) -> Result<u32, Stays> {
    let mut samples = 0;
    for name in all_names(dir, MOST_ENTRIES)? {
        if !(is_samples(&name) || all && is_part(&name)) {
            continue;
        }
        match unlinkat(dir, name.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) => samples += u32::from(is_samples(&name)),
            // A directory with the name of a report was not created by railgate.
            Err(Errno::ENOENT | Errno::EISDIR) => {}
            Err(why) => return Err(why.into()),
        }
    }
    Ok(samples)
}

fn gone(removed: Result<(), Errno>) -> Result<(), Stays> {
    match removed {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(why) => Err(why.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_railgate_are_recognized() {
        for name in [
            "n1.json",
            "decision.json",
            "slurm-end.json",
            "gn-1.site.json",
            "n1.samples",
            "n1.live",
            ".n1.live.7",
            ".n1.json.4711",
            ".n1.samples.1",
        ] {
            assert!(is_part(name), "{name}");
        }
        for name in
            ["notes.txt", "n1.json~", ".json", ".n1.json", ".n1.json.x", "a b.json", ".samples", "n1.JSON"]
        {
            assert!(!is_part(name), "{name}");
        }
        assert!(
            is_number("0") && is_number("48213") && !is_number("01") && !is_number("+1") && !is_number("-1")
        );
    }
}

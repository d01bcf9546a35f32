//! Lists the jobs that have files in a report directory, without reading the files.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstatat};
use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

use super::dir_name;
use super::dirs::{below, names, top};

const MOST_CLUSTERS: usize = 64;
const MOST_JOBS: usize = 1_000_000;
/// Attempts of a job whose directories are examined, the newest ones by name.
const MOST_ATTEMPTS: usize = 1_000;
const MOST_PROBLEMS: usize = 10;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ListOrder {
    pub(super) dir: PathBuf,
    pub(super) cluster: Option<String>,
    pub(super) since: UnixMillis,
    pub(super) uid: Option<u32>,
    pub(super) most: usize,
    /// Time limit: directories that are not examined by then are counted.
    pub(super) time: Duration,
}

/// A job with files in a report directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlaced {
    /// Cluster name.
    pub cluster: String,
    /// Job id.
    pub job: u32,
    /// Owner of the job's directory: the job's owner, or root in a local directory.
    pub owner: u32,
    /// When a file was last written there.
    pub active: UnixMillis,
}

/// Jobs of a report directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobList {
    /// The jobs, the last active ones first.
    pub jobs: Vec<JobPlaced>,
    /// Number of further jobs: beyond the limit, or not examined for lack of time.
    pub more: usize,
    /// What could not be read, one line each, at most a few.
    pub problems: Vec<String>,
}

/// In the child.
pub(super) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: ListOrder = serde_json::from_slice(input).map_err(|why| format!("order: {why}"))?;
    serde_json::to_vec(&list(&order)?).map_err(|why| why.to_string())
}

fn text(why: Errno) -> String {
    io::Error::from(why).to_string()
}

fn list(order: &ListOrder) -> Result<JobList, String> {
    let until = Instant::now() + order.time;
    let mut found = JobList::default();
    let dir = match top(&order.dir) {
        Ok(dir) => dir,
        Err(Errno::ENOENT) => return Ok(found),
        Err(why) => return Err(text(why)),
    };
    let clusters = match &order.cluster {
        Some(cluster) => vec![cluster.clone()],
        None => names(&dir, MOST_CLUSTERS).map_err(text)?.0,
    };
    let mut problem = |what: String| {
        if found.problems.len() < MOST_PROBLEMS {
            found.problems.push(what);
        }
    };
    // A running job changes only the directory of its attempt, so each of the others is opened.
    let mut older: Vec<(usize, JobPlaced)> = Vec::new();
    let mut open = Vec::new();
    for name in clusters.iter().filter_map(|name| dir_name(name)) {
        let cluster = match below(dir.as_fd(), name) {
            Ok(cluster) => cluster,
            Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
            Err(why) => {
                problem(format!("{name}: {}", text(why)));
                continue;
            }
        };
        match names(&cluster, MOST_JOBS) {
            Ok((jobs, _)) => {
                for job in jobs.iter().filter_map(|job| placed(&cluster, name, job, order.uid)) {
                    if job.active >= order.since {
                        found.jobs.push(job);
                    } else {
                        older.push((open.len(), job));
                    }
                }
            }
            Err(why) => problem(format!("{name}: {}", text(why))),
        }
        open.push(cluster);
    }
    older.sort_by_key(|(_, job)| std::cmp::Reverse(job.active));
    let mut hidden = 0_usize;
    let mut older = older.into_iter();
    for (cluster, job) in older.by_ref() {
        if Instant::now() >= until {
            found.more += 1;
            break;
        }
        match open.get(cluster).map(|cluster| newest_attempt(cluster, job.job)) {
            Some(Ok(active)) if active >= order.since => found.jobs.push(JobPlaced { active, ..job }),
            Some(Err(Errno::EACCES | Errno::EPERM)) => hidden += 1,
            _ => {}
        }
    }
    found.more += older.len();
    if hidden > 0 {
        found.problems.push(format!(
            "{}: {hidden} jobs that started earlier may still run: their directories cannot be read (root is squashed)",
            order.dir.display()
        ));
    }
    found.jobs.sort_by_key(|job| std::cmp::Reverse((job.active, job.job)));
    found.more += found.jobs.len().saturating_sub(order.most);
    found.jobs.truncate(order.most);
    Ok(found)
}

/// The job of a directory's entry; `None` if it is none, or of another user than `uid`.
fn placed(cluster: &OwnedFd, name: &str, job: &str, uid: Option<u32>) -> Option<JobPlaced> {
    // Canonical numbers only.
    let number = job.parse::<u32>().ok().filter(|number| number.to_string() == job)?;
    let stat = fstatat(cluster, job, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
    let fits = is_dir(&stat) && uid.is_none_or(|uid| uid == stat.st_uid);
    fits.then(|| JobPlaced {
        cluster: name.to_owned(),
        job: number,
        owner: stat.st_uid,
        active: changed(&stat),
    })
}

/// When a file of the job's attempts was last written.
fn newest_attempt(cluster: &OwnedFd, job: u32) -> Result<UnixMillis, Errno> {
    let dir = below(cluster.as_fd(), &job.to_string())?;
    let (attempts, _) = names(&dir, MOST_ATTEMPTS)?;
    let stats =
        attempts.iter().filter_map(|name| fstatat(&dir, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok());
    Ok(stats.filter(is_dir).map(|stat| changed(&stat)).max().unwrap_or(0))
}

fn is_dir(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR
}

fn changed(stat: &FileStat) -> UnixMillis {
    u64::try_from(stat.st_mtime).unwrap_or(0).saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;
    use std::time::SystemTime;

    use super::*;

    const DAY_S: u64 = 86_400;

    /// Sets the times of a job's directory and of its attempt, in days before now.
    fn job(dir: &Path, name: &str, made: u64, written: u64) {
        let attempt = dir.join(name).join("0");
        fs::create_dir_all(&attempt).unwrap();
        let at = |days: u64| SystemTime::now() - Duration::from_secs(days * DAY_S);
        File::open(&attempt).unwrap().set_modified(at(written)).unwrap();
        File::open(attempt.parent().unwrap()).unwrap().set_modified(at(made)).unwrap();
    }

    fn now() -> UnixMillis {
        let passed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        u64::try_from(passed.as_millis()).unwrap()
    }

    fn order(dir: &Path) -> ListOrder {
        ListOrder {
            dir: dir.to_owned(),
            cluster: None,
            since: now() - 2 * DAY_S * 1000,
            uid: None,
            most: 100,
            time: Duration::from_secs(10),
        }
    }

    fn ids(list: &JobList) -> Vec<u32> {
        list.jobs.iter().map(|job| job.job).collect()
    }

    #[test]
    fn a_job_that_started_long_ago_and_still_writes_is_listed() {
        let place = tempfile::tempdir().unwrap();
        let cluster = place.path().join("alpha");
        for (name, made, written) in [("7", 1, 1), ("8", 30, 0), ("9", 30, 29), ("08", 0, 0), ("x", 0, 0)] {
            job(&cluster, name, made, written);
        }
        fs::write(cluster.join("10"), "a file").unwrap();
        std::os::unix::fs::symlink("7", cluster.join("11")).unwrap();
        let found = list(&order(place.path())).unwrap();
        assert_eq!((ids(&found), found.more, found.problems), (vec![8, 7], 0, vec![]));
        let other = ListOrder { cluster: Some("beta".to_owned()), ..order(place.path()) };
        assert_eq!(list(&other).unwrap(), JobList::default());
    }

    #[test]
    fn what_is_left_out_is_counted() {
        let place = tempfile::tempdir().unwrap();
        for number in 1..=5 {
            job(&place.path().join("alpha"), &number.to_string(), 1, 1);
        }
        job(&place.path().join("alpha"), "6", 30, 0);
        job(&place.path().join("alpha"), "8", 31, 0);
        let few = list(&ListOrder { most: 2, ..order(place.path()) }).unwrap();
        assert_eq!((few.jobs.len(), few.more), (2, 5));
        let late = list(&ListOrder { time: Duration::ZERO, ..order(place.path()) }).unwrap();
        assert_eq!((ids(&late).len(), late.more), (5, 2), "not examined");
    }

    #[test]
    fn other_users_have_no_rows_for_a_user() {
        let place = tempfile::tempdir().unwrap();
        job(&place.path().join("alpha"), "7", 0, 0);
        let me = nix::unistd::geteuid().as_raw();
        let of = |uid| ids(&list(&ListOrder { uid, ..order(place.path()) }).unwrap());
        assert_eq!((of(Some(me)), of(Some(me + 1)), of(None)), (vec![7], vec![], vec![7]));
    }
}

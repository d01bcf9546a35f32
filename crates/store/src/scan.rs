//! Reads what changed in the report directory of one cluster since the last scan, with the owner of each file. For programs that follow
//! all jobs.
//!
//! Each file is opened below its directory without following links, and its owner is that of the opened file. Nothing is decided
//! here about how far a file counts: see [`ScannedAttempt`].

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use railgate_child::ask;
use railgate_node_report::application::RankApplication;
use railgate_node_report::{Application, Decision, NodeReport, SlurmEnd};
use serde::{Deserialize, Serialize};

use super::dirs::{below, content_below, names, top};
use super::read::{known_schema, understood_end};
use super::{DECISION, SLURM_END, dir_name};
use crate::ReportConfig;

pub(super) const SCAN: &str = "scan-reports";

/// Clusters, jobs, attempts and files of an attempt that are examined.
const MOST_CLUSTERS: usize = 64;
const MOST_JOBS: usize = 1_000_000;
const MOST_ATTEMPTS: usize = 1_000;
const MOST_FILES: usize = 40_000;
/// Bytes that are read of one job, and after which a scan returns.
const MOST_OF_JOB: u64 = 128 << 20;
const ENOUGH: u64 = 32 << 20;
/// Attempts after which a scan returns: the reply is limited.
const ENOUGH_ATTEMPTS: usize = 500;
const MOST_PROBLEMS: usize = 50;
const MOST_MEMORY: u64 = 2 << 30;
/// A directory that changed more recently than this may change again without a new time, nanoseconds.
const UNSETTLED_NS: u64 = 2_000_000_000;
/// Reserve before the deadline of the child.
const SLACK: Duration = Duration::from_secs(2);

/// What earlier scans have read: by job, the attempts with the time of the last change of their directories. A changed attempt
/// is read again as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanMarks {
    jobs: BTreeMap<u32, Vec<(u32, u64)>>,
    /// The scan continues after this job.
    after: Option<u32>,
}

/// The files of one attempt.
///
/// The job's owner can write every file of the directory, and can replace those of others by files of their own. So a file counts as
/// SlurmUser's or root's only by its owner, and only if its content matches its path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScannedAttempt {
    /// Job id.
    pub job: u32,
    /// The attempt.
    pub attempt: u32,
    /// Owner of the job's directory: the job's owner.
    pub owner: u32,
    /// How Slurm ended it, and the owner of the file.
    pub end: Option<(SlurmEnd, u32)>,
    /// The decision of the controller, and the owner of the file.
    pub decision: Option<(Decision, u32)>,
    /// Final reports of nodes without samples and counts, and the owners of the files.
    pub nodes: Vec<(NodeReport, u32)>,
}

/// What a scan found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scanned {
    /// New and changed attempts.
    pub attempts: Vec<ScannedAttempt>,
    /// Jobs that were examined; the others were not reached.
    pub examined: usize,
    /// There is more: scan again.
    pub more: bool,
    /// What could not be read, one line each, at most a few.
    pub problems: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    dir: PathBuf,
    cluster: String,
    marks: ScanMarks,
    max_bytes: u64,
    time: Duration,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Reply {
    found: Scanned,
    /// Changed marks; an empty list for a job that is gone.
    marks: BTreeMap<u32, Vec<(u32, u64)>>,
    after: Option<u32>,
}

/// Names of the clusters that have reports in `[report] dir`.
///
/// # Errors
/// The directory cannot be listed.
pub fn clusters(dir: &Path) -> Result<Vec<String>, String> {
    let listed = top(dir).and_then(|dir| names(&dir, MOST_CLUSTERS));
    let (names, _) = match listed {
        Err(Errno::ENOENT) => return Ok(Vec::new()),
        listed => listed.map_err(|why| format!("{}: {}", dir.display(), text(why)))?,
    };
    Ok(names.into_iter().filter(|name| dir_name(name).is_some()).collect())
}

/// Reads the attempts that changed since `marks`, and moves the marks. Default marks read everything. The next scan continues where this
/// one ended, so that a directory of any size is read in several scans.
///
/// # Errors
/// The directory did not answer within `time`, or cannot be read. The marks are unchanged then.
pub fn scan(
    config: &ReportConfig,
    cluster: &str,
    marks: &mut ScanMarks,
    time: Duration,
) -> Result<Scanned, String> {
    let Some(dir) = &config.dir else { return Ok(Scanned::default()) };
    let order = Order {
        dir: dir.clone(),
        cluster: cluster.to_owned(),
        marks: marks.clone(),
        max_bytes: config.max_bytes(),
        time,
    };
    let input = serde_json::to_vec(&order).map_err(|why| why.to_string())?;
    let reply = ask(SCAN, &input, time + SLACK).map_err(|why| format!("{}: {why}", dir.display()))?;
    let reply: Reply = serde_json::from_slice(&reply).map_err(|why| format!("reply: {why}"))?;
    Ok(reply.apply(marks))
}

impl Reply {
    fn apply(self, marks: &mut ScanMarks) -> Scanned {
        for (job, mark) in self.marks {
            if mark.is_empty() {
                marks.jobs.remove(&job);
            } else {
                marks.jobs.insert(job, mark);
            }
        }
        marks.after = self.after;
        self.found
    }
}

/// In the child.
pub(super) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: Order = serde_json::from_slice(input).map_err(|why| format!("order: {why}"))?;
    let _ = setrlimit(Resource::RLIMIT_AS, MOST_MEMORY, MOST_MEMORY);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    serde_json::to_vec(&examine(&order, now)?).map_err(|why| why.to_string())
}

fn text(why: Errno) -> String {
    std::io::Error::from(why).to_string()
}

fn examine(order: &Order, now_ns: u64) -> Result<Reply, String> {
    let until = Instant::now() + order.time;
    let mut reply = Reply::default();
    if dir_name(&order.cluster).is_none() {
        return Err(format!("cluster '{}' is not a directory name", order.cluster));
    }
    let cluster = match top(&order.dir).and_then(|dir| below(dir.as_fd(), &order.cluster)) {
        Ok(cluster) => cluster,
        Err(Errno::ENOENT) => return Ok(reply),
        Err(why) => return Err(text(why)),
    };
    let (jobs, _) = names(&cluster, MOST_JOBS).map_err(text)?;
    let mut jobs: Vec<u32> = jobs.iter().filter_map(|name| canonical(name)).collect();
    jobs.sort_unstable();
    if order.marks.after.is_none() {
        let gone = order.marks.jobs.keys().filter(|job| jobs.binary_search(job).is_err());
        reply.marks.extend(gone.map(|job| (*job, Vec::new())));
    }
    let mut taken = 0;
    for job in jobs.into_iter().filter(|job| order.marks.after.is_none_or(|after| *job > after)) {
        // At least one job in each scan.
        let is_full = taken >= ENOUGH || reply.found.attempts.len() >= ENOUGH_ATTEMPTS;
        if reply.found.examined > 0 && (is_full || Instant::now() >= until) {
            reply.found.more = true;
            return Ok(reply);
        }
        let mut reader = Reader { order, job, until, left: MOST_OF_JOB, problems: Vec::new() };
        let known = order.marks.jobs.get(&job).map_or(&[][..], Vec::as_slice);
        match reader.job(&cluster, known, now_ns, &mut reply.found.attempts) {
            Ok(mark) if mark.as_slice() != known => {
                reply.marks.insert(job, mark);
            }
            Ok(_) => {}
            Err(why) => reader.problem(String::new(), why),
        }
        taken += MOST_OF_JOB - reader.left;
        let room = MOST_PROBLEMS.saturating_sub(reply.found.problems.len());
        reply.found.problems.extend(reader.problems.into_iter().take(room));
        reply.found.examined += 1;
        reply.after = Some(job);
    }
    reply.after = None;
    Ok(reply)
}

/// The number of a name; 01 and +1 are not numbers.
fn canonical(name: &str) -> Option<u32> {
    name.parse::<u32>().ok().filter(|number| number.to_string() == name)
}

fn changed_ns(stat: &FileStat) -> u64 {
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(stat.st_mtime).saturating_mul(1_000_000_000).saturating_add(part(stat.st_mtime_nsec))
}

struct Reader<'a> {
    order: &'a Order,
    job: u32,
    until: Instant,
    left: u64,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn problem(&mut self, place: String, why: String) {
        // A job cannot hide the problems of others behind many of its own.
        if self.problems.len() < 3 {
            self.problems.push(format!("{}/{}{place}: {why}", self.order.cluster, self.job));
        }
    }

    /// Reads the changed attempts of the job. Returns the new mark.
    fn job(
        &mut self,
        cluster: &OwnedFd,
        known: &[(u32, u64)],
        now_ns: u64,
        found: &mut Vec<ScannedAttempt>,
    ) -> Result<Vec<(u32, u64)>, String> {
        let dir = match below(cluster.as_fd(), &self.job.to_string()) {
            Ok(dir) => dir,
            // Swept at this time, or a file or link, which is no job.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(Vec::new()),
            Err(why) => return Err(text(why)),
        };
        let owner = fstat(dir.as_fd()).map_err(text)?.st_uid;
        let (attempts, _) = names(&dir, MOST_ATTEMPTS).map_err(text)?;
        let mut mark = Vec::new();
        for attempt in attempts.iter().filter_map(|name| canonical(name)) {
            let name = attempt.to_string();
            let stat = match fstatat(&dir, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(stat) if is_dir(&stat) => stat,
                _ => continue,
            };
            let changed = changed_ns(&stat);
            let settled = if changed.saturating_add(UNSETTLED_NS) < now_ns { changed } else { 0 };
            mark.push((attempt, settled));
            if settled != 0 && known.contains(&(attempt, settled)) {
                continue;
            }
            match below(dir.as_fd(), &name) {
                Ok(below) => found.extend(self.attempt(&below, attempt, owner)),
                Err(why) => self.problem(format!("/{name}"), text(why)),
            }
        }
        Ok(mark)
    }

    fn attempt(&mut self, dir: &OwnedFd, attempt: u32, owner: u32) -> Option<ScannedAttempt> {
        let files = match names(dir, MOST_FILES) {
            Ok((files, _)) => files,
            Err(why) => {
                self.problem(format!("/{attempt}"), text(why));
                return None;
            }
        };
        let job = self.job;
        let mut all = ScannedAttempt { job, attempt, owner, end: None, decision: None, nodes: Vec::new() };
        for name in files {
            let Some(node) = name.strip_suffix(".json").and_then(dir_name) else { continue };
            if Instant::now() >= self.until && !all.nodes.is_empty() {
                self.problem(
                    format!("/{attempt}"),
                    "not all reports were read: the time was over".to_owned(),
                );
                break;
            }
            if let Err(why) = self.file(dir, &name, node, &mut all) {
                self.problem(format!("/{attempt}/{name}"), why);
            }
        }
        Some(all)
    }

    fn file(
        &mut self,
        dir: &OwnedFd,
        name: &str,
        node: &str,
        all: &mut ScannedAttempt,
    ) -> Result<(), String> {
        let found = content_below(dir.as_fd(), name, self.order.max_bytes, &mut self.left)?;
        let Some((content, writer)) = found else { return Ok(()) };
        let cluster = self.order.cluster.as_str();
        match name {
            SLURM_END => {
                all.end = Some((understood_end(&content, cluster, self.job, all.attempt)?, writer));
            }
            DECISION => {
                let decision: Decision =
                    serde_json::from_slice(&content).map_err(|why| format!("not a decision: {why}"))?;
                known_schema(decision.schema)?;
                let stated = (decision.cluster.as_str(), decision.job, decision.attempt);
                if stated != (cluster, self.job, all.attempt) {
                    return Err("refused: its contents do not match its path".to_owned());
                }
                all.decision = Some((decision, writer));
            }
            _ => {
                let report: NodeReport =
                    serde_json::from_slice(&content).map_err(|why| format!("not a node report: {why}"))?;
                known_schema(report.schema)?;
                let stated = (report.cluster.as_str(), report.job.id, report.attempt, report.node.as_str());
                if stated != (cluster, self.job, all.attempt, node) {
                    return Err("refused: its contents do not match its path".to_owned());
                }
                if report.end.is_some() {
                    all.nodes.push((slim(report), writer));
                }
            }
        }
        Ok(())
    }
}

fn is_dir(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR
}

/// Without what only pages show: a report with samples of eight GPUs has hundreds of kilobytes.
fn slim(report: NodeReport) -> NodeReport {
    let rank = |rank: RankApplication| RankApplication {
        file: String::new(),
        model: None,
        events: Vec::new(),
        course: None,
        ..rank
    };
    let application = report.application.map(|application| Application {
        ranks: application.ranks.into_iter().map(rank).collect(),
        problems: Vec::new(),
    });
    NodeReport {
        end: report.end,
        boot_id: report.boot_id,
        evidence: report.evidence,
        gpus: report.gpus,
        application,
        launched: report.launched,
        exit: report.exit,
        ..NodeReport::new(report.cluster, report.node, report.job, report.attempt, report.start)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    use railgate_node_report::testing::job;

    use super::*;

    const T: u64 = 1_800_000_000_000_000_000;

    fn report(node: &str, job_id: u32) -> NodeReport {
        let mut of = job(0..8);
        of.id = job_id;
        NodeReport { end: Some(9), ..NodeReport::new("alpha", node, of, 0, 1) }
    }

    fn put(dir: &Path, job: u32, name: &str, content: &[u8]) {
        let attempt = dir.join(format!("alpha/{job}/0"));
        fs::create_dir_all(&attempt).unwrap();
        fs::write(attempt.join(name), content).unwrap();
    }

    fn settle(dir: &Path, job: u32, seconds: u64) {
        let attempt = File::open(dir.join(format!("alpha/{job}/0"))).unwrap();
        attempt.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }

    fn one_scan(dir: &Path, marks: &mut ScanMarks) -> Scanned {
        let order = Order {
            dir: dir.to_owned(),
            cluster: "alpha".to_owned(),
            marks: marks.clone(),
            max_bytes: 1 << 20,
            time: Duration::from_secs(60),
        };
        examine(&order, T).unwrap().apply(marks)
    }

    fn found(scanned: &Scanned) -> Vec<u32> {
        scanned.attempts.iter().map(|attempt| attempt.job).collect()
    }

    #[test]
    fn only_changed_attempts_are_read_again() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path();
        for job in [7, 8] {
            put(dir, job, "n1.json", &serde_json::to_vec(&report("n1", job)).unwrap());
            settle(dir, job, 1_700_000_000);
        }
        let mut marks = ScanMarks::default();
        let all = one_scan(dir, &mut marks);
        assert_eq!((found(&all), all.attempts[0].nodes.len(), all.problems), (vec![7, 8], 1, vec![]));
        let again = one_scan(dir, &mut marks);
        assert_eq!((found(&again), again.examined), (vec![], 2));
        put(dir, 8, "n2.json", &serde_json::to_vec(&report("n2", 8)).unwrap());
        settle(dir, 8, 1_700_000_009);
        let changed = one_scan(dir, &mut marks);
        assert_eq!((found(&changed), changed.attempts[0].nodes.len()), (vec![8], 2));
        // A change within the resolution of the clock is not missed: a recent directory is read again.
        settle(dir, 8, T / 1_000_000_000);
        assert_eq!(found(&one_scan(dir, &mut marks)), [8]);
        assert_eq!(found(&one_scan(dir, &mut marks)), [8]);
        fs::remove_dir_all(dir.join("alpha/7")).unwrap();
        one_scan(dir, &mut marks);
        assert_eq!(marks.jobs.keys().copied().collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn a_large_directory_is_read_in_several_scans() {
        let place = tempfile::tempdir().unwrap();
        for job in 1..=3 {
            put(place.path(), job, "n1.json", &serde_json::to_vec(&report("n1", job)).unwrap());
            settle(place.path(), job, 1_700_000_000);
        }
        let mut marks = ScanMarks::default();
        let mut order = Order {
            dir: place.path().to_owned(),
            cluster: "alpha".to_owned(),
            marks: marks.clone(),
            max_bytes: 1 << 20,
            time: Duration::ZERO,
        };
        let mut jobs = Vec::new();
        for round in 0..3 {
            let scanned = examine(&order, T).unwrap().apply(&mut marks);
            assert_eq!(scanned.more, round < 2);
            jobs.extend(found(&scanned));
            order.marks = marks.clone();
        }
        assert_eq!(jobs, [1, 2, 3]);
        assert_eq!(found(&one_scan(place.path(), &mut marks)), Vec::<u32>::new());
    }

    #[test]
    fn links_and_contents_of_another_path_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path();
        put(dir, 7, "n1.json", &serde_json::to_vec(&report("n2", 7)).unwrap());
        put(dir, 7, "n2.json", &serde_json::to_vec(&report("n2", 8)).unwrap());
        put(dir, 7, "decision.json", b"{}");
        fs::write(dir.join("outside.json"), serde_json::to_vec(&report("n3", 7)).unwrap()).unwrap();
        symlink(dir.join("outside.json"), dir.join("alpha/7/0/n3.json")).unwrap();
        fs::hard_link(dir.join("outside.json"), dir.join("alpha/7/0/n4.json")).unwrap();
        symlink("7", dir.join("alpha/9")).unwrap();
        let scanned = one_scan(dir, &mut ScanMarks::default());
        assert_eq!(found(&scanned), [7]);
        assert!(scanned.attempts[0].nodes.is_empty() && scanned.attempts[0].decision.is_none());
        assert_eq!(scanned.problems.len(), 3, "at most three of one job: {:?}", scanned.problems);
        assert!(scanned.problems[0].starts_with("alpha/7/0/decision.json: not a decision"));
    }
}

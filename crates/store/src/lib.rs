//! Report files: `<dir>/<cluster>/<jobid>/<attempt>/<node>.json`, with `decision.json` and `slurm-end.json`
//! beside them.
//!
//! `<dir>` is shared. It belongs to root with mode 1777, or to SlurmUser with mode 0755 if the file server
//! squashes root (see `placed`). A child process assumes the job's identity before it writes, and walks
//! directories by descriptor without following links, so other users can at most cause a refusal. A job's
//! directory belongs to its owner, mode 0700, or 0770 with the group of SlurmUser, which lets the controller
//! read evidence and add its decision. Files that cannot be written there are kept on the machine in
//! `local_dir`, accessible to root only.
//!
//! All of this runs in a child with a deadline, because a file server may not answer.

mod bounded;
mod config;
mod dirs;
mod ends;
mod list;
mod placed;
mod read;
mod samples;
mod scan;
mod sweep;
mod waits;
mod words;
mod write;

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use railgate_child::{Task, ask};
use railgate_fsutil::read::whole_bytes;
use railgate_model::UnixMillis;
use railgate_node_report::stacks::RankLine;
use railgate_node_report::{Decision, JobLog, JobStacks, NodeReport, SlurmEnd};
use serde::{Deserialize, Serialize};

pub use config::{ReportAccess, ReportConfig};
pub use ends::{Placed, recorded_ends, store_ends};
pub use list::{JobList, JobPlaced};
pub use samples::{Course, GpuCourse, load_course};
pub use scan::{ScanMarks, Scanned, ScannedAttempt, clusters, scan};
pub use waits::load_waits;
pub use words::{Asked, NodeWord, Restarts, WordEvidence, Words, load_nodelist, load_words, programs_xid};
use write::WriteOrder;

/// Tasks that programs which write or read reports must pass to `child::dispatch`.
pub const TASKS: &[Task] = &[
    Task::new(WRITE, write::task),
    Task::new(READ, read::task),
    Task::new(SWEEP, sweep::task),
    Task::new(LIST, list::task),
    Task::new(samples::READ_SAMPLES, samples::task),
    Task::new(words::READ_WORDS, words::task),
    Task::new(waits::READ_WAITS, waits::task),
    Task::new(ends::WRITE_ENDS, ends::write_task),
    Task::new(ends::FIND_ENDS, ends::find_task),
    Task::new(scan::SCAN, scan::task),
];

const WRITE: &str = "write-report";
const READ: &str = "read-reports";
const SWEEP: &str = "sweep-reports";
const LIST: &str = "list-reports";

/// File of the controller's decision.
pub(crate) const DECISION: &str = "decision.json";
/// File with the controller's record of how Slurm ended the attempt.
pub(crate) const SLURM_END: &str = "slurm-end.json";
/// Suffix of the samples file of a node, beside its report.
pub(crate) const SAMPLES: &str = ".samples";
/// Suffix of the partial report of a node, beside its start report; used until the final report exists.
pub(crate) const LIVE: &str = ".live";
/// Suffix of the file with the first error in the job's own logs; only the job's owner can read it.
pub(crate) const ERROR: &str = ".error";
/// Suffix of the file with the stacks of a hung job's ranks; only the job's owner can read it.
pub(crate) const STACKS: &str = ".stacks";

/// Selects the files to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Query<'a> {
    /// Cluster name; `None` for every cluster that has such a job.
    pub cluster: Option<&'a str>,
    /// Job id.
    pub job: u32,
    /// Owner of the job, if known: files of other users except root are refused.
    pub uid: Option<u32>,
    /// Nodes of an attempt, if known: files of other nodes are not opened for this attempt.
    pub known: Option<(u32, &'a [String])>,
    /// Also read the first error of the job's logs and the stacks of its ranks, which only the job's owner may see.
    pub logs: bool,
}

/// User that file servers map root to by default.
const NOBODY: u32 = 65_534;

/// The files of a job, input of its report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// Node reports of any attempts.
    pub nodes: Vec<NodeReport>,
    /// Decisions of the controller.
    pub decisions: Vec<Decision>,
    /// How Slurm ended attempts, as the controller recorded it.
    #[serde(default)]
    pub ends: Vec<SlurmEnd>,
    /// First errors in the job's own logs, by node; empty unless asked for and readable.
    #[serde(default)]
    pub logs: Vec<JobLog>,
    /// What the ranks did while the job hung, by attempt and node; empty unless logs are asked for and readable.
    #[serde(default)]
    pub stacks: Vec<RankLine>,
    /// Refused files, with the reason.
    pub problems: Vec<String>,
}

/// Result of storing a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Path of the file, if it was written.
    pub path: Option<PathBuf>,
    /// Whether it is in the shared directory, where controller and user find it.
    pub shared: bool,
    /// Errors, one line each.
    pub problems: Vec<String>,
}

/// Result of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    /// Number of jobs whose reports were removed.
    pub removed: u32,
    /// Number of jobs whose reports remain.
    pub kept: u32,
    /// Number of removed samples files, with their reports or before them.
    pub samples: u32,
    /// The time was not sufficient: another sweep is needed.
    pub more: bool,
    /// Errors, one line each, at most a few.
    pub problems: Vec<String>,
}

/// Directory name of a cluster; `None` if the name is not usable.
pub fn dir_name(name: &str) -> Option<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (!name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(plain))
        .then_some(name)
}

/// Stores a node report in the shared directory as the job's owner, or else on this machine.
///
/// Waits at most the configured deadline for each of the two, plus the time to end a killed child.
pub fn store(config: &ReportConfig, report: &NodeReport) -> Stored {
    let content = write::shortened(report, config.max_bytes());
    match content.and_then(|content| Ok((order_for(config, report, ".json")?, content))) {
        Ok((order, content)) => place(config, order, &content),
        Err(why) => Stored { problems: vec![why], ..Stored::default() },
    }
}

/// Stores the samples of a node beside its report, and returns the name of the file.
///
/// # Errors
/// Why they could not be stored.
pub fn store_samples(config: &ReportConfig, report: &NodeReport, content: &[u8]) -> Result<String, String> {
    let order = order_for(config, report, SAMPLES)?;
    let file = order.file.clone();
    let stored = place(config, order, content);
    if stored.path.is_some() { Ok(file) } else { Err(stored.problems.join("; ")) }
}

/// Stores the first error of the job's logs beside a node's report, readable by the job's owner alone.
///
/// # Errors
/// Why it could not be stored.
pub fn store_log(config: &ReportConfig, report: &NodeReport, log: &JobLog) -> Result<(), String> {
    let content = serde_json::to_vec(log).map_err(|why| why.to_string())?;
    let order = WriteOrder { private: true, ..order_for(config, report, ERROR)? };
    let stored = place(config, order, &content);
    if stored.path.is_some() { Ok(()) } else { Err(stored.problems.join("; ")) }
}

/// Stores the stacks of a hung job's ranks, readable by the job's owner alone. Later ones replace them. They are kept on this machine
/// first, since the job may hang because the file server does, and then moved beside the node's report if that is possible;
/// else [`bring_stacks`] moves them later.
///
/// # Errors
/// Why they could not be stored.
pub fn store_stacks(config: &ReportConfig, report: &NodeReport, stacks: &JobStacks) -> Result<(), String> {
    let content = serde_json::to_vec(stacks).map_err(|why| why.to_string())?;
    let order = WriteOrder { private: true, ..order_for(config, report, STACKS)? };
    let local = on_this_machine(config, order.clone());
    let kept = put(config, &local, &content);
    match (kept, bring(config, order, &content)) {
        (Err(kept), Err(brought)) => Err(format!("{kept}; {brought}")),
        _ => Ok(()),
    }
}

/// Moves stacks that are on this machine beside the node's report.
///
/// # Errors
/// Why they could not be moved; then they stay.
pub fn bring_stacks(config: &ReportConfig, report: &NodeReport) -> Result<(), String> {
    let order = WriteOrder { private: true, ..order_for(config, report, STACKS)? };
    let local = on_this_machine(config, order.clone()).path();
    match whole_bytes(&local, read::MOST_STACKS) {
        Ok(content) => bring(config, order, &content),
        Err(why) if why.is_absent() => Ok(()),
        Err(why) => Err(why.to_string()),
    }
}

/// Writes a file into the shared directory, and removes the one on this machine.
fn bring(config: &ReportConfig, order: WriteOrder, content: &[u8]) -> Result<(), String> {
    let Some(dir) = &config.dir else { return Ok(()) };
    put(config, &WriteOrder { dir: dir.clone(), ..order.clone() }, content)?;
    let local = on_this_machine(config, order).path();
    match std::fs::remove_file(&local) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {why}", local.display())),
        _ => Ok(()),
    }
}

fn on_this_machine(config: &ReportConfig, order: WriteOrder) -> WriteOrder {
    WriteOrder { dir: config.local_dir.clone(), owner: None, only_existing: false, ..order }
}

fn put(config: &ReportConfig, order: &WriteOrder, content: &[u8]) -> Result<(), String> {
    ask(WRITE, &order.encode(content), config.deadline)
        .map(drop)
        .map_err(|why| format!("{}: {why}", order.path().display()))
}

/// Stores a report of the start of the job on this node in the shared directory. The final report replaces it;
/// if the node dies, it is all that is known. Never replaces a file, and nothing depends on it.
///
/// # Errors
/// Why it could not be stored.
pub fn store_start(config: &ReportConfig, report: &NodeReport) -> Result<(), String> {
    let Some(dir) = &config.dir else { return Ok(()) };
    let content = write::shortened(report, config.max_bytes())?;
    let order = WriteOrder { dir: dir.clone(), replace: false, ..order_for(config, report, ".json")? };
    put(config, &order, &content)
}

/// Stores a partial report while the job runs, replacing an earlier one, if [`store_start`] has stored the
/// start. `railgate report --live` reads it, and it remains if the node dies.
///
/// # Errors
/// Why it could not be stored.
pub fn store_live(config: &ReportConfig, report: &NodeReport) -> Result<(), String> {
    let content = write::shortened(report, config.max_bytes())?;
    let order = WriteOrder { only_existing: true, ..order_for(config, report, LIVE)? };
    let stored = place(config, order, &content);
    if stored.path.is_some() { Ok(()) } else { Err(stored.problems.join("; ")) }
}

/// Stores the controller's decision beside the node reports of a job of `uid`, or else on this machine.
///
/// SlurmUser cannot create a directory for a user: it adds to those that epilogs created.
pub fn store_decision(config: &ReportConfig, decision: &Decision, uid: u32, gid: u32) -> Stored {
    let content = match serde_json::to_vec(&decision.for_reader(uid)) {
        Ok(content) => content,
        Err(why) => return Stored { problems: vec![format!("decision: {why}")], ..Stored::default() },
    };
    let Some(cluster) = dir_name(&decision.cluster) else {
        let problem = format!("cluster '{}' is not a directory name", decision.cluster);
        return Stored { problems: vec![problem], ..Stored::default() };
    };
    let order = beside_parts(config, (cluster, decision.job, decision.attempt), DECISION, (uid, gid));
    let only_existing = !nix::unistd::geteuid().is_root();
    place(config, WriteOrder { only_existing, ..order }, &content)
}

/// Writes a file in the directory of an attempt, owned by the job's uid and gid, replacing an older one.
fn beside_parts(
    config: &ReportConfig,
    (cluster, job, attempt): (&str, u32, u32),
    file: &str,
    owner: (u32, u32),
) -> WriteOrder {
    WriteOrder {
        dir: PathBuf::new(),
        cluster: cluster.to_owned(),
        job,
        attempt,
        file: file.to_owned(),
        owner: Some(owner),
        group: write_group(config),
        account: config.access == ReportAccess::Account,
        only_existing: false,
        replace: true,
        private: false,
    }
}

fn write_group(config: &ReportConfig) -> Option<String> {
    Some(config.controller_group.clone()).filter(|group| !group.is_empty())
}

/// A file of a node with this suffix: replaces an older one, and creates missing directories.
fn order_for(config: &ReportConfig, report: &NodeReport, ending: &str) -> Result<WriteOrder, String> {
    let (Some(cluster), Some(node)) = (dir_name(&report.cluster), dir_name(&report.node)) else {
        return Err(format!(
            "cluster '{}' or node '{}' is not a directory name",
            report.cluster, report.node
        ));
    };
    let owner = (report.job.uid, report.job.gid);
    Ok(beside_parts(config, (cluster, report.job.id, report.attempt), &format!("{node}{ending}"), owner))
}

fn place(config: &ReportConfig, order: WriteOrder, content: &[u8]) -> Stored {
    let mut problems = Vec::new();
    if let Some(dir) = &config.dir {
        let shared = WriteOrder { dir: dir.clone(), ..order.clone() };
        match put(config, &shared, content) {
            Ok(()) => return Stored { path: Some(shared.path()), shared: true, problems },
            Err(why) => problems.push(why),
        }
    }
    let local = on_this_machine(config, order);
    match put(config, &local, content) {
        Ok(()) => Stored { path: Some(local.path()), shared: false, problems },
        Err(why) => {
            problems.push(why);
            Stored { path: None, shared: false, problems }
        }
    }
}

/// Reads all files of a job in these directories; unreadable ones are named in [`Parts::problems`].
///
/// A large job is read in pages. `deadline` and the byte budget are for all pages together; files beyond them
/// are named in [`Parts::problems`] as unknown.
pub fn load_parts(dirs: &[&Path], query: &Query<'_>, max_bytes: u64, deadline: Duration) -> Parts {
    let until = Instant::now() + deadline;
    let mut parts = Parts::default();
    let known = query.known.map(|(attempt, nodes)| (attempt, nodes.to_vec()));
    let most_bytes = match &known {
        Some((_, nodes)) => words::byte_budget(u32::try_from(nodes.len()).unwrap_or(u32::MAX)),
        None => read::MOST_BYTES,
    };
    for dir in dirs {
        let mut order = read::ReadOrder {
            dir: dir.to_path_buf(),
            cluster: query.cluster.map(str::to_owned),
            job: query.job,
            uid: query.uid,
            known: known.clone(),
            max_bytes,
            most_bytes,
            time: deadline,
            after: None,
            read: 0,
            logs: query.logs,
        };
        // The child reads the next page while this one is parsed.
        let (pages, replies) = mpsc::sync_channel::<Result<Vec<u8>, String>>(0);
        std::thread::scope(|scope| {
            let parts = &mut parts;
            scope.spawn(move || replies.into_iter().for_each(|reply| understand(reply, dir, parts)));
            loop {
                order.time = until.saturating_duration_since(Instant::now());
                let reply = serde_json::to_vec(&order)
                    .map_err(|why| why.to_string())
                    // The child stops by itself and returns what it has read.
                    .and_then(|input| ask(READ, &input, order.time + Duration::from_secs(1)));
                let page = reply.as_ref().ok().and_then(|reply| Some(read::Page::split(reply).ok()?.0));
                let sent = pages.send(reply).is_ok();
                // A page that makes no progress would repeat forever.
                match page {
                    Some(page) if sent && page.next.is_some() && page.next > order.after => {
                        (order.after, order.read) = (page.next, page.read);
                    }
                    _ => break,
                }
            }
            drop(pages);
        });
    }
    parts
}

fn understand(reply: Result<Vec<u8>, String>, dir: &Path, parts: &mut Parts) {
    let page = reply.and_then(|reply| {
        let (_, page) = read::Page::split(&reply)?;
        serde_json::from_slice::<Parts>(page).map_err(|why| format!("reply: {why}"))
    });
    match page {
        Ok(page) => {
            parts.nodes.extend(page.nodes);
            parts.decisions.extend(page.decisions);
            parts.ends.extend(page.ends);
            parts.logs.extend(page.logs);
            parts.stacks.extend(page.stacks);
            let room = read::MOST_PROBLEMS.saturating_sub(parts.problems.len());
            parts.problems.extend(page.problems.into_iter().take(room));
        }
        Err(why) => parts.problems.push(format!("{}: {why}", dir.display())),
    }
}

/// Reads all files of a job, with those of the other components of a heterogeneous job, from the shared directory
/// and the local one of this machine. Also returns the number of the job, or of its leader.
///
/// `dirs` replaces the configured directories unless it is empty. `deadline` is for each directory of each
/// component.
pub fn load_job(
    config: &ReportConfig,
    dirs: &[PathBuf],
    query: &Query<'_>,
    deadline: Duration,
) -> (u32, Parts) {
    let mut parts = everywhere(config, dirs, query, deadline);
    let leader = parts.nodes.iter().find_map(|node| node.job.het_leader);
    if let Some(leader) = leader {
        components(config, dirs, query, deadline, leader, &mut parts);
    }
    (leader.unwrap_or(query.job), parts)
}

/// Reads the directories passed by the caller, else the shared and the local one.
fn everywhere(config: &ReportConfig, dirs: &[PathBuf], query: &Query<'_>, deadline: Duration) -> Parts {
    let from = |dirs: &[&Path]| load_parts(dirs, query, config.max_bytes(), deadline);
    if !dirs.is_empty() {
        return from(&dirs.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    }
    let shared: Vec<&Path> = config.dir.as_deref().into_iter().collect();
    let mut parts = from(&shared);
    let local = from(&[&config.local_dir]);
    parts.nodes.extend(local.nodes);
    parts.decisions.extend(local.decisions);
    parts.ends.extend(local.ends);
    parts.logs.extend(local.logs);
    parts.stacks.extend(local.stacks);
    // The local directory belongs to root, so other users normally cannot read it.
    if nix::unistd::geteuid().is_root() {
        parts.problems.extend(local.problems);
    }
    parts
}

/// Adds the other components of a heterogeneous job, which Slurm numbers consecutively from the leader. They
/// end and are requeued together, and the decision is stored with the leader.
fn components(
    config: &ReportConfig,
    dirs: &[PathBuf],
    query: &Query<'_>,
    deadline: Duration,
    leader: u32,
    parts: &mut Parts,
) {
    let job = query.job;
    /// Slurm's limit.
    const MOST: u32 = 128;
    // Node reports are self-reported by their owner, so they may only refer to files of that owner.
    let uid = parts.nodes.first().map(|node| node.job.uid);
    for id in (leader..leader.saturating_add(MOST)).filter(|id| *id != job) {
        let query = Query { cluster: query.cluster, job: id, uid, known: None, logs: query.logs };
        let mut found = everywhere(config, dirs, &query, deadline);
        found.nodes.retain(|node| node.job.het_leader == Some(leader));
        if found.nodes.is_empty() && id > job.max(leader) {
            break;
        }
        parts.nodes.extend(found.nodes);
        parts.logs.extend(found.logs);
        parts.stacks.extend(found.stacks);
        if id == leader {
            parts.decisions.extend(found.decisions);
            parts.ends.extend(found.ends);
            parts.problems.extend(found.problems);
        }
    }
}

/// Jobs with files in a report directory that were active after `since`, the last active ones first, at most `most`.
/// With `uid`, only those of that user. Reads no file; `time` limits how many old directories are examined.
///
/// # Errors
/// The directory cannot be read.
pub fn list_jobs(
    dir: &Path,
    cluster: Option<&str>,
    since: UnixMillis,
    uid: Option<u32>,
    most: usize,
    time: Duration,
) -> Result<JobList, String> {
    let order = list::ListOrder {
        dir: dir.to_path_buf(),
        cluster: cluster.map(str::to_owned),
        since,
        uid,
        most,
        time,
    };
    let input = serde_json::to_vec(&order).map_err(|why| why.to_string())?;
    let reply = ask(LIST, &input, time + Duration::from_secs(10))?;
    serde_json::from_slice(&reply).map_err(|why| format!("reply: {why}"))
}

/// Retention of the reports in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Days after the last attempt ended; 0 keeps them.
    pub days: u32,
    /// Days for samples; 0 keeps them as long as the report.
    pub sample_days: u32,
    /// Maximum number of jobs, the oldest are removed first; 0 is no limit.
    pub jobs: u32,
}

impl Retention {
    /// Retention in the shared directory. It has no limit of jobs, so that users cannot displace the reports of
    /// others.
    pub fn shared(config: &ReportConfig) -> Self {
        Retention { days: config.retention_days, sample_days: config.retention_sample_days, jobs: 0 }
    }

    /// Retention in the local directory of a machine.
    pub fn local(config: &ReportConfig) -> Self {
        Retention { jobs: config.retention_jobs, ..Retention::shared(config) }
    }
}

/// Removes expired reports from a directory. Root removes those of all users directly, or as each owner if the
/// file server squashes root; other users remove their own.
///
/// Works for about `budget`, then reports whether more is left.
pub fn sweep(dir: &Path, retention: Retention, now: UnixMillis, budget: Duration) -> Swept {
    let order = sweep::SweepOrder {
        dir: dir.to_path_buf(),
        now,
        days: retention.days,
        sample_days: retention.sample_days,
        jobs: retention.jobs,
        budget,
        owner: None,
        only: Vec::new(),
        emptied: Vec::new(),
    };
    let mut emptied = Vec::new();
    let (mut swept, mut left) = match ask_sweep(&order) {
        Ok(reply) => (reply.swept, reply.left),
        Err(why) => {
            let problems = vec![format!("{}: {why}", dir.display())];
            return Swept { problems, ..Swept::default() };
        }
    };
    while let Some(&(owner, ..)) = left.first() {
        let (own, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|(other, ..)| *other == owner);
        left = others;
        let count = u32::try_from(own.len()).unwrap_or(u32::MAX);
        if !nix::unistd::geteuid().is_root() {
            swept.kept = swept.kept.saturating_add(count);
            continue;
        }
        let only = own.into_iter().map(|(_, place, all)| (place, all)).collect();
        match ask_sweep(&sweep::SweepOrder { owner: Some(owner), only, ..order.clone() }) {
            Ok(reply) => {
                swept.removed += reply.swept.removed;
                swept.samples += reply.swept.samples;
                swept.kept += count.saturating_sub(reply.swept.removed);
                swept.more |= reply.swept.more;
                swept.problems.extend(reply.swept.problems);
                emptied.extend(reply.emptied);
            }
            Err(why) => swept.problems.push(format!("{}: as uid {}: {why}", dir.display(), owner.0)),
        }
    }
    if !emptied.is_empty() {
        match ask_sweep(&sweep::SweepOrder { emptied, ..order }) {
            Ok(reply) => swept.problems.extend(reply.swept.problems),
            Err(why) => swept.problems.push(format!("{}: {why}", dir.display())),
        }
    }
    swept.problems.truncate(read::MOST_PROBLEMS);
    swept
}

fn ask_sweep(order: &sweep::SweepOrder) -> Result<sweep::SweepReply, String> {
    let content = serde_json::to_vec(order).map_err(|why| why.to_string())?;
    // Time for one more removal.
    let reply = ask(SWEEP, &content, order.budget + Duration::from_secs(10))?;
    serde_json::from_slice(&reply).map_err(|why| format!("reply: {why}"))
}

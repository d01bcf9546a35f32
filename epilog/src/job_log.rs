//! The first error in the job's own logs.
//!
//! The sampler noted which files the job's processes had as output. A child that has become the job's user opens each one,
//! checks that it is still that file, reads its end and searches it. Root opens no file of a user, and parses only the small
//! reply. What is found lies in a file that only the owner can read: logs hold secrets.
//!
//! slurmctld is not asked. Where no file is known, nothing is read.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, getgrouplist};
use railgate_child::{Task, become_user};
use railgate_fsutil::nofollow;
use railgate_joblog::{Kind, Log, first_error, rule};
use railgate_model::{JobOutput, JobOutputs, UnixMillis};
use railgate_node_report::plain::float;
use railgate_node_report::{JobLog, LogFound, NodeReport, REPORT_SCHEMA};
use railgate_runner::Hook;
use railgate_slurm::Env;
use railgate_slurm::hostlist::expand;
use railgate_store::store_log;
use railgate_text::shorten;
use serde::{Deserialize, Serialize};

const READ: &str = "read-job-log";

/// Runs in a child, as the job's user.
pub(crate) const TASK: Task = Task::new(READ, task);

/// For opening, reading and searching together.
const DEADLINE: Duration = Duration::from_secs(5);
/// After this time no further block is read, so that what was read can be searched.
const READING: Duration = Duration::from_secs(3);
/// Of all logs of a node together, from their ends.
const MOST_BYTES: u64 = 16 << 20;
const BLOCK: usize = 1 << 20;
/// Of what lies before the part that is searched, so many bytes are read to count its lines.
const MOST_COUNTED: u64 = 64 << 20;
/// Memory of the child: the logs, their lines, and the automaton.
const MOST_MEMORY: u64 = 1 << 30;
/// A reply is a few sentences.
const MOST_REPLY: usize = 64 << 10;
const MOST_PROBLEMS: usize = 8;
/// Most characters of a message, a path or a reason.
const TEXT: usize = 300;
/// Of a path before a reason.
const MOST_PATH: usize = 160;

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    user: String,
    uid: u32,
    gid: u32,
    /// Ranks of the job.
    ranks: u32,
    files: Vec<Wanted>,
}

/// A log to read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Wanted {
    path: PathBuf,
    /// Device and inode; `None` for a path that only Slurm named.
    id: Option<(u64, u64)>,
    /// What lies before belongs to an earlier attempt or job.
    from: u64,
    /// For a path that only Slurm named: a file created before is not this run's alone.
    not_before: Option<UnixMillis>,
    rank: Option<u32>,
}

/// Finds the first error in the logs of the hook's job that this node reads, and stores it beside the report. A failure is
/// logged, without text of the logs.
pub(crate) fn find(hook: &Hook, report: &NodeReport, outputs: Option<&JobOutputs>) {
    if !hook.config.report.log || report.refused() || hook.job.uid == 0 {
        return;
    }
    let nodes = expand(&hook.job.nodelist).unwrap_or_default();
    let is_first = nodes.first() == Some(&hook.node);
    let files = wanted(outputs, &hook.env, report, is_first);
    if files.is_empty() {
        return;
    }
    let local = outputs.map_or(0, |outputs| outputs.ranks.len()).max(1);
    let ranks = u32::try_from(nodes.len().max(1).saturating_mul(local)).unwrap_or(u32::MAX);
    let job = &hook.job;
    let order = Order { user: job.user.clone(), uid: job.uid, gid: job.gid, ranks, files };
    let found = serde_json::to_vec(&order)
        .map_err(|why| why.to_string())
        .and_then(|order| railgate_child::ask(READ, &order, DEADLINE))
        .and_then(|reply| understood(&reply));
    let found = found.unwrap_or_else(|why| {
        tracing::info!(job = job.id, "the job's log was not read: {why}");
        LogFound { problems: vec![sentence(&why)], ..LogFound::default() }
    });
    let succeeded = report.exit.is_some_and(|exit| exit.status == 0 && exit.derived.unwrap_or(0) == 0);
    if found.first.is_none() && (found.problems.is_empty() || succeeded) {
        return;
    }
    let log = JobLog {
        schema: REPORT_SCHEMA,
        cluster: report.cluster.clone(),
        job: report.job.id,
        attempt: report.attempt,
        node: report.node.clone(),
        found,
    };
    if let Err(why) = store_log(&hook.config.report, report, &log) {
        tracing::info!(job = job.id, "the first error of the job's log is not stored: {why}");
    }
}

/// The logs that this node reads. The first node of the job, where the batch script ran, reads all that its processes wrote;
/// another node only those that one rank or one task of its own wrote, since many nodes may have another file open.
fn wanted(outputs: Option<&JobOutputs>, env: &Env, report: &NodeReport, is_first: bool) -> Vec<Wanted> {
    let named = named_by_slurm(env, report);
    let all = outputs.map_or(&[][..], |outputs| &outputs.files);
    let is_own = |file: &&JobOutput| {
        is_first
            || (file.rank.is_some() || file.task.is_some())
                && !named.iter().any(|path| path.as_path() == Path::new(&file.path))
    };
    let of_sampler: Vec<Wanted> = all
        .iter()
        .filter(is_own)
        .map(|file| Wanted {
            path: PathBuf::from(&file.path),
            id: Some((file.device, file.inode)),
            from: from(file, report),
            not_before: None,
            rank: file.rank,
        })
        .collect();
    if !of_sampler.is_empty() || !is_first {
        return of_sampler;
    }
    // The job ended before the sampler's first probe.
    let by_slurm = named.into_iter().map(|path| Wanted {
        path,
        id: None,
        from: 0,
        not_before: Some(report.start.saturating_sub(SLACK_MS)),
        rank: None,
    });
    by_slurm.collect()
}

/// Clocks of a file server and of the node differ a little.
const SLACK_MS: u64 = 2_000;

/// Where this run's part of a file begins: a file that existed before the run has text of earlier attempts or jobs
/// (`--open-mode=append`), as much as the sampler found in it.
fn from(file: &JobOutput, report: &NodeReport) -> u64 {
    match file.created {
        Some(created) if created.saturating_add(SLACK_MS) < report.start => file.size,
        None if report.attempt > 0 => file.size,
        _ => 0,
    }
}

/// Paths of the batch script's output, as Slurm passes them (22.05.8 does). A pattern with parts that are not known here names no file.
fn named_by_slurm(env: &Env, report: &NodeReport) -> Vec<PathBuf> {
    let value = |name: &str| env.get(OsStr::new(name))?.to_str();
    let mut paths = Vec::new();
    for name in ["SLURM_JOB_STDOUT", "SLURM_JOB_STDERR"] {
        let Some(path) = value(name).and_then(|path| filled_in(path, report)) else { continue };
        let work_dir = value("SLURM_JOB_WORK_DIR").map(Path::new).filter(|dir| dir.is_absolute());
        let path = match (path.starts_with('/'), work_dir) {
            (true, _) => PathBuf::from(path),
            (false, Some(dir)) => dir.join(path),
            (false, None) => continue,
        };
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

fn filled_in(pattern: &str, report: &NodeReport) -> Option<String> {
    let filled = pattern.replace("%j", &report.job.id.to_string()).replace("%u", &report.job.user);
    (!filled.is_empty() && !filled.contains(['%', '\\'])).then_some(filled)
}

/// The reply of the child, which has read text of the user's: within its limits, and printable.
fn understood(reply: &[u8]) -> Result<LogFound, String> {
    if reply.len() > MOST_REPLY {
        return Err(format!("an answer of {} bytes, at most {MOST_REPLY} were expected", reply.len()));
    }
    let mut found: LogFound = serde_json::from_slice(reply).map_err(|why| format!("answer: {why}"))?;
    found.problems.truncate(MOST_PROBLEMS);
    found.problems.iter_mut().for_each(|problem| *problem = sentence(problem));
    if let Some(first) = &mut found.first {
        if rule(&first.rule).is_none() {
            return Err("answer: an unknown rule".to_owned());
        }
        for text in [Some(&mut first.text), first.from.as_mut(), first.file.as_mut(), Some(&mut first.log)] {
            text.into_iter().for_each(|text| *text = sentence(text));
        }
    }
    Ok(found)
}

fn sentence(text: &str) -> String {
    railgate_text::clip(text, TEXT)
}

fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: Order = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let name = CString::new(order.user.as_str()).map_err(|why| why.to_string())?;
    let groups = getgrouplist(&name, Gid::from_raw(order.gid)).unwrap_or_default();
    let groups: Vec<u32> = groups.into_iter().map(Gid::as_raw).collect();
    become_user(order.uid, order.gid, &groups).map_err(|why| why.to_string())?;
    let _ = setrlimit(Resource::RLIMIT_AS, MOST_MEMORY, MOST_MEMORY);
    serde_json::to_vec(&search(&order, Instant::now() + READING)).map_err(|why| why.to_string())
}

/// The end of a log.
struct Tail {
    bytes: Vec<u8>,
    /// Where they begin in the file.
    start: u64,
    /// The first byte is not the first of this run's part.
    cut: bool,
}

fn search(order: &Order, until: Instant) -> LogFound {
    let mut found = LogFound::default();
    let mut problem = |path: &Path, why: String| {
        if found.problems.len() < MOST_PROBLEMS {
            let path = shorten(&path.to_string_lossy(), MOST_PATH);
            found.problems.push(sentence(&format!("{path}: {why}")));
        }
    };
    let mut opened = Vec::new();
    for file in &order.files {
        match open(file, order.uid) {
            Ok((reader, size)) => opened.push((file, reader, size)),
            // Slurm's path may be a device, or one of another machine: no log is known then.
            Err(Unread::Refused(_)) if file.id.is_none() => {}
            Err(Unread::Refused(why) | Unread::Old(why)) => problem(&file.path, why),
        }
    }
    // What a short log leaves over, the longer ones get.
    opened.sort_by_key(|(file, _, size)| size.saturating_sub(file.from));
    let (mut left, mut count) = (MOST_BYTES, u64::try_from(opened.len()).unwrap_or(u64::MAX));
    let mut tails = Vec::new();
    for (file, reader, size) in &opened {
        match tail(reader, file.from, *size, left / count.max(1), until) {
            Ok(tail) => {
                left = left.saturating_sub(u64::try_from(tail.bytes.len()).unwrap_or(u64::MAX));
                tails.push((*file, reader, tail));
            }
            Err(why) => problem(&file.path, why),
        }
        count = count.saturating_sub(1);
    }
    let logs: Vec<Log<'_>> = tails
        .iter()
        .map(|(file, _, tail)| Log { bytes: &tail.bytes, rank: file.rank, cut: tail.cut })
        .collect();
    let path = |log: usize| {
        tails.get(log).map(|(file, ..)| sentence(&file.path.to_string_lossy())).unwrap_or_default()
    };
    let first = first_error(&logs, order.ranks);
    let before = first
        .first
        .as_ref()
        .and_then(|first| tails.get(first.log))
        .and_then(|(_, reader, tail)| lines(reader, tail.start, until));
    if first.first.as_ref().is_none_or(|first| first.rule.kind == Kind::Consequence) {
        let mut cut = tails.iter().filter(|(.., tail)| tail.cut);
        if let Some((file, _, tail)) = cut.next() {
            problem(&file.path, no_error_in(tail, cut.count()));
        }
    }
    let mut said = first.stored(logs.len(), path);
    if let Some(first) = &mut said.first {
        first.log_line = before.map_or(0, |before| before.saturating_add(first.log_line));
    }
    LogFound { problems: found.problems, ..said }
}

/// `others`: further logs of which only the end was read.
fn no_error_in(tail: &Tail, others: usize) -> String {
    let more = match others {
        0 => String::new(),
        1 => " (and only the end of 1 other log)".to_owned(),
        many => format!(" (and only the ends of {many} other logs)"),
    };
    format!(
        "only its last {:.1} MiB were searched{more}: they have no first error; one may lie before",
        float(u64::try_from(tail.bytes.len()).unwrap_or(u64::MAX)) / f64::from(1 << 20)
    )
}

/// Number of lines that end before `upto`; `None` if that is too much to read, or reading fails.
fn lines(file: &File, upto: u64, until: Instant) -> Option<u64> {
    if upto > MOST_COUNTED {
        return None;
    }
    let (mut at, mut count) = (0, 0);
    let mut block = vec![0; BLOCK];
    while at < upto {
        let most = usize::try_from(upto - at).unwrap_or(BLOCK).min(BLOCK);
        if Instant::now() >= until {
            return None;
        }
        let read = file.read_at(block.get_mut(..most)?, at).ok().filter(|&read| read > 0)?;
        count += block.get(..read)?.iter().filter(|&&byte| byte == b'\n').count();
        at = at.saturating_add(u64::try_from(read).ok()?);
    }
    u64::try_from(count).ok()
}

/// Why a log is not read.
#[derive(Debug)]
enum Unread {
    /// It is not the file that the job wrote.
    Refused(String),
    /// It may hold the output of other runs.
    Old(String),
}

impl From<String> for Unread {
    fn from(why: String) -> Self {
        Unread::Refused(why)
    }
}

/// Opens a log, which must be the regular file that the job wrote, and the user's own.
fn open(file: &Wanted, uid: u32) -> Result<(File, u64), Unread> {
    let opened = nofollow::read(&file.path).map_err(|why| match why.raw_os_error() {
        Some(nix::libc::ELOOP) => "refused: a symbolic link".to_owned(),
        _ => why.to_string(),
    })?;
    let meta = opened.metadata().map_err(|why| why.to_string())?;
    if !meta.is_file() {
        return Err("refused: not a regular file".to_owned().into());
    }
    if meta.uid() != uid {
        return Err(format!("refused: it belongs to uid {}", meta.uid()).into());
    }
    if file.id.is_some_and(|id| id != (meta.dev(), meta.ino())) {
        return Err("refused: another file than the job wrote".to_owned().into());
    }
    if let Some(not_before) = file.not_before {
        let created = meta.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        if created.is_none_or(|created| created.as_millis() < u128::from(not_before)) {
            return Err(Unread::Old(
                "not read: it may hold the output of earlier attempts or jobs".to_owned(),
            ));
        }
    }
    Ok((opened, meta.len()))
}

/// Reads at most `most` bytes from the end of `from` to `size`. A file that becomes shorter meanwhile ends there.
fn tail(file: &File, from: u64, size: u64, most: u64, until: Instant) -> Result<Tail, String> {
    // A log that was truncated by its program begins anew.
    let from = if from > size { 0 } else { from };
    let start = from.max(size.saturating_sub(most));
    let length = usize::try_from(size.saturating_sub(start)).unwrap_or(0);
    let mut bytes = vec![0; length];
    let mut have = 0;
    while have < length {
        if Instant::now() >= until {
            return Err(format!("not read within {}", humantime::format_duration(READING)));
        }
        let to = length.min(have + BLOCK);
        let Some(block) = bytes.get_mut(have..to) else { break };
        match file.read_at(block, start.saturating_add(u64::try_from(have).unwrap_or(0))) {
            Ok(0) => break,
            Ok(read) => have += read,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why.to_string()),
        }
    }
    bytes.truncate(have);
    let (mut start, cut) = (start, start > from);
    if cut && let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
        start = start.saturating_add(u64::try_from(bytes.drain(..=end).len()).unwrap_or(0));
    }
    Ok(Tail { bytes, start, cut })
}

#[cfg(test)]
mod tests;

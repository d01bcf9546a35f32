use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::fstatat;
use railgate_node_report::stacks::RankLine;
use railgate_node_report::{Decision, JobLog, JobStacks, NodeReport, REPORT_SCHEMA, SlurmEnd};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::dirs::{below, content_below, job_below, names, top};
use super::{DECISION, ERROR, LIVE, SAMPLES, SLURM_END, STACKS, dir_name};
use crate::Parts;

/// Sorts after every file name.
const LAST: &str = "\u{10ffff}";
const MOST_CLUSTERS: usize = 64;
const MOST_ATTEMPTS: usize = 1_000;
const MOST_NODES: usize = 20_000;
/// Size of one reply, which the parent holds in addition to earlier ones.
const PAGE_BYTES: u64 = 8 << 20;
/// Limit for all reports of one directory: 1,024 nodes with eight GPUs use a third of it.
pub(super) const MOST_BYTES: u64 = 512 << 20;
pub(super) const MOST_PROBLEMS: usize = 50;
/// Size of a file with a first error: some sentences.
const MOST_ERROR: u64 = 64 << 10;
/// Size of a file with stacks: 256 ranks with 64 frames of some hundred bytes.
pub(super) const MOST_STACKS: u64 = 4 << 20;
/// User-written content can expand when parsed: a child that needs more memory than this ends.
const MOST_MEMORY: u64 = 2 << 30;

/// End of a page: the last file processed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Place {
    cluster: String,
    attempt: String,
    file: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ReadOrder {
    pub(super) dir: PathBuf,
    pub(super) cluster: Option<String>,
    pub(super) job: u32,
    pub(super) uid: Option<u32>,
    /// For this attempt only files of these nodes are opened, and the directory is not listed.
    pub(super) known: Option<(u32, Vec<String>)>,
    pub(super) max_bytes: u64,
    /// Byte limit for all pages together.
    pub(super) most_bytes: u64,
    /// Remaining time for all pages.
    pub(super) time: Duration,
    /// Start after this file.
    pub(super) after: Option<Place>,
    /// Bytes read by earlier pages.
    pub(super) read: u64,
    /// Read the first errors of logs, too.
    pub(super) logs: bool,
}

/// End of a page: the first line of a reply, so that the next page can be requested before this one is parsed.
/// The reports follow it as one JSON value.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Page {
    /// Where the next page starts; `None` if there is none.
    pub(super) next: Option<Place>,
    /// Bytes read by this page and earlier ones.
    pub(super) read: u64,
}

impl Page {
    /// Splits a reply into its first line and the rest.
    pub(super) fn split(reply: &[u8]) -> Result<(Self, &[u8]), String> {
        let end = reply.iter().position(|byte| *byte == b'\n').ok_or("reply: cut off")?;
        let (line, parts) = reply.split_at(end);
        Ok((serde_json::from_slice(line).map_err(|why| format!("reply: {why}"))?, parts))
    }
}

/// In the child: reads the files of a job, as its owner if the caller is root.
pub(super) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: ReadOrder = serde_json::from_slice(input).map_err(|why| format!("order: {why}"))?;
    let _ = setrlimit(Resource::RLIMIT_AS, MOST_MEMORY, MOST_MEMORY);
    read(&order)
}

fn text(why: Errno) -> String {
    io::Error::from(why).to_string()
}

struct Reader<'a> {
    order: &'a ReadOrder,
    parts: Parts,
    /// Valid node reports as raw file content; the parent parses them again.
    nodes: Vec<Vec<u8>>,
    /// Bytes read by this page.
    taken: u64,
    /// The last file processed.
    last: Option<Place>,
    full: bool,
    /// Remaining byte budget of this page.
    left: u64,
    until: Instant,
    /// The total budget is spent: there is no further page.
    over: bool,
}

impl Reader<'_> {
    /// Why no more files of this job are read.
    fn spent(&self) -> Option<&'static str> {
        if self.left == 0 {
            Some("the parts are larger than allowed together")
        } else if Instant::now() >= self.until {
            Some("the time for all parts is over")
        } else {
            None
        }
    }

    /// Whether an earlier page covered this file, or everything below this directory.
    fn is_done(&self, place: &Place) -> bool {
        self.order.after.as_ref().is_some_and(|after| place <= after)
    }

    fn problem(&mut self, what: String) {
        if self.parts.problems.len() < MOST_PROBLEMS {
            self.parts.problems.push(what);
        }
    }
}

fn read(order: &ReadOrder) -> Result<Vec<u8>, String> {
    let dir = match top(&order.dir) {
        Ok(dir) => dir,
        Err(Errno::ENOENT) => return reply(&Page::default(), &Parts::default(), &[]),
        Err(why) => return Err(text(why)),
    };
    let clusters = match &order.cluster {
        Some(cluster) => vec![cluster.clone()],
        None => names(&dir, MOST_CLUSTERS).map_err(text)?.0,
    };
    let mut reader = Reader {
        order,
        parts: Parts::default(),
        nodes: Vec::new(),
        taken: 0,
        last: None,
        full: false,
        left: order.most_bytes.saturating_sub(order.read),
        until: Instant::now() + order.time,
        over: false,
    };
    for name in clusters {
        if reader.full || reader.over || order.after.as_ref().is_some_and(|after| name < after.cluster) {
            continue;
        }
        if dir_name(&name).is_none() {
            reader.problem(format!("{name}: refused: not a cluster name"));
            continue;
        }
        match below(dir.as_fd(), &name) {
            Ok(cluster) => job(&mut reader, cluster.as_fd(), &name),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(why) => reader.problem(format!("{name}: {}", text(why))),
        }
    }
    let next = reader.last.filter(|_| reader.full && !reader.over);
    let page = Page { next, read: order.read.saturating_add(reader.taken) };
    reply(&page, &reader.parts, &reader.nodes)
}

fn reply(page: &Page, parts: &Parts, nodes: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    let json = |what: serde_json::Result<Vec<u8>>| what.map_err(|why| why.to_string());
    let mut reply = json(serde_json::to_vec(page))?;
    reply.extend_from_slice(b"\n{\"nodes\":[");
    for (place, node) in nodes.iter().enumerate() {
        if place > 0 {
            reply.push(b',');
        }
        reply.extend_from_slice(node);
    }
    reply.push(b']');
    for (name, list) in [
        ("decisions", serde_json::to_vec(&parts.decisions)),
        ("ends", serde_json::to_vec(&parts.ends)),
        ("logs", serde_json::to_vec(&parts.logs)),
        ("stacks", serde_json::to_vec(&parts.stacks)),
        ("problems", serde_json::to_vec(&parts.problems)),
    ] {
        reply.extend_from_slice(format!(",\"{name}\":").as_bytes());
        reply.extend(json(list)?);
    }
    reply.push(b'}');
    Ok(reply)
}

fn job(reader: &mut Reader<'_>, cluster: BorrowedFd<'_>, cluster_name: &str) {
    let place = format!("{cluster_name}/{}", reader.order.job);
    let (dir, owner) = match job_below(cluster, reader.order.job, reader.order.uid) {
        Ok(Some(found)) => found,
        Ok(None) => return,
        Err(why) => return reader.problem(format!("{place}: {why}")),
    };
    let attempts = match names(&dir, MOST_ATTEMPTS) {
        Ok((names, more)) => {
            if more {
                reader.problem(format!("{place}: more than {MOST_ATTEMPTS} entries, the rest is left out"));
            }
            names
        }
        Err(why) => return reader.problem(format!("{place}: {}", text(why))),
    };
    for name in attempts {
        let earlier =
            Place { cluster: cluster_name.to_owned(), attempt: name.clone(), file: LAST.to_owned() };
        if reader.full || reader.over || reader.is_done(&earlier) {
            continue;
        }
        // Canonical numbers only: 01 and +1 are not attempts.
        let Some(number) = name.parse::<u32>().ok().filter(|number| number.to_string() == name) else {
            reader.problem(format!("{place}/{name}: refused: not an attempt"));
            continue;
        };
        match below(dir.as_fd(), &name) {
            Ok(attempt) => {
                read_attempt(reader, &attempt, &format!("{place}/{name}"), cluster_name, number, owner)
            }
            Err(why) => reader.problem(format!("{place}/{name}: {}", text(why))),
        }
    }
}

/// File names of the known nodes, in listing order, in which pages continue.
fn known_files(dir: &OwnedFd, nodes: &[String], logs: bool) -> Vec<String> {
    let is_there = |name: &String| {
        !matches!(fstatat(dir, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW), Err(Errno::ENOENT))
    };
    let nodes = nodes.iter().filter_map(|name| dir_name(name));
    let of_node = |node: &str| {
        let private = if logs { &[ERROR, STACKS][..] } else { &[] };
        let private = private.iter().map(move |end| format!("{node}{end}"));
        [format!("{node}.json"), format!("{node}{LIVE}")].into_iter().chain(private).collect::<Vec<_>>()
    };
    let mut files: Vec<String> = nodes.flat_map(of_node).collect();
    files.extend([DECISION.to_owned(), SLURM_END.to_owned()]);
    files.retain(is_there);
    files.sort_unstable();
    files.dedup();
    files
}

fn read_attempt(
    reader: &mut Reader<'_>,
    dir: &OwnedFd,
    place: &str,
    cluster: &str,
    attempt: u32,
    owner: u32,
) {
    let known = reader.order.known.as_ref().filter(|(known, _)| *known == attempt);
    let files = match known {
        Some((_, nodes)) => known_files(dir, nodes, reader.order.logs),
        None => match names(dir, MOST_NODES) {
            Ok((names, more)) => {
                if more {
                    reader.problem(format!("{place}: more than {MOST_NODES} files, the rest is left out"));
                }
                names
            }
            Err(why) => return reader.problem(format!("{place}: {}", text(why))),
        },
    };
    for name in files {
        let here = Place { cluster: cluster.to_owned(), attempt: attempt.to_string(), file: name.clone() };
        if reader.is_done(&here) {
            continue;
        }
        if let Some(why) = reader.spent() {
            reader.over = true;
            return reader.problem(format!("{place}/{name} and what comes after it: could not tell: {why}"));
        }
        if reader.taken >= PAGE_BYTES {
            reader.full = true;
            return;
        }
        reader.last = Some(here);
        // Samples are read only if the report shows them.
        if name.strip_suffix(SAMPLES).and_then(dir_name).is_some() {
            continue;
        }
        let kinds: [(&str, ReadPrivate); 2] = [(ERROR, log), (STACKS, stacks)];
        let private =
            kinds.iter().find_map(|(end, read)| Some((name.strip_suffix(end).and_then(dir_name)?, read)));
        if let Some((node, read)) = private {
            let file = Private { dir: dir.as_fd(), name: &name, node, cluster, attempt, owner };
            // Only its owner may read it, so others see nothing of it.
            if reader.order.logs
                && let Err(why) = read(reader, &file)
                && why != text(Errno::EACCES)
            {
                reader.problem(format!("{place}/{name}: {why}"));
            }
            continue;
        }
        let live = name.strip_suffix(LIVE);
        let Some(stem) = name.strip_suffix(".json").or(live).and_then(dir_name) else {
            reader.problem(format!("{place}/{name}: refused: not a node report"));
            continue;
        };
        let result = if name == DECISION {
            decision(reader, dir.as_fd(), &name, cluster, attempt)
        } else if name == SLURM_END {
            slurm_end(reader, dir.as_fd(), cluster, attempt)
        } else {
            node(reader, dir.as_fd(), &name, (stem, cluster, attempt), owner)
        };
        if let Err(why) = result {
            reader.problem(format!("{place}/{name}: {why}"));
        }
    }
}

/// Reads a file of the job that must exist.
fn content(reader: &mut Reader<'_>, dir: BorrowedFd<'_>, name: &str) -> Result<(Vec<u8>, u32), String> {
    let before = reader.left;
    let found = content_below(dir, name, reader.order.max_bytes, &mut reader.left);
    reader.taken = reader.taken.saturating_add(before.saturating_sub(reader.left));
    found?.ok_or_else(|| text(Errno::ENOENT))
}

pub(super) fn known_schema(schema: u32) -> Result<(), String> {
    if schema == 0 || schema > REPORT_SCHEMA {
        return Err(format!("schema {schema}, this railgate reads up to {REPORT_SCHEMA}"));
    }
    Ok(())
}

fn node(
    reader: &mut Reader<'_>,
    dir: BorrowedFd<'_>,
    name: &str,
    (stem, cluster, attempt): (&str, &str, u32),
    owner: u32,
) -> Result<(), String> {
    let (content, uid) = content(reader, dir, name)?;
    if uid != owner && uid != 0 {
        return Err(format!("refused: it belongs to uid {uid}, the job's directory to {owner}"));
    }
    let report: NodeReport =
        serde_json::from_slice(&content).map_err(|why| format!("not a node report: {why}"))?;
    known_schema(report.schema)?;
    // The path identifies the report; a file with other contents was moved or forged.
    let same = report.job.id == reader.order.job
        && report.attempt == attempt
        && report.node == stem
        && report.cluster == cluster
        && (owner == 0 || report.job.uid == owner);
    if !same {
        return Err("refused: its contents do not match its path".to_owned());
    }
    if name.ends_with(LIVE) && (report.end.is_some() || report.as_of.is_none()) {
        return Err("refused: a partial report of a running job must not have an end".to_owned());
    }
    reader.nodes.push(content);
    Ok(())
}

/// A file that only the job's owner may read.
struct Private<'a> {
    dir: BorrowedFd<'a>,
    name: &'a str,
    /// Its name without the suffix: the node.
    node: &'a str,
    cluster: &'a str,
    attempt: u32,
    /// Owner of the job's directory.
    owner: u32,
}

/// Schema, job, attempt, node and cluster that the contents of such a file state.
type Stated<'a> = (u32, u32, u32, &'a str, &'a str);

type ReadPrivate = fn(&mut Reader<'_>, &Private<'_>) -> Result<(), String>;

impl Private<'_> {
    /// Reads at most `most` bytes. The contents must match the path.
    fn read<T: DeserializeOwned>(
        &self,
        reader: &mut Reader<'_>,
        most: u64,
        stated: fn(&T) -> Stated<'_>,
    ) -> Result<T, String> {
        let before = reader.left;
        let found = content_below(self.dir, self.name, most, &mut reader.left);
        reader.taken = reader.taken.saturating_add(before.saturating_sub(reader.left));
        let (content, uid) = found?.ok_or_else(|| text(Errno::ENOENT))?;
        if uid != self.owner && uid != 0 {
            return Err(format!("refused: it belongs to uid {uid}, the job's directory to {}", self.owner));
        }
        let content: T = serde_json::from_slice(&content).map_err(|why| format!("not understood: {why}"))?;
        let (schema, job, attempt, node, cluster) = stated(&content);
        known_schema(schema)?;
        if (job, attempt, node, cluster) != (reader.order.job, self.attempt, self.node, self.cluster) {
            return Err("refused: its contents do not match its path".to_owned());
        }
        Ok(content)
    }
}

fn log(reader: &mut Reader<'_>, file: &Private<'_>) -> Result<(), String> {
    fn stated(log: &JobLog) -> Stated<'_> {
        (log.schema, log.job, log.attempt, &log.node, &log.cluster)
    }
    let log = file.read(reader, MOST_ERROR, stated)?;
    reader.parts.logs.push(log);
    Ok(())
}

/// Keeps one line for each rank: the stacks of a thousand nodes are sixty megabytes.
fn stacks(reader: &mut Reader<'_>, file: &Private<'_>) -> Result<(), String> {
    fn stated(all: &JobStacks) -> Stated<'_> {
        (all.schema, all.job, all.attempt, &all.node, &all.cluster)
    }
    let all = file.read(reader, MOST_STACKS, stated)?;
    reader.parts.stacks.extend(RankLine::all(all.attempt, &all.node, all.stacks));
    Ok(())
}

fn decision(
    reader: &mut Reader<'_>,
    dir: BorrowedFd<'_>,
    name: &str,
    cluster: &str,
    attempt: u32,
) -> Result<(), String> {
    let (content, _) = content(reader, dir, name)?;
    let decision: Decision =
        serde_json::from_slice(&content).map_err(|why| format!("not a decision: {why}"))?;
    known_schema(decision.schema)?;
    if decision.job != reader.order.job || decision.attempt != attempt || decision.cluster != cluster {
        return Err("refused: its contents do not match its path".to_owned());
    }
    reader.parts.decisions.push(decision);
    Ok(())
}

fn slurm_end(
    reader: &mut Reader<'_>,
    dir: BorrowedFd<'_>,
    cluster: &str,
    attempt: u32,
) -> Result<(), String> {
    let (content, _) = content(reader, dir, SLURM_END)?;
    let end = understood_end(&content, cluster, reader.order.job, attempt)?;
    reader.parts.ends.push(end);
    Ok(())
}

/// Parses the record of an attempt's end, which must match its path.
pub(super) fn understood_end(
    content: &[u8],
    cluster: &str,
    job: u32,
    attempt: u32,
) -> Result<SlurmEnd, String> {
    let end: SlurmEnd =
        serde_json::from_slice(content).map_err(|why| format!("not the record of a job's end: {why}"))?;
    known_schema(end.schema)?;
    if end.job != job || end.attempt != attempt || end.cluster != cluster || !end.slurm.has_ended() {
        return Err("refused: contents do not match the path, or the job has not ended".to_owned());
    }
    Ok(end)
}

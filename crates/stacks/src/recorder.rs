//! The collectives that did not complete, by PyTorch's flight recorder.
//!
//! PyTorch writes its record when a line arrives in a rank's pipe, some eight seconds later (measured with 2.11). The record is a
//! pickle of the job's own making: it is parsed without running anything of it, in a child that is the job's user.

mod pickle;

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::sys::resource::Resource;
use railgate_child::become_user;
use railgate_node_report::stacks::{Frame, MOST_FRAMES, MOST_RANKS, Recorded, place};
use serde::{Deserialize, Serialize};

use crate::task::limit;
use pickle::{Value, parse};

pub(crate) const RECORDER: &str = "hang-recorder";
/// For the child, and within it for PyTorch to write.
const DEADLINE: Duration = Duration::from_secs(16);
const WRITES: Duration = Duration::from_secs(14);
const POLL: Duration = Duration::from_millis(250);
/// Largest record: 2,000 operations with stacks are some 300 KB.
const MOST_RECORD: u64 = 16 << 20;
const MOST_MEMORY: u64 = 1 << 30;
const MOST_CPU_S: u64 = 10;

/// Where the job's pipes and records are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecorderOrder {
    /// Value of `TORCH_NCCL_DEBUG_INFO_PIPE_FILE`: `<pipe><rank>.pipe`.
    pub pipe: PathBuf,
    /// Value of `TORCH_FR_DUMP_TEMP_FILE`: `<dump><rank>`.
    pub dump: PathBuf,
    /// Owner of the job, not root.
    pub uid: u32,
    /// Group of the job.
    pub gid: u32,
    /// The ranks on this node.
    pub ranks: Vec<u32>,
}

/// Makes PyTorch write its records, and returns what did not complete. Empty if no rank has a pipe or writes one in time: the job does not use
/// PyTorch, or its user has set the variables.
///
/// # Errors
/// In words: the child could not be run.
pub fn read_recorder(order: &RecorderOrder) -> Result<Vec<Recorded>, String> {
    let order = serde_json::to_vec(order).map_err(|why| why.to_string())?;
    let found = railgate_child::ask(RECORDER, &order, DEADLINE)?;
    serde_json::from_slice(&found).map_err(|why| why.to_string())
}

pub(crate) fn task(order: RecorderOrder) -> Result<Vec<Recorded>, String> {
    limit(&[
        (Resource::RLIMIT_AS, MOST_MEMORY),
        (Resource::RLIMIT_CPU, MOST_CPU_S),
        (Resource::RLIMIT_FSIZE, 0),
    ])?;
    become_user(order.uid, order.gid, &[]).map_err(|why| why.to_string())?;
    Ok(record(&order, WRITES))
}

fn record(order: &RecorderOrder, writes: Duration) -> Vec<Recorded> {
    // File systems keep times with a granularity of some milliseconds.
    let begun = SystemTime::now() - Duration::from_millis(20);
    let until = Instant::now() + writes;
    let ranks = order.ranks.iter().take(MOST_RANKS).copied();
    let mut waits: Vec<u32> = ranks.filter(|rank| ask(&file(&order.pipe, *rank, ".pipe"))).collect();
    let mut found = Vec::new();
    loop {
        waits.retain(|rank| match read(&file(&order.dump, *rank, ""), begun) {
            Some(what) => {
                found.push(Recorded { rank: *rank, what });
                false
            }
            None => true,
        });
        if waits.is_empty() || Instant::now() >= until {
            return found;
        }
        std::thread::sleep(POLL);
    }
}

fn file(beginning: &Path, rank: u32, end: &str) -> PathBuf {
    let mut name = beginning.as_os_str().to_owned();
    name.push(format!("{rank}{end}"));
    PathBuf::from(name)
}

/// Writes a line into a rank's pipe, if the rank listens. Never waits.
fn ask(pipe: &Path) -> bool {
    let opened = OpenOptions::new().write(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(pipe);
    let Ok(mut opened) = opened else { return false };
    let is_pipe = opened.metadata().is_ok_and(|of| of.file_type().is_fifo());
    is_pipe && opened.write_all(b"1\n").is_ok()
}

/// What did not complete, from a record that was written since then; `None`: there is none, or it is not complete yet.
fn read(path: &Path, since: SystemTime) -> Option<String> {
    let file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path).ok()?;
    let of = file.metadata().ok()?;
    if !of.is_file() || of.modified().ok()? < since {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MOST_RECORD).read_to_end(&mut bytes).ok()?;
    what(&bytes).ok()
}

/// Most entries of a record that are looked at.
const MOST_ENTRIES: usize = 20_000;

/// The first operation that did not complete, as the end of a sentence; else the last one.
fn what(pickle: &[u8]) -> Result<String, String> {
    let record = parse(pickle)?;
    let Value::List(_) = record.get("entries") else { return Err("there is no list of entries".to_owned()) };
    let entries = record.get("entries").items(MOST_ENTRIES);
    let completed = |entry: &&Value| entry.get("state").text().as_deref() == Some("completed");
    Ok(match (entries.iter().find(|entry| !completed(entry)), entries.last()) {
        (Some(entry), _) => format!("{}, not completed", operation(entry)),
        (None, Some(entry)) => format!("{}, the last one, completed", operation(entry)),
        (None, None) => "with no operation recorded".to_owned(),
    })
}

/// `in all_reduce number 2 of group 1 (order at hangs.py:87), 16777216 Float`
fn operation(entry: &Value) -> String {
    let text = |value: Value| value.text().map(|text| text.to_string()).unwrap_or_default();
    let name = text(entry.get("profiling_name"));
    let number = match entry.get("is_p2p").number() {
        Some(1) => entry.get("p2p_seq_id"),
        _ => entry.get("collective_seq_id"),
    };
    let number = number.number().map(|number| format!(" number {number}")).unwrap_or_default();
    let group = match entry
        .get("process_group")
        .items(2)
        .iter()
        .map(|one| text(one.clone()))
        .collect::<Vec<_>>()
        .as_slice()
    {
        [number, what] if !what.is_empty() && what != "undefined" => format!(" of group {number} ({what})"),
        [number, ..] => format!(" of group {number}"),
        [] => String::new(),
    };
    let sizes = entry.get("input_sizes").items(1).first().map(|sizes| sizes.items(8));
    let sizes: Vec<String> =
        sizes.unwrap_or_default().iter().filter_map(Value::number).map(|size| size.to_string()).collect();
    let kind = entry.get("input_dtypes").items(1).first().map(|kind| text(kind.clone())).unwrap_or_default();
    let size = if sizes.is_empty() { String::new() } else { format!(", {} {kind}", sizes.join("×")) };
    let frame = |frame: &Value| Frame {
        function: text(frame.get("name")),
        file: text(frame.get("filename")),
        line: frame.get("line").number().and_then(|line| u32::try_from(line).ok()).unwrap_or(0),
    };
    let frames: Vec<Frame> = entry.get("frames").items(MOST_FRAMES).iter().map(frame).collect();
    let place = place(&frames).map(|place| place.replacen("in ", ", called as ", 1)).unwrap_or_default();
    format!("in {}{number}{group}{size}{place}", name.rsplit(':').next().unwrap_or_default())
}

#[cfg(test)]
mod tests;

//! What the programs of a job's ranks do while the others wait for them: their state, where they sleep, and what they and the
//! processes below them used so far.
//!
//! Runs as the job's user: the kernel shows where a process sleeps, and what it transferred, only to its owner.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use railgate_fsutil::read;
use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

use crate::gpu_processes::{Stat, read_stat};
use crate::job_member::kernel_function;
use crate::process_end::ProcessId;

/// Most processes of the node that are read.
const MOST_PROCESSES: usize = 16_384;
/// Longest name of a function of the kernel, and longest `io` file, bytes.
const NAME_BYTES: u64 = 64;
const IO_BYTES: u64 = 512;

/// One reading of a rank's program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankReading {
    /// The program.
    pub id: ProcessId,
    /// State of its main thread: `R`, `S`, `D`, `T`, `t`.
    pub state: Option<char>,
    /// Function of the kernel in which its main thread waits; `None`: it runs, or it is not shown.
    pub kernel: Option<String>,
    /// CPU time of it and of all processes below it, also of those that have ended, clock ticks.
    pub cpu_ticks: u64,
    /// Bytes that they read and wrote (`rchar` and `wchar` of `/proc/PID/io`, or `read_bytes` and `write_bytes`); `None`: not shown.
    pub bytes: Option<u64>,
}

/// Reads the programs of ranks; those that have ended are left out. `proc` is the root of the proc tree.
///
/// # Errors
/// Returns an error if the proc tree cannot be listed.
pub fn rank_readings(proc: &Path, uid: u32, programs: &[ProcessId]) -> Result<Vec<RankReading>, String> {
    let entries = fs::read_dir(proc).map_err(|why| format!("{}: {why}", proc.display()))?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let own = |pid: &u32| fs::metadata(proc.join(pid.to_string())).is_ok_and(|meta| meta.uid() == uid);
    let stats: BTreeMap<u32, Stat> = pids
        .filter(own)
        .take(MOST_PROCESSES)
        .filter_map(|pid| Some((pid, read_stat(proc, pid).ok()??)))
        .collect();
    let mut below: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (pid, stat) in &stats {
        below.entry(stat.parent).or_default().push(*pid);
    }
    Ok(programs.iter().filter_map(|id| one(proc, *id, &stats, &below)).collect())
}

fn one(
    proc: &Path,
    id: ProcessId,
    stats: &BTreeMap<u32, Stat>,
    below: &BTreeMap<u32, Vec<u32>>,
) -> Option<RankReading> {
    let program = stats.get(&id.0).filter(|stat| stat.started == Some(id.1))?;
    let wait = read::prefix(&proc.join(id.0.to_string()).join("wchan"), NAME_BYTES).ok();
    let kernel = wait.and_then(|name| kernel_function(&name));
    let mut reading = RankReading { id, state: Some(program.state), kernel, cpu_ticks: 0, bytes: Some(0) };
    // Parents that were read at different moments may form a circle: a process counts once.
    let (mut next, mut seen) = (vec![id.0], BTreeSet::new());
    while let Some(pid) = next.pop() {
        if !seen.insert(pid) {
            continue;
        }
        next.extend(below.get(&pid).into_iter().flatten());
        reading.cpu_ticks = reading.cpu_ticks.saturating_add(stats.get(&pid).map_or(0, Stat::cpu_ticks));
        reading.bytes = reading.bytes.zip(transferred(proc, pid)).map(|(sum, more)| sum.saturating_add(more));
    }
    Some(reading)
}

/// `rchar` and `wchar` of a process, or the bytes that reached a disk if those are more: asynchronous I/O and mapped files count only there.
fn transferred(proc: &Path, pid: u32) -> Option<u64> {
    let text = read::prefix(&proc.join(pid.to_string()).join("io"), IO_BYTES).ok()?;
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let calls = field("rchar:")?.saturating_add(field("wchar:")?);
    let disk = |name| field(name).unwrap_or(0);
    Some(calls.max(disk("read_bytes:").saturating_add(disk("write_bytes:"))))
}

/// When one of these files was last written to; links are not followed. `None`: none is a regular file that can be reached.
pub fn last_write(files: &[PathBuf]) -> Option<UnixMillis> {
    let written = |path: &PathBuf| {
        let meta = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
        let since = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        u64::try_from(since.as_millis()).ok()
    };
    files.iter().filter_map(written).max()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    const PROC: &str = "/proc";

    fn start(script: &str) -> Child {
        Command::new("bash")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn id(child: &Child) -> ProcessId {
        (child.id(), read_stat(PROC.as_ref(), child.id()).unwrap().unwrap().started.unwrap())
    }

    fn read(child: &Child) -> RankReading {
        let uid = nix::unistd::geteuid().as_raw();
        rank_readings(PROC.as_ref(), uid, &[id(child)]).unwrap().remove(0)
    }

    /// Reads until it holds.
    fn until(child: &Child, holds: impl Fn(&RankReading) -> bool) -> RankReading {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            let reading = read(child);
            if holds(&reading) {
                return reading;
            }
            assert!(std::time::Instant::now() < end, "{reading:?}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn end(mut child: Child) {
        let _ = child.kill();
        let _ = child.wait();
    }

    #[test]
    fn a_sleeping_a_stopped_and_a_computing_program_differ() {
        let sleeps = start("read line");
        // Before that it may wait for its own files (state D).
        let in_pipe = |reading: &RankReading| {
            reading.state == Some('S') && reading.kernel.as_ref().is_some_and(|name| name.contains("pipe"))
        };
        until(&sleeps, in_pipe);
        let pid = nix::unistd::Pid::from_raw(i32::try_from(sleeps.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
        until(&sleeps, |reading| reading.state == Some('T'));
        end(sleeps);
        let computes = start("while :; do :; done");
        until(&computes, |reading| reading.cpu_ticks >= 3);
        end(computes);
    }

    #[test]
    fn processes_below_the_program_count_also_when_they_have_ended() {
        // The program itself only waits.
        let child = start("(while :; do :; done) & read line; kill %1; wait; read line");
        let busy = until(&child, |reading| reading.cpu_ticks >= 5);
        let mut stdin = child.stdin.as_ref().unwrap();
        std::io::Write::write_all(&mut stdin, b"\n").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(read(&child).cpu_ticks >= busy.cpu_ticks);
        end(child);
        let child = start("(head -c 50000000 /dev/zero >/dev/null; read line) & wait");
        until(&child, |reading| reading.bytes.is_some_and(|bytes| bytes >= 100_000_000));
        end(child);
    }

    #[test]
    fn another_process_with_the_same_number_is_left_out() {
        let child = start("read line");
        let (pid, ticks) = id(&child);
        let uid = nix::unistd::geteuid().as_raw();
        assert_eq!(rank_readings(PROC.as_ref(), uid, &[(pid, ticks + 1)]).unwrap(), []);
        assert_eq!(rank_readings(PROC.as_ref(), uid + 1, &[(pid, ticks)]).unwrap(), []);
        end(child);
    }

    #[test]
    fn the_last_write_is_of_regular_files_and_no_link_is_followed() {
        let place = tempfile::tempdir().unwrap();
        let (log, link) = (place.path().join("log"), place.path().join("link"));
        assert_eq!(last_write(std::slice::from_ref(&log)), None);
        fs::write(&log, "x").unwrap();
        std::os::unix::fs::symlink(&log, &link).unwrap();
        assert_eq!(last_write(&[link.clone(), place.path().to_owned()]), None);
        assert!(last_write(&[log, link]).is_some_and(|time| time > 1_700_000_000_000));
    }
}

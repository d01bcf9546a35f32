//! What programs do on the GPUs: a file for each GPU in a folder beside the library, which any user may write.
//!
//! The file says what the GPU does and until when, and what it has done so far, so that counters go on from one program to
//! the next. A program that is gone does nothing after that time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::state;

/// The folder's name, beside the library.
pub const LOADS: &str = "nvml-loads";

/// What a GPU does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// By GPM's number: activities in percent, traffic in MiB per second.
    pub metrics: BTreeMap<u32, f64>,
    /// SM clock, MHz.
    pub clock_mhz: u32,
    /// Watts.
    pub power_w: f64,
    /// °C.
    pub temperature_c: u32,
    /// MiB in use.
    pub memory_mib: u64,
}

/// What a GPU has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Done {
    /// Each metric times seconds.
    pub(crate) metrics: BTreeMap<u32, f64>,
    /// Joules at work.
    pub(crate) joules: f64,
    /// Seconds without work.
    pub(crate) rest_s: f64,
}

/// A GPU's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    /// Of the process that wrote it.
    pid: u32,
    /// When it was written, nanoseconds since the epoch.
    since: u64,
    /// When the work ends.
    until: u64,
    work: Work,
    /// Up to `since`.
    done: Done,
}

/// From now on, for so long, a GPU does this; a program says it again before the time is over. `dir` is the library's folder.
///
/// # Errors
/// The folder of loads is missing or cannot be written.
pub fn work(dir: &Path, gpu: u32, work: &Work, how_long: Duration) -> io::Result<()> {
    let since = now();
    let done = read(dir, gpu).map(|load| load.done(since)).unwrap_or_default();
    let until = since.saturating_add(u64::try_from(how_long.as_nanos()).unwrap_or(u64::MAX));
    let pid = std::process::id();
    let load = Load { pid, since, until, work: work.clone(), done };
    let next = dir.join(LOADS).join(format!("{gpu}.{pid}"));
    fs::write(&next, serde_json::to_vec(&load)?)?;
    fs::rename(&next, place(dir, gpu))
}

fn place(dir: &Path, gpu: u32) -> PathBuf {
    dir.join(LOADS).join(gpu.to_string())
}

fn read(dir: &Path, gpu: u32) -> Option<Load> {
    serde_json::from_slice(&fs::read(place(dir, gpu)).ok()?).ok()
}

/// Nanoseconds since the epoch: all that a machine runs agrees on it.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Seconds from one moment to the next.
#[expect(clippy::cast_precision_loss, reason = "a test's few minutes")]
pub(crate) fn seconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e9
}

/// What this library's GPU does now, where a program is at work on it.
pub(crate) fn at_work(gpu: u32) -> Option<Work> {
    let load = read(state::folder(), gpu)?;
    let alive = now() < load.until && Path::new("/proc").join(load.pid.to_string()).exists();
    alive.then_some(load.work)
}

/// What this library's GPU has done by a moment.
pub(crate) fn done(gpu: u32, at: u64) -> Done {
    read(state::folder(), gpu).map(|load| load.done(at)).unwrap_or_default()
}

impl Load {
    fn done(&self, at: u64) -> Done {
        let at_work = seconds(self.since, at.min(self.until));
        let mut done = self.done.clone();
        for (metric, rate) in &self.work.metrics {
            *done.metrics.entry(*metric).or_default() += rate * at_work;
        }
        done.joules += self.work.power_w * at_work;
        done.rest_s += seconds(self.since.max(self.until), at);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_goes_on_from_one_program_to_the_next_and_ends_in_time() {
        let work = Work { metrics: BTreeMap::from([(5, 50.0)]), power_w: 600.0, ..Work::default() };
        let second = 1_000_000_000;
        let done = Done { metrics: BTreeMap::from([(5, 7.0), (61, 3.0)]), joules: 11.0, rest_s: 1.0 };
        let load = Load { pid: 1, since: 10 * second, until: 14 * second, work, done };
        let of = |at| {
            let done = load.done(at * second);
            (done.metrics[&5], done.metrics[&61], done.joules, done.rest_s)
        };
        assert_eq!(of(10), (7.0, 3.0, 11.0, 1.0));
        assert_eq!(of(12), (107.0, 3.0, 1211.0, 1.0));
        assert_eq!(of(16), (207.0, 3.0, 2411.0, 3.0));
    }

    #[test]
    fn a_program_goes_on_where_the_last_one_ended() {
        let dir = tempfile::tempdir().unwrap();
        let half = Work { metrics: BTreeMap::from([(5, 50.0)]), ..Work::default() };
        assert!(work(dir.path(), 3, &half, Duration::from_secs(1)).is_err());
        fs::create_dir(dir.path().join(LOADS)).unwrap();
        work(dir.path(), 3, &half, Duration::ZERO).unwrap();
        assert!(read(dir.path(), 2).is_none());
        let first = read(dir.path(), 3).unwrap();
        work(dir.path(), 3, &half, Duration::from_secs(9)).unwrap();
        let second = read(dir.path(), 3).unwrap();
        assert_eq!(second.done, first.done(second.since));
        assert_eq!(second.until - second.since, 9_000_000_000);
    }
}

//! Load of programs on the GPUs: one file for each GPU in a folder beside the library, writable by any user.
//!
//! A file holds the current load, when it ends, and the totals so far, so that counters continue from one program to the next.
//! After the end of a load the GPU is idle, so a program that has exited stops counting.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::state;

/// Name of the folder beside the library.
pub const LOADS: &str = "nvml-loads";

/// Load of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// By GPM metric ID: activities in percent, traffic in MiB per second.
    pub metrics: BTreeMap<u32, f64>,
    /// SM clock in MHz.
    pub clock_mhz: u32,
    /// Power in watts.
    pub power_w: f64,
    /// Temperature in °C.
    pub temperature_c: u32,
    /// Memory in use, MiB.
    pub memory_mib: u64,
}

/// Totals of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Done {
    /// Each metric integrated over time (value times seconds).
    pub(crate) metrics: BTreeMap<u32, f64>,
    /// Energy under load, joules.
    pub(crate) joules: f64,
    /// Idle time, seconds.
    pub(crate) rest_s: f64,
}

/// Content of a GPU's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    /// PID of the process that wrote the file.
    pid: u32,
    /// Start of the load, nanoseconds since the epoch.
    since: u64,
    /// End of the load, nanoseconds since the epoch.
    until: u64,
    work: Work,
    /// Totals up to `since`.
    done: Done,
}

/// Puts a load on a GPU from now on, for `how_long`; a program that continues calls it again before that time is over. `dir` is
/// the library's folder.
///
/// # Errors
/// The folder [`LOADS`] is missing or cannot be written.
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

/// Nanoseconds since the epoch: a clock that all processes of the machine share.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Seconds between two such times.
#[expect(clippy::cast_precision_loss, reason = "a test's few minutes")]
pub(crate) fn seconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e9
}

/// Current load of a GPU; `None` when it is idle.
pub(crate) fn at_work(gpu: u32) -> Option<Work> {
    let load = read(state::folder(), gpu)?;
    let alive = now() < load.until && Path::new("/proc").join(load.pid.to_string()).exists();
    alive.then_some(load.work)
}

/// Activity of a GPU (GPM's metric 1, percent) at a given time. Before the present load began it is taken to be the same.
pub(crate) fn activity(gpu: u32, at: u64) -> f64 {
    let Some(load) = read(state::folder(), gpu) else { return 0.0 };
    let alive = at < load.until && Path::new("/proc").join(load.pid.to_string()).exists();
    load.work.metrics.get(&1).copied().filter(|_| alive).unwrap_or(0.0)
}

/// Totals of a GPU at a given time.
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
    fn totals_grow_with_the_load_and_then_with_idle_time() {
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
    fn a_new_load_continues_the_totals_of_the_previous_one() {
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

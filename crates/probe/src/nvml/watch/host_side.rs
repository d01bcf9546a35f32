//! CPU time of the processes that use a GPU: whether a GPU without a kernel waits for a process that computes, that sleeps,
//! or that has no core.

use std::collections::BTreeMap;
use std::path::Path;

use railgate_fsutil::read;
use railgate_model::Reading;

/// More processes on one GPU, or threads of one process, are not read; the figure is unknown then.
const MOST_PROCESSES: usize = 32;
const MOST_THREADS: usize = 512;
/// `RUN WAIT SLICES` in decimal.
const SCHEDSTAT_BYTES: u64 = 128;

/// Times of one thread since its start, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    /// On a core.
    run: u64,
    /// Ready to run, without a core.
    wait: u64,
}

/// CPU use of a GPU's processes over one interval, in percent of one core.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HostUse {
    pub(super) cpu_percent: Reading<f64>,
    pub(super) wait_percent: Reading<f64>,
}

impl HostUse {
    fn unknown(why: Reading<f64>) -> Self {
        HostUse { cpu_percent: why.clone(), wait_percent: why }
    }
}

/// The threads of a GPU's processes at the last sample.
#[derive(Debug, Default)]
pub(super) struct HostSide {
    before: Option<BTreeMap<(u32, u32), Times>>,
}

impl HostSide {
    /// What the threads of these processes used since the last call; unknown for the first one, and while none of the processes was on the
    /// GPU then. A thread that started in between counts from its start, one that ended is not counted.
    pub(super) fn step(&mut self, proc: &Path, pids: &Reading<Vec<u32>>, seconds: f64) -> HostUse {
        let pids = match pids {
            Reading::Known(pids) => pids,
            Reading::Unsupported => return HostUse::unknown(Reading::Unsupported),
            Reading::Failed(why) => return HostUse::unknown(Reading::Failed(why.clone())),
        };
        let now = match threads(proc, pids) {
            Ok(now) => now,
            Err(why) => {
                self.before = None;
                return HostUse::unknown(why);
            }
        };
        let before = self.before.replace(now);
        let (Some(before), Some(now), true) = (before, &self.before, seconds > 0.0) else {
            return HostUse::unknown(Reading::Failed("not read yet".to_owned()));
        };
        if now.is_empty() {
            return HostUse::unknown(Reading::Failed("no process uses the GPU".to_owned()));
        }
        let known = |pid: u32| before.range((pid, 0)..=(pid, u32::MAX)).next().is_some();
        if !now.keys().any(|(pid, _)| known(*pid)) {
            return HostUse::unknown(Reading::Failed("all processes are new on the GPU".to_owned()));
        }
        let of = |get: fn(&Times) -> u64| {
            let grown = now.iter().map(|(thread, times)| match before.get(thread) {
                // A thread with the number of an ended one has less than that had.
                Some(was) => get(times).checked_sub(get(was)).unwrap_or(get(times)),
                None if known(thread.0) => get(times),
                // The process was not on the GPU at the last sample; its earlier time is not of this interval.
                None => 0,
            });
            #[expect(clippy::cast_precision_loss, reason = "an interval has few nanoseconds")]
            let percent = grown.sum::<u64>() as f64 / 1e9 / seconds * 100.0;
            Reading::Known(percent)
        };
        HostUse { cpu_percent: of(|times| times.run), wait_percent: of(|times| times.wait) }
    }
}

fn threads(proc: &Path, pids: &[u32]) -> Result<BTreeMap<(u32, u32), Times>, Reading<f64>> {
    if pids.len() > MOST_PROCESSES {
        return Err(Reading::Failed(format!("more than {MOST_PROCESSES} processes use the GPU")));
    }
    let mut all = BTreeMap::new();
    for pid in pids {
        let tasks = proc.join(pid.to_string()).join("task");
        // A process that has ended since NVML listed it.
        let Ok(entries) = std::fs::read_dir(&tasks) else { continue };
        let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        for (number, id) in ids.enumerate() {
            if number >= MOST_THREADS {
                return Err(Reading::Failed(format!("process {pid} has more than {MOST_THREADS} threads")));
            }
            match read::prefix(&tasks.join(id.to_string()).join("schedstat"), SCHEDSTAT_BYTES) {
                Ok(text) => {
                    let times = parse(&text)
                        .ok_or_else(|| Reading::Failed("schedstat: not understood".to_owned()))?;
                    all.insert((*pid, id), times);
                }
                // The thread has ended, or the kernel counts no such times.
                Err(_) if !proc.join("self/schedstat").exists() => return Err(Reading::Unsupported),
                Err(_) => {}
            }
        }
    }
    Ok(all)
}

fn parse(text: &str) -> Option<Times> {
    let mut fields = text.split_ascii_whitespace();
    Some(Times { run: fields.next()?.parse().ok()?, wait: fields.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn put(proc: &Path, pid: u32, thread: u32, times: &str) {
        let dir = proc.join(format!("{pid}/task/{thread}"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("schedstat"), times).unwrap();
    }

    fn place() -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("self")).unwrap();
        fs::write(proc.path().join("self/schedstat"), "1 2 3\n").unwrap();
        proc
    }

    #[test]
    fn threads_of_all_processes_on_the_gpu_are_added_up() {
        let proc = place();
        let proc = proc.path();
        let pids = Reading::Known(vec![10, 20]);
        let mut side = HostSide::default();
        put(proc, 10, 10, "1000000000 500000000 7\n");
        put(proc, 20, 20, "9000000000 0 7\n");
        assert!(matches!(side.step(proc, &pids, 5.0).cpu_percent, Reading::Failed(_)));
        put(proc, 10, 10, "3000000000 1500000000 9\n");
        put(proc, 10, 11, "500000000 1500000000 9\n");
        put(proc, 20, 20, "9500000000 0 9\n");
        let used = side.step(proc, &pids, 5.0);
        assert_eq!(used, HostUse { cpu_percent: Reading::Known(60.0), wait_percent: Reading::Known(50.0) });
        // A process that is new on the GPU, and a thread number that is used again.
        put(proc, 30, 30, "90000000000 90000000000 9\n");
        put(proc, 10, 10, "1000000000 0 1\n");
        let used = side.step(proc, &Reading::Known(vec![10, 30]), 5.0);
        assert_eq!(used.cpu_percent, Reading::Known(20.0));
    }

    /// A program computes before it opens the GPU. Zero would mean that it slept.
    #[test]
    fn a_process_that_is_new_on_the_gpu_has_no_figure_yet() {
        let proc = place();
        let proc = proc.path();
        let mut side = HostSide::default();
        side.step(proc, &Reading::Known(Vec::new()), 5.0);
        put(proc, 10, 10, "5000000000 0 7\n");
        let pids = Reading::Known(vec![10]);
        let used = side.step(proc, &pids, 5.0);
        assert_eq!(used.cpu_percent, Reading::Failed("all processes are new on the GPU".to_owned()));
        put(proc, 10, 10, "10000000000 0 8\n");
        assert_eq!(side.step(proc, &pids, 5.0).cpu_percent, Reading::Known(100.0));
    }

    #[test]
    fn what_cannot_be_read_is_unknown_and_not_zero() {
        let proc = place();
        let proc = proc.path();
        let mut side = HostSide::default();
        let none = Reading::Known(vec![7]);
        side.step(proc, &none, 5.0);
        let failed = |used: HostUse| match used.cpu_percent {
            Reading::Failed(why) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(side.step(proc, &none, 5.0)), "no process uses the GPU");
        put(proc, 7, 7, "a b\n");
        assert_eq!(failed(side.step(proc, &none, 5.0)), "schedstat: not understood");
        for thread in 0..=600 {
            put(proc, 7, thread, "1 1 1\n");
        }
        assert_eq!(failed(side.step(proc, &none, 5.0)), "process 7 has more than 512 threads");
        let many = Reading::Known((0..40).collect());
        assert_eq!(failed(side.step(proc, &many, 5.0)), "more than 32 processes use the GPU");
        assert_eq!(side.step(proc, &Reading::Unsupported, 5.0).wait_percent, Reading::Unsupported);
    }

    #[test]
    fn a_kernel_without_these_times_is_unsupported() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("7/task/7")).unwrap();
        let used = HostSide::default().step(proc.path(), &Reading::Known(vec![7]), 5.0);
        assert_eq!(used.cpu_percent, Reading::Unsupported);
    }

    /// The real kernel: a process that computes uses a core, and one that sleeps none.
    #[test]
    fn the_kernel_counts_what_this_process_uses() {
        let pids = Reading::Known(vec![std::process::id()]);
        let mut side = HostSide::default();
        let proc = Path::new("/proc");
        if matches!(side.step(proc, &pids, 1.0).cpu_percent, Reading::Unsupported) {
            return;
        }
        let end = std::time::Instant::now() + std::time::Duration::from_millis(200);
        while std::time::Instant::now() < end {
            std::hint::spin_loop();
        }
        let used = side.step(proc, &pids, 0.2);
        let sum = used.cpu_percent.known().unwrap() + used.wait_percent.known().unwrap();
        assert!(sum > 20.0, "{used:?}");
    }
}

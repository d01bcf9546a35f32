//! The cgroup of a job, with the resources that its processes use together. It exists if Slurm tracks processes by
//! cgroups.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use railgate_fsutil::read;
use railgate_model::Reading;
use railgate_model::slurm_cgroup::job_of_cgroup;

use crate::gpu_processes::{FILE_BYTES, read_uid};
use crate::sysfs;

/// `io.stat` has one line per device.
const STAT_BYTES: u64 = 256 << 10;

/// The directories of a job's cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobGroup {
    /// cgroup v2: one directory for all controllers.
    V2(PathBuf),
    /// cgroup v1: one directory per controller, by name.
    V1(BTreeMap<String, PathBuf>),
}

/// Resource use of a job's cgroup. Counters start when the cgroup is created.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupUse {
    /// CPU time, seconds.
    pub cpu_s: Reading<f64>,
    /// Number of cores in its cpuset.
    pub cpus: Reading<u32>,
    /// Memory in use, page cache included, MiB.
    pub memory_mib: Reading<f64>,
    /// Peak memory, MiB.
    pub memory_peak_mib: Reading<u64>,
    /// Number of kills for lack of memory.
    pub oom_kills: Reading<u64>,
    /// Time in which some task waited for the CPU, seconds.
    pub cpu_stall_s: Reading<f64>,
    /// Time in which some task waited for memory, seconds.
    pub memory_stall_s: Reading<f64>,
    /// Time in which some task waited for I/O, seconds.
    pub io_stall_s: Reading<f64>,
    /// Bytes read from block devices.
    pub read_bytes: Reading<u64>,
    /// Bytes written to block devices.
    pub written_bytes: Reading<u64>,
    /// Whether the whole cgroup is frozen.
    pub frozen: Reading<bool>,
}

impl JobGroup {
    /// Finds the cgroup of a job through its slurmstepd processes, which run as root. `None` if Slurm does not track
    /// processes by cgroups, or if the job has no step on this node.
    pub fn find(proc: &Path, mount: &Path, job: u32) -> Option<Self> {
        let entries = fs::read_dir(proc).ok()?;
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        for pid in pids {
            let dir = proc.join(pid.to_string());
            let comm = read::prefix(&dir.join("comm"), 64);
            if !comm.is_ok_and(|name| name.trim_end() == "slurmstepd") || read_uid(proc, pid) != Ok(0) {
                continue;
            }
            let Ok(text) = read::prefix(&dir.join("cgroup"), FILE_BYTES) else { continue };
            if let Some(group) = Self::of_lines(&text, mount, job) {
                return Some(group);
            }
        }
        None
    }

    fn of_lines(text: &str, mount: &Path, job: u32) -> Option<Self> {
        let mut by_name = BTreeMap::new();
        for line in text.lines().filter(|line| job_of_cgroup(line) == Some(job)) {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let last = format!("/job_{job}");
            let end = path.find(&format!("{last}/")).map(|at| at + last.len()).unwrap_or(path.len());
            let own = path.get(..end)?.trim_start_matches('/');
            if controllers.is_empty() {
                return Some(JobGroup::V2(mount.join(own)));
            }
            for name in controllers.split(',') {
                by_name.insert(name.to_owned(), mount.join(name).join(own));
            }
        }
        (!by_name.is_empty()).then_some(JobGroup::V1(by_name))
    }

    /// Reads the current values.
    pub fn read(&self) -> GroupUse {
        match self {
            JobGroup::V2(dir) => v2(dir),
            JobGroup::V1(by_name) => v1(by_name),
        }
    }
}

fn v2(dir: &Path) -> GroupUse {
    let stall = |name: &str| sysfs::large(&dir.join(name), STAT_BYTES, stalled);
    let io = |key: &str| sysfs::large(&dir.join("io.stat"), STAT_BYTES, |text| Some(of_devices(text, key)));
    GroupUse {
        cpu_s: sysfs::large(&dir.join("cpu.stat"), STAT_BYTES, |text| field(text, "usage_usec")).map(micros),
        cpus: cpus(&dir.join("cpuset.cpus.effective")),
        memory_mib: number(&dir.join("memory.current")).map(mib),
        memory_peak_mib: number(&dir.join("memory.peak")).map(|bytes| bytes >> 20),
        oom_kills: sysfs::large(&dir.join("memory.events"), STAT_BYTES, |text| field(text, "oom_kill")),
        cpu_stall_s: stall("cpu.pressure"),
        memory_stall_s: stall("memory.pressure"),
        io_stall_s: stall("io.pressure"),
        read_bytes: io("rbytes"),
        written_bytes: io("wbytes"),
        frozen: sysfs::large(&dir.join("cgroup.events"), STAT_BYTES, |text| field(text, "frozen"))
            .map(|frozen| frozen == 1),
    }
}

fn v1(by_name: &BTreeMap<String, PathBuf>) -> GroupUse {
    fn at<T>(dir: Option<&PathBuf>, read: impl FnOnce(&Path) -> Reading<T>) -> Reading<T> {
        dir.map_or(Reading::Unsupported, |dir| read(dir))
    }
    let (cpu, memory) = (by_name.get("cpuacct"), by_name.get("memory"));
    #[expect(clippy::cast_precision_loss, reason = "exact for a hundred days of one core")]
    let nanos = |nanos: u64| nanos as f64 / 1e9;
    GroupUse {
        cpu_s: at(cpu, |dir| number(&dir.join("cpuacct.usage")).map(nanos)),
        cpus: at(by_name.get("cpuset"), |dir| cpus(&dir.join("cpuset.cpus"))),
        memory_mib: at(memory, |dir| number(&dir.join("memory.usage_in_bytes")).map(mib)),
        memory_peak_mib: at(memory, |dir| {
            number(&dir.join("memory.max_usage_in_bytes")).map(|bytes| bytes >> 20)
        }),
        oom_kills: at(memory, |dir| {
            sysfs::large(&dir.join("memory.oom_control"), STAT_BYTES, |text| field(text, "oom_kill"))
        }),
        cpu_stall_s: Reading::Unsupported,
        memory_stall_s: Reading::Unsupported,
        io_stall_s: Reading::Unsupported,
        read_bytes: Reading::Unsupported,
        written_bytes: Reading::Unsupported,
        frozen: at(by_name.get("freezer"), |dir| sysfs::text(&dir.join("freezer.state")))
            .map(|state| state == "FROZEN"),
    }
}

fn number(path: &Path) -> Reading<u64> {
    sysfs::parsed(path, "a number", |text| text.parse().ok())
}

fn cpus(path: &Path) -> Reading<u32> {
    sysfs::parsed(path, "a list of CPUs", |text| {
        text.split(',')
            .map(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
                last.checked_sub(first)?.checked_add(1)
            })
            .sum()
    })
}

/// The value in a line `usage_usec 123`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.trim().parse().ok())?
    })
}

/// The stall time in seconds from `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`; `total` is in microseconds.
fn stalled(text: &str) -> Option<f64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.split(' ').find_map(|word| word.strip_prefix("total=")?.parse().ok()).map(micros)
}

/// The sum over all devices of one key in lines like `8:0 rbytes=1 wbytes=2 …`.
fn of_devices(text: &str, key: &str) -> u64 {
    let value = |word: &str| word.strip_prefix(key)?.strip_prefix('=')?.parse::<u64>().ok();
    text.lines().flat_map(|line| line.split(' ')).filter_map(value).fold(0, u64::saturating_add)
}

#[expect(clippy::cast_precision_loss, reason = "exact for two hundred years of one core")]
fn micros(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "exact below eight pebibytes")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_of_the_job_is_found_rather_than_that_of_a_step() {
        let mount = Path::new("/sys/fs/cgroup");
        let v2 = "0::/system.slice/slurmstepd.scope/job_12/step_0/slurm\n";
        let want = mount.join("system.slice/slurmstepd.scope/job_12");
        assert_eq!(JobGroup::of_lines(v2, mount, 12), Some(JobGroup::V2(want)));
        assert_eq!(JobGroup::of_lines(v2, mount, 1), None);
        let v1 = "5:memory:/slurm/uid_7/job_12/step_0\n4:cpu,cpuacct:/slurm/uid_7/job_12/step_0\n0::/x\n";
        let Some(JobGroup::V1(by_name)) = JobGroup::of_lines(v1, mount, 12) else { panic!("none") };
        assert_eq!(by_name["cpuacct"], mount.join("cpuacct/slurm/uid_7/job_12"));
        assert_eq!(JobGroup::of_lines("0::/user.slice/slurm/job_12/step_0", mount, 12), None);
    }

    #[test]
    fn the_files_of_the_kernel_are_parsed() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("cpu.stat", "usage_usec 2500000\nuser_usec 1\n"),
            ("cpuset.cpus.effective", "0-3,8,10-11\n"),
            ("memory.current", "3145728\n"),
            ("memory.events", "low 0\noom 1\noom_kill 2\n"),
            ("io.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0 total=9\n"),
            ("io.stat", "8:0 rbytes=10 wbytes=20 rios=1\n8:16 rbytes=5 wbytes=0\n"),
            ("cgroup.events", "populated 1\nfrozen 1\n"),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let seen = JobGroup::V2(dir.path().to_owned()).read();
        assert_eq!(seen.cpu_s, Reading::Known(2.5));
        assert_eq!(seen.cpus, Reading::Known(7));
        assert_eq!(seen.memory_mib, Reading::Known(3.0));
        assert_eq!(seen.memory_peak_mib, Reading::Unsupported);
        assert_eq!(seen.oom_kills, Reading::Known(2));
        assert_eq!(seen.io_stall_s, Reading::Known(1.5));
        assert_eq!((seen.read_bytes, seen.written_bytes), (Reading::Known(15), Reading::Known(20)));
        assert_eq!(seen.frozen, Reading::Known(true));
        assert_eq!(seen.cpu_stall_s, Reading::Unsupported);
    }
}

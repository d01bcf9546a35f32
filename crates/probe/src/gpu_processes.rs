//! Details of GPU processes: NVML reports their ids, `/proc` the rest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use railgate_fsutil::read;
use railgate_model::slurm_cgroup::job_of_cgroup;
use railgate_model::{GpuProcess, Gpus, Reading};

/// Time limit for all reads in `/proc`. Reading about a hanging process can hang as well, and NVML's answer must not be
/// lost for the sake of process names.
const PATIENCE: Duration = Duration::from_secs(2);
/// The lines that are used are near the start of `status` and `cgroup`, and a process cannot make these files large.
pub(crate) const FILE_BYTES: u64 = 64 << 10;
/// A deeper process tree is not a real one.
pub(crate) const MAX_ANCESTORS: usize = 64;
/// `PF_EXITING` of the kernel's `sched.h`.
const PF_EXITING: u64 = 0x4;

/// Adds the details from `/proc` to each GPU process.
pub(crate) fn join(gpus: &mut Gpus, proc: &Path) {
    let mut pids: Vec<u32> = lists(gpus).flatten().map(|process| process.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    if pids.is_empty() {
        return;
    }
    let (found, finds) = mpsc::channel();
    let proc: PathBuf = proc.to_owned();
    let looked = std::thread::Builder::new().spawn(move || {
        let all: BTreeMap<u32, About> = pids.into_iter().map(|pid| (pid, about(&proc, pid))).collect();
        let _ = found.send(all);
    });
    let all = match looked {
        Ok(_) => finds.recv_timeout(PATIENCE).map_err(|_| "no answer from /proc".to_owned()),
        Err(why) => Err(why.to_string()),
    };
    for process in lists(gpus).flatten() {
        match &all {
            Ok(all) => {
                if let Some(about) = all.get(&process.pid) {
                    about.clone().put(process);
                }
            }
            Err(why) => About::unread(why).put(process),
        }
    }
}

fn lists(gpus: &mut Gpus) -> impl Iterator<Item = &mut Vec<GpuProcess>> {
    gpus.gpus.iter_mut().filter_map(|gpu| match &mut gpu.processes {
        Reading::Known(list) => Some(list),
        Reading::Unsupported | Reading::Failed(_) => None,
    })
}

#[derive(Clone, Debug, PartialEq)]
struct About {
    name: Reading<String>,
    uid: Reading<u32>,
    exiting: bool,
    slurm_job: Reading<Option<u32>>,
}

impl About {
    fn unread(why: &str) -> Self {
        About {
            name: Reading::Failed(why.to_owned()),
            uid: Reading::Failed(why.to_owned()),
            exiting: false,
            slurm_job: Reading::Failed(why.to_owned()),
        }
    }

    fn gone() -> Self {
        About { exiting: true, ..About::unread("the process has ended") }
    }

    fn put(self, process: &mut GpuProcess) {
        process.name = self.name;
        process.uid = self.uid;
        process.exiting = self.exiting;
        process.slurm_job = self.slurm_job;
    }
}

fn about(proc: &Path, pid: u32) -> About {
    let stat = match read_stat(proc, pid) {
        Ok(Some(stat)) => stat,
        Ok(None) => return About::gone(),
        Err(why) => return About::unread(&why),
    };
    About {
        uid: Reading::from_result(read_uid(proc, pid)),
        exiting: stat.exiting(),
        slurm_job: slurm_job(proc, pid, &stat),
        name: Reading::Known(stat.name),
    }
}

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) state: char,
    pub(crate) parent: u32,
    flags: u64,
    /// Page faults of all its threads since it began; `None` if the text ends before them.
    pub(crate) faults: Option<u64>,
    /// Number of its threads; `None` if the text ends before it.
    pub(crate) threads: Option<u32>,
    /// CPU time of it, and of children that it has waited for, clock ticks.
    cpu_ticks: u64,
    /// When it began, clock ticks after the boot; `None` if the text ends before it.
    pub(crate) started: Option<u64>,
    /// Wait status; 0 for a process that runs, and for a reader who may not see it.
    exit_code: Option<i32>,
}

impl Stat {
    /// CPU time of it, and of children that it has waited for, clock ticks.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        self.cpu_ticks
    }

    /// Whether a signal stopped it. Slurm suspends jobs in this way.
    pub(crate) fn stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    /// Wait status of a process that has ended and that its parent does not know of yet.
    pub(crate) fn zombie_status(&self) -> Option<i32> {
        self.exit_code.filter(|_| self.state == 'Z')
    }

    pub(crate) fn exiting(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x') || self.flags & PF_EXITING != 0
    }
}

/// Returns `None` if there is no such process.
pub(crate) fn read_stat(proc: &Path, pid: u32) -> Result<Option<Stat>, String> {
    let path = proc.join(pid.to_string()).join("stat");
    let text = match read::prefix(&path, FILE_BYTES) {
        Ok(text) => text,
        // ESRCH: the process ended between open and read.
        Err(why) if why.is_absent() || why.errno() == Some(libc::ESRCH) => return Ok(None),
        Err(why) => return Err(why.to_string()),
    };
    parse_stat(&text).map(Some).ok_or_else(|| format!("{}: not understood", path.display()))
}

/// Parses `PID (NAME) STATE PPID PGRP SESSION TTY TPGID FLAGS …`, where page faults are fields 10 and 12, the number of threads is
/// field 20, the beginning field 22 and the wait status field 52. The name may contain spaces and parentheses.
fn parse_stat(text: &str) -> Option<Stat> {
    let (head, tail) = text.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let mut fields = tail.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let flags = fields.nth(4)?.parse().ok()?;
    let mut count = |skipped| fields.nth(skipped).and_then(|count| count.parse::<u64>().ok());
    let (minor, major) = (count(0), count(1));
    // User and system time, of it and of its children. A text may end before.
    let cpu = [count(1), count(0), count(0), count(0)];
    let threads = count(2).and_then(|count| u32::try_from(count).ok());
    let started = fields.nth(1).and_then(|ticks| ticks.parse().ok());
    let exit_code = fields.nth(29).and_then(|status| status.parse().ok());
    let name = railgate_text::printable(name).into_owned();
    Some(Stat {
        name,
        state,
        parent,
        flags,
        faults: minor.zip(major).and_then(|(minor, major)| minor.checked_add(major)),
        cpu_ticks: cpu.into_iter().flatten().fold(0, u64::saturating_add),
        threads,
        started,
        exit_code,
    })
}

/// Reads the real user id. The owner of the directory is not used: it is root for a process that is not dumpable.
pub(crate) fn read_uid(proc: &Path, pid: u32) -> Result<u32, String> {
    let path = proc.join(pid.to_string()).join("status");
    let text = read::prefix(&path, FILE_BYTES).map_err(|why| why.to_string())?;
    text.lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .and_then(|uids| uids.split_ascii_whitespace().next()?.parse().ok())
        .ok_or_else(|| format!("{}: no Uid line", path.display()))
}

/// Finds the job by the cgroup if Slurm uses cgroups, otherwise by the slurmstepd among the ancestors.
fn slurm_job(proc: &Path, pid: u32, stat: &Stat) -> Reading<Option<u32>> {
    let path = proc.join(pid.to_string()).join("cgroup");
    match read::prefix(&path, FILE_BYTES) {
        Ok(text) => {
            if let Some(job) = text.lines().find_map(job_of_cgroup) {
                return Reading::Known(Some(job));
            }
        }
        Err(why) if why.is_absent() => {}
        Err(why) => return Reading::Failed(why.to_string()),
    }
    let mut parent = stat.parent;
    for _ in 0..MAX_ANCESTORS {
        if parent <= 1 {
            return Reading::Known(None);
        }
        let above = match read_stat(proc, parent) {
            Ok(Some(above)) => above,
            // The parent has ended, so the process is now a child of init.
            Ok(None) => return Reading::Known(None),
            Err(why) => return Reading::Failed(why),
        };
        // Any user can name a process slurmstepd, so only one that belongs to root counts. The command lines of other
        // processes are not read: that can hang together with the process.
        if above.name == "slurmstepd" && read_uid(proc, parent) == Ok(0) {
            let path = proc.join(parent.to_string()).join("cmdline");
            if let Some(job) = read::prefix(&path, 256).ok().as_deref().and_then(job_of_title) {
                return Reading::Known(Some(job));
            }
        }
        parent = above.parent;
    }
    Reading::Known(None)
}

/// The job id in `slurmstepd: [48213.0]` or `slurmstepd: [48213.batch]`.
fn job_of_title(title: &str) -> Option<u32> {
    let step = title.strip_prefix("slurmstepd: [")?;
    let digits = step.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_job_is_parsed_from_the_title_of_slurmstepd() {
        assert_eq!(job_of_title("slurmstepd: [48213.0]\0\0"), Some(48213));
        assert_eq!(job_of_title("slurmstepd: [12.batch]"), Some(12));
        assert_eq!(job_of_title("slurmstepd: [12+1.0]"), Some(12));
        assert_eq!(job_of_title("slurmstepd infinity"), None);
        assert_eq!(job_of_title("slurmstepd: []"), None);
    }

    #[test]
    fn parentheses_in_a_process_name_do_not_shift_the_fields() {
        let stat = parse_stat("42 (a) R (b) S 7 42 42 0 -1 4194560 1 2").unwrap();
        let (name, faults, threads, started, exit_code) = ("a) R (b".to_owned(), None, None, None, None);
        let (parent, flags, cpu_ticks) = (7, 4_194_560, 0);
        let whole = Stat { name, state: 'S', parent, flags, faults, cpu_ticks, threads, started, exit_code };
        assert_eq!(stat, whole);
        let stat = parse_stat("42 (a) S 7 42 42 0 -1 0 30 99 4 99 100 20 3 5 20 0 12 0 4200 0 0").unwrap();
        assert_eq!((stat.faults, stat.cpu_ticks), (Some(34), 128));
        assert_eq!((stat.threads, stat.started), (Some(12), Some(4200)));
        assert!(!stat.exiting());
        assert!(parse_stat("42 (a) D 7 42 42 0 -1 4194308 1").unwrap().exiting());
        assert!(parse_stat("42 (a) Z 7 42 42 0 -1 0 1").unwrap().exiting());
        assert_eq!(parse_stat("42 (a) Z"), None);
    }

    fn put(root: &Path, pid: u32, stat: &str, uid: u32, cgroup: &str, title: &str) {
        let dir = root.join(pid.to_string());
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("stat"), format!("{pid} {stat}")).unwrap();
        fs::write(dir.join("status"), format!("Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")).unwrap();
        fs::write(dir.join("cgroup"), cgroup).unwrap();
        fs::write(dir.join("cmdline"), title).unwrap();
    }

    #[test]
    fn a_process_belongs_to_the_job_of_its_slurmstepd_ancestor() {
        let proc = tempfile::tempdir().unwrap();
        let root = proc.path();
        put(root, 100, "(slurmstepd) S 1 1 1 0 -1 0 0", 0, "0::/\n", "slurmstepd: [55.0]\0");
        put(root, 101, "(bash) S 100 1 1 0 -1 0 0", 1000, "0::/\n", "bash\0");
        put(root, 102, "(python) R 101 1 1 0 -1 0 0", 1000, "0::/\n", "python\0");
        // A user's process with the same name.
        put(root, 200, "(slurmstepd) S 1 1 1 0 -1 0 0", 1000, "0::/\n", "slurmstepd: [55.0]\0");
        put(root, 201, "(python) R 200 1 1 0 -1 0 0", 1000, "0::/\n", "python\0");

        let ours = about(root, 102);
        assert_eq!(ours.slurm_job, Reading::Known(Some(55)));
        assert_eq!((ours.name, ours.uid), (Reading::Known("python".to_owned()), Reading::Known(1000)));
        assert_eq!(about(root, 201).slurm_job, Reading::Known(None));
        assert!(about(root, 999).exiting, "gone counts as exiting");
    }
}

//! Probes the processes of a job: their environment, their use of NCCL, and the RDMA devices that they have open.
//!
//! This should run as the job's user, who may read all of this anyway, so that no process can show root anything that
//! its user cannot see. All reads are bounded, and the contents are treated as text only.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use railgate_child::Task;
use railgate_fsutil::read;
use railgate_model::slurm_cgroup::job_of_cgroup;
use railgate_model::{JobProcess, JobProcesses, Reading, UnixMillis};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::gpu_processes::{FILE_BYTES, MAX_ANCESTORS, Stat, read_stat, read_uid};

/// Limit for the environment of one process; the rest is not read.
const ENVIRON_BYTES: u64 = 2 << 20;
/// The memory map of a large framework has some ten thousand lines of a hundred bytes.
const MAPS_BYTES: u64 = 16 << 20;
/// Limit for NCCL configuration files. NCCL reads whole files, but real ones are short.
const CONF_BYTES: u64 = 64 << 10;
const MOST_PROCESSES: usize = 4096;
const MOST_DESCRIPTORS: usize = 65_536;
const MOST_VARIABLES: usize = 128;
const MOST_CHARS: usize = 512;
/// Limit for all processes together, because the reader is not subject to the job's memory limit.
const MOST_BYTES: usize = 8 << 20;

/// A request to probe the processes of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProbe {
    /// Job id.
    pub job: u32,
    /// Owner of the job. Processes of other users are not read.
    pub uid: u32,
    /// Environment variables to read, in addition to `NCCL_…` and `RAILGATE_…`.
    pub names: Vec<String>,
}

/// Probes the processes of a job. `proc` is the root of the proc tree.
///
/// # Errors
/// Returns an error if the proc tree cannot be listed.
pub fn job_processes(proc: &Path, look: &JobProbe) -> Result<JobProcesses, String> {
    let mut pids: Vec<u32> = fs::read_dir(proc)
        .map_err(|why| format!("{}: {why}", proc.display()))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let mut found = JobProcesses::default();
    let mut steps = Steps::new(proc);
    let node_root = identity(Path::new("/")).ok();
    let home = nix::unistd::User::from_uid(look.uid.into()).ok().flatten().map(|user| user.dir);
    let clock = BootClock::read();
    let mut bytes = 0;
    for pid in pids {
        let dir = proc.join(pid.to_string());
        // The directory of a process that is not dumpable belongs to root, and cannot be read.
        if !fs::metadata(&dir).is_ok_and(|meta| meta.uid() == look.uid) {
            continue;
        }
        let Ok(Some(stat)) = read_stat(proc, pid) else { continue };
        let Some((job, step)) = steps.of(pid, &stat) else { continue };
        if job != look.job || stat.exiting() || stat.name == "slurmstepd" {
            continue;
        }
        if found.processes.len() == MOST_PROCESSES || bytes > MOST_BYTES {
            found.more += 1;
            continue;
        }
        match one(&dir, step, look, node_root, home.as_deref()) {
            Ok(mut process) => {
                process.began = stat.started.and_then(|ticks| clock.time(ticks));
                let all = process.env.iter().chain(&process.files);
                bytes += all.map(|(name, value)| name.len() + value.len()).sum::<usize>();
                found.processes.push(process);
            }
            Err(why) if gone(&why) => {}
            Err(_) => found.closed += 1,
        }
    }
    Ok(found)
}

/// Converts clock ticks after the boot, in which the kernel gives the beginning of a process, to Unix time.
pub(crate) struct BootClock {
    boot: Option<Duration>,
    ticks_per_s: Option<u64>,
}

impl BootClock {
    pub(crate) fn read() -> Self {
        let up = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).ok().map(Duration::from);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
        BootClock {
            boot: up.zip(now).and_then(|(up, now)| now.checked_sub(up)),
            ticks_per_s: ticks.and_then(|ticks| u64::try_from(ticks).ok()).filter(|ticks| *ticks > 0),
        }
    }

    pub(crate) fn time(&self, ticks: u64) -> Option<UnixMillis> {
        let since = ticks.checked_mul(1000)? / self.ticks_per_s?;
        u64::try_from(self.boot?.as_millis()).ok()?.checked_add(since)
    }
}

fn gone(why: &io::Error) -> bool {
    matches!(why.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

fn one(
    dir: &Path,
    step: String,
    look: &JobProbe,
    node_root: Option<(u64, u64)>,
    home: Option<&Path>,
) -> io::Result<JobProcess> {
    let env = environ(&dir.join("environ"), &look.names)?;
    let libraries = libraries(&dir.join("maps"))?;
    let root = dir.join("root");
    let image = match (identity(&root), node_root) {
        (Ok(own), Some(node)) => own != node,
        _ => false,
    };
    let mut process = JobProcess {
        step,
        began: None,
        image,
        nccl: libraries.nccl,
        cuda: libraries.cuda,
        net_plugin: libraries.net_plugin,
        rdma: Reading::Unsupported,
        env,
        files: BTreeMap::new(),
    };
    if process.nccl || process.cuda {
        process.rdma = Reading::from_result(holds_rdma(&dir.join("fd")).map_err(|why| why.to_string()));
        process.files =
            conf_files(&root, process.env.get("NCCL_CONF_FILE").map(Path::new), home, &look.names);
    }
    Ok(process)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    // With `.` appended, this is the root directory itself rather than the link to it.
    fs::metadata(path.join(".")).map(|meta| (meta.dev(), meta.ino()))
}

fn wanted(name: &[u8], names: &[String]) -> bool {
    name.len() <= 128
        && (name.starts_with(b"NCCL_")
            || name.starts_with(b"RAILGATE_")
            || names.iter().any(|other| other.as_bytes() == name))
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

fn put(env: &mut BTreeMap<String, String>, name: &[u8], value: &[u8]) {
    let name = String::from_utf8_lossy(name).into_owned();
    if env.len() < MOST_VARIABLES && !env.contains_key(&name) {
        env.insert(name, railgate_text::ascii_bytes(value, MOST_CHARS));
    }
}

/// Parses `NAME=VALUE\0…`. If a name occurs twice, the first one counts, as for `getenv`.
fn environ(path: &Path, names: &[String]) -> io::Result<BTreeMap<String, String>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(ENVIRON_BYTES).read_to_end(&mut bytes)?;
    let mut env = BTreeMap::new();
    for entry in bytes.split(|byte| *byte == 0) {
        let Some(end) = entry.iter().position(|byte| *byte == b'=') else { continue };
        let (name, value) = entry.split_at(end);
        if wanted(name, names) {
            put(&mut env, name, value.get(1..).unwrap_or_default());
        }
    }
    Ok(env)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Libraries {
    nccl: bool,
    cuda: bool,
    context: bool,
    net_plugin: Option<String>,
}

/// What a process has mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuUse {
    /// Nothing, or it cannot be read.
    None,
    /// NCCL or CUDA. A launcher that has imported PyTorch has them as well.
    Library,
    /// CUDA's memory: it has a context. NVML alone maps `/dev/nvidia0` and `/dev/nvidiactl`, in torchrun's agent too
    /// (driver 580.159, PyTorch 2.11).
    Context,
}

/// What a process has mapped.
pub(crate) fn gpu_use(dir: &Path) -> GpuUse {
    match libraries(&dir.join("maps")) {
        Ok(found) if found.context => GpuUse::Context,
        Ok(found) if found.nccl || found.cuda => GpuUse::Library,
        _ => GpuUse::None,
    }
}

fn libraries(path: &Path) -> io::Result<Libraries> {
    let mut found = Libraries::default();
    let mut lines = BufReader::new(fs::File::open(path)?.take(MAPS_BYTES));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        let name = line.rsplit(|byte| *byte == b'/').next().filter(|name| name.len() < line.len());
        if let Some(name) = name.and_then(|name| name.trim_ascii_end().split(|byte| *byte == b' ').next()) {
            found.nccl |= name.starts_with(b"libnccl.so");
            found.cuda |= name.starts_with(b"libcuda.so");
            found.context |= name == b"nvidia-uvm" && line.trim_ascii_end().ends_with(b" /dev/nvidia-uvm");
            if name.starts_with(b"libnccl-net") && found.net_plugin.is_none() {
                found.net_plugin = Some(railgate_text::printable_bytes(name));
            }
        }
        line.clear();
    }
    Ok(found)
}

fn holds_rdma(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)?.take(MOST_DESCRIPTORS) {
        let Ok(target) = fs::read_link(entry?.path()) else { continue };
        let device = target.file_name().is_some_and(|name| name.as_bytes().starts_with(b"uverbs"));
        if device && target.parent().and_then(Path::file_name) == Some(OsStr::new("infiniband")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The files in the order in which NCCL reads them: the one in the variable or else in the home directory, then
/// `/etc/nccl.conf`.
fn conf_files(
    root: &Path,
    told: Option<&Path>,
    home: Option<&Path>,
    names: &[String],
) -> BTreeMap<String, String> {
    let own = told.map(Path::to_owned).or_else(|| Some(home?.join(".nccl.conf")));
    let mut all = BTreeMap::new();
    for path in own.into_iter().chain([PathBuf::from("/etc/nccl.conf")]) {
        let Ok(path) = path.strip_prefix("/") else { continue };
        let Ok(file) = read::open(&root.join(path)) else { continue };
        if !file.metadata().is_ok_and(|meta| meta.is_file()) {
            continue;
        }
        let mut bytes = Vec::new();
        if file.take(CONF_BYTES).read_to_end(&mut bytes).is_err() {
            continue;
        }
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#")) {
            let Some(end) = line.iter().position(|byte| *byte == b'=') else { continue };
            let (name, value) = line.split_at(end);
            if wanted(name, names) {
                put(&mut all, name, value.get(1..).unwrap_or_default());
            }
        }
    }
    all
}

/// Finds the steps of processes, with a cache: siblings have the same ancestors.
pub(crate) struct Steps<'p> {
    proc: &'p Path,
    known: HashMap<u32, Option<(u32, String)>>,
}

impl<'p> Steps<'p> {
    pub(crate) fn new(proc: &'p Path) -> Self {
        Steps { proc, known: HashMap::new() }
    }

    /// Finds the step by the cgroup if Slurm uses cgroups, otherwise by the slurmstepd among the ancestors.
    pub(crate) fn of(&mut self, pid: u32, stat: &Stat) -> Option<(u32, String)> {
        let text = read::prefix(&self.proc.join(pid.to_string()).join("cgroup"), FILE_BYTES);
        let by_cgroup = text.ok().and_then(|text| text.lines().find_map(step_of_cgroup));
        by_cgroup.or_else(|| self.by_ancestor(stat.parent))
    }

    fn by_ancestor(&mut self, first: u32) -> Option<(u32, String)> {
        let mut passed = Vec::new();
        let mut found = None;
        let mut pid = first;
        for _ in 0..MAX_ANCESTORS {
            if pid <= 1 {
                break;
            }
            if let Some(known) = self.known.get(&pid) {
                found.clone_from(known);
                break;
            }
            passed.push(pid);
            let Ok(Some(stat)) = read_stat(self.proc, pid) else { break };
            if stat.name == "slurmstepd" {
                found = daemon_of(self.proc, pid);
                if found.is_some() {
                    break;
                }
            }
            pid = stat.parent;
        }
        for pid in passed {
            self.known.insert(pid, found.clone());
        }
        found
    }
}

/// The job and step of a slurmstepd process. The command line of a user's process with that name is not read, because
/// the user can make that hang.
fn daemon_of(proc: &Path, pid: u32) -> Option<(u32, String)> {
    if read_uid(proc, pid) != Ok(0) {
        return None;
    }
    let title = read::prefix(&proc.join(pid.to_string()).join("cmdline"), 256).ok()?;
    step_of_title(&title)
}

/// What a job has on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobHere {
    /// No slurmstepd: it has ended here or has not started.
    Gone,
    /// Only the extern step: no task and no batch script.
    OnlyExtern,
    /// A step, or the batch script.
    Steps,
}

/// Returns what the job has on this node, by its slurmstepd processes. Runs in a child with a deadline, since reading the command
/// line of a hanging process can hang.
///
/// # Errors
/// Returns an error if the proc tree cannot be listed or the child does not answer.
pub fn job_here(proc: &Path, job: u32) -> Result<JobHere, String> {
    ask(HERE, proc, job)
}

/// Returns whether a job is suspended: it has processes, and all of them are stopped. Returns `false` if that cannot be
/// determined. A child determines the processes of the job, as in [`job_here`], and only if some process is stopped.
pub fn job_is_stopped(proc: &Path, job: u32) -> bool {
    // Reading `stat` cannot hang.
    let stopped = |pid| read_stat(proc, pid).is_ok_and(|stat| stat.is_some_and(|stat| stat.stopped()));
    pids(proc).is_ok_and(|pids| pids.into_iter().any(stopped)) && ask(STOPPED, proc, job).unwrap_or(false)
}

const HERE: &str = "job-here";
const STOPPED: &str = "job-is-stopped";
const DEADLINE: Duration = Duration::from_secs(5);

pub(crate) const TASKS: [Task; 2] = [
    Task::new(HERE, |input| answer(input, here)),
    Task::new(STOPPED, |input| answer(input, |proc, job| Ok(is_stopped(proc, job)))),
];

fn ask<T: DeserializeOwned>(task: &str, proc: &Path, job: u32) -> Result<T, String> {
    let order = serde_json::to_vec(&(proc, job)).map_err(|why| why.to_string())?;
    let said = railgate_child::ask(task, &order, DEADLINE)?;
    serde_json::from_slice(&said).map_err(|why| why.to_string())
}

fn answer<T: Serialize>(
    input: &[u8],
    look: impl FnOnce(&Path, u32) -> Result<T, String>,
) -> Result<Vec<u8>, String> {
    let (proc, job): (PathBuf, u32) = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    serde_json::to_vec(&look(&proc, job)?).map_err(|why| why.to_string())
}

fn pids(proc: &Path) -> Result<Vec<u32>, String> {
    let entries = fs::read_dir(proc).map_err(|why| format!("{}: {why}", proc.display()))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

fn here(proc: &Path, job: u32) -> Result<JobHere, String> {
    let step = |pid: u32| {
        let comm = read::prefix(&proc.join(pid.to_string()).join("comm"), 64);
        let (own, step) =
            comm.is_ok_and(|name| name.trim_end() == "slurmstepd").then(|| daemon_of(proc, pid))??;
        (own == job).then_some(step)
    };
    let mut found = JobHere::Gone;
    for step in pids(proc)?.into_iter().filter_map(step) {
        if step != "extern" {
            return Ok(JobHere::Steps);
        }
        found = JobHere::OnlyExtern;
    }
    Ok(found)
}

fn is_stopped(proc: &Path, job: u32) -> bool {
    let Ok(pids) = pids(proc) else { return false };
    let mut steps = Steps::new(proc);
    let mut some = false;
    for pid in pids {
        let Ok(Some(stat)) = read_stat(proc, pid) else { continue };
        if stat.exiting() || stat.name == "slurmstepd" {
            continue;
        }
        // The process of the extern step is only a placeholder for processes that are adopted from outside.
        if !steps.of(pid, &stat).is_some_and(|(own, step)| own == job && step != "extern") {
            continue;
        }
        if !stat.stopped() {
            return false;
        }
        some = true;
    }
    some
}

/// Parses `…/job_48213/step_0/…` below a cgroup of Slurm, as `slurm_cgroup` does, with the step after the job.
fn step_of_cgroup(line: &str) -> Option<(u32, String)> {
    let job = job_of_cgroup(line)?;
    let (_, rest) = line.split_once(&format!("/job_{job}/"))?;
    let step = rest.split('/').next()?.strip_prefix("step_")?;
    Some((job, plain(step)))
}

/// Parses `slurmstepd: [48213.0]` or `slurmstepd: [48213.batch]`.
fn step_of_title(title: &str) -> Option<(u32, String)> {
    let name = title.strip_prefix("slurmstepd: [")?.split(']').next()?;
    let (job, step) = name.split_once('.')?;
    Some((job.parse().ok()?, plain(step)))
}

fn plain(step: &str) -> String {
    step.chars().filter(char::is_ascii_alphanumeric).take(16).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Proc(tempfile::TempDir);

    impl Proc {
        fn new() -> Self {
            Proc(tempfile::tempdir().unwrap())
        }

        fn add(&self, pid: u32, name: &str, parent: u32, cgroup: &str) -> PathBuf {
            let dir = self.0.path().join(pid.to_string());
            fs::create_dir_all(dir.join("fd")).unwrap();
            fs::write(dir.join("stat"), format!("{pid} ({name}) S {parent} 1 1 0 -1 0 0")).unwrap();
            fs::write(dir.join("comm"), format!("{name}\n")).unwrap();
            fs::write(dir.join("status"), "Uid:\t0\t0\t0\t0\n").unwrap();
            fs::write(dir.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
            fs::write(dir.join("environ"), "").unwrap();
            fs::write(dir.join("maps"), "").unwrap();
            symlink("/", dir.join("root")).unwrap();
            dir
        }

        fn look(&self, job: u32) -> JobProcesses {
            let uid = nix::unistd::getuid().as_raw();
            job_processes(self.0.path(), &JobProbe { job, uid, names: vec!["UCX_TLS".to_owned()] }).unwrap()
        }
    }

    #[test]
    fn processes_are_found_by_cgroup_and_by_slurmstepd_ancestor() {
        let proc = Proc::new();
        let v2 = "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0";
        let task = proc.add(20, "python", 1, v2);
        fs::write(
            task.join("environ"),
            b"HOME=/x\0NCCL_DEBUG=INFO\0NCCL_DEBUG=WARN\0UCX_TLS=rc\0RAILGATE_SET=A\0NCCL_X=a\x1b[2J\0NCCL_BAD NAME=1",
        )
        .unwrap();
        fs::write(
            task.join("maps"),
            "7f00-7f01 r-xp 0 08:01 1 /usr/lib/libnccl.so.2.28.9\n\
             7f02-7f03 r-xp 0 08:01 2 /opt/a b/libnccl-net-ofi.so (deleted)\n\
             7f04-7f05 rw-p 0 00:00 0 \n7f06-7f07 r--p 0 08:01 3 /lib/libcuda.so.580\n",
        )
        .unwrap();
        symlink("/dev/null", task.join("fd/0")).unwrap();
        symlink("/dev/infiniband/uverbs3", task.join("fd/11")).unwrap();
        let daemon = proc.add(30, "slurmstepd", 1, "/");
        fs::write(daemon.join("cmdline"), "slurmstepd: [7.batch]").unwrap();
        proc.add(31, "bash", 30, "/");
        proc.add(32, "sleep", 31, "/");
        proc.add(40, "bash", 1, "/system.slice/slurmstepd.scope/job_8/step_0/user/task_0");
        // A process of another user, and one below a process that only has the name of a slurmstepd.
        proc.add(41, "bash", 1, "/user.slice/job_7/step_0");

        let found = proc.look(7);
        let steps: Vec<&str> = found.processes.iter().map(|process| process.step.as_str()).collect();
        assert_eq!(steps, ["0", "batch", "batch"]);
        let first = &found.processes[0];
        assert!(first.nccl && first.cuda && !first.image, "{first:?}");
        assert_eq!(first.net_plugin.as_deref(), Some("libnccl-net-ofi.so"));
        assert_eq!(first.rdma, Reading::Known(true));
        let env: Vec<(&str, &str)> = first.env.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let expected =
            [("NCCL_DEBUG", "INFO"), ("NCCL_X", "a?[2J"), ("RAILGATE_SET", "A"), ("UCX_TLS", "rc")];
        assert_eq!(env, expected);
        assert_eq!([7, 8].map(|job| here(proc.0.path(), job)), [Ok(JobHere::Steps), Ok(JobHere::Gone)]);
    }

    #[test]
    fn in_a_container_files_are_read_below_its_root() {
        let proc = Proc::new();
        let task = proc.add(20, "python", 1, "/system.slice/slurmstepd.scope/job_7/step_1/user/task_0");
        let root = proc.0.path().join("image");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(root.join("etc/nccl.conf"), "#NCCL_A=0\nNCCL_B=machine\nNCCL_C=3\nPATH=/x\n").unwrap();
        fs::write(root.join("etc/mine"), "NCCL_B=mine\n").unwrap();
        fs::remove_file(task.join("root")).unwrap();
        symlink(&root, task.join("root")).unwrap();
        fs::write(task.join("environ"), "NCCL_CONF_FILE=/etc/mine\0").unwrap();
        fs::write(task.join("maps"), "1-2 r-xp 0 08:01 1 /usr/lib/libnccl.so.2\n").unwrap();
        let found = proc.look(7);
        let process = &found.processes[0];
        assert!(process.image);
        assert_eq!(process.rdma, Reading::Known(false));
        let files: Vec<(&str, &str)> = process.files.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(files, [("NCCL_B", "mine"), ("NCCL_C", "3")]);
    }

    #[test]
    fn the_beginning_of_a_process_is_a_time_of_the_calendar() {
        let stat = read_stat("/proc".as_ref(), std::process::id()).unwrap().unwrap();
        let began = BootClock::read().time(stat.started.unwrap()).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let ago = i128::from(u64::try_from(now).unwrap()) - i128::from(began);
        assert!((-1000..3_600_000).contains(&ago), "{ago} ms");
    }

    #[test]
    fn step_names_are_parsed() {
        assert_eq!(step_of_title("slurmstepd: [7.interactive]"), Some((7, "interactive".to_owned())));
        assert_eq!(step_of_title("slurmstepd: [7.0+1] "), Some((7, "01".to_owned())));
        assert_eq!(step_of_title("slurmstepd: idle"), None);
        let v1 = "9:freezer:/slurm_gn1/uid_1000/job_12/step_batch";
        assert_eq!(step_of_cgroup(v1), Some((12, "batch".to_owned())));
        assert_eq!(step_of_cgroup("9:freezer:/user.slice/job_12/step_0"), None);
    }
}

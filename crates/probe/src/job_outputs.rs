//! Probes where a job's processes write: the regular files behind their standard output and error, and those that srun
//! writes for its tasks. Also which of them run its ranks.
//!
//! Runs as the job's user, as [`crate::job_processes()`] does. Paths are recorded, no file is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use railgate_model::{JobOutput, JobOutputs, RankProcess};

use crate::gpu_processes::read_stat;
use crate::job_processes::{BootClock, Steps, gpu_use};
use crate::process_end::ProcessId;
use crate::rank_processes::{Seen, select};

/// Most files of a node: two for each rank of the largest nodes, and the batch script's.
pub const MOST_OUTPUTS: usize = 64;
/// Limit for the environment of one process.
const ENVIRON_BYTES: u64 = 2 << 20;
const MOST_PROCESSES: usize = 4096;
const MOST_RANKS: usize = 1024;
const MOST_PATH: usize = 4096;
/// Descriptors of an srun that are read: it has few besides one or two for each node.
const MOST_DESCRIPTORS: u32 = 64;

/// Variables with the rank of a launched process. Slurm's counts only where a process has none of the others, and not for
/// launchers.
const LAUNCHERS: [&[u8]; 3] = [b"RANK", b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK"];
const SLURM: &[u8] = b"SLURM_PROCID";
/// Variable with the number of the start of the step inside the attempt.
const START: &[u8] = b"RAILGATE_START";
const MOST_START: usize = 32;
/// Most processes between a launcher and its ranks.
const MOST_BETWEEN: usize = 16;

/// Steps that are no ranks.
const NO_RANKS: [&str; 3] = ["batch", "extern", "interactive"];

/// The rank of a process, as its environment states it.
#[derive(Clone, Debug, Default)]
struct Rank {
    launched: Option<u32>,
    slurm: Option<u32>,
    start: Option<String>,
}

/// A process and its files: device and inode.
struct Found {
    pid: u32,
    parent: u32,
    ticks: Option<u64>,
    step: String,
    rank: Rank,
    task: Option<u32>,
    files: Vec<(u64, u64)>,
}

/// Probes the outputs of a job's processes, and those that run its ranks. `proc` is the root of the proc tree; processes of
/// users other than `uid` are not read. Of the processes in `programs` it is known that they use a GPU.
///
/// # Errors
/// Returns an error if the proc tree cannot be listed.
pub fn job_outputs(
    proc: &Path,
    job: u32,
    uid: u32,
    programs: &[ProcessId],
) -> Result<(JobOutputs, Vec<RankProcess>), String> {
    let mut pids: Vec<u32> = fs::read_dir(proc)
        .map_err(|why| format!("{}: {why}", proc.display()))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let mut steps = Steps::new(proc);
    let mut all = JobOutputs::default();
    let mut found = Vec::new();
    for pid in pids {
        let dir = proc.join(pid.to_string());
        if !fs::metadata(&dir).is_ok_and(|meta| meta.uid() == uid) {
            continue;
        }
        let Ok(Some(stat)) = read_stat(proc, pid) else { continue };
        let Some((owner, step)) = steps.of(pid, &stat) else { continue };
        if owner != job || stat.exiting() || stat.name == "slurmstepd" || step == "extern" {
            continue;
        }
        if found.len() == MOST_PROCESSES {
            all.more = true;
            break;
        }
        let Some(mut rank) = rank(proc, pid, stat.parent, uid) else { continue };
        if NO_RANKS.contains(&step.as_str()) {
            rank.slurm = None;
        }
        let fd = |number: u32| dir.join("fd").join(number.to_string());
        // srun writes the files that its option --output names, and its tasks have pipes.
        let of_srun = if stat.name == "srun" { 3..MOST_DESCRIPTORS } else { 3..3 };
        let of_srun = of_srun.map(fd).filter(|fd| is_written(fd));
        let files = [1, 2].map(fd).into_iter().chain(of_srun).filter_map(|fd| output(&fd, uid));
        let (parent, ticks, task) = (stat.parent, stat.started, rank.slurm);
        let files = add_files(&mut all, files);
        found.push(Found { pid, parent, ticks, step, rank, task, files });
    }
    let launchers = launchers(&found);
    ranks(&mut all, &found, &launchers);
    let (seen, launchers) = with_rank(found, &launchers);
    let mut processes = select(seen, programs, |pid| gpu_use(&proc.join(pid.to_string())));
    processes.extend(launchers.into_iter().take(MOST_RANKS));
    Ok((all, processes))
}

/// Adds files that are not known yet, and returns device and inode of all.
fn add_files(all: &mut JobOutputs, files: impl Iterator<Item = JobOutput>) -> Vec<(u64, u64)> {
    let mut ids = Vec::new();
    for file in files {
        ids.push((file.device, file.inode));
        if all.files.iter().any(|have| (have.device, have.inode) == (file.device, file.inode)) {
            continue;
        }
        if all.files.len() < MOST_OUTPUTS {
            all.files.push(file);
        } else {
            all.more = true;
        }
    }
    ids
}

/// The regular file behind a descriptor, if it belongs to the user and has a name.
fn output(fd: &Path, uid: u32) -> Option<JobOutput> {
    let path = fs::read_link(fd).ok()?.into_os_string().into_string().ok()?;
    if !path.starts_with('/') || path.starts_with("/proc/") || path.len() > MOST_PATH {
        return None;
    }
    let meta = fs::metadata(fd).ok()?;
    if !meta.is_file() || meta.uid() != uid || meta.nlink() == 0 {
        return None;
    }
    let created = meta.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Some(JobOutput {
        path,
        device: meta.dev(),
        inode: meta.ino(),
        size: meta.len(),
        created: created.and_then(|since| u64::try_from(since.as_millis()).ok()),
        rank: None,
        task: None,
    })
}

/// Whether a descriptor was opened for writing: the mode of its link tells.
fn is_written(fd: &Path) -> bool {
    fs::symlink_metadata(fd).is_ok_and(|meta| meta.mode() & 0o200 != 0)
}

/// The rank of a process; `None` if it is about to end. During execve its environment is empty: that of its parent counts, else its
/// files would belong to no rank.
fn rank(proc: &Path, pid: u32, parent: u32, uid: u32) -> Option<Rank> {
    let environ = environ(proc, pid);
    if !environ.is_empty() {
        return Some(stated(&environ));
    }
    if !matches!(read_stat(proc, pid), Ok(Some(stat)) if !stat.exiting()) {
        return None;
    }
    let is_users = fs::metadata(proc.join(parent.to_string())).is_ok_and(|meta| meta.uid() == uid);
    Some(if is_users { stated(&self::environ(proc, parent)) } else { Rank::default() })
}

/// Empty where it cannot be read.
fn environ(proc: &Path, pid: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = fs::File::open(proc.join(pid.to_string()).join("environ"));
    let read = file.and_then(|file| file.take(ENVIRON_BYTES).read_to_end(&mut bytes));
    if read.is_err() {
        bytes.clear();
    }
    bytes
}

/// The rank that an environment states.
fn stated(environ: &[u8]) -> Rank {
    let value = |name: &[u8]| -> Option<u32> {
        let mut entries = environ.split(|byte| *byte == 0);
        let value = entries.find_map(|entry| entry.strip_prefix(name)?.strip_prefix(b"="))?;
        std::str::from_utf8(value).ok()?.parse().ok()
    };
    let start =
        environ.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(START)?.strip_prefix(b"="));
    Rank {
        launched: LAUNCHERS.into_iter().find_map(value),
        slurm: value(SLURM),
        start: start.map(|start| railgate_text::ascii_bytes(start, MOST_START)),
    }
}

/// Launchers: processes below which another rank than Slurm's number of them was launched. A program that sets `RANK` for its own
/// workers is none, and neither is a launcher of one rank that has the same number.
fn launchers(found: &[Found]) -> BTreeSet<u32> {
    let by_pid: BTreeMap<u32, &Found> = found.iter().map(|process| (process.pid, process)).collect();
    let mut all = BTreeSet::new();
    for process in found {
        let Some(rank) = process.rank.launched else { continue };
        let above = std::iter::successors(by_pid.get(&process.parent), |one| by_pid.get(&one.parent));
        all.extend(above.take(MOST_BETWEEN).filter_map(|one| {
            let is_launcher = one.rank.launched.is_none() && one.rank.slurm.is_some_and(|own| own != rank);
            is_launcher.then_some(one.pid)
        }));
    }
    all
}

/// The rank that counts; `None` for a launcher.
fn counting(process: &Found, launchers: &BTreeSet<u32>) -> Option<u32> {
    if launchers.contains(&process.pid) { None } else { process.rank.launched.or(process.rank.slurm) }
}

/// The processes with a rank, and the launchers.
fn with_rank(found: Vec<Found>, launchers: &BTreeSet<u32>) -> (Vec<Seen>, Vec<RankProcess>) {
    let clock = BootClock::read();
    let (mut seen, mut above) = (Vec::new(), Vec::new());
    for process in found {
        let launcher = launchers.contains(&process.pid);
        let Found { pid, parent, ticks, step, rank: Rank { launched, slurm, start }, .. } = process;
        let (Some(rank), Some(ticks)) = (launched.or(slurm), ticks) else { continue };
        let began = clock.time(ticks);
        let process = RankProcess { rank, step, start, pid, ticks, began, gpu: false, launcher };
        match launcher {
            true => above.push(process),
            false => seen.push(Seen { parent, launched: launched.is_some(), process }),
        }
    }
    (seen, above)
}

/// Assigns files to ranks.
fn ranks(all: &mut JobOutputs, found: &[Found], launchers: &BTreeSet<u32>) {
    let of = |process: &Found| counting(process, launchers);
    // A launcher has no rank, and may have the file of its only rank open, too.
    let mut owners: BTreeMap<(u64, u64), Vec<[Option<u32>; 2]>> = BTreeMap::new();
    for process in found {
        let rank = of(process);
        all.ranks.extend(rank.filter(|_| all.ranks.len() < MOST_RANKS * 8));
        for file in &process.files {
            let owners = owners.entry(*file).or_default();
            if !owners.contains(&[rank, process.task]) {
                owners.push([rank, process.task]);
            }
        }
    }
    for file in &mut all.files {
        let owners = owners.get(&(file.device, file.inode)).map_or(&[][..], Vec::as_slice);
        let one = |which: usize| {
            let first = owners.first()?.get(which).copied().flatten()?;
            owners.iter().all(|owner| owner.get(which) == Some(&Some(first))).then_some(first)
        };
        (file.rank, file.task) = (one(0), one(1));
    }
    all.ranks.sort_unstable();
    all.ranks.dedup();
    all.ranks.truncate(MOST_RANKS);
    let numbers = found.iter().filter(|one| launchers.contains(&one.pid)).filter_map(|one| one.rank.slurm);
    all.launchers = numbers.filter(|number| !all.ranks.contains(number)).take(MOST_RANKS).collect();
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    struct Node(tempfile::TempDir);

    /// The process began, and has a parent.
    fn stat(dir: &Path, pid: u32, parent: u32) {
        let rest = "1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0";
        fs::write(dir.join("stat"), format!("{pid} (python) S {parent} {rest} {pid}00 0 0")).unwrap();
    }

    impl Node {
        fn process(&self, pid: u32, step: &str, environ: &[u8], outputs: [&str; 2]) -> PathBuf {
            let dir = self.0.path().join("proc").join(pid.to_string());
            fs::create_dir_all(dir.join("fd")).unwrap();
            fs::write(dir.join("stat"), format!("{pid} (python) S 1 1 1 0 -1 0 0")).unwrap();
            let cgroup = format!("0::/system.slice/slurmstepd.scope/job_7/step_{step}/user/task_0\n");
            fs::write(dir.join("cgroup"), cgroup).unwrap();
            fs::write(dir.join("environ"), environ).unwrap();
            for (fd, name) in ["1", "2"].into_iter().zip(outputs) {
                symlink(self.file(name), dir.join("fd").join(fd)).unwrap();
            }
            dir
        }

        fn file(&self, name: &str) -> PathBuf {
            if name.starts_with('/') {
                return PathBuf::from(name);
            }
            let path = self.0.path().join(name);
            if !path.exists() {
                fs::write(&path, "text").unwrap();
            }
            path
        }

        fn outputs(&self) -> Vec<(String, Option<u32>)> {
            let uid = nix::unistd::getuid().as_raw();
            let (all, _) = job_outputs(&self.0.path().join("proc"), 7, uid, &[]).unwrap();
            let name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
            all.files.iter().map(|file| (name(&file.path), file.rank)).collect()
        }
    }

    #[test]
    fn regular_files_behind_both_descriptors_are_found_with_their_rank() {
        let node = Node(tempfile::tempdir().unwrap());
        node.process(20, "batch", b"SLURM_PROCID=0\0", ["slurm-7.out", "slurm-7.out"]);
        node.process(30, "0", b"HOME=/x\0SLURM_PROCID=4\0", ["4.out", "4.err"]);
        node.process(31, "0", b"SLURM_PROCID=5\0", ["5.out", "/dev/null"]);
        // A worker of rank 5, and one whose output is a pipe.
        node.process(32, "0", b"SLURM_PROCID=5\0", ["5.out", "/proc/32/fd/pipe"]);
        node.process(40, "extern", b"", ["other", "other"]);
        let of = |name: &str, rank| (name.to_owned(), rank);
        let found =
            [of("slurm-7.out", None), of("4.out", Some(4)), of("4.err", Some(4)), of("5.out", Some(5))];
        assert_eq!(node.outputs(), found);
        let uid = nix::unistd::getuid().as_raw();
        let of_job = |job, uid| job_outputs(&node.0.path().join("proc"), job, uid, &[]).unwrap().0;
        let all = of_job(7, uid);
        assert_eq!(
            all.files.iter().map(|file| file.task).collect::<Vec<_>>(),
            [None, Some(4), Some(4), Some(5)]
        );
        assert_eq!((all.ranks.as_slice(), all.files[0].size), (&[4, 5][..], 4));
        assert_eq!(of_job(8, uid), JobOutputs::default());
        assert_eq!(of_job(7, uid + 1), JobOutputs::default());
    }

    #[test]
    fn a_process_that_begins_a_program_has_the_rank_of_its_parent() {
        let node = Node(tempfile::tempdir().unwrap());
        node.process(30, "0", b"SLURM_PROCID=1\0", ["1.out", "1.out"]);
        let begins = node.process(31, "0", b"", ["1.out", "1.out"]);
        stat(&begins, 31, 30);
        assert_eq!(node.outputs(), [("1.out".to_owned(), Some(1))]);
        // One without an environment of its own whose parent is slurmstepd.
        let alone = node.process(32, "0", b"", ["2.out", "2.out"]);
        stat(&alone, 32, 1);
        assert_eq!(node.outputs()[1], ("2.out".to_owned(), None));
    }

    #[test]
    fn below_a_launcher_its_rank_counts_and_not_slurms() {
        let node = Node(tempfile::tempdir().unwrap());
        node.process(30, "0", b"SLURM_PROCID=1\0", ["node1.out", "node1.out"]);
        node.process(31, "0", b"SLURM_PROCID=1\0RANK=8\0", ["node1.out", "8.err"]);
        node.process(32, "0", b"SLURM_PROCID=1\0RANK=9\0", ["node1.out", "9.err"]);
        let of = |name: &str, rank| (name.to_owned(), rank);
        assert_eq!(node.outputs(), [of("node1.out", None), of("8.err", Some(8)), of("9.err", Some(9))]);
    }

    #[test]
    fn processes_of_ranks_are_found_with_their_start() {
        let node = Node(tempfile::tempdir().unwrap());
        let none = ["/dev/null", "/dev/null"];
        let agent = node.process(30, "0", b"SLURM_PROCID=1\0RAILGATE_START=1\0", none);
        stat(&agent, 30, 1);
        let rank = node.process(31, "0", b"SLURM_PROCID=1\0RANK=8\0RAILGATE_START=1\0", none);
        stat(&rank, 31, 30);
        fs::write(rank.join("maps"), "1-2 r-xp 0 08:01 1 /usr/lib/libcuda.so.1\n").unwrap();
        let worker = node.process(32, "0", b"RANK=8\0RAILGATE_START=1\0", none);
        stat(&worker, 32, 31);
        let uid = nix::unistd::getuid().as_raw();
        let (_, found) = job_outputs(&node.0.path().join("proc"), 7, uid, &[]).unwrap();
        let [one, launcher] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((launcher.pid, launcher.launcher), (30, true));
        assert_eq!((one.rank, one.pid, one.ticks, one.gpu), (8, 31, 3100, true));
        assert_eq!((one.step.as_str(), one.start.as_deref()), ("0", Some("1")));
        assert!(one.began.is_some());
    }

    /// It looks like a launcher of one rank.
    #[test]
    fn a_program_that_sets_the_rank_of_its_workers_is_the_rank_itself() {
        let node = Node(tempfile::tempdir().unwrap());
        let none = ["/dev/null", "/dev/null"];
        let libcuda = "1-2 r-xp 0 08:01 1 /usr/lib/libcuda.so.1\n";
        let program = node.process(30, "0", b"SLURM_PROCID=3\0", none);
        stat(&program, 30, 1);
        let worker = node.process(31, "0", b"SLURM_PROCID=3\0RANK=3\0", none);
        stat(&worker, 31, 30);
        fs::write(worker.join("maps"), libcuda).unwrap();
        let other = node.process(40, "0", b"SLURM_PROCID=4\0", none);
        stat(&other, 40, 1);
        let uid = nix::unistd::getuid().as_raw();
        let pids = || {
            let (all, found) = job_outputs(&node.0.path().join("proc"), 7, uid, &[]).unwrap();
            assert_eq!((all.ranks.as_slice(), all.launchers.len()), (&[3, 4][..], 0));
            found.iter().map(|one| one.pid).collect::<Vec<_>>()
        };
        // What uses the GPU is not known yet, so both may. NVML alone is no use of it.
        let nvml = "3-4 rw-s 0 00:05 9 /dev/nvidiactl\n4-5 rw-s 0 00:05 8 /dev/nvidia0\n";
        for maps in [libcuda.to_owned(), format!("{libcuda}{nvml}")] {
            fs::write(program.join("maps"), maps).unwrap();
            assert_eq!(pids(), [30, 31, 40]);
        }
        fs::write(program.join("maps"), format!("{libcuda}{nvml}5-6 rw-s 0 00:05 7 /dev/nvidia-uvm\n"))
            .unwrap();
        assert_eq!(pids(), [30, 40]);
    }

    #[test]
    fn a_file_that_srun_writes_for_its_tasks_is_found() {
        let node = Node(tempfile::tempdir().unwrap());
        let dir = node.process(20, "batch", b"", ["slurm-7.out", "slurm-7.out"]);
        fs::write(dir.join("stat"), "20 (srun) S 1 1 1 0 -1 0 0").unwrap();
        symlink(node.file("step.log"), dir.join("fd/11")).unwrap();
        assert_eq!(node.outputs(), [("slurm-7.out".to_owned(), None), ("step.log".to_owned(), None)]);
    }

    #[test]
    fn the_number_of_files_is_bounded() {
        let node = Node(tempfile::tempdir().unwrap());
        for rank in 0..80_u32 {
            let names = [format!("{rank}.out"), format!("{rank}.err")];
            node.process(100 + rank, "0", b"", [&names[0], &names[1]]);
        }
        assert_eq!(node.outputs().len(), MOST_OUTPUTS);
    }
}

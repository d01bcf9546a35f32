//! Reads one process of a job. A process descriptor (pidfd) is held meanwhile, so that the data of another process with a reused id is
//! never taken for its own.
//!
//! This should run as the job's user. See [`crate::job_processes()`].

use std::path::{Path, PathBuf};

use railgate_fsutil::read;

use crate::gpu_processes::{FILE_BYTES, Stat, read_stat};
use crate::job_processes::Steps;
use crate::process_end::{Hold, ProcessId, ProcessWatch};

/// Limit for the name of a kernel function.
const KERNEL_BYTES: usize = 64;

/// A process of a job.
#[derive(Debug)]
pub struct JobMember {
    proc: PathBuf,
    id: ProcessId,
    job: u32,
    uid: u32,
    watch: ProcessWatch,
}

/// Why a process is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMember {
    /// It has ended; its id may belong to another process.
    #[error("the process has ended")]
    Gone,
    /// It has, in part, the rights of another user: a program that changes its user.
    #[error("the process has the rights of another user")]
    OtherUser,
    /// It is not a process of the job.
    #[error("the process is not one of the job")]
    OtherJob,
    /// It cannot be told.
    #[error("{0}")]
    Failed(String),
}

/// What the kernel tells about a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberState {
    /// State of its first thread: `R`, `S`, `D`, `T`, `t`, `Z`.
    pub state: char,
    /// The kernel function in which the first thread waits; `None` if it runs, or if that may not be read.
    pub kernel: Option<String>,
    /// Number of its threads.
    pub threads: u32,
}

/// Counts of a process, all its threads together since it began. They never decrease, and the process cannot set them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberWork {
    /// Calls that read; `None` if the kernel does not count them or does not show them to this reader.
    reads: Option<u64>,
    /// Page faults.
    faults: Option<u64>,
}

impl MemberWork {
    /// Whether the process has the program that it had at an earlier count. To begin another one, the kernel reads its file, and
    /// its memory is empty at first: both counts grow, so it is sufficient if one of them did not.
    pub fn is_same_program(self, earlier: MemberWork) -> bool {
        let stayed = |now: Option<u64>, then| now.is_some() && now == then;
        stayed(self.reads, earlier.reads) || stayed(self.faults, earlier.faults)
    }
}

impl JobMember {
    /// Holds a process, if it belongs to the job and to `uid`. `proc` is the root of the proc tree.
    ///
    /// # Errors
    /// Returns the reason why it must not be read.
    pub fn hold(proc: &Path, job: u32, uid: u32, id: ProcessId) -> Result<Self, NoMember> {
        let mut watch = ProcessWatch::new(1);
        match watch.hold(proc, id) {
            Hold::Held => {}
            Hold::Gone => return Err(NoMember::Gone),
            Hold::Refused(why) => return Err(NoMember::Failed(why)),
        }
        let mut member = JobMember { proc: proc.to_owned(), id, job, uid, watch };
        member.check()?;
        Ok(member)
    }

    /// Checks that the process still runs, belongs to the job, and has no rights but its user's. To be called before and after
    /// it is read: after an error, discard the data that was read.
    ///
    /// # Errors
    /// Returns the reason why it must not be read.
    pub fn check(&mut self) -> Result<(), NoMember> {
        let stat = self.stat()?;
        self.has_only_own_rights()?;
        let step = Steps::new(&self.proc).of(self.id.0, &stat);
        if step.is_none_or(|(job, _)| job != self.job) {
            return Err(NoMember::OtherJob);
        }
        // While the descriptor's process runs, no other one has its id.
        if self.watch.ended().is_empty() { Ok(()) } else { Err(NoMember::Gone) }
    }

    /// Reads its state. None of these reads waits for the process.
    ///
    /// # Errors
    /// Returns an error if it has ended.
    pub fn state(&self) -> Result<MemberState, NoMember> {
        let stat = self.stat()?;
        Ok(MemberState {
            state: stat.state,
            kernel: self.file("wchan").ok().and_then(|name| kernel_function(&name)),
            threads: stat.threads.unwrap_or(0),
        })
    }

    /// Counts how much it has done.
    pub fn work(&self) -> MemberWork {
        let io = self.file("io").unwrap_or_default();
        let reads = io.lines().find_map(|line| line.strip_prefix("syscr:")?.trim().parse().ok());
        MemberWork { reads, faults: self.stat().ok().and_then(|stat| stat.faults) }
    }

    /// Its process id in its own namespace of process ids, as its own threads see it.
    pub fn inner_pid(&self) -> u32 {
        let status = self.file("status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        line.and_then(|ids| ids.split_ascii_whitespace().next_back()?.parse().ok()).unwrap_or(self.id.0)
    }

    fn stat(&self) -> Result<Stat, NoMember> {
        match read_stat(&self.proc, self.id.0) {
            Ok(Some(stat)) if stat.started == Some(self.id.1) => Ok(stat),
            Ok(_) => Err(NoMember::Gone),
            Err(why) => Err(NoMember::Failed(why)),
        }
    }

    fn file(&self, name: &str) -> Result<String, String> {
        let path = self.proc.join(self.id.0.to_string()).join(name);
        read::prefix(&path, FILE_BYTES).map_err(|why| why.to_string())
    }

    /// Real, effective, saved and file system's ids: a program with the set-user-ID bit has the real one of its user.
    fn has_only_own_rights(&self) -> Result<(), NoMember> {
        let status = self.file("status").map_err(NoMember::Failed)?;
        let ids = |name: &str| -> Option<Vec<u32>> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().map(|id| id.parse().ok()).collect()
        };
        let (uids, gids) = (ids("Uid:").unwrap_or_default(), ids("Gid:").unwrap_or_default());
        let is_own = !uids.is_empty() && uids.iter().all(|uid| *uid == self.uid);
        let is_one = !gids.is_empty() && gids.iter().all(|gid| Some(gid) == gids.first());
        if is_own && is_one { Ok(()) } else { Err(NoMember::OtherUser) }
    }
}

/// The name in `wchan`, which is `0` for a thread that runs and for a reader who may not see it.
pub(crate) fn kernel_function(name: &str) -> Option<String> {
    let name = railgate_text::ascii_bytes(name.trim().as_bytes(), KERNEL_BYTES);
    (!name.is_empty() && name != "0").then_some(name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    const ID: ProcessId = (7, 4200);

    fn member(uids: &str, cgroup: &str) -> (tempfile::TempDir, JobMember) {
        let proc = tempfile::tempdir().unwrap();
        let dir = proc.path().join("7");
        fs::create_dir(&dir).unwrap();
        let stat = "7 (python) S 1 1 1 0 -1 0 30 99 4 99 0 0 0 0 20 0 12 0 4200 0 0";
        fs::write(dir.join("stat"), stat).unwrap();
        fs::write(dir.join("status"), format!("Name:\tpython\nUid:\t{uids}\nGid:\t5 5 5 5\nNSpid:\t7\t1\n"))
            .unwrap();
        fs::write(dir.join("cgroup"), format!("0::/system.slice/slurmstepd.scope/{cgroup}\n")).unwrap();
        let watch = ProcessWatch::new(1);
        let member = JobMember { proc: proc.path().to_owned(), id: ID, job: 9, uid: 1000, watch };
        (proc, member)
    }

    #[test]
    fn a_process_of_the_job_and_its_user_may_be_read() {
        let own = "1000\t1000\t1000\t1000";
        for (uids, cgroup, result) in [
            (own, "job_9/step_0/user/task_0", Ok(())),
            (own, "job_8/step_0/user/task_0", Err(NoMember::OtherJob)),
            ("1000\t0\t1000\t1000", "job_9/step_0", Err(NoMember::OtherUser)),
            ("1000\t1000\t0\t1000", "job_9/step_0", Err(NoMember::OtherUser)),
            ("0\t0\t0\t0", "job_9/step_0", Err(NoMember::OtherUser)),
            ("", "job_9/step_0", Err(NoMember::OtherUser)),
        ] {
            assert_eq!(member(uids, cgroup).1.check(), result, "{uids} {cgroup}");
        }
        let (_proc, mut other) = member(own, "job_9/step_0");
        other.id.1 += 1;
        assert_eq!(other.check(), Err(NoMember::Gone), "another process has the id");
    }

    #[test]
    fn the_state_is_read_and_a_missing_kernel_function_is_none() {
        let (proc, member) = member("1000\t1000\t1000\t1000", "job_9/step_0");
        let file = |name: &str, text: &str| fs::write(proc.path().join("7").join(name), text).unwrap();
        let state =
            |kernel: Option<&str>| MemberState { state: 'S', kernel: kernel.map(str::to_owned), threads: 12 };
        assert_eq!((member.state().unwrap(), member.inner_pid()), (state(None), 1));
        assert_eq!(member.work(), MemberWork { reads: None, faults: Some(34) });
        for (text, kernel) in [("0", None), ("", None), ("futex_wait_queue", Some("futex_wait_queue"))] {
            file("wchan", text);
            assert_eq!(member.state().unwrap(), state(kernel));
        }
        file("io", "rchar: 6976\nwchar: 0\nsyscr: 10\nsyscw: 0\n");
        assert_eq!(member.work(), MemberWork { reads: Some(10), faults: Some(34) });
    }

    #[test]
    fn another_program_would_change_both_counts() {
        let work = |reads, faults| MemberWork { reads, faults };
        let before = work(Some(10), Some(34));
        for (after, is_same) in [
            (before, true),
            (work(Some(99), Some(34)), true),
            (work(Some(10), Some(99)), true),
            (work(None, Some(34)), true),
            (work(Some(11), Some(35)), false),
            (work(None, Some(35)), false),
            (work(None, None), false),
        ] {
            assert_eq!(after.is_same_program(before), is_same, "{after:?}");
        }
        assert!(!work(None, None).is_same_program(work(None, None)));
    }
    #[test]
    fn a_process_that_becomes_another_program_has_done_more_of_both() {
        let mut child =
            Command::new("sh").args(["-c", "read x; exec cat"]).stdin(Stdio::piped()).spawn().unwrap();
        let exe = PathBuf::from(format!("/proc/{}/exe", child.id()));
        let ticks = read_stat("/proc".as_ref(), child.id()).unwrap().unwrap().started.unwrap();
        let (proc, id, watch) = (PathBuf::from("/proc"), (child.id(), ticks), ProcessWatch::new(1));
        let member = JobMember { proc, id, job: 9, uid: 1000, watch };
        // The shell is done with its own beginning when it waits for the line.
        while member.state().unwrap().state != 'S' {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (shell, before) = (fs::read_link(&exe).unwrap(), member.work());
        assert!(member.work().is_same_program(before), "{before:?}");
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        while fs::read_link(&exe).unwrap() == shell {
            std::thread::sleep(Duration::from_millis(5));
        }
        let after = member.work();
        assert!(after.reads > before.reads && after.faults > before.faults, "{before:?} {after:?}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

//! Waits for the end of processes that are not children, and asks the kernel how they ended.
//!
//! A process descriptor (pidfd) stays that of its process when the process id is used again, and becomes readable when the
//! process ends. Linux 6.15 and later keep the exit status for its holder, also if the parent has taken the status at once.
//! Earlier ones only show it in `/proc/PID/stat`, and only until then.
#![allow(
    unsafe_code,
    reason = "a process descriptor is opened by a system call without a wrapper, and asked by an ioctl"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use railgate_child::{Task, become_user};
use railgate_model::ProcessExit;
use serde::{Deserialize, Serialize};

use crate::calls::with_json;
use crate::gpu_processes::read_stat;

/// `PIDFD_GET_INFO` of linux/pidfd.h: `_IOWR(0xFF, 11, struct pidfd_info)` with the first size of that structure.
const GET_INFO: libc::Ioctl = 0xc040_ff0b;
/// `PIDFD_INFO_EXIT`.
const EXIT: u64 = 1 << 3;

/// The first version of `struct pidfd_info` of linux/pidfd.h.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const ZOMBIE: &str = "process-exit";
const DEADLINE: Duration = Duration::from_secs(2);

pub(crate) const TASK: Task = Task::new(ZOMBIE, |input| with_json(input, task));

/// Identifies a process: its id, and when it began, clock ticks after the boot.
pub type ProcessId = (u32, u64);

/// Descriptors of processes, at most so many.
#[derive(Debug)]
pub struct ProcessWatch {
    most: usize,
    held: Vec<(ProcessId, OwnedFd)>,
}

/// Result of [`ProcessWatch::hold`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It is watched, now or already before.
    Held,
    /// It has ended; its id may belong to another process.
    Gone,
    /// Not watched: too many are, or the kernel has no process descriptors.
    Refused(String),
}

/// A process that has ended.
#[derive(Debug)]
pub struct EndedProcess {
    /// The process.
    pub id: ProcessId,
    fd: OwnedFd,
}

/// What the kernel tells about the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitTold {
    /// How it ended.
    Exit(ProcessExit),
    /// Its parent has not taken its status yet: ask again.
    NotYet,
    /// This kernel does not tell it.
    Unsupported,
}

impl ProcessWatch {
    /// Watches at most `most` processes at a time.
    pub fn new(most: usize) -> Self {
        ProcessWatch { most, held: Vec::new() }
    }

    /// Begins to watch a process. Between the opening and the check of its beginning no other process can take its place
    /// unseen: the beginning is compared before and after.
    pub fn hold(&mut self, proc: &Path, id: ProcessId) -> Hold {
        if self.held.iter().any(|(held, _)| *held == id) {
            return Hold::Held;
        }
        if self.held.len() >= self.most {
            return Hold::Refused(format!("more than {} processes", self.most));
        }
        let is_same = || match read_stat(proc, id.0) {
            Ok(Some(stat)) => Ok(stat.started == Some(id.1)),
            Ok(None) => Ok(false),
            Err(why) => Err(why),
        };
        let opened = is_same().and_then(|same| {
            let fd = if same { open(id.0).map_err(|why| why.to_string())? } else { None };
            Ok(fd.filter(|_| is_same().unwrap_or(false)))
        });
        match opened {
            Ok(Some(fd)) => {
                self.held.push((id, fd));
                Hold::Held
            }
            Ok(None) => Hold::Gone,
            Err(why) => Hold::Refused(why),
        }
    }

    /// The descriptors: one becomes readable when its process ends.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.held.iter().map(|(_, fd)| fd.as_fd())
    }

    /// Takes out the processes that have ended since the last call.
    pub fn ended(&mut self) -> Vec<EndedProcess> {
        let mut fds: Vec<PollFd<'_>> = self.fds().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        if !matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1..)) {
            return Vec::new();
        }
        let over: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
        drop(fds);
        let (over, held): (Vec<_>, Vec<_>) = self.held.drain(..).zip(over).partition(|(_, is_over)| *is_over);
        self.held = held.into_iter().map(|(held, _)| held).collect();
        over.into_iter().map(|((id, fd), _)| EndedProcess { id, fd }).collect()
    }
}

impl EndedProcess {
    /// Asks the kernel how it ended.
    pub fn told(&self) -> ExitTold {
        let mut info = Info { mask: EXIT, ..Info::default() };
        // SAFETY: the structure is the one whose size the request names, and outlives the call.
        let answer = unsafe { libc::ioctl(self.fd.as_raw_fd(), GET_INFO, &raw mut info) };
        match answer {
            0 if info.mask & EXIT != 0 => ExitTold::Exit(ProcessExit::of_status(info.exit_code)),
            0 => ExitTold::NotYet,
            _ => match io::Error::last_os_error().raw_os_error() {
                // Before Linux 6.15: its parent has taken the status, and the kernel has forgotten it.
                Some(libc::ESRCH) => ExitTold::Exit(ProcessExit::Unknown),
                _ => ExitTold::Unsupported,
            },
        }
    }

    /// As `/proc/PID/stat` shows it to the job's user while the parent has not taken the status. Returns after at most
    /// four seconds.
    pub fn of_zombie(&self, proc: &Path, uid: u32, gid: u32) -> ProcessExit {
        let order = Order { proc: proc.to_owned(), id: self.id, uid, gid };
        let told = serde_json::to_vec(&order)
            .map_err(|why| why.to_string())
            .and_then(|order| railgate_child::ask(ZOMBIE, &order, DEADLINE))
            .and_then(|told| serde_json::from_slice(&told).map_err(|why| why.to_string()));
        told.unwrap_or(ProcessExit::Unknown)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    proc: PathBuf,
    id: ProcessId,
    uid: u32,
    gid: u32,
}

/// The kernel shows the status to the owner of the process, and not to root without CAP_SYS_PTRACE.
fn task(order: Order) -> Result<ProcessExit, String> {
    if order.uid != 0 {
        become_user(order.uid, order.gid, &[]).map_err(|why| why.to_string())?;
    }
    Ok(zombie_exit(&order.proc, order.id))
}

fn zombie_exit(proc: &Path, (pid, started): ProcessId) -> ProcessExit {
    let stat = read_stat(proc, pid);
    // To others than the owner the field is shown as 0, which is also an exit code. The link tells who may see it: a zombie
    // has no program any more (ENOENT), and for others the answer is EACCES.
    let link = std::fs::read_link(proc.join(pid.to_string()).join("exe"));
    let may_see = link.is_err_and(|why| why.kind() == io::ErrorKind::NotFound);
    let still = read_stat(proc, pid);
    match (stat, still) {
        (Ok(Some(stat)), Ok(Some(still))) if stat == still && stat.started == Some(started) && may_see => {
            stat.zombie_status().map_or(ProcessExit::Unknown, ProcessExit::of_status)
        }
        _ => ProcessExit::Unknown,
    }
}

/// `None` if there is no such process.
fn open(pid: u32) -> io::Result<Option<OwnedFd>> {
    // SAFETY: takes numbers, and returns a new descriptor that closes on exec.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(fd) {
        // SAFETY: opened above, and owned by this alone.
        Ok(fd @ 0..) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        _ => match io::Error::last_os_error() {
            why if why.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            why => Err(why),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use super::*;

    const PROC: &str = "/proc";

    fn start(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap()
    }

    fn id_of(child: &Child) -> ProcessId {
        (child.id(), read_stat(PROC.as_ref(), child.id()).unwrap().unwrap().started.unwrap())
    }

    fn one_ended(watch: &mut ProcessWatch) -> EndedProcess {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(ended) = watch.ended().pop() {
                return ended;
            }
            assert!(Instant::now() < until, "no end is noticed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether this kernel keeps the exit status for the holder of a descriptor: 6.15 and later.
    fn keeps_status() -> bool {
        let release = nix::sys::utsname::uname().unwrap().release().to_string_lossy().into_owned();
        let mut numbers = release.split(['.', '-']).filter_map(|part| part.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(6), Some(15))
    }

    #[test]
    fn the_structure_has_the_size_that_the_request_names() {
        assert_eq!(size_of::<Info>(), usize::try_from(GET_INFO >> 16 & 0x3fff).unwrap());
    }

    /// The parent takes the status at once, as torchrun does.
    #[test]
    fn the_exit_of_a_process_is_told_after_its_parent_has_taken_it() {
        for (script, exit) in [
            ("read x; exit 3", ProcessExit::Code(3)),
            ("read x; exit 0", ProcessExit::Code(0)),
            ("read x; kill -KILL $$", ProcessExit::Signal(9)),
        ] {
            let mut child = start(script);
            let mut watch = ProcessWatch::new(4);
            let id = id_of(&child);
            assert_eq!(watch.hold(PROC.as_ref(), id), Hold::Held);
            assert_eq!((watch.hold(PROC.as_ref(), id), watch.fds().count()), (Hold::Held, 1));
            assert!(watch.ended().is_empty());
            drop(child.stdin.take());
            child.wait().unwrap();
            let ended = one_ended(&mut watch);
            assert_eq!((ended.id, watch.fds().count()), (id, 0));
            let told = ended.told();
            if keeps_status() {
                assert_eq!(told, ExitTold::Exit(exit), "{script}");
            } else {
                assert!(matches!(told, ExitTold::Exit(ProcessExit::Unknown) | ExitTold::Unsupported));
            }
            assert_eq!(zombie_exit(PROC.as_ref(), id), ProcessExit::Unknown, "there is no such process");
        }
    }

    #[test]
    fn the_exit_of_a_zombie_is_in_its_stat() {
        for (script, exit) in [("exit 3", ProcessExit::Code(3)), ("kill -KILL $$", ProcessExit::Signal(9))] {
            let mut child = start(&format!("read x; {script}"));
            let mut watch = ProcessWatch::new(4);
            let id = id_of(&child);
            assert_eq!(zombie_exit(PROC.as_ref(), id), ProcessExit::Unknown, "it runs");
            watch.hold(PROC.as_ref(), id);
            drop(child.stdin.take());
            let ended = one_ended(&mut watch);
            assert_ne!(ended.told(), ExitTold::Exit(ProcessExit::Unknown));
            assert_eq!(zombie_exit(PROC.as_ref(), id), exit);
            assert_eq!(zombie_exit(PROC.as_ref(), (id.0, id.1 + 1)), ProcessExit::Unknown);
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_process_that_is_not_the_one_that_was_found_is_not_watched() {
        let mut child = start("read x");
        let (pid, ticks) = id_of(&child);
        let mut watch = ProcessWatch::new(4);
        assert_eq!(watch.hold(PROC.as_ref(), (pid, ticks + 1)), Hold::Gone);
        assert_eq!(watch.hold(PROC.as_ref(), (pid, ticks)), Hold::Held);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ProcessWatch::new(4).hold(PROC.as_ref(), (pid, ticks)), Hold::Gone);
        // The descriptor stays that of the process whose id is free again.
        assert_eq!(one_ended(&mut watch).id, (pid, ticks));
    }

    #[test]
    fn the_number_of_descriptors_is_bounded() {
        let mut children: Vec<Child> = (0..5).map(|_| start("read x")).collect();
        let mut watch = ProcessWatch::new(3);
        let held: Vec<Hold> = children.iter().map(|child| watch.hold(PROC.as_ref(), id_of(child))).collect();
        assert_eq!(held.iter().filter(|hold| **hold == Hold::Held).count(), 3);
        assert_eq!((held[4].clone(), watch.fds().count()), (held[3].clone(), 3));
        assert!(matches!(&held[4], Hold::Refused(why) if why == "more than 3 processes"), "{held:?}");
        // An end makes room.
        children[1].kill().unwrap();
        children[1].wait().unwrap();
        assert_eq!(one_ended(&mut watch).id.0, children[1].id());
        assert_eq!(watch.hold(PROC.as_ref(), id_of(&children[4])), Hold::Held);
        for child in &mut children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

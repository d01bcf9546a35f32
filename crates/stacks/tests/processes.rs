//! Takes the stacks of real processes: Python programs and others, stopped, busy, gone, hostile.
//!
//! The job is a proc tree of this test: files of the real one, and a cgroup for each process. As root, the processes belong to
//! another user. Needs `/usr/bin/python3`, 3.11 or later.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test without the standard harness")]

#[path = "../../child/tests/one_by_one/mod.rs"]
mod one_by_one;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use railgate_stacks::{Order, RankStack, Stacks, TASKS, Target, collect, group, text};

const PYTHON: &str = "/usr/bin/python3";
const JOB: u32 = 7;
/// User and group of the test processes, if the test runs as root: `nobody` on Debian.
const USER: u32 = 65_534;
/// Generous: a busy machine is slow.
const DEADLINE: Duration = Duration::from_secs(30);

/// Processes of a user, in a directory with their scripts and their proc tree.
struct Job {
    dir: tempfile::TempDir,
    children: Vec<Child>,
    targets: Vec<Target>,
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Job {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::create_dir(dir.path().join("proc")).unwrap();
        Job { dir, children: Vec::new(), targets: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// Adds a Python program, and waits for its line `ready`.
    fn python(&mut self, text: &str) -> u32 {
        let script = self.file(&format!("rank{}.py", self.targets.len()), text);
        let mut command = Command::new(PYTHON);
        command.arg(script).stdout(Stdio::piped()).env_remove("PYTHONHOME");
        let pid = self.start(command, JOB);
        let out = self.children.last_mut().unwrap().stdout.take().unwrap();
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        pid
    }

    fn start(&mut self, mut command: Command, job: u32) -> u32 {
        command.stdin(Stdio::piped()).current_dir("/");
        if nix::unistd::geteuid().is_root() {
            command.uid(USER).gid(USER);
        }
        let child = command.spawn().unwrap();
        let pid = child.id();
        self.children.push(child);
        self.add(pid, job);
        pid
    }

    fn add(&mut self, pid: u32, job: u32) {
        let dir = self.path("proc").join(pid.to_string());
        fs::create_dir(&dir).unwrap();
        for name in ["stat", "status", "io", "wchan"] {
            symlink(format!("/proc/{pid}/{name}"), dir.join(name)).unwrap();
        }
        let cgroup = format!("0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0\n");
        fs::write(dir.join("cgroup"), cgroup).unwrap();
        let rank = u32::try_from(self.targets.len()).unwrap();
        self.targets.push(Target { rank, id: (pid, ticks(pid)) });
    }

    fn order(&self) -> Order {
        let (uid, gid) = match nix::unistd::geteuid() {
            root if root.is_root() => (USER, USER),
            user => (user.as_raw(), nix::unistd::getegid().as_raw()),
        };
        Order { proc: self.path("proc"), job: JOB, uid, gid, targets: self.targets.clone() }
    }

    fn collect(&self) -> Stacks {
        let stacks = collect(&self.order(), DEADLINE);
        assert_eq!(stacks.problems, [""; 0]);
        assert_eq!(stacks.ranks.len(), self.targets.len());
        assert!(stacks.taken > 0 && stacks.left_out == 0);
        stacks
    }

    /// Collects until the only process is in this state and in this call: after its line it is still on its way there.
    fn settle(&self, state: char, call: &str) -> RankStack {
        let until = Instant::now() + DEADLINE;
        loop {
            let one = self.collect().ranks.remove(0);
            if one.state == Some(state) && one.python.is_some() && frames(&one)[0].starts_with(call) {
                return one;
            }
            assert!(Instant::now() < until, "{one:?}");
        }
    }
}

fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}

/// Function and file of each frame.
fn frames(rank: &RankStack) -> Vec<String> {
    let frames = rank.python.as_ref().unwrap_or_else(|| panic!("{rank:?}"));
    let name = |path: &str| Path::new(path).file_name().unwrap().to_str().unwrap().to_owned();
    frames.iter().map(|frame| format!("{} ({}:{})", frame.function, name(&frame.file), frame.line)).collect()
}

fn why(rank: &RankStack) -> &str {
    assert_eq!(rank.python, None);
    rank.why.as_deref().unwrap()
}

const SLEEP: &str = "\
import time
def nap():
    print('ready', flush=True)
    time.sleep(600)
def step():
    nap()
step()
";

fn a_sleeping_rank_shows_its_calls_in_two_files() {
    let mut job = Job::new();
    job.file("loader.py", "import time\n\nclass Loader:\n    def take(self):\n        print('ready', flush=True)\n        time.sleep(600)\n");
    job.python("import loader\ndef train():\n    loader.Loader().take()\ntrain()\n");
    let rank = job.settle('S', "Loader.take (loader.py:6)");
    assert_eq!(frames(&rank), ["Loader.take (loader.py:6)", "train (rank0.py:3)", "<module> (rank0.py:4)"]);
    assert!(rank.kernel.as_ref().is_some_and(|name| name.contains("nanosleep")), "{rank:?}");
    assert_eq!((rank.threads, rank.why.as_deref()), (1, None));
    let groups = group([("gn1", &rank)]);
    assert_eq!(text(&groups), "rank 0 on gn1 in Loader.take (loader.py:6)");
}

fn a_stopped_rank_is_read_and_stays_stopped() {
    let mut job = Job::new();
    let pid = job.python(SLEEP);
    job.settle('S', "nap (rank0.py:4)");
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGSTOP).unwrap();
    let rank = job.settle('T', "nap (rank0.py:4)");
    assert_eq!(frames(&rank)[..2], ["nap (rank0.py:4)", "step (rank0.py:6)"]);
    assert_eq!(job.settle('T', "nap (rank0.py:4)"), rank);
    assert_eq!(text(&group([("gn1", &rank)])), "rank 0 on gn1 stopped (state T) in nap (rank0.py:4)");
}

fn a_busy_rank_is_read_and_not_paused() {
    let mut job = Job::new();
    job.python("def spin():\n    print('ready', flush=True)\n    while True: pass\nspin()\n");
    let rank = job.settle('R', "spin (rank0.py:3)");
    assert_eq!(frames(&rank), ["spin (rank0.py:3)", "<module> (rank0.py:4)"]);
    assert_eq!(rank.kernel, None);
    assert_eq!(job.settle('R', "spin (rank0.py:3)").pid, rank.pid);
}

fn a_rank_that_waits_for_input_names_the_kernel_function() {
    let mut job = Job::new();
    job.python("import os\ndef take():\n    print('ready', flush=True)\n    os.read(0, 1)\ntake()\n");
    let rank = job.settle('S', "take (rank0.py:4)");
    assert!(rank.kernel.as_ref().is_some_and(|name| name.contains("pipe")), "{rank:?}");
}

fn other_processes_have_a_reason() {
    let mut job = Job::new();
    let sleep = |seconds: &str| {
        let mut command = Command::new("/bin/sleep");
        command.arg(seconds);
        command
    };
    job.start(sleep("600"), JOB);
    let gone = job.start(sleep("600"), JOB);
    job.start(sleep("600"), JOB);
    job.start(sleep("600"), JOB + 1);
    let ended = &mut job.children[1];
    ended.kill().unwrap();
    ended.wait().unwrap();
    assert!(!Path::new(&format!("/proc/{gone}")).exists());
    // The id belongs to another program by now.
    job.targets[2].id.1 += 1;
    let stacks = job.collect();
    let whys: Vec<&str> = stacks.ranks.iter().map(why).collect();
    let gone = "the process has ended";
    assert_eq!(whys, ["not a Python program", gone, gone, "the process is not one of the job"]);
    let states: Vec<Option<char>> = stacks.ranks.iter().map(|rank| rank.state).collect();
    assert_eq!(states, [Some('S'), None, None, None]);
    let kernel = stacks.ranks[0].kernel.as_deref().unwrap();
    assert_eq!(text(&group([("gn1", &stacks.ranks[0])])), format!("rank 0 on gn1 in the kernel: {kernel}"));
}

fn processes_with_other_rights_are_not_read() {
    if !nix::unistd::geteuid().is_root() {
        println!("     (not root: skipped)");
        return;
    }
    let mut job = Job::new();
    // This process is root's.
    job.add(std::process::id(), JOB);
    let stacks = job.collect();
    assert_eq!(why(&stacks.ranks[0]), "the process has the rights of another user");
    assert_eq!((stacks.ranks[0].state, stacks.ranks[0].threads), (None, 0));
    // No child reads as root.
    let order = Order { uid: 0, gid: 0, ..job.order() };
    let stacks = collect(&order, DEADLINE);
    assert!(why(&stacks.ranks[0]).contains("must not be root"), "{stacks:?}");
    assert!(stacks.problems[0].contains("must not be root"), "{stacks:?}");
}

const NOT_DUMPABLE: &str = "\
import ctypes, mmap, os, time
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0
";

fn a_process_that_is_not_dumpable_is_read_with_the_capability() {
    let mut job = Job::new();
    job.python(&format!("{NOT_DUMPABLE}{SLEEP}"));
    job.python(&format!(
        "{NOT_DUMPABLE}def work():\n    print('ready', flush=True)\n    while True: (os.pread(zero, 1, 0), mmap.mmap(-1, 4096).write(b'x'))\n\
         zero = os.open('/dev/zero', os.O_RDONLY)\nwork()\n"
    ));
    let stacks = job.collect();
    if !nix::unistd::geteuid().is_root() {
        assert!(stacks.ranks.iter().all(|rank| why(rank).contains("denies access")), "{stacks:?}");
        return;
    }
    assert!(frames(&stacks.ranks[0])[0].starts_with("nap (rank0.py:"), "{stacks:?}");
    assert!(stacks.ranks[0].kernel.is_some());
    // A process that reads files and gets memory could have been another program for a moment, unless it had no processor while
    // it was read.
    let until = Instant::now() + DEADLINE;
    while job.collect().ranks[1].why.as_ref().is_none_or(|why| !why.starts_with("it was too busy")) {
        assert!(Instant::now() < until);
    }
}

fn of_many_threads_the_main_one_is_shown() {
    let mut job = Job::new();
    job.python(
        "import threading, time\ndef idle():\n    time.sleep(600)\n\
         for _ in range(500): threading.Thread(target=idle, daemon=True).start()\n\
         def main():\n    print('ready', flush=True)\n    time.sleep(600)\nmain()\n",
    );
    let rank = job.settle('S', "main (rank0.py:7)");
    assert_eq!(rank.threads, 501);
}

fn names_cannot_control_a_terminal() {
    let mut job = Job::new();
    job.python(
        "import time\ndef evil():\n    print('ready', flush=True)\n    time.sleep(600)\n\
         name = 'e\\x1b[2J\\n\\u202e' + 'x' * 500\n\
         evil.__code__ = evil.__code__.replace(co_name=name, co_qualname=name, co_filename='/x/\\x1b]0;a\\x07.py')\n\
         evil()\n",
    );
    let rank = job.settle('S', "e?[2J??xxx");
    let frame = &rank.python.as_ref().unwrap()[0];
    assert!(frame.function.len() <= 128, "{frame:?}");
    assert_eq!(frame.file, "/x/?]0;a?.py");
}

/// py-spy opens the file of Python's library, whose path is now that of a FIFO.
fn a_process_that_hangs_its_reader_costs_its_own_stack_only() {
    let mut job = Job::new();
    job.python(SLEEP);
    let lib = job.path("libpython3.11.so.1.0");
    job.python(&format!(
        "import mmap, os, time\npath = '{}'\n\
         with open(path, 'w+b') as file:\n    file.write(b'x' * 4096)\n    file.flush()\n    \
             kept = mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)\n\
         os.unlink(path)\nos.mkfifo(path + ' (deleted)')\n\
         print('ready', flush=True)\ntime.sleep(600)\n",
        lib.display()
    ));
    job.python(SLEEP);
    let stacks = job.collect();
    assert_eq!(why(&stacks.ranks[1]), "no answer in 2.0 s");
    assert_eq!(stacks.ranks[1].state, Some('S'));
    for rank in [0, 2] {
        assert!(frames(&stacks.ranks[rank])[0].starts_with("nap ("), "{stacks:?}");
    }
}

fn without_time_every_rank_has_an_entry() {
    let mut job = Job::new();
    job.python(SLEEP);
    let stacks = collect(&job.order(), Duration::ZERO);
    assert_eq!((stacks.ranks.len(), why(&stacks.ranks[0])), (1, "no time was left"));
    let many = Order { targets: vec![job.targets[0]; 300], ..job.order() };
    let stacks = collect(&many, Duration::ZERO);
    assert_eq!((stacks.ranks.len(), stacks.left_out), (256, 44));
}

fn main() -> ExitCode {
    if let Some(code) = railgate_child::dispatch(&[TASKS]) {
        return code;
    }
    if !Path::new(PYTHON).exists() {
        println!("no {PYTHON}: skipped");
        return ExitCode::SUCCESS;
    }
    one_by_one::run(&[
        ("a_sleeping_rank_shows_its_calls_in_two_files", a_sleeping_rank_shows_its_calls_in_two_files),
        ("a_stopped_rank_is_read_and_stays_stopped", a_stopped_rank_is_read_and_stays_stopped),
        ("a_busy_rank_is_read_and_not_paused", a_busy_rank_is_read_and_not_paused),
        (
            "a_rank_that_waits_for_input_names_the_kernel_function",
            a_rank_that_waits_for_input_names_the_kernel_function,
        ),
        ("other_processes_have_a_reason", other_processes_have_a_reason),
        ("processes_with_other_rights_are_not_read", processes_with_other_rights_are_not_read),
        (
            "a_process_that_is_not_dumpable_is_read_with_the_capability",
            a_process_that_is_not_dumpable_is_read_with_the_capability,
        ),
        ("of_many_threads_the_main_one_is_shown", of_many_threads_the_main_one_is_shown),
        ("names_cannot_control_a_terminal", names_cannot_control_a_terminal),
        (
            "a_process_that_hangs_its_reader_costs_its_own_stack_only",
            a_process_that_hangs_its_reader_costs_its_own_stack_only,
        ),
        ("without_time_every_rank_has_an_entry", without_time_every_rank_has_an_entry),
    ])
}

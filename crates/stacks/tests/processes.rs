//! Takes the stacks of real processes: Python programs and others, stopped, busy, gone, hostile.
//!
//! The job is a proc tree of this test: files of the real one, and a cgroup for each process. As root, the processes belong to
//! another user. Needs `/usr/bin/python3`, 3.11 or later.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test without the standard harness")]

#[path = "../../child/tests/one_by_one/mod.rs"]
mod one_by_one;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use railgate_node_report::stacks::NativeFrame;
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
    /// What those print that say when they are ready.
    out: Vec<BufReader<ChildStdout>>,
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
        Job { dir, children: Vec::new(), out: Vec::new(), targets: Vec::new() }
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
        self.ready();
        pid
    }

    /// Adds this program as one that is not Python.
    fn program(&mut self, mode: &str) -> u32 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(mode).stdout(Stdio::piped());
        let pid = self.start(command, JOB);
        self.ready();
        pid
    }

    fn ready(&mut self) {
        let mut out = BufReader::new(self.children.last_mut().unwrap().stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        self.out.push(out);
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

fn a_busy_rank_is_read_and_continues() {
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

/// Function and file of each native frame.
fn functions(rank: &RankStack) -> Vec<String> {
    let native = rank.native.as_ref().unwrap_or_else(|| panic!("{rank:?}"));
    let name = |path: &str| Path::new(path).file_name().unwrap_or_default().to_str().unwrap().to_owned();
    let text = |frame: &NativeFrame| {
        format!("{} ({})", frame.function.as_deref().unwrap_or("?"), name(&frame.object))
    };
    native.frames.iter().map(text).collect()
}

fn tracer(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("TracerPid:")).unwrap().trim().to_owned()
}

/// What this program does as a process of a rank.
#[inline(never)]
fn rank_that_sleeps() {
    println!("ready");
    std::thread::sleep(Duration::from_secs(600));
    println!("done");
}

#[inline(never)]
fn rank_that_spins() {
    println!("ready");
    while std::hint::black_box(true) {}
    println!("done");
}

fn name_of_this_program() -> String {
    std::env::current_exe().unwrap().file_name().unwrap().to_str().unwrap().to_owned()
}

fn a_program_without_python_shows_its_functions() {
    let mut job = Job::new();
    for (mode, function) in
        [("sleeps", "processes::rank_that_sleeps"), ("spins", "processes::rank_that_spins")]
    {
        let pid = job.program(mode);
        let until = Instant::now() + DEADLINE;
        let rank = loop {
            let rank = job.collect().ranks.pop().unwrap();
            let is_there = |rank: &RankStack| {
                let found = functions(rank);
                let is_asleep = found.first().is_some_and(|text| text.starts_with("clock_nanosleep"));
                (mode == "spins" || is_asleep) && found.iter().any(|text| text.starts_with(function))
            };
            if rank.native.is_some() && is_there(&rank) {
                break rank;
            }
            assert!(Instant::now() < until, "{rank:?}");
        };
        let found = functions(&rank);
        assert!(found.iter().any(|text| text.starts_with("processes::main (")), "{found:?}");
        assert_eq!(rank.native.as_ref().unwrap().cut, None, "{found:?}");
        if mode == "sleeps" {
            assert_eq!(functions(&job.collect().ranks.remove(0)), found, "after a pause");
        }
        assert_eq!((rank.python.clone(), why(&rank)), (None, "not a Python program"));
        let text = text(&group([("gn1", &rank)]));
        match mode {
            "sleeps" => assert!(text.starts_with("rank 0 on gn1 in clock_nanosleep (called by "), "{text}"),
            _ => assert!(text.ends_with(&format!(" ({})", name_of_this_program())), "{text}"),
        }
        assert_eq!(tracer(pid), "0");
    }
}

fn of_a_python_program_the_functions_that_python_called_are_shown() {
    let mut job = Job::new();
    job.python(SLEEP);
    job.settle('S', "nap (rank0.py:4)");
    let rank = job.collect().ranks.remove(0);
    let found = functions(&rank);
    assert_eq!(found[0], "clock_nanosleep (libc.so.6)");
    assert!(found.len() < 10 && !found.iter().any(|text| text.contains("_PyEval_EvalFrame")), "{found:?}");
    assert_eq!(rank.native.as_ref().unwrap().cut, None);
    assert_eq!(job.collect().ranks.remove(0), rank, "and again");
}

/// Its child sends signals, each after the answer to the last one.
const SIGNALS: &str = "\
import os, signal
kinds = [signal.SIGUSR1, signal.SIGRTMIN]
signals = answers = 0
def count(*_):
    global signals
    signals += 1
for kind in kinds:
    signal.signal(kind, count)
rank = os.getpid()
read, write = os.pipe()
if os.fork() == 0:
    os.close(write)
    while True:
        kinds.append(kinds.pop(0))
        os.kill(rank, kinds[0])
        if not os.read(read, 1):
            os._exit(0)
os.close(read)
print('ready', flush=True)
while True:
    if answers < signals:
        answers += 1
        os.write(write, b'.')
        os.write(1, b'.')
";

/// The thread is stopped for a moment each time; signals that arrive then must not be lost.
fn a_rank_that_runs_gets_all_its_signals() {
    const STOPS: u32 = 150;
    let mut job = Job::new();
    job.python(SIGNALS);
    let mut out = job.out.pop().unwrap();
    let answered = &AtomicU32::new(0);
    std::thread::scope(|scope| {
        // Ends with the process.
        scope.spawn(move || {
            while out.read_exact(&mut [0]).is_ok() {
                answered.fetch_add(1, Relaxed);
            }
        });
        let until = Instant::now() + 2 * DEADLINE;
        let mut stops = 0;
        while stops < STOPS && Instant::now() < until {
            stops += u32::from(job.collect().ranks[0].native.is_some());
        }
        let before = answered.load(Relaxed);
        while answered.load(Relaxed) == before && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let is_answering = answered.load(Relaxed) > before;
        drop(job);
        assert!(
            stops == STOPS && is_answering,
            "stopped {stops} times; a signal was lost after {before} others"
        );
    });
}

/// A pause would make `epoll_wait` return with an error, which this program does not expect.
fn a_rank_in_a_call_that_a_pause_would_end_is_not_stopped() {
    let mut job = Job::new();
    job.python(
        "import ctypes, select\nlibc = ctypes.CDLL(None)\nevents = ctypes.create_string_buffer(64)\n\
         fd = select.epoll()\nprint('ready', flush=True)\n\
         libc.epoll_wait(fd.fileno(), events, 1, -1)\n",
    );
    let rank = job.settle('S', "<module> (rank0.py:6)");
    assert_eq!(functions(&rank)[0], "epoll_wait (libc.so.6)");
    let cut = rank.native.as_ref().unwrap().cut.as_deref();
    assert!(cut.is_some_and(|why| why.contains("registers")), "a pause would show more: {cut:?}");
    assert_eq!(job.settle('S', "<module> (rank0.py:6)").pid, rank.pid);
}

/// Its ids and its files are those of its namespaces.
fn a_rank_in_a_container_is_read() {
    let mut job = Job::new();
    let script = job.file("rank.py", SLEEP);
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--mount", "--fork", "--kill-child", PYTHON]);
    command.arg(script).stdout(Stdio::piped());
    let outer = job.start(command, JOB);
    let mut out = BufReader::new(job.children[0].stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    if line.is_empty() {
        println!("     (no user namespaces here: skipped)");
        return;
    }
    let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap();
    job.targets.clear();
    job.add(children.trim().parse().unwrap(), JOB);
    let rank = job.settle('S', "nap (rank.py:4)");
    assert_eq!(functions(&rank)[0], "clock_nanosleep (libc.so.6)");
}

fn a_rank_that_is_being_debugged_keeps_its_debugger() {
    let mut job = Job::new();
    let pid = job.program("spins");
    let id = Pid::from_raw(i32::try_from(pid).unwrap());
    ptrace::seize(id, ptrace::Options::empty()).unwrap();
    let rank = job.collect().ranks.remove(0);
    assert_eq!(
        (rank.native, rank.native_why.as_deref()),
        (None, Some("ptrace: EPERM: Operation not permitted"))
    );
    assert_eq!(tracer(pid), std::process::id().to_string());
}

/// The code is a loop in a file whose unwind tables and header are damaged.
const BAD_TABLES: &str = r#"
import ctypes, mmap, os, random, struct, sys
random.seed(SEED)
code = b'\xeb\xfe'
def load(kind, offset, size): return struct.pack('<IIQQQQQQ', kind, 5, offset, offset, offset, size, size, 4096)
size = random.choice([8192, 1 << 40, (1 << 64) - 4096]) if SEED % 2 else 8192
head = b'\x7fELF\x02\x01\x01' + bytes(9) + struct.pack('<HHIQQQIHHHHHH', 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
head += load(1, 0, size) + load(0x6474e550, 4096, random.choice([12, 512, 4000]))
hdr = bytes([1, 0x1b, 0x03, 0x3b]) + struct.pack('<iI', random.choice([508, -100, 4]), random.choice([1, 0xffffffff]))
hdr += struct.pack('<ii', -2048, 508) + random.randbytes(488)
frames = struct.pack('<II', random.choice([20, 0, 0xfffffff0]), random.choice([0, 4])) + random.randbytes(3500)
image = (head.ljust(2048, b'\0') + code).ljust(4096, b'\0') + (hdr + frames).ljust(4096, b'\0')
path = 'PATH'
with open(path, 'wb') as file: file.write(image)
fd = os.open(path, os.O_RDONLY)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, 8192, 5, 2, fd, 0)
spin = ctypes.CFUNCTYPE(None)(at + 2048)
print('ready', flush=True)
spin()
"#;

fn damaged_unwind_tables_cost_only_the_native_stack() {
    if !cfg!(target_arch = "x86_64") {
        println!("     (code for x86-64: skipped)");
        return;
    }
    for seed in 0..24 {
        let mut job = Job::new();
        let path = job.path("damaged.so").display().to_string();
        job.python(&BAD_TABLES.replace("SEED", &seed.to_string()).replace("PATH", &path));
        let until = Instant::now() + DEADLINE;
        loop {
            let rank = job.collect().ranks.remove(0);
            assert!(rank.python.is_some(), "{rank:?}");
            if let Some(native) = &rank.native
                && functions(&rank).first().is_some_and(|text| text.starts_with("? (damaged.so)"))
            {
                assert!(native.frames.len() < 64 && native.cut.is_some(), "{rank:?}");
                break;
            }
            assert!(Instant::now() < until, "{rank:?}");
        }
    }
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
    assert!(stacks.ranks[0].kernel.is_some());
    assert!(text(&group([("gn1", &stacks.ranks[0])])).ends_with("nanosleep (called by sleep)"), "{stacks:?}");
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
    assert_eq!((&stacks.ranks[0].native, &stacks.ranks[0].native_why), (&None, &stacks.ranks[0].why));
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
    let too_busy = |why: &Option<String>| why.as_ref().is_some_and(|why| why.starts_with("it was too busy"));
    let (mut python, mut native) = (false, false);
    while !(python && native) {
        let rank = job.collect().ranks.pop().unwrap();
        (python, native) = (python || too_busy(&rank.why), native || too_busy(&rank.native_why));
        assert!(Instant::now() < until, "{rank:?}");
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
    match std::env::args().nth(1).as_deref() {
        Some("sleeps") => rank_that_sleeps(),
        Some("spins") => rank_that_spins(),
        _ => {}
    }
    if !Path::new(PYTHON).exists() {
        println!("no {PYTHON}: skipped");
        return ExitCode::SUCCESS;
    }
    one_by_one::run(&[
        ("a_sleeping_rank_shows_its_calls_in_two_files", a_sleeping_rank_shows_its_calls_in_two_files),
        ("a_stopped_rank_is_read_and_stays_stopped", a_stopped_rank_is_read_and_stays_stopped),
        ("a_busy_rank_is_read_and_continues", a_busy_rank_is_read_and_continues),
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
        ("a_program_without_python_shows_its_functions", a_program_without_python_shows_its_functions),
        (
            "of_a_python_program_the_functions_that_python_called_are_shown",
            of_a_python_program_the_functions_that_python_called_are_shown,
        ),
        ("a_rank_that_runs_gets_all_its_signals", a_rank_that_runs_gets_all_its_signals),
        ("a_rank_in_a_container_is_read", a_rank_in_a_container_is_read),
        (
            "a_rank_in_a_call_that_a_pause_would_end_is_not_stopped",
            a_rank_in_a_call_that_a_pause_would_end_is_not_stopped,
        ),
        (
            "a_rank_that_is_being_debugged_keeps_its_debugger",
            a_rank_that_is_being_debugged_keeps_its_debugger,
        ),
        (
            "damaged_unwind_tables_cost_only_the_native_stack",
            damaged_unwind_tables_cost_only_the_native_stack,
        ),
        ("without_time_every_rank_has_an_entry", without_time_every_rank_has_an_entry),
    ])
}

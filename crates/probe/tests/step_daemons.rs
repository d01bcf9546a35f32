//! Processes called slurmstepd with a command line that cannot be read: in the proc tree of this test it is a file on a
//! FUSE file system that never answers. (In the real tree, kernels before 4.17 read it from the process's own memory,
//! which a user can make hang in the same way.) Needs root and /dev/fuse.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test without the standard harness")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use railgate_probe::dispatch;
use railgate_probe::{JobHere, job_here, job_is_stopped};

const SERVE: &str = "serve-what-never-answers";
/// Size of the file, bytes.
const SIZE: u32 = 65_536;
/// Time limit that is generous even on a busy machine. A real hang would last forever.
const GUARD: Duration = Duration::from_secs(30);
const JOB: u32 = 4711;

/// The part of FUSE's protocol that one file needs: it has a size and can be opened, and reads are never answered.
fn serve(dir: &Path) {
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    mount(Some("silent"), dir, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
    println!("mounted");
    let mut request = vec![0_u8; 1 << 20];
    loop {
        let Ok(length) = (&device).read(&mut request) else { return };
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let (opcode, unique, node) = (word(4), &request[8..16], word(16));
        assert!(length >= 40);
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let attributes = |node: u32| {
            let mode = if node == 1 { 0o40_755 } else { 0o100_644 };
            // Inode, size, blocks, times, their nanoseconds, mode, links, uid, gid, device, block size, flags.
            words(&[node, 0, SIZE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0])
        };
        let (error, body) = match opcode {
            // INIT: version, readahead, flags, background, write size, granularity, pages.
            26 => (0, words(&[7, 31, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            // LOOKUP: inode, generation, validity of the entry and of the attributes.
            1 => (0, [words(&[2, 0, 0, 0, 60, 0, 60, 0, 0, 0]), attributes(2)].concat()),
            // GETATTR
            3 => (0, [words(&[60, 0, 0, 0]), attributes(node)].concat()),
            // OPEN
            14 => (0, words(&[1, 0, 0, 0])),
            // READ, FORGET
            15 | 2 | 42 => continue,
            _ => (-libc::ENOSYS, Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).unwrap();
        let head = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), unique].concat();
        let _ = (&device).write(&[head, body].concat());
    }
}

/// A proc tree with one process called slurmstepd, and the file system with its command line. Ending the server
/// releases the process that waits for it.
struct Tree {
    dir: tempfile::TempDir,
    server: Child,
}

fn start(arguments: &[&str], word: &str) -> Child {
    let mut child = Command::new("/proc/self/exe").args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), word);
    child
}

impl Tree {
    fn new(uid: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let silent = dir.path().join("silent");
        fs::create_dir(&silent).unwrap();
        let server = start(&[SERVE, silent.to_str().unwrap()], "mounted");
        let tree = Tree { dir, server };
        let process = tree.proc().join("42");
        fs::create_dir_all(&process).unwrap();
        let uids = format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
        // A stopped task below it, in no cgroup of Slurm, so that its job has to be found through the slurmstepd.
        let task = tree.proc().join("43");
        fs::create_dir_all(&task).unwrap();
        for (dir, name, state, parent) in [(&process, "slurmstepd", 'S', 1), (&task, "python3", 'T', 42)] {
            fs::write(dir.join("stat"), format!("1 ({name}) {state} {parent} 1 1 0 -1 0 0")).unwrap();
            fs::write(dir.join("comm"), format!("{name}\n")).unwrap();
            fs::write(dir.join("status"), &uids).unwrap();
            fs::write(dir.join("cgroup"), "0::/\n").unwrap();
        }
        std::os::unix::fs::symlink(silent.join("x"), process.join("cmdline")).unwrap();
        assert!(tree.hangs(), "the stand-in does what it is for");
        tree
    }

    fn proc(&self) -> PathBuf {
        self.dir.path().join("proc")
    }

    /// Whether an unguarded read hangs.
    fn hangs(&self) -> bool {
        let path = self.proc().join("42/cmdline");
        let mut reader = Command::new("cat").arg(path).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let hangs = reader.try_wait().unwrap().is_none();
        let _ = reader.kill();
        hangs
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = umount2(&self.dir.path().join("silent"), MntFlags::MNT_DETACH);
    }
}

/// Runs `work` in a thread, so that a hang fails the test. The thread ends when the server has ended.
fn guarded<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(work()));
    receive.recv_timeout(GUARD).unwrap_or_else(|_| panic!("{what} hangs"))
}

fn the_command_line_of_a_users_process_is_not_read() {
    let tree = Tree::new(5001);
    let (here, stopped) = (tree.proc(), tree.proc());
    assert_eq!(guarded("job_here", move || job_here(&here, JOB)), Ok(JobHere::Gone));
    assert!(!guarded("job_is_stopped", move || job_is_stopped(&stopped, JOB)));
}

fn a_hanging_process_of_root_ends_at_the_deadline() {
    let tree = Tree::new(0);
    let (here, stopped) = (tree.proc(), tree.proc());
    let said = guarded("job_here", move || job_here(&here, JOB));
    assert!(said.as_ref().is_err_and(|why| why.contains("no answer")), "{said:?}");
    assert!(!guarded("job_is_stopped", move || job_is_stopped(&stopped, JOB)));
}

fn main() -> ExitCode {
    if let Some(code) = dispatch(&[]) {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [word, dir] if word == SERVE => serve(Path::new(dir)),
        _ => {
            let able = nix::unistd::geteuid().is_root() && File::open("/dev/fuse").is_ok();
            let trial = |name, test: fn()| {
                Trial::test(name, move || {
                    test();
                    Ok(())
                })
                .with_ignored_flag(!able)
            };
            let tests = vec![
                trial(
                    "the_command_line_of_a_users_process_is_not_read",
                    the_command_line_of_a_users_process_is_not_read,
                ),
                trial(
                    "a_hanging_process_of_root_ends_at_the_deadline",
                    a_hanging_process_of_root_ends_at_the_deadline,
                ),
            ];
            let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
            return libtest_mimic::run(&arguments, tests).exit_code();
        }
    }
    ExitCode::SUCCESS
}

//! Tests children that reply, fail, crash, hang, or leave processes behind.

#![allow(unsafe_code, reason = "the tests look at inherited descriptors and signals")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test without the standard harness")]

mod one_by_one;

use std::io::Read;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use railgate_child::{
    Call, Outcome, Said, Stream, Task, become_user, become_user_who_traces, dispatch, run, run_all, trace_any,
};

/// Argument that makes this program a parent which waits for a child that never replies.
const PARENT: &str = "parent-to-be-killed";

const TASKS: &[Task] = &[
    Task::new("echo", |input| Ok(input.to_vec())),
    Task::new("refuse", |_| Err("the disk is full".to_owned())),
    Task::new("panic", |_| panic!("a bug of ours")),
    Task::new("crash", |_| std::process::abort()),
    Task::new("leave", |_| std::process::exit(0)),
    Task::new("hang", |_| {
        std::thread::sleep(Duration::from_secs(600));
        Ok(Vec::new())
    }),
    // Writes its pid to a file, then hangs.
    Task::new("note", |input| {
        let path = String::from_utf8_lossy(input).into_owned();
        std::fs::write(&path, std::process::id().to_string()).map_err(|why| why.to_string())?;
        std::thread::sleep(Duration::from_secs(600));
        Ok(Vec::new())
    }),
    // Replies, but a process that it started keeps all descriptors open.
    Task::new("hold", |_| {
        std::thread::spawn(|| std::thread::sleep(Duration::from_secs(600)));
        let sleeper = std::process::Command::new("sleep").arg("600").spawn();
        sleeper.map(|child| child.id().to_string().into_bytes()).map_err(|why| why.to_string())
    }),
    Task::new("print", |_| {
        println!("a library that prints");
        eprintln!("and complains");
        Ok(b"clean".to_vec())
    }),
    Task::new("look", |_| Ok(surroundings().into_bytes())),
    // Sends its input, then a message at every interval, and one more when it is asked to end.
    Task::stream("talk", |line| {
        let input = line.input().to_vec();
        line.say(&input).map_err(|why| why.to_string())?;
        while line.wait(Duration::from_millis(20)) {
            line.say(b"word").map_err(|why| why.to_string())?;
        }
        line.say(b"last").map_err(|why| why.to_string())
    }),
    Task::stream("grumble", |_| Err("no such library".to_owned())),
    Task::stream("mute", |_| {
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    }),
    Task::new("long", |_| Ok(vec![7; 3 << 20])),
    Task::new("too-long", |_| Ok(vec![7; (64 << 20) + 1])),
    Task::new("user", |_| {
        become_user(65_534, 65_534, &[65_534]).map_err(|why| why.to_string())?;
        std::fs::read("/etc/shadow").map(|_| Vec::new()).map_err(|why| why.to_string())
    }),
    Task::new("tracer", |_| tracer(65_534)),
    Task::new("root-tracer", |_| tracer(0)),
];

/// The identity and the capabilities of a user who traces: at first, with the capability in effect, and after that.
fn tracer(uid: u32) -> Result<Vec<u8>, String> {
    become_user_who_traces(uid, uid).map_err(|why| why.to_string())?;
    let mut seen = identity();
    for traces in [true, false] {
        trace_any(traces).map_err(|why| why.to_string())?;
        seen += &identity();
    }
    let shadow = std::fs::read("/etc/shadow").map_err(|why| why.kind());
    let root = nix::unistd::setuid(nix::unistd::Uid::from_raw(0));
    Ok(format!("{seen}{:?} {root:?}", shadow.err()).into_bytes())
}

fn identity() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let wanted = ["Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapAmb:", "NoNewPrivs:"];
    let lines = status.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    lines.map(|line| line.split_ascii_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
}

/// The inherited state of a child: signals and descriptors.
fn surroundings() -> String {
    let mut environment: Vec<String> =
        std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
    environment.sort();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        // Signals 32 and 33 are internal to the C library and cannot be changed.
        u64::from_str_radix(line.trim(), 16).unwrap() & !(3 << 31)
    };
    let signals = format!("blocked={:x} ignored={:x}", set("SigBlk:"), set("SigIgn:"));
    let pid = nix::unistd::getpid();
    let leads = nix::unistd::getpgrp() == pid;
    let mut open: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    open.sort_unstable();
    let cwd = std::env::current_dir().unwrap();
    format!("{environment:?} {signals} leads={leads} open={open:?} cwd={}", cwd.display())
}

fn soon() -> Duration {
    Duration::from_secs(20)
}

fn replies_are_complete() {
    assert_eq!(run("echo", b"hello", soon()), Outcome::Done(b"hello".to_vec()));
    assert_eq!(run("echo", b"", soon()), Outcome::Done(Vec::new()));
    // More than a pipe can hold, in both directions.
    let large: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(run("echo", &large, soon()), Outcome::Done(large));
}

fn failures_have_a_reason() {
    assert_eq!(run("refuse", b"", soon()), Outcome::Failed("the disk is full".to_owned()));
    assert_eq!(run("nothing", b"", soon()), Outcome::Failed("no task 'nothing' in this program".to_owned()));
    let Outcome::Failed(why) = run("panic", b"", soon()) else { panic!() };
    assert!(why.contains("a bug of ours") && why.contains("child.rs"), "{why}");
    let Outcome::Failed(why) = run("crash", b"", soon()) else { panic!() };
    assert!(why.contains("no reply") && why.contains("SIGABRT"), "{why}");
    let Outcome::Failed(why) = run("leave", b"", soon()) else { panic!() };
    assert!(why.contains("no reply") && why.contains("exit status: 0"), "{why}");
    let Outcome::Failed(why) = run("too-long", b"", soon()) else { panic!() };
    assert!(why.contains("at most 67108864"), "{why}");
}

fn a_large_unread_input_is_no_failure() {
    let Outcome::Done(reply) = run("long", &vec![0; 2 << 20], soon()) else { panic!() };
    assert_eq!(reply.len(), 3 << 20);
}

fn silence_ends_at_the_deadline() {
    let begin = Instant::now();
    assert_eq!(run("hang", b"", Duration::from_millis(200)), Outcome::Silent);
    assert!(begin.elapsed() >= Duration::from_millis(200));
}

fn the_end_of_the_pipe_is_not_waited_for() {
    let Outcome::Done(reply) = run("hold", b"", soon()) else { panic!() };
    // The processes that the child started were killed with its group.
    assert_gone(&String::from_utf8(reply).unwrap());
}

fn assert_gone(pid: &str) {
    let stat = format!("/proc/{pid}/stat");
    for _ in 0..500 {
        match std::fs::read_to_string(&stat) {
            Ok(text) if !text.contains(") Z ") => std::thread::sleep(Duration::from_millis(10)),
            _ => return,
        }
    }
    panic!("process {pid} is still there");
}

fn printing_does_not_disturb_the_reply() {
    assert_eq!(run("print", b"", soon()), Outcome::Done(b"clean".to_vec()));
}

fn several_tasks_run_in_parallel() {
    let call = |task: &str, deadline| Call { task: task.to_owned(), input: task.into(), deadline };
    let ended = run_all(vec![
        call("hang", Duration::from_millis(300)),
        call("echo", soon()),
        call("refuse", soon()),
        call("hang", Duration::from_millis(300)),
    ]);
    let outcomes: Vec<Outcome> = ended.iter().map(|ended| ended.outcome.clone()).collect();
    assert_eq!(
        outcomes,
        [
            Outcome::Silent,
            Outcome::Done(b"echo".to_vec()),
            Outcome::Failed("the disk is full".to_owned()),
            Outcome::Silent,
        ]
    );
    assert!(ended[0].took >= Duration::from_millis(300));
    assert_eq!(run_all(Vec::new()), []);
}

fn a_child_inherits_no_state_of_its_parent() {
    // SAFETY: SIG_IGN installs no handler.
    unsafe { signal(Signal::SIGUSR1, SigHandler::SigIgn) }.unwrap();
    // SAFETY: as above.
    unsafe { nix::libc::signal(40, nix::libc::SIG_IGN) };
    let mut blocked = SigSet::empty();
    blocked.add(Signal::SIGTERM);
    blocked.thread_block().unwrap();
    // A descriptor without close-on-exec, as a careless daemon leaves open.
    let (mut kept, passed) = std::io::pipe().unwrap();
    let passed = passed.into_raw_fd();
    // SAFETY: clears close-on-exec of a descriptor that this test owns.
    unsafe { nix::libc::fcntl(passed, nix::libc::F_SETFD, 0) };

    let Outcome::Done(seen) = run("look", b"", soon()) else { panic!() };
    let seen = String::from_utf8(seen).unwrap();
    blocked.thread_unblock().unwrap();
    // SAFETY: the one owner of the descriptor closes it.
    unsafe { nix::libc::close(passed) };

    assert!(seen.contains(r#"["LC_ALL=C", "PATH=/usr/bin:/bin"]"#), "{seen}");
    // Only SIGPIPE.
    assert!(seen.contains("blocked=0 ignored=1000 "), "{seen}");
    assert!(seen.contains("leads=true"), "{seen}");
    assert!(seen.contains("cwd=/"), "{seen}");
    // Standard streams, the reply pipe, and the directory listing itself.
    assert!(seen.contains("open=[0, 1, 2, 3, 4]"), "{seen}");
    let mut rest = Vec::new();
    kept.read_to_end(&mut rest).unwrap();
    assert!(kept.as_raw_fd() > 2 && rest.is_empty());
}

fn children_are_killed_with_their_parent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pid");
    let mut parent = std::process::Command::new("/proc/self/exe").arg(PARENT).arg(&path).spawn().unwrap();
    let pid = loop {
        match std::fs::read_to_string(&path) {
            Ok(pid) if !pid.is_empty() => break pid,
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert!(std::path::Path::new("/proc").join(&pid).exists());
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert_gone(&pid);
}

fn a_child_can_become_a_user() {
    if !nix::unistd::geteuid().is_root() {
        println!("     (not root: skipped)");
        return;
    }
    let Outcome::Failed(why) = run("user", b"", soon()) else { panic!() };
    assert!(why.contains("Permission denied"), "{why}");
}

fn a_user_who_traces_has_no_other_capability() {
    let Outcome::Failed(why) = run("root-tracer", b"", soon()) else { panic!() };
    assert!(why.contains("must not be root"), "{why}");
    let has_tracing = identity().lines().any(|line| {
        let set = line.strip_prefix("CapPrm: ").and_then(|set| u64::from_str_radix(set, 16).ok());
        set.is_some_and(|set| set & 1 << 19 != 0)
    });
    if !nix::unistd::geteuid().is_root() || !has_tracing {
        println!("     (not root: skipped)");
        return;
    }
    let one = |effective: &str| {
        format!(
            "Uid: 65534 65534 65534 65534\nGid: 65534 65534 65534 65534\nGroups:\nCapInh: 0000000000000000\n\
             CapPrm: 0000000000080000\nCapEff: {effective}\nCapAmb: 0000000000000000\nNoNewPrivs: 1\n"
        )
    };
    let (off, on) = (one("0000000000000000"), one("0000000000080000"));
    let Outcome::Done(seen) = run("tracer", b"", soon()) else { panic!() };
    let seen = String::from_utf8(seen).unwrap();
    assert_eq!(seen, format!("{off}{on}{off}Some(PermissionDenied) Err(EPERM)"));
}

fn a_call_that_names_another_parent_does_nothing() {
    // A user who passes the hidden argument is not the parent that it names.
    let status = std::process::Command::new("/proc/self/exe")
        .args(["__railgate-child", "echo", "1", "5"])
        .stdin(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(2));
}

/// Returns the next message of a stream.
fn next(stream: &mut Stream) -> Said {
    let until = Instant::now() + soon();
    loop {
        match stream.listen() {
            Said::Nothing if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            said => return said,
        }
    }
}

fn a_stream_sends_messages_until_it_is_asked_to_end() {
    let mut stream = Stream::start("talk", b"first", soon()).unwrap();
    assert_eq!(next(&mut stream), Said::This(b"first".to_vec()));
    assert_eq!(next(&mut stream), Said::This(b"word".to_vec()));
    stream.finish();
    let rest: Vec<Said> = std::iter::from_fn(|| match next(&mut stream) {
        Said::Ended(why) => {
            assert_eq!(why, "");
            None
        }
        said => Some(said),
    })
    .collect();
    assert_eq!(rest.last(), Some(&Said::This(b"last".to_vec())));
}

fn a_failed_stream_gives_the_reason_and_a_silent_one_does_not_block() {
    let mut stream = Stream::start("grumble", b"", soon()).unwrap();
    assert_eq!(next(&mut stream), Said::Ended("no such library".to_owned()));
    let mut stream = Stream::start("no-such-task", b"", soon()).unwrap();
    assert!(matches!(next(&mut stream), Said::Ended(why) if why.contains("no-such-task")));
    let mut mute = Stream::start("mute", b"", soon()).unwrap();
    assert_eq!(mute.listen(), Said::Nothing);
    let before = mute.silent_for();
    assert!(mute.silent_for() >= before);
    drop(mute);
    // Without a parent, the child ends by itself.
    let mut brief = Stream::start("mute", b"", Duration::from_secs(1)).unwrap();
    assert!(matches!(next(&mut brief), Said::Ended(_)));
}

fn main() -> ExitCode {
    if let Some(code) = dispatch(&[TASKS]) {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [parent, path] = args.as_slice()
        && parent == PARENT
    {
        run("note", path.as_bytes(), Duration::from_secs(600));
        return ExitCode::SUCCESS;
    }
    let tests: &[(&str, fn())] = &[
        ("replies_are_complete", replies_are_complete),
        ("failures_have_a_reason", failures_have_a_reason),
        ("a_large_unread_input_is_no_failure", a_large_unread_input_is_no_failure),
        ("silence_ends_at_the_deadline", silence_ends_at_the_deadline),
        ("the_end_of_the_pipe_is_not_waited_for", the_end_of_the_pipe_is_not_waited_for),
        ("printing_does_not_disturb_the_reply", printing_does_not_disturb_the_reply),
        ("several_tasks_run_in_parallel", several_tasks_run_in_parallel),
        ("a_child_inherits_no_state_of_its_parent", a_child_inherits_no_state_of_its_parent),
        ("children_are_killed_with_their_parent", children_are_killed_with_their_parent),
        ("a_child_can_become_a_user", a_child_can_become_a_user),
        ("a_user_who_traces_has_no_other_capability", a_user_who_traces_has_no_other_capability),
        ("a_call_that_names_another_parent_does_nothing", a_call_that_names_another_parent_does_nothing),
        (
            "a_stream_sends_messages_until_it_is_asked_to_end",
            a_stream_sends_messages_until_it_is_asked_to_end,
        ),
        (
            "a_failed_stream_gives_the_reason_and_a_silent_one_does_not_block",
            a_failed_stream_gives_the_reason_and_a_silent_one_does_not_block,
        ),
    ];
    one_by_one::run(tests)
}

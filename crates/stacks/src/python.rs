use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;

use py_spy::config::{LineNo, LockingStrategy};
use py_spy::{Config, PythonSpy, StackTrace};
use railgate_node_report::stacks::{Frame, MOST_FRAMES};
use railgate_probe::JobMember;

use crate::access::{self, Access};

/// The memory map of a large framework has some ten thousand lines of a hundred bytes.
const MAPS_BYTES: u64 = 16 << 20;
/// Maximum length of py-spy's reason, characters.
const MOST_REASON: usize = 120;

const NOT_PYTHON: &str = "not a Python program";
const UNREADABLE: &str = "its Python stack could not be read";

/// The frames of the main thread, innermost first, or why there are none.
pub(crate) fn frames(member: &mut JobMember, pid: u32) -> Result<Vec<Frame>, String> {
    access::read(member, pid, |why| why == NOT_PYTHON, |member, access| read(member, pid, access))
}

fn read(member: &JobMember, pid: u32, access: Access) -> Result<Vec<Frame>, String> {
    let id = i32::try_from(pid).map_err(|why| why.to_string())?;
    // Text of a panic may quote what was read, so it is dropped.
    let traces = catch_unwind(|| PythonSpy::new(id, &config()).and_then(|mut spy| spy.get_stack_traces()));
    match traces.map_err(|_| UNREADABLE)? {
        Ok(traces) => main_thread(&traces, pid, member.inner_pid())
            .filter(|trace| !trace.frames.is_empty())
            .map(|trace| trace.frames.iter().take(MOST_FRAMES).map(frame).collect())
            .ok_or_else(|| UNREADABLE.to_owned()),
        Err(_) if !is_python(pid) => Err(NOT_PYTHON.to_owned()),
        // With the capability, files may have been opened that the user may not read: nothing of them goes into a text.
        Err(_) if access == Access::Any => Err(UNREADABLE.to_owned()),
        Err(why) => {
            let why: String = why.to_string().chars().take(MOST_REASON).collect();
            Err(format!("{UNREADABLE}: {why}"))
        }
    }
}

/// Never pauses the process, reads no variables and no names of threads, and asks the file system for nothing.
fn config() -> Config {
    Config {
        blocking: LockingStrategy::NonBlocking,
        native: false,
        subprocesses: false,
        include_idle: true,
        gil_only: false,
        dump_locals: 0,
        collect_thread_names: false,
        // py-spy shortens paths by searching their directories, which may be on a file system that does not answer.
        full_filenames: true,
        lineno: LineNo::LastInstruction,
        ..Config::default()
    }
}

/// Before Python 3.11 threads have no id of the system's. The newest thread is the first one, the main thread the last.
fn main_thread(traces: &[StackTrace], pid: u32, inner_pid: u32) -> Option<&StackTrace> {
    let has = |id: u32| traces.iter().find(|trace| trace.os_thread_id == Some(u64::from(id)));
    has(inner_pid).or_else(|| has(pid)).or(traces.last())
}

fn frame(frame: &py_spy::Frame) -> Frame {
    Frame::new(&frame.name, &frame.filename, u32::try_from(frame.line).unwrap_or(0))
}

/// Whether its program is called Python, or has Python's library.
fn is_python(pid: u32) -> bool {
    let named = |bytes: &[u8]| bytes.windows(6).any(|part| part.eq_ignore_ascii_case(b"python"));
    let program = std::fs::read_link(format!("/proc/{pid}/exe"));
    let by_name = program.is_ok_and(|path| path.file_name().is_some_and(|name| named(name.as_bytes())));
    by_name || has_library(pid).unwrap_or(false)
}

fn has_library(pid: u32) -> io::Result<bool> {
    let mut lines = BufReader::new(File::open(format!("/proc/{pid}/maps"))?.take(MAPS_BYTES));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        let name = line.rsplit(|byte| *byte == b'/').next().filter(|name| name.len() < line.len());
        if name.is_some_and(|name| name.starts_with(b"libpython")) {
            return Ok(true);
        }
        line.clear();
    }
    Ok(false)
}

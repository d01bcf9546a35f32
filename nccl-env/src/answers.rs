//! The values for NCCL, chosen once per process.

use std::ffi::{CStr, CString};
use std::panic;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::table::{Entry, MOST_BYTES, parse};

/// Name of the variable with the run's directory on this node.
const JOB_DIR: &CStr = c"RAILGATE_JOB_DIR";
/// Name of the variable with the network plugin in use: `ib`, `ofi`, `sharp`, `other`.
const NET: &CStr = c"RAILGATE_NET";
const FILE: &str = "nccl.env";

/// Never freed, so that every returned string stays valid.
static PREPARED: OnceLock<Prepared> = OnceLock::new();

/// Set if two NCCLs of different releases in this process use the same library: values that depend on the release are
/// then no longer returned.
static SEVERAL: AtomicBool = AtomicBool::new(false);

struct Prepared {
    release: [u8; 3],
    /// The entries for this release.
    entries: Vec<Entry>,
    /// A line for NCCL's log.
    summary: Option<CString>,
}

/// Reads the file for this NCCL release.
pub(crate) fn prepare(release: [u8; 3]) {
    let prepared = PREPARED.get_or_init(|| {
        // The library has its own copy of the standard library, so panics of other code are still printed.
        panic::set_hook(Box::new(|_| {}));
        read(release)
    });
    if prepared.release != release {
        SEVERAL.store(true, Ordering::Release);
    }
}

/// One line about the loaded settings, for NCCL's log.
pub(crate) fn summary() -> Option<&'static CStr> {
    PREPARED.get()?.summary.as_deref()
}

/// railgate's value for a variable, if there is one and the user has not set the variable.
pub(crate) fn answer(name: &CStr) -> Option<&'static CStr> {
    let prepared = PREPARED.get().filter(|_| !SEVERAL.load(Ordering::Acquire))?;
    let entry = prepared.entries.iter().find(|entry| entry.name.as_c_str() == name)?;
    // A value that railgate itself set without knowing the release is replaced. Any other value is the user's, from
    // the environment or from NCCL's own files, which NCCL has put into the environment by now.
    let ours = |theirs: &CStr| get(&entry.record) == Some(theirs);
    let free = entry.force || get(name).is_none_or(ours);
    free.then_some(entry.value.as_c_str())
}

fn read(release: [u8; 3]) -> Prepared {
    let entries: Vec<Entry> = file()
        .and_then(|text| parse(&text))
        .unwrap_or_default()
        .into_iter()
        .filter(|entry| entry.fits(release, get(NET).map(CStr::to_bytes)))
        .collect();
    let names: Vec<_> = entries.iter().map(|entry| entry.name.to_string_lossy()).collect();
    let [major, minor, patch] = release;
    let summary = match names.as_slice() {
        [] => None,
        names => {
            CString::new(format!("ENV/Plugin: railgate: for {major}.{minor}.{patch}: {}", names.join(" ")))
                .ok()
        }
    };
    Prepared { release, entries, summary }
}

/// Reads the process's environment. The result is copied or compared before any other code runs.
fn get(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: a C string. NCCL also reads the environment while it starts, so no thread may change it meanwhile.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: not null, and a C string of the environment.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

fn file() -> Option<String> {
    let dir = get(JOB_DIR)?.to_str().ok().filter(|dir| dir.starts_with('/') && dir.len() < 1024)?;
    let path = CString::new(format!("{dir}/{FILE}")).ok()?;
    // A link to a file that only the job's user can open. Its content affects only this process.
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: a C string; without O_CREAT no third argument is needed.
    let file = unsafe { libc::open(path.as_ptr(), flags) };
    if file < 0 {
        return None;
    }
    let mut content = vec![0_u8; MOST_BYTES + 1];
    let mut size = 0;
    while size < content.len() {
        let rest = &mut content[size..];
        // SAFETY: it writes into the slice, and not beyond its length.
        let count = unsafe { libc::read(file, rest.as_mut_ptr().cast(), rest.len()) };
        match usize::try_from(count) {
            Ok(0) => break,
            Ok(count) => size += count,
            // An interrupted read of a small local file is not retried; the values are then left out for this
            // process.
            Err(_) => {
                size = 0;
                break;
            }
        }
    }
    // SAFETY: opened above, and closed once.
    unsafe { libc::close(file) };
    content.truncate(size);
    (size <= MOST_BYTES).then_some(content).and_then(|content| String::from_utf8(content).ok())
}

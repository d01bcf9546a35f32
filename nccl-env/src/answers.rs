//! What is answered, decided once per process.

use std::ffi::{CStr, CString};
use std::panic;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::table::{Entry, MOST_BYTES, parse};

/// The run's directory on this node.
const JOB_DIR: &CStr = c"RAILGATE_JOB_DIR";
/// Which network plugin is in charge: `ib`, `ofi`, `sharp`, `other`.
const NET: &CStr = c"RAILGATE_NET";
const FILE: &str = "nccl.env";

/// Never taken away again, so that every string that was handed out stays.
static PREPARED: OnceLock<Prepared> = OnceLock::new();

/// Two NCCLs of different releases live in this process and ask the same library: nothing that depends on the
/// release is answered any more.
static SEVERAL: AtomicBool = AtomicBool::new(false);

struct Prepared {
    release: [u8; 3],
    /// Those for this release.
    entries: Vec<Entry>,
    /// For NCCL's log.
    summary: Option<CString>,
}

/// Reads the file for an NCCL of this release.
pub(crate) fn prepare(release: [u8; 3]) {
    let prepared = PREPARED.get_or_init(|| {
        // This library's own copy of the standard library: nobody else's panics become silent.
        panic::set_hook(Box::new(|_| {}));
        read(release)
    });
    if prepared.release != release {
        SEVERAL.store(true, Ordering::Release);
    }
}

/// One line about what there is.
pub(crate) fn summary() -> Option<&'static CStr> {
    PREPARED.get()?.summary.as_deref()
}

/// Our value for this variable, if it has one and the user has none.
pub(crate) fn answer(name: &CStr) -> Option<&'static CStr> {
    let prepared = PREPARED.get().filter(|_| !SEVERAL.load(Ordering::Acquire))?;
    let entry = prepared.entries.iter().find(|entry| entry.name.as_c_str() == name)?;
    // What railgate itself gave the task without knowing the release gives way; anything else is the user's,
    // from the environment or from NCCL's own files, which NCCL has put into the environment by now.
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

/// The process's environment. What it points to is copied or compared before anything else runs.
fn get(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: a C string; NCCL, too, asks the environment while it starts, so nobody may change it meanwhile.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: not null, and a C string of the environment.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

fn file() -> Option<String> {
    let dir = get(JOB_DIR)?.to_str().ok().filter(|dir| dir.starts_with('/') && dir.len() < 1024)?;
    let path = CString::new(format!("{dir}/{FILE}")).ok()?;
    // A link to where only the job's user can open it. It decides about this process alone.
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: a C string, and no third argument is needed without O_CREAT.
    let file = unsafe { libc::open(path.as_ptr(), flags) };
    if file < 0 {
        return None;
    }
    let mut content = vec![0_u8; MOST_BYTES + 1];
    let mut size = 0;
    while size < content.len() {
        let rest = &mut content[size..];
        // SAFETY: it writes into the slice, and no further than its length.
        let count = unsafe { libc::read(file, rest.as_mut_ptr().cast(), rest.len()) };
        match usize::try_from(count) {
            Ok(0) => break,
            Ok(count) => size += count,
            // An interrupted read of a small local file is not worth a second try; the next job has one.
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

#![allow(unsafe_code, reason = "a library finds its own path by dladdr only")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr, c_void};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::answer::{DRIVER_NOT_LOADED, NOT_SUPPORTED, Return, UNKNOWN};
use crate::scenario::{SCENARIO_FILE, Scenario};

/// Identifies a version of the file: inode, modification time, size.
type Stamp = (u64, i64, i64, u64);

/// State between calls, as any C library keeps it.
static LOADED: Mutex<Option<(Stamp, Arc<Scenario>)>> = Mutex::new(None);
static CALLS: Mutex<BTreeMap<u32, u64>> = Mutex::new(BTreeMap::new());
static READ: Mutex<BTreeMap<(u32, u32, u32), u64>> = Mutex::new(BTreeMap::new());
static ASKED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Must begin every call: applies the configured faults, then returns the scenario.
pub(crate) fn enter(symbol: &str) -> Result<Arc<Scenario>, Return> {
    let scenario = current()?;
    let behaviour = &scenario.behaviour;
    if let Some(millis) = of(&behaviour.delay_ms, symbol) {
        std::thread::sleep(Duration::from_millis(*millis));
    }
    if let Some(path) = of(&behaviour.write_to, symbol) {
        let written =
            fs::File::options().create(true).append(true).open(path).and_then(|mut f| f.write_all(b"."));
        written.map_err(|_| UNKNOWN)?;
    }
    if has(&behaviour.hang, symbol) {
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
    if let Some(code) = of(&behaviour.returns, symbol) {
        return if *code == 0 { Ok(scenario) } else { Err(*code) };
    }
    if has(&behaviour.not_supported, symbol) {
        return Err(NOT_SUPPORTED);
    }
    Ok(scenario)
}

/// Whether this process has read this GPU's clock reasons before.
pub(crate) fn again(gpu: u32) -> bool {
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    !asked.insert(gpu)
}

/// Counts a call about a GPU; returns whether the GPU is lost by now (`lost_after_calls`).
pub(crate) fn lost_by_now(scenario: &Scenario, gpu: u32) -> bool {
    let Some(limit) = scenario.behaviour.lost_after_calls.get(&gpu) else {
        return false;
    };
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let count = calls.entry(gpu).or_default();
    *count += 1;
    *count > *limit
}

/// What a counter of this GPU's links grows by from one reading to the next.
pub(crate) fn growth(gpu: u32) -> u64 {
    current().ok().and_then(|scenario| scenario.behaviour.nvlink_errors_grow.get(&gpu).copied()).unwrap_or(0)
}

/// How often this process has read this counter of a link before.
pub(crate) fn read_before(gpu: u32, field: u32, link: u32) -> u64 {
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    let count = read.entry((gpu, field, link)).or_default();
    *count += 1;
    *count - 1
}

fn of<'a, T>(map: &'a BTreeMap<String, T>, symbol: &str) -> Option<&'a T> {
    map.get(symbol).or_else(|| map.get("*"))
}

fn has(set: &BTreeSet<String>, symbol: &str) -> bool {
    set.contains(symbol) || set.contains("*")
}

/// The folder that contains the library.
pub(crate) fn folder() -> &'static Path {
    FOLDER.get_or_init(own_folder)
}

fn current() -> Result<Arc<Scenario>, Return> {
    let folder = folder();
    let meta = fs::metadata(folder.join(SCENARIO_FILE)).map_err(|_| DRIVER_NOT_LOADED)?;
    let stamp = (meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.size());
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((known, scenario)) = &*loaded
        && *known == stamp
    {
        return Ok(Arc::clone(scenario));
    }
    let scenario = Arc::new(Scenario::read(folder).map_err(|_| DRIVER_NOT_LOADED)?);
    *loaded = Some((stamp, Arc::clone(&scenario)));
    Ok(scenario)
}

fn own_folder() -> PathBuf {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the address is that of a function of this library, and `info` outlives the call.
    let found = unsafe { libc::dladdr(own_folder as fn() -> PathBuf as *const c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return PathBuf::new();
    }
    // SAFETY: the loader keeps the name for as long as the library is loaded.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    path.parent().map(Path::to_owned).unwrap_or_default()
}

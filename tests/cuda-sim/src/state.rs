//! What the driver knows: the scenario, and the memory that was allocated.
#![allow(unsafe_code, reason = "addresses come from C")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::Scenario;

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NO_DEVICE: u32 = 100;
pub(crate) const NOT_FOUND: u32 = 500;
pub(crate) const ILLEGAL_ADDRESS: u32 = 700;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// By address; with the card that it belongs to, `None` for page-locked memory of the host.
type Memory = BTreeMap<usize, (Vec<u128>, Option<usize>)>;

static MEMORY: Mutex<Memory> = Mutex::new(BTreeMap::new());
static SCENARIO: OnceLock<Scenario> = OnceLock::new();

fn folder() -> PathBuf {
    // SAFETY: an all-zero Dl_info is valid, and the call fills it for an address of this library.
    let file = unsafe {
        let mut info: Info = std::mem::zeroed();
        let own = folder as fn() -> PathBuf as *const c_void;
        if dladdr(own, &raw mut info) == 0 || info.file.is_null() {
            return PathBuf::new();
        }
        CStr::from_ptr(info.file).to_string_lossy().into_owned()
    };
    PathBuf::from(file).parent().map(PathBuf::from).unwrap_or_default()
}

#[repr(C)]
struct Info {
    file: *const std::ffi::c_char,
    base: *mut c_void,
    name: *const std::ffi::c_char,
    address: *mut c_void,
}

// SAFETY: as in dlfcn.h.
unsafe extern "C" {
    fn dladdr(address: *const c_void, info: *mut Info) -> std::ffi::c_int;
}

pub(crate) fn scenario() -> &'static Scenario {
    SCENARIO.get_or_init(|| Scenario::read(&folder()).unwrap_or_default())
}

/// Every symbol begins with this: a fault of the scenario, or nothing.
pub(crate) fn enter(symbol: &str) -> Result<&'static Scenario, u32> {
    let scenario = scenario();
    while scenario.hang.contains(symbol) {
        std::thread::sleep(Duration::from_secs(3600));
    }
    scenario.fail.get(symbol).map_or(Ok(scenario), |code| Err(*code))
}

pub(crate) fn current() -> usize {
    CURRENT.get()
}

pub(crate) fn set_current(device: usize) {
    CURRENT.set(device);
}

fn memory() -> MutexGuard<'static, Memory> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Free bytes of the current card.
pub(crate) fn free_bytes() -> usize {
    let device = current();
    let all = scenario().devices.get(device).map_or(0, |one| one.free_mib << 20);
    let used: usize =
        memory().values().filter(|(_, of)| *of == Some(device)).map(|(words, _)| 16 * words.len()).sum();
    all.saturating_sub(used)
}

/// All bytes of the current card.
pub(crate) fn total_bytes() -> usize {
    scenario().devices.get(current()).map_or(0, |one| one.total_mib.max(one.free_mib) << 20)
}

pub(crate) fn allocate(bytes: usize, on_host: bool) -> Result<usize, u32> {
    if !on_host && bytes > free_bytes() {
        return Err(OUT_OF_MEMORY);
    }
    // What was there before is not zero.
    let words = vec![0xA5A5_A5A5_A5A5_A5A5_A5A5_A5A5_A5A5_A5A5_u128; bytes.div_ceil(16)];
    let at = words.as_ptr().addr();
    memory().insert(at, (words, (!on_host).then(current)));
    Ok(at)
}

pub(crate) fn free(at: usize) -> Result<(), u32> {
    memory().remove(&at).map(|_| ()).ok_or(INVALID_VALUE)
}

/// The bytes from an address on, if they were allocated.
pub(crate) fn bytes<'a>(at: usize, length: usize) -> Result<&'a mut [u8], u32> {
    let (begin, end) = {
        let memory = memory();
        let (begin, (words, _)) = memory.range(..=at).next_back().ok_or(ILLEGAL_ADDRESS)?;
        (*begin, begin + 16 * words.len())
    };
    if at < begin || at.checked_add(length).is_none_or(|last| last > end) {
        return Err(ILLEGAL_ADDRESS);
    }
    // SAFETY: the range was allocated by this library. Like a card, it lets the program race with itself.
    Ok(unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(at), length) })
}

//! The mapped file.

use std::ffi::{CStr, CString};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

use railgate_rankfile::{
    BYTES, CELL_WORDS, CELLS, CELLS_AT, COMM_WORDS, COMMS, COMMS_AT, COUNT_WORDS, COUNTS_AT, HEAD_WORDS, Key,
    MAGIC, Mode, VERSION, cell, comm, head, start_number,
};

use crate::state;

/// Variable with the run's directory on this node.
const JOB_DIR: &CStr = c"RAILGATE_JOB_DIR";
/// Variable with the mode: `count`, `sample`, `full`, `off`.
const MODE: &CStr = c"RAILGATE_NCCL_MODE";
const BUDGET: &CStr = c"RAILGATE_NCCL_BUDGET_PPM";
/// [`railgate_rankfile::START_VARIABLE`].
const START: &CStr = c"RAILGATE_START";
/// Millionths of the time. The cost of sampling then stays far below what can be measured.
const DEFAULT_BUDGET: u64 = 2000;

/// The words of the file, in the layout of `railgate-rankfile`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct File {
    head: [AtomicU64; HEAD_WORDS],
    pub(crate) comms: [[AtomicU64; COMM_WORDS]; COMMS],
    pub(crate) counts: [[AtomicU64; COUNT_WORDS]; CELLS],
    cells: [[AtomicU64; CELL_WORDS]; CELLS],
}

const _: () = assert!(
    size_of::<File>() == BYTES
        && offset_of!(File, comms) == COMMS_AT * 8
        && offset_of!(File, counts) == COUNTS_AT * 8
        && offset_of!(File, cells) == CELLS_AT * 8
);

/// The mapped file, which stays mapped as long as the process lives.
#[derive(Debug)]
pub(crate) struct Store {
    file: &'static File,
    /// File with which the mode can be changed by hand while the job runs.
    mode_file: CString,
}

impl Store {
    /// Creates this process's file; the error is the reason for NCCL's log.
    pub(crate) fn create() -> Result<Self, String> {
        let dir = get(JOB_DIR)
            .and_then(|dir| dir.to_str().ok())
            .filter(|dir| dir.starts_with('/') && dir.len() < 1024)
            .ok_or("RAILGATE_JOB_DIR is not set")?;
        let place = format!("{dir}/user/ranks");
        // SAFETY: no arguments.
        let pid = unsafe { libc::getpid() };
        let made = now(libc::CLOCK_REALTIME);
        // For a write beyond the limit the kernel sends SIGXFSZ, which kills the process.
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: it writes to the struct.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
        if !known || limit.rlim_cur < BYTES as libc::rlim_t {
            return Err(format!(
                "files may have {} bytes (ulimit -f), and {BYTES} are needed",
                limit.rlim_cur
            ));
        }
        let (place_c, path) = (c_string(&place)?, format!("{place}/{pid}.{made:x}"));
        let path_c = c_string(&path)?;
        // SAFETY: a C string. It is fine if the directory exists already.
        unsafe { libc::mkdir(place_c.as_ptr(), 0o700) };
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        // SAFETY: a C string, with the mode that O_CREAT asks for.
        let file = unsafe { libc::open(path_c.as_ptr(), flags, 0o600) };
        if file < 0 {
            return Err(format!("{path}: {}", std::io::Error::last_os_error()));
        }
        let size = libc::off_t::try_from(BYTES).map_err(|why| why.to_string())?;
        // Allocate all of it now: if a full tmpfs had no page for a later store, the user's process would get SIGBUS.
        // SAFETY: an open file.
        let fault = unsafe { libc::posix_fallocate(file, 0, size) };
        let mapped = if fault == 0 {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            // SAFETY: a new mapping at an arbitrary address.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, kind, file, 0) };
            if at == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(at) }
        } else {
            Err(std::io::Error::from_raw_os_error(fault))
        };
        // SAFETY: opened above, closed once; the mapping stays.
        unsafe { libc::close(file) };
        let at = match mapped {
            Ok(at) => at,
            Err(why) => {
                // SAFETY: a C string; a file without content is of no use.
                unsafe { libc::unlink(path_c.as_ptr()) };
                return Err(format!("{path}: {why}"));
            }
        };
        // SAFETY: as long as the file and page-aligned; never unmapped; writes of other processes that map it can
        // only produce other numbers.
        let file: &'static File = unsafe { &*at.cast::<File>() };
        let store = Store { file, mode_file: c_string(&format!("{place}/mode"))? };
        store.begin(u64::from(pid.unsigned_abs()), made);
        Ok(store)
    }

    fn begin(&self, pid: u64, made: u64) {
        let wanted = get(MODE).and_then(|text| mode(text.to_bytes())).unwrap_or_default();
        let start = get(START).map_or(0, |text| start_number(text.to_bytes()));
        let budget = get(BUDGET).and_then(|text| text.to_str().ok()?.parse().ok());
        for (word, value) in [
            (head::VERSION, VERSION),
            (head::PID, pid),
            (head::CREATED, made),
            (head::WANTED, wanted.word()),
            (head::START, u64::from(start)),
            (head::BUDGET, budget.unwrap_or(DEFAULT_BUDGET).clamp(1, 1_000_000)),
        ] {
            self.at(word).store(value, Relaxed);
        }
        text(self.file.head.get(head::PLUGIN..head::PLUGIN + 4), env!("CARGO_PKG_VERSION").as_bytes());
        self.at(head::MAGIC).store(MAGIC, Release);
        state::set_file(self.file);
    }

    /// A word of [`head`]. Here and below: an index out of range gives the last word; callers do not use one.
    pub(crate) fn at(&self, word: usize) -> &AtomicU64 {
        &self.file.head[word.min(HEAD_WORDS - 1)]
    }

    /// A word of [`railgate_rankfile::comm`].
    pub(crate) fn comm(&self, index: usize, word: usize) -> &AtomicU64 {
        &self.file.comms[index.min(COMMS - 1)][word.min(COMM_WORDS - 1)]
    }

    /// A word of [`cell`].
    pub(crate) fn cell(&self, index: usize, word: usize) -> &AtomicU64 {
        &self.file.cells[index.min(CELLS - 1)][word.min(CELL_WORDS - 1)]
    }

    /// A word of [`railgate_rankfile::count`].
    pub(crate) fn counted(&self, index: usize, word: usize) -> &AtomicU64 {
        &self.file.counts[index.min(CELLS - 1)][word.min(COUNT_WORDS - 1)]
    }

    /// Stores the framework's name for a communicator.
    pub(crate) fn name(&self, index: usize, name: &[u8]) {
        text(self.file.comms.get(index).and_then(|words| words.get(comm::NAME..comm::NAME + 8)), name);
    }

    /// Index of a key's cell, which is created if necessary; `None`: the file is full.
    pub(crate) fn find(&self, key: Key) -> Option<usize> {
        let word = key.word();
        // Fibonacci hashing; the table's size is a power of two.
        let first = usize::try_from(word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).unwrap_or(0);
        for step in 0..CELLS {
            let index = (first + step) % CELLS;
            let have = self.cell(index, cell::KEY);
            let found = match have.load(Relaxed) {
                0 => have.compare_exchange(0, word, Relaxed, Relaxed).unwrap_or_else(|theirs| theirs),
                other => other,
            };
            if found == 0 || found == word {
                return Some(index);
            }
        }
        self.at(head::CELLS_LOST).fetch_add(1, Relaxed);
        None
    }

    /// The mode in the mode file, if the file exists. Does not allocate.
    pub(crate) fn wish(&self) -> Option<Mode> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        // SAFETY: a C string, and no mode is needed without O_CREAT.
        let file = unsafe { libc::open(self.mode_file.as_ptr(), flags) };
        if file < 0 {
            return None;
        }
        let mut text = [0_u8; 16];
        // SAFETY: it writes into the array, and not beyond its length.
        let count = unsafe { libc::read(file, text.as_mut_ptr().cast(), text.len()) };
        // SAFETY: opened above, closed once.
        unsafe { libc::close(file) };
        mode(text.get(..usize::try_from(count).ok()?)?.trim_ascii())
    }
}

/// Stores as much of a text as the words can contain.
fn text(words: Option<&[AtomicU64]>, text: &[u8]) {
    for (word, part) in words.unwrap_or_default().iter().zip(text.chunks(8)) {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
        word.store(u64::from_le_bytes(bytes), Relaxed);
    }
}

fn mode(text: &[u8]) -> Option<Mode> {
    [Mode::Count, Mode::Sample, Mode::Full, Mode::Off]
        .into_iter()
        .find(|mode| mode.as_str().as_bytes() == text)
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|why| why.to_string())
}

/// Reads the process's environment. The result is copied or compared before any other code runs.
fn get(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: a C string. NCCL also reads the environment while it starts, so no thread may change it meanwhile.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: not null, and a C string of the environment.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// Reads a clock, nanoseconds; 0 on failure.
pub(crate) fn now(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes into the struct.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    let (seconds, rest) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

//! The release of NCCL, and its known problems.

use std::ffi::{CStr, c_int};

use railgate_rankfile::Limit;

use crate::abi::Logger;

/// Calls `ncclGetVersion` of the library that contains the logger, since a process may have several NCCLs.
pub(crate) fn release(log: Option<Logger>) -> Option<u64> {
    let log = log?;
    // SAFETY: all-zero is a valid value of these pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address is valid as an argument; the result is written to the struct.
    let found = unsafe { libc::dladdr(log as *const libc::c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a C string of the loader; with NOLOAD only a library that is already loaded is opened.
    let library = unsafe { libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    let name: &CStr = c"ncclGetVersion";
    // SAFETY: an open library and a C string.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    let version = (!symbol.is_null()).then(|| {
        // SAFETY: NCCL's function of this name has this signature in every release.
        let ask: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { std::mem::transmute(symbol) };
        let mut code = 0;
        // SAFETY: as above.
        unsafe { ask(&raw mut code) };
        code
    });
    // SAFETY: opened above; NCCL itself stays loaded.
    unsafe { libc::dlclose(library) };
    version.and_then(|code| u64::try_from(code).ok()).filter(|code| *code > 0)
}

/// The deny table: first release, first release to which it no longer applies, what is disabled.
///
/// 2.30.3: an all-to-all crashed with a profiler (NVIDIA/nccl issue 2112, open). From 2.31 on kernels are timed phase
/// by phase, in its first releases unconditionally: all-reduces of 128 KiB to 4 MiB took 4 to 13 percent longer
/// (issue 2355, pull request 2357); later releases were not measured.
const TABLE: &[(u64, u64, Limit)] =
    &[(23_003, 23_004, Limit::Release), (23_100, u64::MAX, Limit::SlowRelease)];

/// What is disabled for this release.
pub(crate) fn limit(release: Option<u64>) -> Limit {
    let Some(release) = release else { return Limit::UnknownRelease };
    let row = TABLE.iter().find(|(from, below, _)| (*from..*below).contains(&release));
    row.map_or(Limit::None, |row| row.2)
}

/// Whether NCCL shows broadcasts only at its API: in these releases they take another path inside NCCL
/// (`src/enqueue.cc`; release notes of 2.29.2; observed in 2.30.7 and 2.32.3).
pub(crate) fn hides_broadcasts(release: Option<u64>) -> bool {
    release.is_some_and(|release| release >= 22_902)
}

/// Whether `/dev/shm` lacks the room for timing kernels, without which NCCL crashes (pull request 2326).
pub(crate) fn shm_is_small() -> bool {
    const ENOUGH: u64 = 64 << 20;
    // SAFETY: all-zero is a valid value of plain numbers.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a C string and a struct to write to.
    let answered = unsafe { libc::statvfs(c"/dev/shm".as_ptr(), &raw mut stat) } == 0;
    !answered || stat.f_bavail.saturating_mul(stat.f_frsize) < ENOUGH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_with_known_problems_are_restricted() {
        let of = |code| limit(Some(code));
        assert_eq!((of(22_809), of(23_002), of(23_007)), (Limit::None, Limit::None, Limit::None));
        assert_eq!(
            (of(23_003), of(23_102), limit(None)),
            (Limit::Release, Limit::SlowRelease, Limit::UnknownRelease)
        );
        assert!(
            hides_broadcasts(Some(23_007))
                && hides_broadcasts(Some(23_203))
                && !hides_broadcasts(Some(22_809))
                && !hides_broadcasts(None)
        );
    }
}

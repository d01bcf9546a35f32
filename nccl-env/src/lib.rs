//! `libnccl-env-railgate.so`: an environment plugin for NCCL 2.28.7 and later.
//!
//! NCCL settings can depend on its version, which is only known to NCCL itself: it may come from a container or a
//! wheel. So the prolog writes such values with their version ranges into one small file. NCCL passes its version to
//! this library, which returns the values that apply. For every other variable, and if anything is missing or
//! invalid, it returns the value from the process's environment, as NCCL's built-in plugin does.
//!
//! It runs in the user's process: it starts no threads, writes nothing, allocates only while NCCL starts, and always
//! returns success (NCCL aborts the whole job if an environment plugin fails).
#![allow(unsafe_code, reason = "NCCL's plugin interface is C")]

mod abi;
mod answers;
mod table;

use std::ffi::{CStr, c_char, c_int};
use std::panic::{self, AssertUnwindSafe};
use std::ptr;

use abi::{EnvV1, EnvV2, INFO, Logger, NCCL_ENV, NCCL_INIT, SUCCESS};

/// Loaded by NCCL 2.28.7 and later; from 2.30.7 on only if the next one is missing.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks the symbol up by this name")]
pub static ncclEnvPlugin_v1: EnvV1 = EnvV1 { name: NAME.as_ptr(), init: init_v1, finalize, get_env };

/// Loaded by NCCL 2.30.7 and later.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks the symbol up by this name")]
pub static ncclEnvPlugin_v2: EnvV2 = EnvV2 { name: NAME.as_ptr(), init: init_v2, finalize, get_env };

const NAME: &CStr = c"railgate";

unsafe extern "C" fn init_v1(major: u8, minor: u8, patch: u8, _suffix: *const c_char) -> c_int {
    guarded((), || answers::prepare([major, minor, patch]));
    SUCCESS
}

unsafe extern "C" fn init_v2(
    major: u8,
    minor: u8,
    patch: u8,
    _suffix: *const c_char,
    log: Option<Logger>,
) -> c_int {
    guarded((), || {
        answers::prepare([major, minor, patch]);
        let (Some(log), Some(text)) = (log, answers::summary()) else { return };
        let (file, line) = (c"nccl-env", 0);
        // SAFETY: NCCL's own logger, with the arguments that its format requires; it copies the text.
        unsafe { log(INFO, NCCL_INIT | NCCL_ENV, file.as_ptr(), line, c"%s".as_ptr(), text.as_ptr()) };
    });
    SUCCESS
}

/// Returned strings stay valid: NCCL may still use them elsewhere.
unsafe extern "C" fn finalize() -> c_int {
    SUCCESS
}

unsafe extern "C" fn get_env(name: *const c_char) -> *const c_char {
    if name.is_null() {
        return ptr::null();
    }
    // SAFETY: NCCL passes a C string that is valid during the call.
    let name = unsafe { CStr::from_ptr(name) };
    let answer = guarded(None, || answers::answer(name));
    answer.map_or_else(|| environment(name), CStr::as_ptr)
}

/// The process's own value; not a copy, as in NCCL's built-in plugin.
fn environment(name: &CStr) -> *const c_char {
    // SAFETY: a C string; as in NCCL itself, no thread changes the environment while NCCL runs.
    unsafe { libc::getenv(name.as_ptr()) }
}

/// Runs the work; a panic ends here without a message, and the fallback is returned.
fn guarded<T>(fallback: T, work: impl FnOnce() -> T) -> T {
    match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => value,
        Err(panic) => {
            // Dropping the payload could panic in turn.
            std::mem::forget(panic);
            fallback
        }
    }
}

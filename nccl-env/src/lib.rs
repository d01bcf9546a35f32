//! `libnccl-env-railgate.so`: an environment plugin for NCCL 2.28.7 and later.
//!
//! What NCCL should be told can depend on its version, and only NCCL itself knows that: it may sit in a
//! container or a wheel. So the prolog writes those values with their ranges of versions into one small file,
//! and this library, which NCCL tells its version, answers with the ones that apply. For everything else, and
//! wherever anything is missing or odd, it answers as NCCL's own default does: with the process's environment.
//!
//! It lives in the user's process: it starts no threads, writes nothing, allocates only while NCCL starts, and
//! always reports success (NCCL gives up on the whole job if an environment plugin does not).
#![allow(unsafe_code, reason = "NCCL's plugin interface is C")]

mod abi;
mod answers;
mod table;

use std::ffi::{CStr, c_char, c_int};
use std::panic::{self, AssertUnwindSafe};
use std::ptr;

use abi::{EnvV1, EnvV2, INFO, Logger, NCCL_ENV, NCCL_INIT, SUCCESS};

/// NCCL 2.28.7 and later look for this name; from 2.30.7 on only where the other one is missing.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks the symbol up by this name")]
pub static ncclEnvPlugin_v1: EnvV1 = EnvV1 { name: NAME.as_ptr(), init: init_v1, finalize, get_env };

/// NCCL 2.30.7 and later look for this one first.
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
        // SAFETY: NCCL's own logger, with arguments as its format demands; it copies what it prints.
        unsafe { log(INFO, NCCL_INIT | NCCL_ENV, file.as_ptr(), line, c"%s".as_ptr(), text.as_ptr()) };
    });
    SUCCESS
}

/// What was handed out stays: NCCL may still use it elsewhere.
unsafe extern "C" fn finalize() -> c_int {
    SUCCESS
}

unsafe extern "C" fn get_env(name: *const c_char) -> *const c_char {
    if name.is_null() {
        return ptr::null();
    }
    // SAFETY: NCCL asks with a C string that lives during the call.
    let name = unsafe { CStr::from_ptr(name) };
    let answer = guarded(None, || answers::answer(name));
    answer.map_or_else(|| environment(name), CStr::as_ptr)
}

/// The process's own value, as NCCL's built-in plugin would hand it out: not a copy.
fn environment(name: &CStr) -> *const c_char {
    // SAFETY: a C string; as in NCCL itself, nobody changes the environment beside a running NCCL.
    unsafe { libc::getenv(name.as_ptr()) }
}

/// Runs the work; a panic ends here, silently, and the fallback stands in.
fn guarded<T>(fallback: T, work: impl FnOnce() -> T) -> T {
    match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => value,
        Err(panic) => {
            // Dropping it could panic in its turn.
            std::mem::forget(panic);
            fallback
        }
    }
}

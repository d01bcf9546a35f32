//! The plugin interface, as in NCCL's headers `plugin/env/env_v1.h` (2.28.7 and later) and `env_v2.h` (2.30.7 and
//! later). The two differ in the logger that `init` receives.

use std::ffi::{c_char, c_int, c_ulong};

/// `ncclSuccess`.
pub(crate) const SUCCESS: c_int = 0;
/// `NCCL_LOG_INFO`.
pub(crate) const INFO: c_int = 3;
/// A subsystem of NCCL's log.
pub(crate) const NCCL_INIT: c_ulong = 0x1;
/// A subsystem of NCCL's log.
pub(crate) const NCCL_ENV: c_ulong = 0x80;

/// `ncclDebugLogger_t`: level, subsystems, file, line, printf format and its arguments.
pub(crate) type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

type GetEnv = unsafe extern "C" fn(*const c_char) -> *const c_char;
type Finalize = unsafe extern "C" fn() -> c_int;

/// `ncclEnv_v1_t`.
#[repr(C)]
#[derive(Debug)]
pub struct EnvV1 {
    pub(crate) name: *const c_char,
    /// Major, minor, patch, suffix (`+cuda12.9`, or empty).
    pub(crate) init: unsafe extern "C" fn(u8, u8, u8, *const c_char) -> c_int,
    pub(crate) finalize: Finalize,
    pub(crate) get_env: GetEnv,
}

/// `ncclEnv_v2_t`.
#[repr(C)]
#[derive(Debug)]
pub struct EnvV2 {
    pub(crate) name: *const c_char,
    pub(crate) init: unsafe extern "C" fn(u8, u8, u8, *const c_char, Option<Logger>) -> c_int,
    pub(crate) finalize: Finalize,
    pub(crate) get_env: GetEnv,
}

// SAFETY: the name is a static text that is never changed, the rest are functions.
unsafe impl Sync for EnvV1 {}
// SAFETY: as above.
unsafe impl Sync for EnvV2 {}

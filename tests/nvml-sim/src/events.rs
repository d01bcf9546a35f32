#![allow(unsafe_code, reason = "the public NVML interface is C")]

//! Xids as events: lines `GPU CODE` of a file beside the library. A waiting program receives each line written after it
//! started to wait.

use std::ffi::{c_uint, c_ulonglong};
use std::fs;
use std::ptr;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings as sys;

use crate::answer::{Device, INVALID_ARGUMENT, Return, SUCCESS, gpu, handle, put, system};
use crate::state;

/// Name of the file.
pub const EVENTS_FILE: &str = "nvml-xids";

const TIMEOUT: Return = 10;
const XID: u64 = 8;

/// Number of lines that have been delivered. One counter is enough: a program has only one event set.
static TOLD: Mutex<usize> = Mutex::new(0);

fn lines() -> Vec<(u32, u64)> {
    let text = fs::read_to_string(state::folder().join(EVENTS_FILE)).unwrap_or_default();
    let one = |line: &str| {
        let (gpu, code) = line.split_once(' ')?;
        Some((gpu.parse().ok()?, code.parse().ok()?))
    };
    text.lines().filter_map(one).collect()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetCreate(out: *mut sys::nvmlEventSet_t) -> Return {
    *TOLD.lock().unwrap_or_else(PoisonError::into_inner) = lines().len();
    // SAFETY: the caller passes null or a valid `out`.
    system("nvmlEventSetCreate", |_| unsafe { put(out, ptr::without_provenance_mut(0x7365_7400)) })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(_set: sys::nvmlEventSet_t) -> Return {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(
    device: Device,
    types: c_ulonglong,
    _set: sys::nvmlEventSet_t,
) -> Return {
    gpu("nvmlDeviceRegisterEvents", device, |_| if types & XID == 0 { Err(INVALID_ARGUMENT) } else { Ok(()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetWait_v2(
    _set: sys::nvmlEventSet_t,
    out: *mut sys::nvmlEventData_t,
    timeout_ms: c_uint,
) -> Return {
    let until = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((gpu, code)) = lines().get(*told) {
            *told += 1;
            let data = sys::nvmlEventData_t {
                device: handle(*gpu).cast(),
                eventType: XID,
                eventData: *code,
                gpuInstanceId: c_uint::MAX,
                computeInstanceId: c_uint::MAX,
            };
            // SAFETY: the caller passes null or a valid `out`.
            return system("nvmlEventSetWait_v2", |_| unsafe { put(out, data) });
        }
        drop(told);
        if Instant::now() >= until {
            return TIMEOUT;
        }
        sleep(Duration::from_millis(20));
    }
}

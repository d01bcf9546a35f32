#![allow(unsafe_code, reason = "a C interface: values go through the caller's pointers")]

use std::ffi::{c_char, c_uint, c_void};
use std::ptr;
use std::time::Duration;

use railgate_model::{Access, Gpu, Reading};

use crate::scenario::Scenario;
use crate::state;

pub(crate) type Return = u32;
pub(crate) const SUCCESS: Return = 0;
pub(crate) const INVALID_ARGUMENT: Return = 2;
pub(crate) const NOT_SUPPORTED: Return = 3;
pub(crate) const NOT_FOUND: Return = 6;
pub(crate) const INSUFFICIENT_SIZE: Return = 7;
pub(crate) const DRIVER_NOT_LOADED: Return = 9;
pub(crate) const GPU_IS_LOST: Return = 15;
pub(crate) const RESET_REQUIRED: Return = 16;
pub(crate) const UNKNOWN: Return = 999;

/// A caller's handle of a GPU: its index plus a tag that tells a handle from a stray pointer.
pub(crate) type Device = *mut c_void;
const HANDLE_BASE: usize = 0x6e76_0000;

pub(crate) fn handle(index: u32) -> Device {
    ptr::without_provenance_mut(HANDLE_BASE + usize::try_from(index).unwrap_or_default())
}

/// The index of the GPU that a handle belongs to; `None` if it is no handle.
pub(crate) fn index_of(device: Device) -> Option<u32> {
    device.addr().checked_sub(HANDLE_BASE).and_then(|index| u32::try_from(index).ok())
}

/// Runs a call about the driver.
pub(crate) fn system(symbol: &str, with: impl FnOnce(&Scenario) -> Result<(), Return>) -> Return {
    code(state::enter(symbol).and_then(|scenario| with(&scenario)))
}

/// Runs a call about the GPU of a handle.
pub(crate) fn gpu(symbol: &str, device: Device, with: impl FnOnce(&Gpu) -> Result<(), Return>) -> Return {
    code(state::enter(symbol).and_then(|scenario| {
        let index = device.addr().checked_sub(HANDLE_BASE).ok_or(INVALID_ARGUMENT)?;
        let gpu = scenario.gpus.get(index).ok_or(INVALID_ARGUMENT)?;
        while scenario.behaviour.hang_gpus.contains(&gpu.index) {
            std::thread::sleep(Duration::from_secs(3600));
        }
        if matches!(gpu.access, Access::Lost(_)) || state::lost_by_now(&scenario, gpu.index) {
            return Err(GPU_IS_LOST);
        }
        with(gpu)
    }))
}

fn code(result: Result<(), Return>) -> Return {
    result.err().unwrap_or(SUCCESS)
}

/// The value, or the error code that a driver returns for such a reading.
pub(crate) fn known<T>(reading: &Reading<T>) -> Result<&T, Return> {
    match reading {
        Reading::Known(value) => Ok(value),
        Reading::Unsupported => Err(NOT_SUPPORTED),
        Reading::Failed(_) => Err(UNKNOWN),
    }
}

/// Writes a value to an output argument.
///
/// # Safety
/// `out` is null or valid for a write, as NVML requires.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Return> {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and valid by this function's contract.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a text and its terminating NUL to an output argument.
///
/// # Safety
/// `out` is null or has space for `length` bytes.
pub(crate) unsafe fn put_text(out: *mut c_char, length: c_uint, text: &str) -> Result<(), Return> {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    let room = usize::try_from(length).unwrap_or_default();
    if text.len() >= room {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: text and NUL fit into the `length` bytes that this function's contract guarantees.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), out.cast(), text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

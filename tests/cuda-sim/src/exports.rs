//! The symbols, after the public header of CUDA 12. Work is done when a call returns, so that streams and events hold no state but
//! the time.
#![allow(unsafe_code, reason = "the driver's interface is C")]
#![allow(non_snake_case, reason = "the names of the driver's interface")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::time::Instant;

use crate::kernels::{self, Arguments};
use crate::state::{self, INVALID_VALUE, NO_DEVICE, NOT_FOUND, SUCCESS, enter};

pub(crate) fn code(result: Result<(), u32>) -> u32 {
    result.err().unwrap_or(SUCCESS)
}

/// Writes a result.
///
/// # Safety
/// `to` is null or valid for writing.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Result<(), u32> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// Defines symbols; their bodies return `Result<(), u32>` with the driver's error.
macro_rules! symbols {
    ($($name:ident($($arg:ident: $type:ty),*) $body:block)*) => {$(
        /// As in the driver's header; pointers are null or valid.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> u32 {
            let run = || -> Result<(), u32> {
                enter(stringify!($name))?;
                // SAFETY: the caller passes what the header asks for.
                #[allow(unused_unsafe, reason = "some symbols write nothing")]
                unsafe { $body }
            };
            $crate::exports::code(run())
        }
    )*};
}
pub(crate) use symbols;

fn device(ordinal: c_int) -> Result<&'static crate::Device, u32> {
    usize::try_from(ordinal).ok().and_then(|place| state::scenario().devices.get(place)).ok_or(NO_DEVICE)
}

fn address(at: u64) -> usize {
    usize::try_from(at).unwrap_or_default()
}

fn wide(at: usize) -> u64 {
    u64::try_from(at).unwrap_or_default()
}

/// Contexts, streams and modules are numbers in place of pointers.
fn handle(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number + 1)
}

symbols! {
    cuInit(_flags: c_uint) { Ok(()) }
    cuDeviceGetCount(count: *mut c_int) {
        put(count, c_int::try_from(state::scenario().devices.len()).unwrap_or_default())
    }
    cuDeviceGet(to: *mut c_int, ordinal: c_int) { device(ordinal).and_then(|_| put(to, ordinal)) }
    cuDeviceGetName(to: *mut c_char, length: c_int, of: c_int) {
        let name = &device(of)?.name;
        let room = usize::try_from(length).unwrap_or_default().saturating_sub(1);
        for (at, byte) in name.bytes().take(room).chain([0]).enumerate() {
            put(to.add(at), byte.cast_signed())?;
        }
        Ok(())
    }
    cuDeviceGetAttribute(to: *mut c_int, which: c_uint, of: c_int) {
        let device = device(of)?;
        put(to, match which {
            16 => 132,
            33 => device.bus,
            75 => device.capability / 10,
            76 => device.capability % 10,
            _ => 0,
        })
    }
    cuDevicePrimaryCtxRetain(to: *mut *mut c_void, of: c_int) {
        device(of)?;
        put(to, handle(usize::try_from(of).unwrap_or_default()))
    }
    cuDevicePrimaryCtxRelease_v2(_of: c_int) { Ok(()) }
    cuCtxSetCurrent(context: *mut c_void) {
        state::set_current(context.addr().saturating_sub(1));
        Ok(())
    }
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        put(free, state::free_bytes())?;
        put(total, state::total_bytes())
    }
    cuMemAlloc_v2(to: *mut u64, bytes: usize) { put(to, wide(state::allocate(bytes, false)?)) }
    cuMemFree_v2(at: u64) { state::free(address(at)) }
    cuMemHostAlloc(to: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        put(to, std::ptr::with_exposed_provenance_mut(state::allocate(bytes, true)?))
    }
    cuMemFreeHost(at: *mut c_void) { state::free(at.addr()) }
    cuMemsetD8_v2(at: u64, value: u8, count: usize) {
        state::bytes(address(at), count)?.fill(value);
        Ok(())
    }
    cuMemsetD32Async(at: u64, value: c_uint, count: usize, _stream: *mut c_void) {
        for word in state::bytes(address(at), count * 4)?.chunks_exact_mut(4) {
            word.copy_from_slice(&value.to_ne_bytes());
        }
        Ok(())
    }
    cuMemcpyHtoD_v2(to: u64, from: *const c_void, count: usize) {
        state::bytes(address(to), count)?.copy_from_slice(std::slice::from_raw_parts(from.cast(), count));
        Ok(())
    }
    cuMemcpyDtoH_v2(to: *mut c_void, from: u64, count: usize) {
        std::slice::from_raw_parts_mut(to.cast::<u8>(), count).copy_from_slice(state::bytes(address(from), count)?);
        Ok(())
    }
    cuMemcpyDtoD_v2(to: u64, from: u64, count: usize) {
        state::bytes(address(to), count)?.copy_from_slice(state::bytes(address(from), count)?);
        Ok(())
    }
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, count: usize, _stream: *mut c_void) {
        state::bytes(address(to), count)?.copy_from_slice(state::bytes(from.addr(), count)?);
        Ok(())
    }
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, count: usize, _stream: *mut c_void) {
        state::bytes(to.addr(), count)?.copy_from_slice(state::bytes(address(from), count)?);
        Ok(())
    }
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, count: usize, _stream: *mut c_void) {
        state::bytes(address(to), count)?.copy_from_slice(state::bytes(address(from), count)?);
        kernels::planted("cuMemcpyDtoDAsync", address(to))
    }
    cuMemcpyPeerAsync(
        to: u64, _of_to: *mut c_void, from: u64, _of_from: *mut c_void, count: usize, _stream: *mut c_void
    ) {
        state::bytes(address(to), count)?.copy_from_slice(state::bytes(address(from), count)?);
        Ok(())
    }
    cuDeviceCanAccessPeer(to: *mut c_int, _device: c_int, _peer: c_int) { put(to, 1) }
    cuCtxEnablePeerAccess(_peer: *mut c_void, _flags: c_uint) { Ok(()) }
    cuStreamCreate(to: *mut *mut c_void, _flags: c_uint) { put(to, handle(0)) }
    cuStreamSynchronize(_stream: *mut c_void) { Ok(()) }
    cuStreamDestroy_v2(_stream: *mut c_void) { Ok(()) }
    cuEventCreate(to: *mut *mut c_void, _flags: c_uint) {
        put(to, Box::into_raw(Box::new(Instant::now())).cast())
    }
    cuEventRecord(event: *mut c_void, _stream: *mut c_void) { put(event.cast(), Instant::now()) }
    cuEventElapsedTime(to: *mut f32, first: *mut c_void, last: *mut c_void) {
        let (first, last) = (*first.cast::<Instant>(), *last.cast::<Instant>());
        put(to, last.duration_since(first).as_secs_f32() * 1000.0)
    }
    cuEventDestroy_v2(event: *mut c_void) {
        drop(Box::from_raw(event.cast::<Instant>()));
        Ok(())
    }
    cuModuleLoadData(to: *mut *mut c_void, image: *const c_void) {
        let text = CStr::from_ptr(image.cast()).to_bytes();
        if text.starts_with(b"//") || text.windows(8).any(|part| part == b".version") { put(to, handle(0)) } else { Err(INVALID_VALUE) }
    }
    cuModuleUnload(_module: *mut c_void) { Ok(()) }
    cuModuleGetFunction(to: *mut *mut c_void, _module: *mut c_void, name: *const c_char) {
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        if !kernels::is_known(&name) {
            return Err(NOT_FOUND);
        }
        put(to, Box::into_raw(Box::new(name)).cast())
    }
    cuFuncSetAttribute(function: *mut c_void, attribute: c_int, value: c_int) {
        // The share of shared memory, percent.
        if function.is_null() || attribute != 9 || !(0..=100).contains(&value) { Err(INVALID_VALUE) } else { Ok(()) }
    }
    cuLaunchKernel(
        function: *mut c_void, x: c_uint, _y: c_uint, _z: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint, _shared: c_uint,
        _stream: *mut c_void, arguments: *mut *mut c_void, _extra: *mut *mut c_void
    ) {
        let name = &*function.cast::<String>();
        let read = |place: usize, wide: bool| -> u64 {
            // SAFETY: the kernel with this name has an argument of this width at this place.
            unsafe {
                let at = *arguments.add(place);
                if wide { at.cast::<u64>().read_unaligned() } else { u64::from(at.cast::<u32>().read_unaligned()) }
            }
        };
        kernels::run(name, x, &Arguments { read: &read })
    }
    cuGetErrorName(error: c_uint, to: *mut *const c_char) {
        put(to, match error {
            2 => c"CUDA_ERROR_OUT_OF_MEMORY",
            46 => c"CUDA_ERROR_DEVICE_UNAVAILABLE",
            100 => c"CUDA_ERROR_NO_DEVICE",
            304 => c"CUDA_ERROR_OPERATING_SYSTEM",
            _ => c"CUDA_ERROR_UNKNOWN",
        }.as_ptr())
    }
    cuGetErrorString(error: c_uint, to: *mut *const c_char) {
        put(to, match error {
            2 => c"out of memory",
            46 => c"CUDA-capable device(s) is/are busy or unavailable",
            100 => c"no CUDA-capable device is detected",
            304 => c"OS call failed or operation not supported on this OS",
            _ => c"unknown error",
        }.as_ptr())
    }
}

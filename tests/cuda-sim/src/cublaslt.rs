//! cuBLASLt's symbols, after its public header, of the products that `railgate-gpu-selftest` asks for. They check what they get, and
//! read both inputs to the end; the product itself is zeros.
#![allow(unsafe_code, reason = "the library's interface is C")]
#![allow(non_snake_case, reason = "the names of the library's interface")]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};

use crate::exports::{put, symbols};
use crate::state::{self, enter};

const INVALID_VALUE: u32 = 7;
const EXECUTION_FAILED: u32 = 13;
const NOT_SUPPORTED: u32 = 15;
/// The first word of an algorithm of this library, and the workspace that it needs.
const ALGORITHM: u64 = 0xA190;
const NEEDED: usize = 1 << 20;

/// Compute type, type of the factors, attributes.
struct Description(u32, u32, BTreeMap<u32, i32>);

/// Type, rows, columns, elements from one column to the next.
#[derive(Clone, Copy)]
struct Layout(u32, u64, u64, i64);

#[repr(C)]
struct Choice {
    algorithm: [u64; 8],
    workspace: usize,
    state: u32,
    waves: f32,
    reserved: [c_int; 4],
}

fn bytes_of(data: u32) -> usize {
    match data {
        0 => 4,
        28 => 1,
        _ => 2,
    }
}

impl Layout {
    fn bytes(self) -> Option<usize> {
        let Layout(data, rows, columns, step) = self;
        let step = u64::try_from(step).ok().filter(|step| *step >= rows)?;
        usize::try_from(step.checked_mul(columns)?).ok()?.checked_mul(bytes_of(data))
    }
}

fn checked(of: &Description, a: Layout, b: Layout, c: Layout, d: Layout) -> Result<(), u32> {
    let Description(compute, scale, attributes) = of;
    let is_transposed = |which| attributes.get(&which).is_some_and(|operation| *operation == 1);
    let (of_a, of_b) = (is_transposed(3), is_transposed(4));
    let known = match (compute, a.0) {
        (68 | 77, 0) => d.0 == 0,
        (68, 2 | 14) => d.0 == a.0,
        (68, 28) => d.0 == 14 && of_a && !of_b,
        _ => false,
    };
    if !known || *scale != 0 || a.0 != b.0 || c.0 != d.0 {
        return Err(NOT_SUPPORTED);
    }
    let (m, depth) = if of_a { (a.2, a.1) } else { (a.1, a.2) };
    let (depth_of_b, n) = if of_b { (b.2, b.1) } else { (b.1, b.2) };
    let fits = depth == depth_of_b && [c, d].iter().all(|one| (one.1, one.2) == (m, n));
    if fits && m.is_multiple_of(16) && n.is_multiple_of(16) { Ok(()) } else { Err(INVALID_VALUE) }
}

/// Whether all numbers were written, and are neither infinite nor NaN.
fn is_finite(bytes: &[u8], data: u32) -> bool {
    let mask: u32 = match data {
        0 => 0x7F80_0000,
        2 => 0x7C00,
        14 => 0x7F80,
        _ => 0x7F,
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u32, |all, byte| all << 8 | u32::from(*byte));
    !bytes.ends_with(&[0xA5; 16]) && bytes.chunks_exact(bytes_of(data)).all(|one| number(one) & mask != mask)
}

/// Memory of a matrix.
fn memory<'a>(at: *const c_void, of: Layout) -> Result<&'a mut [u8], u32> {
    state::bytes(at.addr(), of.bytes().ok_or(INVALID_VALUE)?).map_err(|_| EXECUTION_FAILED)
}

symbols! {
    cublasLtCreate(to: *mut *mut c_void) { put(to, Box::into_raw(Box::new(0_u8)).cast()) }
    cublasLtDestroy(handle: *mut c_void) {
        drop(Box::from_raw(handle.cast::<u8>()));
        Ok(())
    }
    cublasLtMatmulDescCreate(to: *mut *mut c_void, compute: u32, scale: u32) {
        put(to, Box::into_raw(Box::new(Description(compute, scale, BTreeMap::new()))).cast())
    }
    cublasLtMatmulDescSetAttribute(of: *mut c_void, which: u32, value: *const c_void, size: usize) {
        if size != 4 || !(3..=4).contains(&which) {
            return Err(INVALID_VALUE);
        }
        (*of.cast::<Description>()).2.insert(which, value.cast::<i32>().read_unaligned());
        Ok(())
    }
    cublasLtMatmulDescDestroy(of: *mut c_void) {
        drop(Box::from_raw(of.cast::<Description>()));
        Ok(())
    }
    cublasLtMatrixLayoutCreate(to: *mut *mut c_void, data: u32, rows: u64, columns: u64, step: i64) {
        put(to, Box::into_raw(Box::new(Layout(data, rows, columns, step))).cast())
    }
    cublasLtMatrixLayoutDestroy(of: *mut c_void) {
        drop(Box::from_raw(of.cast::<Layout>()));
        Ok(())
    }
    cublasLtMatmulPreferenceCreate(to: *mut *mut c_void) { put(to, Box::into_raw(Box::new(0_u64)).cast()) }
    cublasLtMatmulPreferenceSetAttribute(of: *mut c_void, which: u32, value: *const c_void, size: usize) {
        if size != 8 || which != 1 { Err(INVALID_VALUE) } else { put(of.cast(), value.cast::<u64>().read_unaligned()) }
    }
    cublasLtMatmulPreferenceDestroy(of: *mut c_void) {
        drop(Box::from_raw(of.cast::<u64>()));
        Ok(())
    }
    cublasLtMatmulAlgoGetHeuristic(
        _handle: *mut c_void, of: *mut c_void, a: *mut c_void, b: *mut c_void, c: *mut c_void, d: *mut c_void,
        preference: *mut c_void, wanted: c_int, to: *mut c_void, found: *mut c_int
    ) {
        let [a, b, c, d] = [a, b, c, d].map(|one| *one.cast::<Layout>());
        checked(&*of.cast::<Description>(), a, b, c, d)?;
        if wanted < 1 || usize::try_from(*preference.cast::<u64>()).unwrap_or_default() < NEEDED {
            return put(found, 0);
        }
        let algorithm = [ALGORITHM, 0, 0, 0, 0, 0, 0, 0];
        put(to.cast(), Choice { algorithm, workspace: NEEDED, state: 0, waves: 1.0, reserved: [0; 4] })?;
        put(found, 1)
    }
    cublasLtMatmul(
        _handle: *mut c_void, of: *mut c_void, alpha: *const f32, a: *const c_void, of_a: *mut c_void, b: *const c_void,
        of_b: *mut c_void, beta: *const f32, _c: *const c_void, of_c: *mut c_void, d: *mut c_void, of_d: *mut c_void,
        algorithm: *const u64, workspace: *mut c_void, workspace_size: usize, _stream: *mut c_void
    ) {
        let [of_a, of_b, of_c, of_d] = [of_a, of_b, of_c, of_d].map(|one| *one.cast::<Layout>());
        checked(&*of.cast::<Description>(), of_a, of_b, of_c, of_d)?;
        if *algorithm != ALGORITHM || workspace_size < NEEDED || (*alpha, *beta) != (1.0, 0.0) {
            return Err(INVALID_VALUE);
        }
        state::bytes(workspace.addr(), workspace_size).map_err(|_| EXECUTION_FAILED)?;
        if !is_finite(memory(a, of_a)?, of_a.0) || !is_finite(memory(b, of_b)?, of_b.0) {
            return Err(EXECUTION_FAILED);
        }
        memory(d, of_d)?.fill(0);
        Ok(())
    }
}

/// As in the library's header.
#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    130_100
}

/// As in the library's header.
#[unsafe(no_mangle)]
extern "C" fn cublasLtGetStatusName(status: u32) -> *const c_char {
    let name = match status {
        0 => c"CUBLAS_STATUS_SUCCESS",
        1 => c"CUBLAS_STATUS_NOT_INITIALIZED",
        INVALID_VALUE => c"CUBLAS_STATUS_INVALID_VALUE",
        EXECUTION_FAILED => c"CUBLAS_STATUS_EXECUTION_FAILED",
        NOT_SUPPORTED => c"CUBLAS_STATUS_NOT_SUPPORTED",
        _ => return std::ptr::null(),
    };
    name.as_ptr()
}

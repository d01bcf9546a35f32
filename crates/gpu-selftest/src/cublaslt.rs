//! cuBLASLt, loaded at run time where it is installed: matrix products at the full rate of a card.
//!
//! cudarc has a loader of its own, which panics without the library or with a symbol missing, and does not know `libcublasLt.so.13`.
//! Its types are used here, and so are its numbers. Results are plain integers, because a newer library may return a number that no
//! enumeration here has.
#![expect(unsafe_code, reason = "the library's interface is C")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasLtMatmulDescAttributes_t as Attribute, cudaDataType as Data,
};
use libloading::os::unix::Library;

use crate::cuda::{Buffer, Context, Stream};

/// The newest first; a library that is too new for the driver makes no handle, and the next one is tried. Without a folder, so that
/// the loader searches those of the system and of `LD_LIBRARY_PATH`, and no others: the program may run as root.
const NAMES: [&str; 3] = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"];
/// Memory that a product may use besides its matrices. NVIDIA recommends this size for Hopper.
const WORKSPACE: usize = 32 << 20;

/// `cublasOperation_t` of cublas_api.h, 4 bytes; cudarc has it only with the whole of cuBLAS.
const AS_STORED: c_int = 0;
const TRANSPOSED: c_int = 1;

type Status = c_uint;

/// Declares the functions that are used, and looks them up.
macro_rules! functions {
    ($($field:ident, $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        #[derive(Clone, Copy, Debug)]
        struct Api {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Api {
            fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of cublasLt.h, which are the same in releases 11.4 to 13.
                unsafe { Ok(Api { $($field: *library.get($symbol)?,)* }) }
            }
        }
    };
}

// Handles, descriptions, layouts and preferences are pointers to what only the library knows.
functions! {
    version, c"cublasLtGetVersion": fn() -> usize;
    status_name, c"cublasLtGetStatusName": fn(Status) -> *const c_char;
    create, c"cublasLtCreate": fn(*mut *mut c_void) -> Status;
    destroy, c"cublasLtDestroy": fn(*mut c_void) -> Status;
    create_description, c"cublasLtMatmulDescCreate": fn(*mut *mut c_void, Compute, Data) -> Status;
    set_description, c"cublasLtMatmulDescSetAttribute":
        fn(*mut c_void, Attribute, *const c_void, usize) -> Status;
    destroy_description, c"cublasLtMatmulDescDestroy": fn(*mut c_void) -> Status;
    create_layout, c"cublasLtMatrixLayoutCreate": fn(*mut *mut c_void, Data, u64, u64, i64) -> Status;
    destroy_layout, c"cublasLtMatrixLayoutDestroy": fn(*mut c_void) -> Status;
    create_preference, c"cublasLtMatmulPreferenceCreate": fn(*mut *mut c_void) -> Status;
    set_preference, c"cublasLtMatmulPreferenceSetAttribute":
        fn(*mut c_void, sys::cublasLtMatmulPreferenceAttributes_t, *const c_void, usize) -> Status;
    destroy_preference, c"cublasLtMatmulPreferenceDestroy": fn(*mut c_void) -> Status;
    // Handle, description, layouts of A, B, C and D, preference, algorithms wanted, their place, algorithms found.
    choose, c"cublasLtMatmulAlgoGetHeuristic":
        fn(*mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void, c_int, *mut Choice, *mut c_int)
            -> Status;
    // Handle, description, alpha, A with layout, B with layout, beta, C with layout, D with layout, algorithm, workspace with its size, stream.
    multiply, c"cublasLtMatmul":
        fn(*mut c_void, *mut c_void, *const f32, *const c_void, *mut c_void, *const c_void, *mut c_void, *const f32,
            *const c_void, *mut c_void, *mut c_void, *mut c_void, *const sys::cublasLtMatmulAlgo_t, *mut c_void, usize,
            *mut c_void) -> Status;
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
struct Choice {
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

impl Api {
    fn done(&self, call: &str, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: any number is allowed; the result is null or a text that is never freed.
        let name = unsafe {
            let name = (self.status_name)(status);
            (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
        };
        Err(format!("{call}: {} ({status})", name.unwrap_or_else(|| "unknown error".to_owned())))
    }

    fn made(
        &self,
        call: &str,
        destroy: unsafe extern "C" fn(*mut c_void) -> Status,
        create: impl FnOnce(*mut *mut c_void) -> Status,
    ) -> Result<Made, String> {
        let mut at = std::ptr::null_mut();
        self.done(call, create(&raw mut at))?;
        Ok(Made { at, destroy })
    }
}

/// The loader's own text, which names the file; the error itself has none.
fn text(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// An object of the library: a handle, a description, a layout, a preference.
#[derive(Debug)]
struct Made {
    at: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void) -> Status,
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: created once with the function that belongs to `destroy`, destroyed once.
        let _ = unsafe { (self.destroy)(self.at) };
    }
}

/// Why there is no library.
#[derive(Debug)]
pub(crate) enum NotLoaded {
    /// None is installed.
    Absent(String),
    /// One is installed, and cannot be used.
    Unusable(String),
}

/// The library, for one card.
#[derive(Debug)]
pub(crate) struct CublasLt<'c> {
    api: Api,
    handle: Made,
    context: &'c Context,
}

impl<'c> CublasLt<'c> {
    /// Loads the library for the context's card. The context is the current one of the thread.
    pub(crate) fn load(context: &'c Context) -> Result<Self, NotLoaded> {
        let (mut absent, mut unusable) = (Vec::new(), Vec::new());
        for name in NAMES {
            // SAFETY: loading a library runs its constructors; cuBLASLt's have no precondition.
            let library = match unsafe { Library::new(name) } {
                Ok(library) => library,
                Err(why) => {
                    absent.push(text(&why));
                    continue;
                }
            };
            let api = Api::of(&library);
            // It stays loaded: libraries that have used a card do not bear being unloaded, and `Api` needs it.
            let _ = library.into_raw();
            let loaded = api.map_err(|why| text(&why)).and_then(|api| {
                // SAFETY: the handle has a place.
                let handle = api.made("cublasLtCreate", api.destroy, |to| unsafe { (api.create)(to) })?;
                Ok(CublasLt { api, handle, context })
            });
            match loaded {
                Ok(loaded) => return Ok(loaded),
                Err(why) => unusable.push(format!("{name}: {why}")),
            }
        }
        if unusable.is_empty() {
            return Err(NotLoaded::Absent(format!("libcublasLt is not installed: {}", absent.join("; "))));
        }
        Err(NotLoaded::Unusable(unusable.join("; ")))
    }

    /// 130100 for 13.1.0, 120905 for 12.9.5.
    pub(crate) fn version(&self) -> usize {
        // SAFETY: the function has no precondition.
        unsafe { (self.api.version)() }
    }
}

/// Types of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Types {
    pub(crate) input: Data,
    pub(crate) input_bytes: usize,
    pub(crate) result: Data,
    pub(crate) result_bytes: usize,
    pub(crate) compute: Compute,
}

/// A product D = Aᵀ·B of square matrices, with the algorithm that the library prefers.
///
/// Matrices are stored by columns, and A is transposed, so that both inputs have the elements that are multiplied with each other side
/// by side. It is the only form that Hopper has for fp8; the other types use it as well.
#[derive(Debug)]
pub(crate) struct Product<'c> {
    api: Api,
    handle: *mut c_void,
    description: Made,
    input: Made,
    result: Made,
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: Buffer<'c>,
    /// Bytes of each input, and of the result.
    bytes: (usize, usize),
    library: PhantomData<&'c CublasLt<'c>>,
}

impl<'c> Product<'c> {
    pub(crate) fn new(library: &'c CublasLt<'c>, types: Types, side: u32) -> Result<Self, String> {
        let api = library.api;
        let handle = library.handle.at;
        let layout = |data: Data| {
            let (rows, columns, from_column_to_column) = (u64::from(side), u64::from(side), i64::from(side));
            let create = |to| {
                // SAFETY: the layout has a place.
                unsafe { (api.create_layout)(to, data, rows, columns, from_column_to_column) }
            };
            api.made("cublasLtMatrixLayoutCreate", api.destroy_layout, create)
        };
        let (input, result) = (layout(types.input)?, layout(types.result)?);
        let description = api.made("cublasLtMatmulDescCreate", api.destroy_description, |to| {
            // SAFETY: the description has a place. Factors are single precision for all types here.
            unsafe { (api.create_description)(to, types.compute, Data::CUDA_R_32F) }
        })?;
        for (which, operation) in [
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, TRANSPOSED),
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, AS_STORED),
        ] {
            let value = std::ptr::from_ref(&operation).cast();
            // SAFETY: the description exists; the attribute is an enumeration, whose value and size are passed.
            let status =
                unsafe { (api.set_description)(description.at, which, value, size_of_val(&operation)) };
            api.done("cublasLtMatmulDescSetAttribute", status)?;
        }
        let algorithm = choose(&api, handle, &description, &input, &result)?;
        let workspace = library.context.buffer(WORKSPACE)?;
        let elements = usize::try_from(u64::from(side) * u64::from(side)).unwrap_or(usize::MAX);
        let bytes = (elements.saturating_mul(types.input_bytes), elements.saturating_mul(types.result_bytes));
        Ok(Product {
            api,
            handle,
            description,
            input,
            result,
            algorithm,
            workspace,
            bytes,
            library: PhantomData,
        })
    }

    /// Bytes of each input, and of the result.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        self.bytes
    }

    /// Starts the product: `d` gets what it is.
    pub(crate) fn start(&self, stream: &Stream<'_>, [a, b, d]: [&Buffer<'_>; 3]) -> Result<(), String> {
        a.holds(self.bytes.0)?;
        b.holds(self.bytes.0)?;
        d.holds(self.bytes.1)?;
        let (alpha, beta) = (1.0_f32, 0.0_f32);
        let [a, b, d, workspace] = [a, b, d, &self.workspace].map(pointer);
        // SAFETY: all objects exist; the buffers hold the matrices that the layouts describe, and are freed only after the work that uses
        // them. D is also C, which a beta of zero leaves unread. The factors are read before the call returns.
        let status = unsafe {
            (self.api.multiply)(
                self.handle,
                self.description.at,
                &raw const alpha,
                a,
                self.input.at,
                b,
                self.input.at,
                &raw const beta,
                d,
                self.result.at,
                d,
                self.result.at,
                &raw const self.algorithm,
                workspace,
                self.workspace.bytes(),
                stream.raw().cast(),
            )
        };
        self.api.done("cublasLtMatmul", status)
    }
}

/// An address of the card, as the library takes it.
fn pointer(buffer: &Buffer<'_>) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(buffer.at()).unwrap_or_default())
}

/// The algorithm that the library prefers.
fn choose(
    api: &Api,
    handle: *mut c_void,
    description: &Made,
    input: &Made,
    result: &Made,
) -> Result<sys::cublasLtMatmulAlgo_t, String> {
    let preference = api.made("cublasLtMatmulPreferenceCreate", api.destroy_preference, |to| {
        // SAFETY: the preference has a place.
        unsafe { (api.create_preference)(to) }
    })?;
    let most = u64::try_from(WORKSPACE).unwrap_or_default();
    let which = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    let value = std::ptr::from_ref(&most).cast();
    // SAFETY: the preference exists; the attribute is a number of 64 bits.
    let status = unsafe { (api.set_preference)(preference.at, which, value, size_of_val(&most)) };
    api.done("cublasLtMatmulPreferenceSetAttribute", status)?;
    let mut choice = Choice {
        algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        workspace: 0,
        state: 0,
        waves: 0.0,
        reserved: [0; 4],
    };
    let mut found = 0;
    let call = "cublasLtMatmulAlgoGetHeuristic";
    // SAFETY: all objects exist; one algorithm has a place, and so has their number.
    let status = unsafe {
        (api.choose)(
            handle,
            description.at,
            input.at,
            input.at,
            result.at,
            result.at,
            preference.at,
            1,
            &raw mut choice,
            &raw mut found,
        )
    };
    api.done(call, status)?;
    if found < 1 {
        return Err(format!("{call}: no algorithm for this product"));
    }
    api.done(call, choice.state)?;
    if choice.workspace > WORKSPACE {
        return Err(format!("{call}: the algorithm needs {} bytes of workspace", choice.workspace));
    }
    Ok(choice.algorithm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_laid_out_as_in_the_header() {
        type Theirs = sys::cublasLtMatmulHeuristicResult_t;
        assert_eq!((size_of::<Choice>(), align_of::<Choice>()), (size_of::<Theirs>(), align_of::<Theirs>()));
        assert_eq!(std::mem::offset_of!(Choice, workspace), std::mem::offset_of!(Theirs, workspaceSize));
        assert_eq!(std::mem::offset_of!(Choice, state), std::mem::offset_of!(Theirs, state));
    }

    /// The numbers of library_types.h, cublas_api.h and cublasLt.h.
    #[test]
    fn numbers_are_those_of_the_headers() {
        let data = [Data::CUDA_R_32F, Data::CUDA_R_16F, Data::CUDA_R_16BF, Data::CUDA_R_8F_E4M3];
        assert_eq!(data.map(|one| one as u32), [0, 2, 14, 28]);
        let compute = [Compute::CUBLAS_COMPUTE_32F, Compute::CUBLAS_COMPUTE_32F_FAST_TF32];
        assert_eq!(compute.map(|one| one as u32), [68, 77]);
        let transposed = [Attribute::CUBLASLT_MATMUL_DESC_TRANSA, Attribute::CUBLASLT_MATMUL_DESC_TRANSB];
        assert_eq!(transposed.map(|one| one as u32), [3, 4]);
        let workspace = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        assert_eq!(workspace as u32, 1);
    }
}

//! The only place that knows NVML.
//!
//! nvml-wrapper loads the library; every question goes through its function pointers, not through its
//! methods: those miss functions and scopes, do not know the return codes above 22, and panic where an
//! old driver lacks a symbol. The library is never shut down or unloaded: this runs in a child that ends
//! by itself, and both can hang or crash in a sick driver.

mod device;
mod events;
mod returns;
mod watch;

use std::mem::ManuallyDrop;
use std::path::Path;

use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::NvmlLib;
use railgate_model::{Gpu, Gpus, Reading};

pub(crate) use events::xids;
pub(crate) use watch::watch;

/// Everything NVML says, from the library at `library`; what each NVLink counts where that is wanted.
///
/// # Errors
/// The library cannot be loaded or started, or does not even count its GPUs. Never "no GPUs".
pub(crate) fn gpus_read(library: &Path, nvlink_errors: bool) -> Result<Gpus, String> {
    let nvml = Nvml::builder()
        .lib_path(library.as_os_str())
        .init()
        .map_err(|why| format!("{}: {}", library.display(), chain(&why)))?;
    let nvml = ManuallyDrop::new(nvml);
    let lib = nvml.lib();
    let count = match device::count(lib) {
        Reading::Known(count) => count,
        missing => return Err(format!("number of GPUs: {missing}")),
    };
    let driver = device::system_text(lib, "nvmlSystemGetDriverVersion", &lib.nvmlSystemGetDriverVersion);
    let version = device::system_text(lib, "nvmlSystemGetNVMLVersion", &lib.nvmlSystemGetNVMLVersion);
    Ok(Gpus { driver, nvml: version, count: Reading::Known(count), gpus: gpus(lib, count, nvlink_errors) })
}

/// One thread for each GPU: a few calls cost milliseconds each, and different GPUs answer them at the
/// same time.
fn gpus(lib: &NvmlLib, count: u32, nvlink_errors: bool) -> Vec<Gpu> {
    let read = |index| device::read(lib, index, count, nvlink_errors);
    if count == 1 {
        return vec![read(0)];
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || read(index))).collect();
        // A panic is our own fault, and must not pass for a GPU that cannot be opened: the whole part fails.
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// An error with everything below it: the loader's own text ("No such file …") is at the bottom.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

//! Access to NVML. No other module uses it.
//!
//! nvml-wrapper loads the library. Calls use its function pointers rather than its methods: those lack functions and
//! scopes, do not know return codes above 22, and panic if an old driver lacks a symbol. The library is never shut down
//! or unloaded: this runs in a child that exits anyway, and both calls can hang or crash with a faulty driver.

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

/// Reads all values of all GPUs with the NVML library at `library`. `nvlink_errors` adds the error counters of each
/// NVLink.
///
/// # Errors
/// Returns an error if the library cannot be loaded or initialised, or if the GPUs cannot be counted. Never returns an
/// empty list in these cases.
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

/// Reads each GPU in a thread of its own: some calls take milliseconds, and run in parallel for different GPUs.
fn gpus(lib: &NvmlLib, count: u32, nvlink_errors: bool) -> Vec<Gpu> {
    let read = |index| device::read(lib, index, count, nvlink_errors);
    if count == 1 {
        return vec![read(0)];
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || read(index))).collect();
        // A panic is a bug in railgate and must not pass for a GPU that cannot be opened, so the whole part fails.
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Formats an error with all of its sources: the loader's text ("No such file …") is the innermost.
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

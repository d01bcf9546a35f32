#![allow(unsafe_code, reason = "the public NVML interface is C")]

//! GPM: samples that a caller holds, and metrics computed from two of them.

use nvml_wrapper_sys::bindings as sys;

use crate::answer::{Device, INVALID_ARGUMENT, Return, SUCCESS, gpu, index_of, put, system};
use crate::load::{self, Done};
use crate::state;

const ARGUMENT_VERSION_MISMATCH: Return = 25;

/// Target of a caller's sample handle: the GPU, the time, and the GPU's totals at that time.
#[derive(Default)]
struct Sample {
    gpu: Option<u32>,
    at: u64,
    done: Done,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpmQueryDeviceSupport(device: Device, out: *mut sys::nvmlGpmSupport_t) -> Return {
    let some = state::enter("nvmlGpmQueryDeviceSupport").is_ok_and(|scenario| !scenario.gpm.is_empty());
    gpu("nvmlGpmQueryDeviceSupport", device, |_| {
        if out.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so valid by NVML's contract.
        let support = unsafe { &mut *out };
        if support.version != 1 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        support.isSupportedDevice = some.into();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpmSampleAlloc(out: *mut sys::nvmlGpmSample_t) -> Return {
    let sample = Box::into_raw(Box::<Sample>::default());
    // SAFETY: the caller passes null or a valid `out`.
    system("nvmlGpmSampleAlloc", |_| unsafe { put(out, sample.cast()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpmSampleFree(sample: sys::nvmlGpmSample_t) -> Return {
    if !sample.is_null() {
        // SAFETY: NVML requires a handle from `nvmlGpmSampleAlloc`.
        drop(unsafe { Box::from_raw(sample.cast::<Sample>()) });
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpmSampleGet(device: Device, sample: sys::nvmlGpmSample_t) -> Return {
    gpu("nvmlGpmSampleGet", device, |_| {
        if sample.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let (gpu, at) = (index_of(device), load::now());
        let done = gpu.map(|gpu| load::done(gpu, at)).unwrap_or_default();
        // SAFETY: not null, and NVML requires a handle from `nvmlGpmSampleAlloc`.
        unsafe { *sample.cast::<Sample>() = Sample { gpu, at, done } };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpmMetricsGet(out: *mut sys::nvmlGpmMetricsGet_t) -> Return {
    system("nvmlGpmMetricsGet", |scenario| {
        if out.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so valid by NVML's contract.
        let query = unsafe { &mut *out };
        if query.version != 1 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let taken = |sample: sys::nvmlGpmSample_t| {
            // SAFETY: a handle that is not null comes from `nvmlGpmSampleAlloc`, as NVML requires.
            unsafe { sample.cast::<Sample>().as_ref() }.filter(|sample| sample.gpu.is_some())
        };
        // Two different samples of the same GPU, both taken.
        let (Some(one), Some(two)) = (taken(query.sample1), taken(query.sample2)) else {
            return Err(INVALID_ARGUMENT);
        };
        if query.sample1 == query.sample2 || one.gpu != two.gpu {
            return Err(INVALID_ARGUMENT);
        }
        let passed = load::seconds(one.at, two.at);
        let by_programs = |metric: u32| match two.done.metrics.get(&metric) {
            Some(now) if passed > 0.0 => (now - one.done.metrics.get(&metric).unwrap_or(&0.0)) / passed,
            _ => 0.0,
        };
        let count = usize::try_from(query.numMetrics).unwrap_or(usize::MAX);
        for metric in query.metrics.iter_mut().take(count) {
            match scenario.gpm.get(&metric.metricId) {
                Some(value) => {
                    let value = value + by_programs(metric.metricId);
                    (metric.nvmlReturn, metric.value) = (SUCCESS, value);
                }
                None => metric.nvmlReturn = INVALID_ARGUMENT,
            }
        }
        Ok(())
    })
}

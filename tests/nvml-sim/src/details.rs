#![allow(unsafe_code, reason = "the public NVML interface is C")]

//! The symbols for a GPU's details, after the public header of NVML 13.

use std::ffi::{c_char, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;
use railgate_model::{Gpu, Reading};

use crate::answer::{Device, INVALID_ARGUMENT, NOT_SUPPORTED, Return, gpu, index_of, known, put, put_text};
use crate::load;

const ARGUMENT_VERSION_MISMATCH: Return = 25;

/// Size of the buffer for the GSP firmware version, fixed by NVML.
const GSP_BYTES: c_uint = 64;

/// The first call in a process returns the reasons of the first reading, all further calls those of the second one.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(
    device: Device,
    out: *mut c_ulonglong,
) -> Return {
    gpu("nvmlDeviceGetCurrentClocksThrottleReasons", device, |gpu| {
        let reasons = if crate::state::again(gpu.index) {
            &gpu.details.throttle_reasons_later
        } else {
            &gpu.throttle_reasons
        };
        // SAFETY: the caller passes null or a valid `out`.
        unsafe { put(out, *known(reasons)?) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetEccMode(
    device: Device,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> Return {
    gpu("nvmlDeviceGetEccMode", device, |gpu| {
        let now = *known(&gpu.ecc_enabled)?;
        let next = gpu.details.ecc_pending.known().copied().unwrap_or(now);
        // SAFETY: the caller passes null or valid pointers.
        unsafe { put(current, now.into()).and_then(|()| put(pending, next.into())) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGspFirmwareVersion(device: Device, out: *mut c_char) -> Return {
    gpu("nvmlDeviceGetGspFirmwareVersion", device, |gpu| {
        // SAFETY: NVML requires `out` to have space for `GSP_BYTES`.
        unsafe { put_text(out, GSP_BYTES, known(&gpu.details.gsp)?) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSramEccErrorStatus(
    device: Device,
    out: *mut sys::nvmlEccSramErrorStatus_t,
) -> Return {
    gpu("nvmlDeviceGetSramEccErrorStatus", device, |gpu| {
        let sram = known(&gpu.details.sram)?;
        if out.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so valid by NVML's contract.
        let status = unsafe { &mut *out };
        if status.version >> 24 != 1 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        status.volatileUncSecDed = sram.volatile_uncorrected;
        status.aggregateUncSecDed = sram.aggregate_uncorrected;
        status.bThresholdExceeded = sram.over_threshold.into();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMarginTemperature(
    device: Device,
    out: *mut sys::nvmlMarginTemperature_t,
) -> Return {
    gpu("nvmlDeviceGetMarginTemperature", device, |gpu| {
        let margin = *known(&gpu.details.margin_c)?;
        if out.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so valid by NVML's contract.
        unsafe { (*out).marginTemperature = margin };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperatureThreshold(
    device: Device,
    threshold: c_uint,
    out: *mut c_uint,
) -> Return {
    gpu("nvmlDeviceGetTemperatureThreshold", device, |gpu| {
        let degrees = match threshold {
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN => {
                &gpu.details.slowdown_c
            }
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX => {
                &gpu.details.memory_max_c
            }
            _ => &Reading::Unsupported,
        };
        // SAFETY: the caller passes null or a valid `out`.
        unsafe { put(out, *known(degrees)?) }
    })
}

#[unsafe(no_mangle)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is fine here"
)]
unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: Device,
    out: *mut sys::nvmlUtilization_t,
) -> Return {
    gpu("nvmlDeviceGetUtilizationRates", device, |gpu| {
        let percent = *known(&gpu.details.utilization)?;
        let at_work = load::at_work(gpu.index).unwrap_or_default();
        // Rounded up, so that any activity of a program is above zero.
        let of = |metric: u32| at_work.metrics.get(&metric).map_or(0, |percent| percent.ceil() as u32);
        // SAFETY: the caller passes null or a valid `out`.
        unsafe { put(out, sys::nvmlUtilization_t { gpu: percent.max(of(1)), memory: of(10) }) }
    })
}

/// Windows of 0.2 s, as many as an H100 keeps. Other kinds of sample are not simulated.
#[unsafe(no_mangle)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is fine here"
)]
unsafe extern "C" fn nvmlDeviceGetSamples(
    device: Device,
    what: sys::nvmlSamplingType_t,
    since_us: u64,
    kind: *mut sys::nvmlValueType_t,
    count: *mut c_uint,
    samples: *mut sys::nvmlSample_t,
) -> Return {
    const WINDOW_US: u64 = 200_000;
    const KEPT: u64 = 71;
    gpu("nvmlDeviceGetSamples", device, |gpu| {
        let percent = *known(&gpu.details.utilization)?;
        if what != sys::nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES {
            return Err(NOT_SUPPORTED);
        }
        if count.is_null() || kind.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let last = load::now() / 1000 / WINDOW_US;
        let first = (since_us / WINDOW_US).max(last.saturating_sub(KEPT));
        let ends = (first + 1..=last).map(|number| number * WINDOW_US).filter(|end| *end > since_us);
        // SAFETY: neither is null, so both are valid by NVML's contract.
        let room = unsafe {
            *kind = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
            *count as usize
        };
        let mut found = 0;
        for (place, end_us) in ends.take(room).enumerate() {
            let of_programs = load::activity(gpu.index, (end_us - WINDOW_US / 2) * 1000).ceil() as u32;
            let sample = sys::nvmlSample_t {
                timeStamp: end_us,
                sampleValue: sys::nvmlValue_t { uiVal: percent.max(of_programs) },
            };
            // SAFETY: the caller's list has room for `count` entries.
            unsafe { samples.add(place).write(sample) };
            found += 1;
        }
        // SAFETY: as above.
        unsafe { *count = found };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetApplicationsClock(
    device: Device,
    clock: c_uint,
    out: *mut c_uint,
) -> Return {
    // SAFETY: the caller passes null or a valid `out`.
    unsafe {
        sm_clock("nvmlDeviceGetApplicationsClock", device, clock, out, |gpu| &gpu.details.app_clock_mhz)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetDefaultApplicationsClock(
    device: Device,
    clock: c_uint,
    out: *mut c_uint,
) -> Return {
    const NAME: &str = "nvmlDeviceGetDefaultApplicationsClock";
    // SAFETY: the caller passes null or a valid `out`.
    unsafe { sm_clock(NAME, device, clock, out, |gpu| &gpu.details.app_clock_default_mhz) }
}

/// # Safety
/// `out` is null or valid for a write.
unsafe fn sm_clock(
    name: &str,
    device: Device,
    clock: c_uint,
    out: *mut c_uint,
    which: fn(&Gpu) -> &Reading<u32>,
) -> Return {
    gpu(name, device, |gpu| match clock {
        // SAFETY: the caller passes null or a valid `out`.
        sys::nvmlClockType_enum_NVML_CLOCK_SM => unsafe { put(out, *known(which(gpu))?) },
        _ => Err(NOT_SUPPORTED),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(
    device: Device,
    out: *mut sys::nvmlGpuFabricInfoV_t,
) -> Return {
    gpu("nvmlDeviceGetGpuFabricInfoV", device, |gpu| {
        let fabric = known(&gpu.details.fabric)?;
        if out.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so valid by NVML's contract.
        let info = unsafe { &mut *out };
        if info.version >> 24 != 3 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let byte = |text: Option<&str>| text.and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(0);
        for (place, into) in info.clusterUuid.iter_mut().enumerate() {
            *into = byte(fabric.cluster.get(2 * place..2 * place + 2));
        }
        info.status = fabric.status;
        info.cliqueId = fabric.clique;
        info.state = u8::try_from(fabric.state).unwrap_or(u8::MAX);
        info.healthMask = fabric.health_mask;
        info.healthSummary = u8::try_from(fabric.health).unwrap_or(u8::MAX);
        Ok(())
    })
}

/// Returns the status that the GPU with the lower index has for the pair.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    one: Device,
    two: Device,
    _caps: c_uint,
    out: *mut c_uint,
) -> Return {
    let (first, second) = (index_of(one), index_of(two));
    let (low, other) = if first <= second { (one, second) } else { (two, first) };
    gpu("nvmlDeviceGetP2PStatus", low, |gpu| {
        let peer = gpu.details.peers.iter().find(|peer| Some(peer.index) == other);
        let status = peer.map_or(&Reading::Unsupported, |peer| &peer.status);
        // SAFETY: the caller passes null or a valid `out`.
        unsafe { put(out, *known(status)?) }
    })
}

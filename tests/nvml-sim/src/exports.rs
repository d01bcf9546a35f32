#![allow(unsafe_code, reason = "the public NVML interface is C")]

//! The symbols, after the public header of NVML 13. Each begins with `state::enter` and writes nothing unless it returns
//! success (lists: also the size that they need).

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;
use railgate_model::{Access, Gpu, PciAddress, Reading, RecoveryAction};

use crate::answer::{
    Device, GPU_IS_LOST, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, RESET_REQUIRED,
    Return, SUCCESS, UNKNOWN, gpu, handle, known, put, put_text, system,
};
use crate::load;

const MIB: u64 = 1 << 20;

/// Defines a symbol without output, for initialisation and shutdown.
macro_rules! plain {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> Return {
            $(let _ = $arg;)*
            system(stringify!($name), |_| Ok(()))
        }
    )*};
}

/// Defines a symbol that returns one number for a GPU.
macro_rules! number {
    ($($name:ident -> $type:ty: $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: Device, out: *mut $type) -> Return {
            let value: fn(&Gpu) -> Result<$type, Return> = $value;
            // SAFETY: the caller passes null or a valid `out`.
            gpu(stringify!($name), device, |gpu| unsafe { put(out, value(gpu)?) })
        }
    )*};
}

/// Defines a symbol that returns one text for a GPU.
macro_rules! text {
    ($($name:ident: $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: Device, out: *mut c_char, length: c_uint) -> Return {
            let value: fn(&Gpu) -> Result<&str, Return> = $value;
            // SAFETY: the caller guarantees space for `length` bytes.
            gpu(stringify!($name), device, |gpu| unsafe { put_text(out, length, value(gpu)?) })
        }
    )*};
}

/// Defines a symbol that returns a current and a pending mode; they are always equal.
macro_rules! mode {
    ($($name:ident: $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: Device, current: *mut c_uint, pending: *mut c_uint) -> Return {
            let value: fn(&Gpu) -> Result<bool, Return> = $value;
            gpu(stringify!($name), device, |gpu| {
                let on = c_uint::from(value(gpu)?);
                // SAFETY: the caller passes null or valid pointers.
                unsafe { put(current, on).and_then(|()| put(pending, on)) }
            })
        }
    )*};
}

/// Defines a symbol that exists and that no GPU supports.
macro_rules! unsupported {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: Device, $($arg: $type),*) -> Return {
            $(let _ = $arg;)*
            gpu(stringify!($name), device, |_| Err(NOT_SUPPORTED))
        }
    )*};
}

plain! {
    nvmlInit_v2();
    nvmlInitWithFlags(flags: c_uint);
    nvmlShutdown();
}

number! {
    nvmlDeviceGetIndex -> c_uint: |gpu| Ok(gpu.index);
    nvmlDeviceGetMinorNumber -> c_uint: |gpu| known(&gpu.minor).copied();
    nvmlDeviceGetPowerUsage -> c_uint: |gpu| {
        let rest = *known(&gpu.power_w)?;
        Ok(thousand(load::at_work(gpu.index).map_or(rest, |work| work.power_w)))
    };
    nvmlDeviceGetEnforcedPowerLimit -> c_uint: |gpu| Ok(thousand(*known(&gpu.power_limit_w)?));
    nvmlDeviceGetPowerManagementLimit -> c_uint: |gpu| Ok(thousand(*known(&gpu.power_limit_w)?));
    nvmlDeviceGetTotalEnergyConsumption -> c_ulonglong: |gpu| {
        let done = load::done(gpu.index, load::now());
        let at_rest = done.rest_s * gpu.power_w.known().unwrap_or(&0.0);
        Ok(long_thousand(*known(&gpu.energy_j)? + done.joules + at_rest))
    };
    nvmlDeviceGetCurrentClocksEventReasons -> c_ulonglong: |gpu| known(&gpu.throttle_reasons).copied();
    nvmlDeviceGetCurrPcieLinkGeneration -> c_uint: |gpu| known(&gpu.pcie_gen).copied();
    nvmlDeviceGetCurrPcieLinkWidth -> c_uint: |gpu| known(&gpu.pcie_width).copied();
    nvmlDeviceGetMaxPcieLinkGeneration -> c_uint: |gpu| known(&gpu.details.pcie_max_gen).copied();
    nvmlDeviceGetMaxPcieLinkWidth -> c_uint: |gpu| known(&gpu.details.pcie_max_width).copied();
    nvmlDeviceGetPowerManagementDefaultLimit -> c_uint:
        |gpu| Ok(thousand(*known(&gpu.details.power_default_w)?));
    nvmlDeviceGetPcieReplayCounter -> c_uint: |gpu| Ok(cut(*known(&gpu.pcie_replays)?));
    nvmlDeviceGetPersistenceMode -> c_uint: |gpu| known(&gpu.persistence).map(|on| (*on).into());
}

text! {
    nvmlDeviceGetUUID: |gpu| known(&gpu.uuid).map(String::as_str);
    nvmlDeviceGetSerial: |gpu| known(&gpu.serial).map(String::as_str);
    nvmlDeviceGetName: |gpu| known(&gpu.name).map(String::as_str);
    nvmlDeviceGetVbiosVersion: |gpu| known(&gpu.vbios).map(String::as_str);
    nvmlDeviceGetInforomImageVersion: |gpu| known(&gpu.details.inforom).map(String::as_str);
}

mode! {
    nvmlDeviceGetMigMode: |gpu| known(&gpu.mig).copied();
}

unsupported! {
    nvmlDeviceGetMemoryErrorCounter(error: c_uint, counter: c_uint, location: c_uint, out: *mut c_ulonglong);
    nvmlDeviceGetRetiredPages(cause: c_uint, count: *mut c_uint, addresses: *mut c_ulonglong);
    nvmlDeviceGetRetiredPagesPendingStatus(out: *mut c_uint);
    nvmlDeviceGetMaxClockInfo(clock: c_uint, out: *mut c_uint);
    nvmlDeviceGetNvLinkErrorCounter(link: c_uint, counter: c_uint, out: *mut c_ulonglong);
    nvmlDeviceGetAccountingMode(out: *mut c_uint);
}

/// # Safety
/// Takes no pointer; the result is static.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: Return) -> *const c_char {
    let text: &CStr = match code {
        SUCCESS => c"Success",
        NOT_SUPPORTED => c"Not Supported",
        GPU_IS_LOST => c"GPU is lost",
        _ => c"Simulated error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(out: *mut c_char, length: c_uint) -> Return {
    // SAFETY: the caller guarantees space for `length` bytes.
    system("nvmlSystemGetDriverVersion", |scenario| unsafe { put_text(out, length, &scenario.driver) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(out: *mut c_char, length: c_uint) -> Return {
    // SAFETY: as above.
    system("nvmlSystemGetNVMLVersion", |scenario| unsafe { put_text(out, length, &scenario.nvml) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(out: *mut c_int) -> Return {
    // SAFETY: the caller passes null or a valid `out`.
    system("nvmlSystemGetCudaDriverVersion_v2", |_| unsafe { put(out, 13_000) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(out: *mut c_uint) -> Return {
    // SAFETY: the caller passes null or a valid `out`.
    system("nvmlDeviceGetCount_v2", |scenario| unsafe { put(out, length(scenario.gpus.len())) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut Device) -> Return {
    system("nvmlDeviceGetHandleByIndex_v2", |scenario| {
        let index_here = usize::try_from(index).map_err(|_| INVALID_ARGUMENT)?;
        let gpu = scenario.gpus.get(index_here).ok_or(INVALID_ARGUMENT)?;
        match gpu.access {
            // SAFETY: the caller passes null or a valid `out`.
            Access::Ok | Access::ResetRequired(_) => unsafe { put(out, handle(index)) },
            Access::Lost(_) => Err(GPU_IS_LOST),
            Access::Failed(_) => Err(UNKNOWN),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: *mut Device) -> Return {
    system("nvmlDeviceGetHandleByUUID", |scenario| {
        if uuid.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and NVML requires a NUL-terminated text.
        let uuid = unsafe { CStr::from_ptr(uuid) }.to_string_lossy();
        let found = scenario.gpus.iter().position(|gpu| gpu.uuid.known().is_some_and(|own| *own == uuid));
        // SAFETY: the caller passes null or a valid `out`.
        unsafe { put(out, handle(length(found.ok_or(NOT_FOUND)?))) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(address: *const c_char, out: *mut Device) -> Return {
    system("nvmlDeviceGetHandleByPciBusId_v2", |scenario| {
        if address.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and NVML requires a NUL-terminated text.
        let address = unsafe { CStr::from_ptr(address) }.to_string_lossy();
        let address: PciAddress = address.parse().map_err(|_| INVALID_ARGUMENT)?;
        let found = scenario.gpus.iter().position(|gpu| gpu.pci.known() == Some(&address));
        // SAFETY: the caller passes null or a valid `out`.
        unsafe { put(out, handle(length(found.ok_or(NOT_FOUND)?))) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, out: *mut sys::nvmlPciInfo_t) -> Return {
    gpu("nvmlDeviceGetPciInfo_v3", device, |gpu| {
        let place = known(&gpu.pci)?;
        let (bus, slot) = (place.bus, place.device);
        let info = sys::nvmlPciInfo_t {
            busIdLegacy: characters(&format!("{:04X}:{bus:02X}:{slot:02X}.0", place.domain)),
            domain: place.domain,
            bus: bus.into(),
            device: slot.into(),
            pciDeviceId: 0x2330_10de,
            pciSubSystemId: 0x16c1_10de,
            busId: characters(&format!("{:08X}:{bus:02X}:{slot:02X}.0", place.domain)),
        };
        // SAFETY: the caller passes null or a valid `out`.
        unsafe { put(out, info) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, out: *mut sys::nvmlMemory_v2_t) -> Return {
    const ARGUMENT_VERSION_MISMATCH: Return = 25;
    gpu("nvmlDeviceGetMemoryInfo_v2", device, |gpu| {
        if matches!(gpu.access, Access::ResetRequired(_)) {
            return Err(RESET_REQUIRED);
        }
        if out.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null; NVML requires the caller to set the version, and nothing else is read.
        let version = unsafe { (&raw const (*out).version).read() };
        if version != 0x0200_0028 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let memory = known(&gpu.memory)?;
        let used_mib = memory.used_mib + load::at_work(gpu.index).map_or(0, |work| work.memory_mib);
        let (total, used) = (memory.total_mib * MIB, used_mib * MIB);
        let free = total.saturating_sub(used);
        // SAFETY: the caller passes null or a valid `out`.
        unsafe { put(out, sys::nvmlMemory_v2_t { version, total, reserved: 0, free, used }) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: Device,
    error: c_uint,
    counter: c_uint,
    out: *mut c_ulonglong,
) -> Return {
    gpu("nvmlDeviceGetTotalEccErrors", device, |gpu| {
        let count = match (error, counter) {
            (0, 0) => known(&gpu.ecc.volatile_corrected)?,
            (1, 0) => known(&gpu.ecc.volatile_uncorrected)?,
            (1, 1) => known(&gpu.ecc.aggregate_uncorrected)?,
            (0, 1) => &0,
            _ => return Err(INVALID_ARGUMENT),
        };
        // SAFETY: the caller passes null or a valid `out`.
        unsafe { put(out, *count) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    device: Device,
    correctable: *mut c_uint,
    uncorrectable: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> Return {
    gpu("nvmlDeviceGetRemappedRows", device, |gpu| {
        let rows = known(&gpu.row_remap)?;
        // SAFETY: the caller passes null or valid pointers.
        unsafe {
            put(correctable, rows.correctable)?;
            put(uncorrectable, rows.uncorrectable)?;
            put(pending, rows.pending.into())?;
            put(failed, rows.failed.into())
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperature(device: Device, sensor: c_uint, out: *mut c_uint) -> Return {
    gpu("nvmlDeviceGetTemperature", device, |gpu| match sensor {
        // SAFETY: the caller passes null or a valid `out`.
        0 => unsafe {
            let rest = *known(&gpu.temperature_c)?;
            put(out, load::at_work(gpu.index).map_or(rest, |work| work.temperature_c))
        },
        _ => Err(INVALID_ARGUMENT),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetClockInfo(device: Device, clock: c_uint, out: *mut c_uint) -> Return {
    gpu("nvmlDeviceGetClockInfo", device, |gpu| match clock {
        // SAFETY: the caller passes null or a valid `out`.
        sys::nvmlClockType_enum_NVML_CLOCK_SM => unsafe {
            let rest = *known(&gpu.sm_clock_mhz)?;
            put(out, load::at_work(gpu.index).map_or(rest, |work| work.clock_mhz))
        },
        _ => Err(NOT_SUPPORTED),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkState(device: Device, link: c_uint, out: *mut c_uint) -> Return {
    gpu("nvmlDeviceGetNvLinkState", device, |gpu| {
        let link = gpu.nvlinks.iter().find(|known| known.link == link).ok_or(INVALID_ARGUMENT)?;
        // SAFETY: the caller passes null or a valid `out`.
        unsafe { put(out, (*known(&link.up)?).into()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: Device,
    count: c_int,
    values: *mut sys::nvmlFieldValue_t,
) -> Return {
    gpu("nvmlDeviceGetFieldValues", device, |gpu| {
        let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
        if values.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        for place in 0..count {
            // SAFETY: the caller passes an array of `count` values.
            let value = unsafe { &mut *values.add(place) };
            value.nvmlReturn = match field(gpu, value.fieldId, value.scopeId) {
                Ok((kind, number)) => {
                    value.valueType = kind;
                    value.value = sys::nvmlValue_t { ullVal: number };
                    SUCCESS
                }
                Err(code) => code,
            };
        }
        Ok(())
    })
}

/// Data that programs have moved over NVLink, in KiB. `metric` is the GPM metric of its rate in MiB per second.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is fine here"
)]
fn moved_kib(gpu: &Gpu, metric: u32) -> u64 {
    let done = load::done(gpu.index, load::now());
    done.metrics.get(&metric).map_or(0, |mib| (mib * 1024.0) as u64)
}

/// Type and value of a field (`nvmlDeviceGetFieldValues`).
fn field(gpu: &Gpu, id: c_uint, scope: c_uint) -> Result<(c_uint, u64), Return> {
    const ALL: c_uint = c_uint::MAX;
    let int = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
    let long = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    match (id, scope) {
        (138, ALL) => Ok((long, *known(&gpu.nvlink_tx_kib)? + moved_kib(gpu, 61))),
        (139, ALL) => Ok((long, *known(&gpu.nvlink_rx_kib)? + moved_kib(gpu, 60))),
        (29, _) => Ok((long, known(&gpu.details.retired_pages)?.single_bit.into())),
        (30, _) => Ok((long, known(&gpu.details.retired_pages)?.double_bit.into())),
        (31, _) => Ok((int, known(&gpu.details.retired_pages)?.pending.into())),
        (38, _) => Ok((long, *known(&gpu.details.nvlink_errors.crc)?)),
        (52, _) => Ok((long, *known(&gpu.details.nvlink_errors.replays)?)),
        (59, _) => Ok((long, *known(&gpu.details.nvlink_errors.recoveries)?)),
        (161..=163, link) => {
            let links = &gpu.details.nvlink_errors.links;
            let errors = links.iter().find(|errors| errors.link == link).ok_or(NOT_SUPPORTED)?;
            let count = match id {
                161 => &errors.replays,
                162 => &errors.recoveries,
                _ => &errors.crc,
            };
            let growth = crate::state::growth(gpu.index);
            let before = if growth > 0 { crate::state::read_before(gpu.index, id, link) } else { 0 };
            Ok((long, *known(count)? + growth * before))
        }
        (82, _) => Ok((int, (*known(&gpu.details.memory_c)?).into())),
        // Field numbers of drivers from 580.82 on.
        (270, _) => Ok((long, *known(&gpu.details.hw_thermal_ns)?)),
        (271, _) => Ok((long, *known(&gpu.details.power_brake_ns)?)),
        (142, _) => Ok((long, known(&gpu.row_remap)?.correctable.into())),
        (143, _) => Ok((long, known(&gpu.row_remap)?.uncorrectable.into())),
        (144, _) => Ok((long, known(&gpu.row_remap)?.pending.into())),
        (145, _) => Ok((long, known(&gpu.row_remap)?.failed.into())),
        (230, _) => Ok((
            int,
            match known(&gpu.recovery_action)? {
                RecoveryAction::None => 0,
                RecoveryAction::GpuReset => 1,
                RecoveryAction::NodeReboot => 2,
                RecoveryAction::DrainP2p => 3,
                RecoveryAction::DrainAndReset => 4,
                RecoveryAction::Other(other) => (*other).into(),
            },
        )),
        _ => Err(NOT_SUPPORTED),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    infos: *mut sys::nvmlProcessInfo_t,
) -> Return {
    gpu("nvmlDeviceGetComputeRunningProcesses_v3", device, |gpu| {
        let all: Vec<sys::nvmlProcessInfo_t> = known(&gpu.processes)?
            .iter()
            .map(|process| sys::nvmlProcessInfo_t {
                pid: process.pid,
                usedGpuMemory: match &process.used_mib {
                    Reading::Known(mib) => mib * MIB,
                    Reading::Unsupported | Reading::Failed(_) => u64::MAX,
                },
                gpuInstanceId: u32::MAX,
                computeInstanceId: u32::MAX,
            })
            .collect();
        // SAFETY: the caller passes a list and its size.
        unsafe { list(&all, count, infos) }
    })
}

/// All simulated processes are compute processes, so this list is empty.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    infos: *mut sys::nvmlProcessInfo_t,
) -> Return {
    // SAFETY: the caller passes a list and its size.
    gpu("nvmlDeviceGetGraphicsRunningProcesses_v3", device, |_| unsafe { list(&[], count, infos) })
}

/// NVML's protocol for lists: if the space does not suffice (zero asks for the size), the answer is the required size.
///
/// # Safety
/// `count` is valid, and `infos` is null or has space for `count` entries.
unsafe fn list(
    all: &[sys::nvmlProcessInfo_t],
    count: *mut c_uint,
    infos: *mut sys::nvmlProcessInfo_t,
) -> Result<(), Return> {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null.
    let room = unsafe { count.replace(length(all.len())) };
    if room < length(all.len()) {
        return Err(INSUFFICIENT_SIZE);
    }
    if infos.is_null() && !all.is_empty() {
        return Err(INVALID_ARGUMENT);
    }
    if !all.is_empty() {
        // SAFETY: the space for all entries has just been checked.
        unsafe { infos.copy_from_nonoverlapping(all.as_ptr(), all.len()) };
    }
    Ok(())
}

fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    // The last byte stays NUL.
    for (place, byte) in out.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *place = byte.cast_signed();
    }
    out
}

fn length(count: usize) -> c_uint {
    c_uint::try_from(count).unwrap_or(c_uint::MAX)
}

fn cut(value: u64) -> c_uint {
    c_uint::try_from(value).unwrap_or(c_uint::MAX)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is fine here"
)]
fn thousand(value: f64) -> c_uint {
    (value * 1000.0).round() as c_uint
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is fine here"
)]
fn long_thousand(value: f64) -> c_ulonglong {
    (value * 1000.0).round() as c_ulonglong
}
